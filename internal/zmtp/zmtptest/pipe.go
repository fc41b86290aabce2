// Package zmtptest is a network in memory for tests: connections with buffers and deadlines, which a test can cut or silence. Inside
// of synctest.Test a goroutine that waits for one counts as waiting.
//
// It promises to start no goroutine, and that nothing is read before it was written. net.Pipe has no buffer, so that two peers who
// both begin by writing, as ZMTP's do, would wait for each other for ever.
package zmtptest

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// window is what one direction holds before a write waits, in bytes: about what a small socket buffer does.
const window = 64 << 10

// Conn is one end of a connection. All methods may be called at once.
type Conn struct {
	in, out     *half
	local, peer Addr
}

var _ net.Conn = (*Conn)(nil)

// Addr is an address in memory.
type Addr string

// Network returns "memory".
func (Addr) Network() string  { return "memory" }
func (a Addr) String() string { return string(a) }

// Pipe returns both ends of a new connection.
func Pipe() (a, b *Conn) { return pipe("a", "b") }

func pipe(a, b Addr) (*Conn, *Conn) {
	ab, ba := newHalf(), newHalf()
	return &Conn{in: ba, out: ab, local: a, peer: b}, &Conn{in: ab, out: ba, local: b, peer: a}
}

// half is one direction.
type half struct {
	mu      sync.Mutex
	changed chan struct{} // closed and made anew with each change
	buf     []byte
	limit   int64 // bytes that may still pass before the cut; -1: no cut
	lost    bool  // what is written vanishes
	wErr    error // of writes
	rErr    error // of reads, once buf is empty
	read    time.Time
	write   time.Time
}

func newHalf() *half { return &half{changed: make(chan struct{}), limit: -1} }

func (h *half) change(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
	close(h.changed)
	h.changed = make(chan struct{})
}

// wait waits for a change or the deadline. It is called with the lock, and returns with it.
func (h *half) wait(deadline time.Time) {
	changed := h.changed
	h.mu.Unlock()
	defer h.mu.Lock()
	if deadline.IsZero() {
		<-changed
		return
	}
	t := time.NewTimer(time.Until(deadline))
	defer t.Stop()
	select {
	case <-changed:
	case <-t.C:
	}
}

func over(deadline time.Time) bool { return !deadline.IsZero() && !time.Now().Before(deadline) }

// Read reads what there is, at least one byte.
func (c *Conn) Read(p []byte) (int, error) {
	h := c.in
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case h.rErr == net.ErrClosed:
			return 0, h.rErr
		case over(h.read):
			return 0, os.ErrDeadlineExceeded
		case len(h.buf) > 0:
			n := copy(p, h.buf)
			h.buf = h.buf[n:]
			close(h.changed)
			h.changed = make(chan struct{})
			return n, nil
		case h.rErr != nil:
			return 0, h.rErr
		}
		h.wait(h.read)
	}
}

// Write writes all of p, and waits while the other end does not read.
func (c *Conn) Write(p []byte) (n int, err error) {
	h := c.out
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case h.wErr != nil:
			return n, h.wErr
		case over(h.write):
			return n, os.ErrDeadlineExceeded
		case len(p) == n:
			return n, nil
		case h.lost:
			return len(p), nil
		case len(h.buf) < window:
			n += h.pass(p[n:])
			continue
		}
		h.wait(h.write)
	}
}

// pass takes some bytes, with the lock, and cuts the connection where that was asked for.
func (h *half) pass(p []byte) int {
	n := min(len(p), window-len(h.buf))
	if h.limit >= 0 {
		n = min(n, int(h.limit))
		h.limit -= int64(n)
		if h.limit == 0 {
			h.wErr, h.rErr = io.ErrClosedPipe, io.EOF
		}
	}
	h.buf = append(h.buf, p[:n]...)
	close(h.changed)
	h.changed = make(chan struct{})
	return n
}

// Close ends both directions: the other end reads what is left, then io.EOF.
func (c *Conn) Close() error {
	c.in.change(func() { c.in.rErr, c.in.wErr = net.ErrClosed, io.ErrClosedPipe })
	c.out.change(func() {
		if c.out.wErr = net.ErrClosed; c.out.rErr == nil {
			c.out.rErr = io.EOF
		}
	})
	return nil
}

// CutAfter ends what this end sends after n more bytes: the other end then reads io.EOF, and writes here fail.
func (c *Conn) CutAfter(n int) {
	c.out.change(func() {
		if c.out.limit = int64(n); n == 0 {
			c.out.wErr, c.out.rErr = io.ErrClosedPipe, io.EOF
		}
	})
}

// Silence has everything vanish that either end writes from now on, without an error, as if the network in between were gone.
func (c *Conn) Silence() {
	for _, h := range []*half{c.in, c.out} {
		h.change(func() { h.lost = true })
	}
}

// LocalAddr returns this end's address.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns the other end's address.
func (c *Conn) RemoteAddr() net.Addr { return c.peer }

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

// SetReadDeadline also ends a Read that waits.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.in.change(func() { c.in.read = t })
	return nil
}

// SetWriteDeadline also ends a Write that waits.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.out.change(func() { c.out.write = t })
	return nil
}
