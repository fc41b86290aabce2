package zmtp

import (
	"errors"
	"io"
	"os"
	"slices"
	"time"

	"github.com/perigee-llm/perigee/internal/zmtp/wire"
)

// maxCommand bounds a command's bytes. The longest that somebody sends is READY, some 100 bytes; a subscription is as long as its topic.
const maxCommand = 8 << 10

// lastLook is how long a connection that seems silent is read once more. A process that stood still finds its timer run out and the
// answer waiting, and a read after the deadline would not look for it.
const lastLook = 10 * time.Millisecond

// Receive waits for the next message and reads it into m, whose previous content is gone. It allocates nothing once m has grown.
// Errors: *OversizeError, after which the stream goes on; os.ErrDeadlineExceeded, see SetDeadline; otherwise *BrokenError, and
// then each further call returns it too.
func (c *Conn) Receive(m *Message) error {
	m.reset()
	if err := c.broken(); err != nil {
		return err
	}
	c.messageBy = time.Time{}
	over, err := c.receive(m)
	m.cut()
	if err != nil {
		if err == errBetween {
			return os.ErrDeadlineExceeded
		}
		return c.fail(err)
	}
	if over != nil {
		return over
	}
	return nil
}

// receive reads one message. over is not nil once some of it has been skipped.
func (c *Conn) receive(m *Message) (over *OversizeError, err error) {
	for frames := 1; ; frames++ {
		h, err := c.header(frames > 1)
		if err == os.ErrDeadlineExceeded && frames == 1 {
			err = errBetween
		}
		if err != nil {
			return over, err
		}
		switch {
		case over != nil:
			err = c.skip(over, h.Size)
		case frames > c.opt.MaxFrames || h.Size > uint64(c.opt.MaxFrame) || h.Size > uint64(c.opt.MaxMessage-len(m.buf)):
			over = &OversizeError{Size: uint64(len(m.buf)), Frames: frames - 1}
			err = c.skip(over, h.Size)
		default:
			err = c.body(m, int(h.Size))
		}
		if err != nil || !h.More {
			return over, err
		}
	}
}

// header reads up to the next frame of a message, and does what the commands before it ask for.
func (c *Conn) header(inside bool) (wire.Header, error) {
	for {
		h, n, err := wire.ParseHeader(c.buf[c.r:c.w])
		switch {
		case err != nil:
			return h, err
		case n == 0:
			err = c.more(inside)
		case !h.Command:
			c.r += n
			return h, nil
		case h.Size > maxCommand:
			return h, ErrAbuse
		case c.w-c.r < n+int(h.Size):
			err = c.more(inside) // a command is taken whole, so that a deadline does not cut it
		default:
			body := c.buf[c.r+n : c.r+n+int(h.Size)]
			c.r += n + int(h.Size)
			err = c.command(body)
		}
		if err != nil {
			return h, err
		}
	}
}

// command does what a command asks for. Those that nobody knows, and those that are for others, are passed over.
func (c *Conn) command(body []byte) error {
	name, data, err := wire.ParseCommand(body)
	if err != nil {
		return err
	}
	switch string(name) {
	case wire.Ping:
		context, err := wire.PingContext(data)
		if err != nil {
			return err
		}
		return c.send(wire.AppendCommand(nil, wire.Pong, context))
	case wire.Failure:
		return &RejectedError{wire.ParseFailure(data)}
	case wire.Subscribe, wire.Cancel:
		if c.onSubscribe != nil {
			return c.onSubscribe(data, string(name) == wire.Cancel)
		}
	}
	return nil
}

