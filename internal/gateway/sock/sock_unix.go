//go:build unix

package sock

import (
	"errors"
	"io"
	"net"
	"syscall"
)

// Raw returns the system's side of a connection whose bytes are those of its descriptor, or nil: others, as TLS, do more than pass them.
func Raw(nc net.Conn) syscall.RawConn {
	var sc syscall.Conn
	switch c := nc.(type) {
	case *net.TCPConn:
		sc = c
	case *net.UnixConn:
		sc = c
	default:
		return nil
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// ErrNothing means that there is nothing to read yet.
var ErrNothing = errors.New("nothing to read yet")

// Read reads what there is, without waiting: at least a byte, or ErrNothing, io.EOF, or what is wrong with the connection.
func Read(fd uintptr, p []byte) (int, error) { return readSome(fd, p, false) }

// ReadLong is Read for what is part of something long: it tells the scheduler.
func ReadLong(fd uintptr, p []byte) (int, error) { return readSome(fd, p, true) }

func readSome(fd uintptr, p []byte, tell bool) (int, error) {
	for {
		n, errno := read(fd, p, tell)
		switch {
		case errno == syscall.EINTR:
		case errno == syscall.EAGAIN:
			return 0, ErrNothing
		case errno != 0:
			return 0, &net.OpError{Op: "read", Net: "tcp", Err: errno}
		case n <= 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// Quiet tells whether a connection is open with nothing to read. It takes nothing.
func Quiet(fd uintptr) bool {
	for {
		switch _, errno := peek(fd); errno {
		case syscall.EINTR:
		default:
			return errno == syscall.EAGAIN
		}
	}
}

// pieces are how many are written with one call. Nearly every answer has two or three, and a request one for each field that was changed.
const pieces = 8

// Writer writes to one connection, pieces that lie apart with one call. One goroutine may use it at a time. The zero value is of no use.
type Writer struct {
	raw  syscall.RawConn
	try  func(uintptr) bool // step, made once
	iov  [pieces]syscall.Iovec
	rest net.Buffers
	err  error
	once bool // it does not wait
	wait func()
	n    uint // writes so far
}

// Of makes it the connection's, of which it has written all for the one before; nil: nobody's.
func (w *Writer) Of(raw syscall.RawConn) {
	if w.raw = raw; w.try == nil {
		w.try = w.step
	}
}

// OnWait has f called each time before a write waits until the system takes more. It may set the connection's time-out.
func (w *Writer) OnWait(f func()) { w.wait = f }

// Write writes all of rest, and takes what was written out of it, also when it fails.
func (w *Writer) Write(rest *net.Buffers) error {
	w.rest, w.err = *rest, nil
	err := w.raw.Write(w.try)
	*rest, w.rest = w.rest, nil
	if err == nil {
		err = w.err
	}
	return err
}

// Now writes what the system takes at once, takes it out of rest, and tells whether that was all. It is for who has the connection's descriptor from
// [syscall.RawConn].
func (w *Writer) Now(fd uintptr, rest *net.Buffers) (whole bool, err error) {
	w.rest, w.err, w.once = *rest, nil, true
	w.step(fd)
	*rest, w.rest, w.once = w.rest, nil, false
	return w.err == nil && len(*rest) == 0, w.err
}

// step writes what the system takes, and tells whether that was all, or failed, or is not to be waited for.
func (w *Writer) step(fd uintptr) (done bool) {
	for {
		for len(w.rest) > 0 && len(w.rest[0]) == 0 {
			w.rest = w.rest[1:]
		}
		if len(w.rest) == 0 {
			return true
		}
		n, errno := w.some(fd)
		switch errno {
		case 0:
			w.taken(n)
		case syscall.EINTR:
		case syscall.EAGAIN:
			if w.wait != nil && !w.once {
				w.wait()
			}
			return w.once
		default:
			w.err = &net.OpError{Op: "write", Net: "tcp", Err: errno}
			return true
		}
	}
}

// some writes the next pieces, of the last one perhaps a part.
func (w *Writer) some(fd uintptr) (int, syscall.Errno) {
	w.n++
	tell := w.n%Telling == 0
	if !vectored || len(w.rest) == 1 || len(w.rest[0]) >= Most {
		return write(fd, w.rest[0][:min(len(w.rest[0]), Most)], tell)
	}
	k, left := 0, Most
	for _, p := range w.rest {
		if p = p[:min(len(p), left)]; len(p) == 0 {
			continue
		}
		w.iov[k].Base = &p[0]
		w.iov[k].SetLen(len(p))
		if left -= len(p); left == 0 || k == pieces-1 {
			k++
			break
		}
		k++
	}
	n, errno := writev(fd, w.iov[:k], tell)
	clear(w.iov[:k])
	return n, errno
}

// taken takes n bytes out.
func (w *Writer) taken(n int) {
	for n > 0 {
		p := w.rest[0]
		if n < len(p) {
			w.rest[0] = p[n:]
			return
		}
		n -= len(p)
		w.rest[0] = nil
		w.rest = w.rest[1:]
	}
}
