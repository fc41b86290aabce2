package downstream

import (
	"net"
	"os"
	"sync"
	"time"
)

// pump reads a connection ahead, on a goroutine of its own, where the system does not tell when the other side leaves: that is seen when a
// read ends. What is read ahead is bounded by one buffer; while that is unread a leave is not noticed.
//
// One goroutine may read and set deadlines; Close and the rest may be called by any.
type pump struct {
	net.Conn
	gone func() // is told that the other side sends no more

	closed  chan struct{}
	closing sync.Once
	some    chan struct{} // has a place: something came
	none    chan struct{} // has a place: all of it was taken

	mu   sync.Mutex
	buf  [readBuffer]byte // guarded by mu, as is what follows; while have is empty it is run's
	have []byte
	err  error

	deadline time.Time // the reader's
}

func newPump(nc net.Conn, gone func()) *pump {
	return &pump{Conn: nc, gone: gone, closed: make(chan struct{}), some: make(chan struct{}, 1), none: make(chan struct{}, 1)}
}

// run reads until the connection ends.
func (p *pump) run() {
	for {
		n, err := p.Conn.Read(p.buf[:])
		if n == 0 && err == nil {
			continue
		}
		p.mu.Lock()
		p.have, p.err = p.buf[:n], err
		p.mu.Unlock()
		select {
		case p.some <- struct{}{}:
		default:
		}
		if err != nil {
			p.gone()
			return
		}
		select {
		case <-p.none:
		case <-p.closed:
			return
		}
	}
}

// Read implements net.Conn.
func (p *pump) Read(b []byte) (int, error) {
	for {
		n, err := p.readNow(b)
		if n > 0 || err != nil {
			return n, err
		}
		var late <-chan time.Time
		if !p.deadline.IsZero() {
			left := time.Until(p.deadline)
			if left <= 0 {
				return 0, os.ErrDeadlineExceeded
			}
			t := time.NewTimer(left)
			defer t.Stop()
			late = t.C
		}
		select {
		case <-p.some:
		case <-p.closed:
			return 0, net.ErrClosed
		case <-late:
			return 0, os.ErrDeadlineExceeded
		}
	}
}

func (p *pump) readNow(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := copy(b, p.have)
	if n == 0 {
		return 0, p.err
	}
	if p.have = p.have[n:]; len(p.have) == 0 && p.err == nil {
		select {
		case p.none <- struct{}{}:
		default:
		}
	}
	return n, nil
}

// SetReadDeadline implements net.Conn. It is for the next Read.
func (p *pump) SetReadDeadline(t time.Time) error {
	p.deadline = t
	return nil
}

// Close implements net.Conn.
func (p *pump) Close() error {
	p.closing.Do(func() { close(p.closed) })
	return p.Conn.Close()
}
