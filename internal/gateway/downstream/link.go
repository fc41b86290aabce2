package downstream

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/sock"
)

// link is what a *tls.Conn reads from and writes to. During the handshake, and for who serves another protocol, it is the listener's connection. When
// [link.own] was called it never waits for something to read, where the system tells when there is: a *tls.Conn goes on behind an error that is
// temporary. For writing it does wait, and time-outs that are no longer wanted are met here: one that a *tls.Conn saw would be its last.
type link struct {
	net.Conn          // as the listener gave it
	near     net.Conn // the innermost

	// Of the handshake's goroutine.
	turns chan struct{} // has a place for each handshake that may compute; nil: there is none any more
	until time.Time     // of the handshake
	wrote bool          // something, in the handshake

	// Of who reads, one at a time.
	fd   uintptr
	long bool // what comes is part of something long
	dry  bool // nothing is to be asked of the system

	raw     syscall.RawConn // nil: reading waits
	bare    *sock.Writer    // of raw
	writing *Deadline       // nil: nobody has called own

	mu      sync.Mutex // guards what follows: a *tls.Conn that is read may write too
	rest    net.Buffers
	vec     [1][]byte
	out     []byte // what was gathered
	pooled  *[gatherBuffer]byte
	gathers bool
	parting bool  // what is written is the last, and is not waited for
	broken  error // a write failed, so that nothing can follow
}

// later says that there is nothing to read yet, in the one way that a *tls.Conn takes for no end.
type later struct{}

func (later) Error() string   { return "nothing to read yet" }
func (later) Timeout() bool   { return true }
func (later) Temporary() bool { return true }

var errLater error = later{}

// own makes it the link of a connection of ours; raw is nil where reading has to wait.
func (l *link) own(raw syscall.RawConn, bare *sock.Writer, writing *Deadline) {
	l.raw, l.bare, l.writing = raw, bare, writing
}

// NetConn returns the listener's connection.
func (l *link) NetConn() net.Conn { return l.Conn }

// takeTurn waits until a handshake may compute: a flood of them is not to take the processors from the requests.
func (l *link) takeTurn() { l.turns <- struct{}{} }

func (l *link) giveTurn() { <-l.turns }

// Read implements net.Conn.
func (l *link) Read(p []byte) (n int, err error) {
	switch {
	case l.turns != nil:
		l.giveTurn()
		n, err = l.Conn.Read(p)
		l.takeTurn()
		if err == nil && time.Now().After(l.until) {
			err = os.ErrDeadlineExceeded // it has waited for its turn
		}
		return n, err
	case l.raw == nil:
		return l.Conn.Read(p)
	case l.dry:
		return 0, errLater
	case l.long:
		n, err = sock.ReadLong(l.fd, p)
	default:
		n, err = sock.Read(l.fd, p)
	}
	if errors.Is(err, sock.ErrNothing) {
		err = errLater
	}
	return n, err
}

// SetWriteDeadline implements net.Conn. A connection of ours has its own way.
func (l *link) SetWriteDeadline(t time.Time) error {
	if l.writing != nil {
		return nil
	}
	return l.Conn.SetWriteDeadline(t)
}

// Write implements net.Conn.
func (l *link) Write(p []byte) (int, error) {
	switch {
	case l.turns != nil:
		l.giveTurn()
		defer l.takeTurn()
		l.wrote = true
		return l.Conn.Write(p)
	case l.writing == nil:
		return l.Conn.Write(p)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gathers && l.broken == nil {
		if len(l.out)+len(p) > cap(l.out) && len(l.out) > 0 {
			l.send(l.out)
			l.out = l.out[:0]
		}
		if len(p) <= cap(l.out) && l.broken == nil {
			l.out = append(l.out, p...)
			return len(p), nil
		}
	}
	if l.send(p); l.broken != nil {
		return 0, l.broken
	}
	return len(p), nil
}

// gather has what is written kept together until flush.
func (l *link) gather() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pooled = gatherBuffers.Get().(*[gatherBuffer]byte)
	l.out, l.gathers = l.pooled[:0], true
}

// flush writes what was gathered, with one system call if the socket takes it.
func (l *link) flush() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.out) > 0 {
		l.send(l.out)
	}
	gatherBuffers.Put(l.pooled)
	l.pooled, l.out, l.gathers = nil, nil, false
	return l.broken
}

// send writes, and takes down whether that failed. It is for who holds mu.
//
// What is not gathered is no answer: it is what a *tls.Conn has to say of what it reads, other keys that a client wanted above all. For that nobody waits, and no
// time-out would end the wait: a client that wants them time and again, and reads nothing, would hold its connection for as long as it likes.
func (l *link) send(p []byte) {
	if l.broken != nil {
		return
	}
	l.vec[0] = p
	l.rest = l.vec[:]
	var err error
	if l.parting || !l.gathers && l.raw != nil {
		err = l.sendLast()
	} else {
		err = l.sendAll()
	}
	l.broken, l.rest, l.vec[0] = err, nil, nil
}

func (l *link) sendAll() error {
	for {
		var err error
		if l.raw != nil {
			err = l.bare.Write(&l.rest)
		} else {
			_, err = l.rest.WriteTo(l.near)
		}
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) || l.writing.Passed(l.near.SetWriteDeadline) {
			return err
		}
	}
}

var errFull = errors.New("the socket takes no more")

// sendLast writes what the socket takes at once.
func (l *link) sendLast() error {
	if l.raw == nil {
		_ = l.near.SetWriteDeadline(time.Now().Add(refusalPatience))
		_, err := l.rest.WriteTo(l.near)
		return err
	}
	whole := false
	var err error
	if failed := l.raw.Control(func(fd uintptr) { whole, err = l.bare.Now(fd, &l.rest) }); failed != nil {
		return failed
	}
	if err == nil && !whole {
		err = errFull
	}
	return err
}
