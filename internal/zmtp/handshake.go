package zmtp

import (
	"context"
	"errors"
	"net"
	"slices"
	"time"

	"github.com/perigee-llm/perigee/internal/zmtp/wire"
)

func newConn(ctx context.Context, nc net.Conn, typ Type, o Options) (*Conn, error) {
	c := &Conn{nc: nc, typ: typ, opt: o, buf: make([]byte, o.ReadBuffer), handshake: true}
	if a := nc.RemoteAddr(); a != nil {
		c.peer.Addr = a.String()
	}
	tune(nc)
	if typ == Sub || typ == Dealer {
		giveUpEarly(nc)
	}
	stop := context.AfterFunc(ctx, func() { c.fail(context.Cause(ctx)) })
	err := c.shakeHands()
	if !stop() && err == nil {
		err = context.Cause(ctx) // it ended just now, and took the connection with it
	}
	if err != nil {
		broken := c.fail(err)
		return nil, &HandshakeError{c.peer.Addr, errors.Unwrap(broken)}
	}
	c.handshake = false
	return c, nil
}

// shakeHands sends a greeting and READY, reads the peer's, and subscribes. All of it has opt.Handshake.
func (c *Conn) shakeHands() error {
	if c.opt.Handshake > 0 {
		c.deadline = time.Now().Add(c.opt.Handshake)
		defer func() { c.deadline = time.Time{} }()
	}
	if err := c.hello(wire.AppendGreeting(nil)); err != nil {
		return err
	}
	if err := c.greeting(); err != nil {
		return err
	}
	ready := wire.AppendReady(nil, wire.Properties{SocketType: string(c.typ), Identity: c.opt.Identity})
	if err := c.hello(ready); err != nil {
		return err
	}
	if err := c.ready(); err != nil {
		return err
	}
	if c.typ != Sub {
		return nil
	}
	var subscriptions []byte
	for _, topic := range c.opt.Topics {
		subscriptions = wire.AppendSubscribe(subscriptions, c.peer.Minor, topic, false)
	}
	return c.hello(subscriptions)
}

// hello writes a part of the handshake, within its deadline.
func (c *Conn) hello(b []byte) error {
	if err := c.nc.SetWriteDeadline(c.deadline); err != nil {
		return c.network(err)
	}
	if _, err := c.nc.Write(b); err != nil {
		return c.network(stalled(err))
	}
	return nil
}

// greeting reads the peer's, and gives up with the first byte that does not fit.
func (c *Conn) greeting() error {
	for c.w-c.r < wire.GreetingSize {
		if err := wire.CheckPrefix(c.buf[c.r:c.w]); err != nil {
			return err
		}
		if err := c.handshakeMore(); err != nil {
			return err
		}
	}
	minor, err := wire.ParseGreeting((*[wire.GreetingSize]byte)(c.buf[c.r:]))
	c.peer.Minor = minor
	c.r += wire.GreetingSize
	return err
}

// ready reads the peer's READY.
func (c *Conn) ready() error {
	body, err := c.firstCommand()
	if err != nil {
		return err
	}
	name, data, err := wire.ParseCommand(body)
	if err != nil {
		return err
	}
	switch string(name) {
	case wire.Failure:
		return &RejectedError{wire.ParseFailure(data)}
	case wire.Ready:
	default:
		return wire.ErrCommand
	}
	p, err := wire.ParseReady(data)
	if err != nil {
		return err
	}
	if !slices.Contains(fits[c.typ], p.SocketType) {
		return &IncompatibleError{c.typ, Type(p.SocketType)}
	}
	c.peer.Type, c.peer.Identity = Type(p.SocketType), p.Identity
	return nil
}

// firstCommand reads the frame after the greeting, which must be a command.
func (c *Conn) firstCommand() ([]byte, error) {
	for {
		h, n, err := wire.ParseHeader(c.buf[c.r:c.w])
		switch {
		case err != nil:
			return nil, err
		case n > 0 && !h.Command:
			return nil, wire.ErrCommand
		case n > 0 && h.Size > maxCommand:
			return nil, ErrAbuse
		case n > 0 && c.w-c.r >= n+int(h.Size):
			body := c.buf[c.r+n : c.r+n+int(h.Size)]
			c.r += n + int(h.Size)
			return body, nil
		}
		if err := c.handshakeMore(); err != nil {
			return nil, err
		}
	}
}

func (c *Conn) handshakeMore() error {
	return stalled(c.more(false))
}
