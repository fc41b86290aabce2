package upstream

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/sock"
)

const (
	// patience is how long an engine's host may acknowledge nothing of what it was sent. One that vanished without a word, by its power or its
	// network, would otherwise take requests on each connection that is kept to it, and have each of them wait for the whole time of a request. In
	// ten seconds TCP has sent five times over a network that loses packets; a switch that comes back takes as long at most. The system
	// counts an engine that takes nothing of a long body for so long as the same, and nobody misses that one either.
	patience = 10 * time.Second
	// While nothing is sent, because an engine computes or a stream waits, nothing would have to be acknowledged: after silence a probe is sent.
	// So a vanished host is noticed within 20 s.
	probeAfter, probeEvery = 10 * time.Second, 5 * time.Second
)

// unread bounds what an engine's socket holds of an answer that its client does not read, in bytes, and with that how far an engine is ahead of its client: what is on
// its way through a data centre's network at a gigabyte a second.
const unread = 256 << 10

// dialer returns what opens connections to engines.
func dialer() *net.Dialer {
	return &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: probeAfter, Interval: probeEvery, Count: int(patience / probeEvery)},
		ControlContext: func(_ context.Context, _, _ string, c syscall.RawConn) error {
			var err error
			if e := c.Control(func(fd uintptr) { err = errors.Join(sock.Patience(fd, patience), sock.ReceiveRoom(fd, unread)) }); e != nil {
				return e
			}
			return err
		},
	}
}
