package upstream

import (
	"net"
	"sync"
	"syscall"

	"github.com/perigee-llm/perigee/internal/gateway/sock"
)

// outgoing is what a request is sent with. A connection has one only until its request was written: kept beside a thousand idle ones it would be memory that each
// request meets cold.
type outgoing struct {
	head  []byte      // of the request
	parts [][]byte    // head and body, taken out as they are written
	rest  net.Buffers // of parts
	bare  sock.Writer
	of    Pieces // the body, if it is one that is told
}

var outgoings = sync.Pool{New: func() any { return new(outgoing) }}

// The memory for a head, in bytes, and for parts, that is kept for another request.
const keptHead, keptParts = 4 << 10, 64

// takeOutgoing gets what a request is sent with over a connection; raw may be nil.
func takeOutgoing(raw syscall.RawConn) *outgoing {
	o := outgoings.Get().(*outgoing)
	if raw != nil {
		o.bare.Of(raw)
	}
	return o
}

// done gives it back. Nobody writes any more.
func (o *outgoing) done() {
	o.bare.Of(nil)
	o.rest, o.of = nil, nil
	if cap(o.head) > keptHead || cap(o.parts) > keptParts {
		return
	}
	clear(o.parts[:cap(o.parts)])
	outgoings.Put(o)
}
