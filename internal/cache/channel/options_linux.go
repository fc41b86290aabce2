package channel

import (
	"time"

	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
)

// Handler is what a Server serves.
type Handler interface {
	// Frame takes one message, which is the handler's. Frames of one connection come one after another, those of several at once.
	Frame(c *Conn, h wire.Header, m wire.Message)
	// Gone says that the connection has ended, once, after its last Frame.
	Gone(c *Conn)
}

// Options are what a Server is made from. The zero value of each but Path, Epoch and Handler is its default.
type Options struct {
	// Path is the socket's. A file that nobody listens at is replaced.
	Path    string
	Epoch   uint64
	Handler Handler
	// Welcome is what Hello is answered with; its Version is set here.
	Welcome wire.Welcome
	// UIDs are the users who may connect, besides the process's own and none else if it is empty.
	UIDs []uint32
	// Conns bounds connections. 512: sixteen instances of eight ranks, with room for as many crashes.
	Conns int
	// Greeting is how long a connection may take to become part of a session, what it is told meanwhile included. 5 s.
	Greeting time.Duration
	// Queue bounds the bytes of answers that wait to be read. 8 MiB: two of the longest frames.
	Queue int
}

func (o Options) withDefaults() Options {
	if o.Conns == 0 {
		o.Conns = 512
	}
	if o.Greeting == 0 {
		o.Greeting = 5 * time.Second
	}
	if o.Queue == 0 {
		o.Queue = 2 * wire.MaxFrame
	}
	return o
}
