package zmtp

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/perigee-llm/perigee/internal/zmtp/wire"
)

// Peer is what is known of the other side of a connection.
type Peer struct {
	Addr     string // as the network names it; empty for the other side of an ipc endpoint that dialled
	Type     Type
	Identity string // empty if the peer gave none
	Minor    int    // the version that is spoken is 3.Minor
}

// Conn is a connection with one peer, after the handshake. It does not reconnect: see Maintain.
//
// One goroutine at a time may call Receive, SetDeadline and Buffered; Send, Peer and Close may be called by any, at any time.
// Whoever has it from Dial or New closes it; a Listener closes those that it hands out.
type Conn struct {
	nc   net.Conn
	typ  Type
	opt  Options // with defaults
	peer Peer

	// onSubscribe has the subscriptions that come as commands; nil to pass over them. Set before the first Receive.
	onSubscribe func(prefix []byte, cancel bool) error

	// Touched by the receiver only.
	buf       []byte // of opt.ReadBuffer bytes
	r, w      int    // buf[r:w] was read and not yet used
	deadline  time.Time
	handshake bool      // nothing may be sent meanwhile
	messageBy time.Time // when the message that has begun must have ended; zero: none has, or it never had to be waited for
	pinged    bool      // and nothing was heard since

	write struct {
		sync.Mutex // held across a write, which opt.WriteTime bounds
		buf        []byte
	}
	end struct {
		sync.Mutex // inside of all others
		cause      error
	}
}

// Dial connects to an endpoint and shakes hands, as a Sub or a Dealer. The context bounds the dialling and the handshake; later it
// has no part. Errors: *EndpointError and those of Options, which will not get better; *DialError; *HandshakeError.
func Dial(ctx context.Context, typ Type, endpoint string, o Options) (*Conn, error) {
	network, address, err := split(endpoint, false)
	if err != nil {
		return nil, err
	}
	if o, err = o.withDefaults(); err != nil {
		return nil, err
	}
	return dial(ctx, typ, endpoint, network, address, o)
}

func dial(ctx context.Context, typ Type, endpoint, network, address string, o Options) (*Conn, error) {
	d := o.DialContext
	if d == nil {
		d = (&net.Dialer{KeepAliveConfig: keepAlive}).DialContext
	}
	nc, err := d(ctx, network, address)
	if err != nil {
		return nil, &DialError{endpoint, err}
	}
	return newConn(ctx, nc, typ, o)
}

// New shakes hands over a connection that is there already. It owns nc from then on, and closes it if the handshake fails.
// Errors: those of Options, *HandshakeError.
func New(ctx context.Context, nc net.Conn, typ Type, o Options) (*Conn, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, errors.Join(err, nc.Close())
	}
	return newConn(ctx, nc, typ, o)
}

// Peer tells about the other side.
func (c *Conn) Peer() Peer { return c.peer }

// Buffered returns how many bytes were read from the network and not yet received. 0 means that the next Receive will wait, so that
// it is time to act on what came before.
func (c *Conn) Buffered() int { return c.w - c.r }

// SetDeadline sets the time after which Receive fails with os.ErrDeadlineExceeded; zero means never. If that happens between two
// messages, the connection is as good as before; within a message it is broken.
func (c *Conn) SetDeadline(t time.Time) { c.deadline = t }

// Close ends the connection at once. A Receive or Send that waits returns a *BrokenError with ErrClosed.
func (c *Conn) Close() error {
	c.fail(ErrClosed)
	return nil
}

// Send sends a message of the frames, at least one, which are the caller's again when it returns. It waits while the peer takes
// nothing, at most Options.WriteTime. Calls may overlap. Errors: *BrokenError, ErrNotSending.
func (c *Conn) Send(frames ...[]byte) error {
	if c.typ == Sub {
		return ErrNotSending
	}
	c.write.Lock()
	defer c.write.Unlock()
	c.write.buf = wire.AppendMessage(c.write.buf[:0], frames...)
	err := c.flushLocked(c.write.buf)
	if cap(c.write.buf) > 1<<20 {
		c.write.buf = nil // one long message shall not cost its memory for ever
	}
	return err
}

// flushLocked writes b, with c.write held.
func (c *Conn) flushLocked(b []byte) error {
	if c.opt.WriteTime > 0 {
		_ = c.nc.SetWriteDeadline(time.Now().Add(c.opt.WriteTime)) // fails only where the write fails too
	}
	if _, err := c.nc.Write(b); err != nil {
		return c.fail(stalled(err))
	}
	return nil
}

func (c *Conn) send(b []byte) error {
	c.write.Lock()
	defer c.write.Unlock()
	return c.flushLocked(b)
}

// fail ends the connection for a cause, unless it has ended, and returns what it ended for first.
func (c *Conn) fail(cause error) error {
	c.end.Lock()
	defer c.end.Unlock()
	if c.end.cause == nil {
		c.end.cause = cause
		_ = c.nc.Close() // nothing can be done about it
	}
	return &BrokenError{c.peer.Addr, c.end.cause}
}

// broken returns the error that a connection which has ended gives, or nil.
func (c *Conn) broken() error {
	c.end.Lock()
	defer c.end.Unlock()
	if c.end.cause == nil {
		return nil
	}
	return &BrokenError{c.peer.Addr, c.end.cause}
}

// stalled returns ErrStalled for a deadline that passed, which a caller did not set. ETIMEDOUT is the network's.
func stalled(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return ErrStalled
	}
	return err
}