// body appends a frame of n bytes to m. Memory is taken as bytes come, at most twice as much as came: a length is only a claim.
func (c *Conn) body(m *Message, n int) error {
	for {
		k := min(n, c.w-c.r)
		m.buf = append(m.buf, c.buf[c.r:c.r+k]...)
		c.r += k
		if n -= k; n == 0 {
			m.ends = append(m.ends, len(m.buf))
			return nil
		}
		if n < len(c.buf) {
			if err := c.more(true); err != nil {
				return err
			}
			continue
		}
		// What is left is longer than the buffer: around it, without copying.
		if cap(m.buf)-len(m.buf) < n {
			m.buf = slices.Grow(m.buf, min(n, max(len(m.buf), len(c.buf))))
		}
		room := m.buf[len(m.buf):min(cap(m.buf), len(m.buf)+n)]
		k, err := c.read(room, true)
		if err != nil {
			return err
		}
		m.buf = m.buf[:len(m.buf)+k]
		if n -= k; n == 0 {
			m.ends = append(m.ends, len(m.buf))
			return nil
		}
	}
}

// skip throws away a frame of n bytes, and counts it.
func (c *Conn) skip(over *OversizeError, n uint64) error {
	over.Frames++
	over.Size += n // does not wrap: what is skipped is bounded, and n is below 1<<63
	// Frames count too: a peer could send empty ones for ever.
	if over.Size+uint64(over.Frames) > uint64(c.opt.MaxSkip) {
		return ErrAbuse
	}
	for {
		k := min(n, uint64(c.w-c.r))
		c.r += int(k)
		if n -= k; n == 0 {
			return nil
		}
		if err := c.more(true); err != nil {
			return err
		}
	}
}

// more reads into the buffer, at least one byte. inside says that a message has begun.
func (c *Conn) more(inside bool) error {
	// Frames were copied out as far as they came, so that what is moved here is a header or a command that is not whole.
	c.w = copy(c.buf, c.buf[c.r:c.w])
	c.r = 0
	n, err := c.read(c.buf[c.w:], inside || c.w > c.r)
	c.w += n
	return err
}

// errBetween is a deadline that passed before a message began: nothing is lost.
var errBetween = errors.New("zmtp: deadline between messages")

// read reads at least one byte, and keeps all times: the caller's deadline, the message's, and the peer's silence.
func (c *Conn) read(into []byte, inside bool) (int, error) {
	now := time.Now()
	if inside && c.messageBy.IsZero() && c.opt.MessageTime > 0 {
		c.messageBy = now.Add(c.opt.MessageTime)
	}
	silent := c.silence(now)
	last := false // the last look has been taken
	for {
		if err := c.nc.SetReadDeadline(earliest(silent, c.messageBy, c.deadline)); err != nil {
			return 0, c.network(err)
		}
		n, err := c.nc.Read(into)
		if n > 0 {
			c.pinged = false
			return n, nil
		}
		// Not net.Error.Timeout: that is also true of ETIMEDOUT, with which the kernel gives up a peer.
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, c.network(err)
		}
		now = time.Now()
		switch {
		case passed(c.deadline, now):
			return 0, os.ErrDeadlineExceeded
		case passed(c.messageBy, now):
			return 0, ErrStalled
		case !c.pinged:
			if err := c.send(wire.AppendPing(nil)); err != nil {
				return 0, err
			}
			c.pinged = true
			silent = time.Now().Add(c.opt.Timeout)
		case !last:
			last = true
			silent = now.Add(lastLook)
		default:
			return 0, ErrSilent
		}
	}
}

// silence returns when the peer will have been silent for too long, zero for never.
func (c *Conn) silence(now time.Time) time.Time {
	switch {
	case c.handshake || c.peer.Minor < 1 || c.typ == Pub || c.typ == Router || c.opt.Heartbeat < 0 || c.opt.Timeout < 0:
		return time.Time{}
	case c.pinged:
		return now.Add(c.opt.Timeout) // a deadline of the caller came between: it has the time anew
	}
	return now.Add(c.opt.Heartbeat)
}

// network returns why a read failed: the cause for which the connection was ended here, if it was.
func (c *Conn) network(err error) error {
	if broken := c.broken(); broken != nil {
		return errors.Unwrap(broken)
	}
	if err == nil {
		return io.ErrNoProgress
	}
	return err
}

func passed(t, now time.Time) bool { return !t.IsZero() && !now.Before(t) }

// earliest returns the first of the times that are not zero.
func earliest(times ...time.Time) (first time.Time) {
	for _, t := range times {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}
