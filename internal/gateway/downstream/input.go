package downstream

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/sock"
)

// readBuffer is what is read at once into a buffer of ours, in bytes: a head, and the body of a short request with it. A longer body goes
// straight to who reads it.
const readBuffer = 4 << 10

var readBuffers = sync.Pool{New: func() any { return new([readBuffer]byte) }}

// input is a connection's side for reading. It has a buffer only from the first byte that comes to the last that is taken.
type input struct {
	sock     net.Conn
	deadline Deadline
	raw      syscall.RawConn // nil: it can be waited for only with a buffer
	secure   *secure         // nil: there is no TLS, or it is the socket's

	buf    []byte
	r, w   int               // what is buffered is buf[r:w]
	pooled *[readBuffer]byte // buf, if it is that long

	try  func(uintptr) bool // tryRead, made once
	into []byte             // where it reads to; nil: a buffer
	n    int                // what it met
	err  error
}

// readShort is read for what is not more than [sock.Most].
func (in *input) readShort(p []byte) (int, error) {
	if in.raw == nil {
		return in.readSocket(p)
	}
	return in.readTo(p)
}

// readTo reads what the system has, and waits only if that is nothing.
func (in *input) readTo(p []byte) (int, error) {
	in.into = p
	defer func() { in.into = nil }()
	for {
		err := in.raw.Read(in.try)
		if err == nil {
			return in.n, in.err
		}
		if in.over(err) {
			return 0, err
		}
	}
}

// read is for what is long, or part of that.
func (in *input) read(p []byte) (int, error) {
	if in.secure == nil {
		return in.readSocket(p)
	}
	in.secure.link.long = true
	defer func() { in.secure.link.long = false }()
	return in.readTo(p)
}

// readSocket reads straight from the connection, past TLS.
func (in *input) readSocket(p []byte) (int, error) {
	for {
		n, err := in.sock.Read(p)
		if n > 0 || err == nil || in.over(err) {
			return n, err
		}
	}
}

// over tells whether an error of reading stands: that of a deadline which is not wanted any more does not.
func (in *input) over(err error) bool {
	return !errors.Is(err, os.ErrDeadlineExceeded) || in.deadline.Passed(in.sock.SetReadDeadline)
}

// until sets the time-out for reading, the zero time for none.
func (in *input) until(t time.Time) error { return in.deadline.Set(t, in.sock.SetReadDeadline) }

func (in *input) buffered() int { return in.w - in.r }

// fill reads more. It waits for it without a buffer if there is nothing in one.
func (in *input) fill() error {
	if in.r == in.w && in.raw != nil {
		in.rest()
		return in.wait()
	}
	in.room()
	n, err := in.read(in.buf[in.w:min(len(in.buf), in.w+readBuffer)]) // so that what comes behind a long head fits into a buffer of the pool
	in.w += n
	if n > 0 {
		return nil // the error will come again
	}
	return err
}

// wait waits for bytes without a buffer.
func (in *input) wait() error {
	for {
		err := in.raw.Read(in.try)
		switch {
		case err == nil && in.err == nil:
			in.w = in.n
			return nil
		case err == nil:
			in.rest()
			return in.err
		case in.over(err):
			return err
		}
	}
}

// room makes room behind what is buffered.
func (in *input) room() {
	switch {
	case in.buf == nil:
		in.take()
	case in.r == in.w:
		in.r, in.w = 0, 0
	case in.w < len(in.buf):
	case in.r > 0:
		in.w = copy(in.buf, in.buf[in.r:in.w])
		in.r = 0
	default:
		longer := make([]byte, 2*len(in.buf))
		w := copy(longer, in.buf[:in.w])
		in.rest()
		in.buf, in.w = longer, w
	}
}

// shrink puts what is left behind a long head into a buffer of the pool, where it stays for as long as the handler likes.
func (in *input) shrink() {
	if in.pooled != nil || in.buf == nil || in.buffered() > readBuffer {
		return
	}
	left := in.buf[in.r:in.w]
	in.take()
	in.r, in.w = 0, copy(in.buf, left)
}

func (in *input) take() {
	in.pooled = readBuffers.Get().(*[readBuffer]byte)
	in.buf = in.pooled[:]
}

// rest gives the buffer back. What is in it is lost.
func (in *input) rest() {
	if in.pooled != nil {
		readBuffers.Put(in.pooled)
	}
	in.pooled, in.buf, in.r, in.w = nil, nil, 0, 0
}

// restIfEmpty gives the buffer back if all of it was taken.
func (in *input) restIfEmpty() {
	if in.r == in.w {
		in.rest()
	}
}

// skip takes n bytes out.
func (in *input) skip(n int) { in.r += n }

// copyTo takes out what fits.
func (in *input) copyTo(p []byte) int {
	n := copy(p, in.buf[in.r:in.w])
	in.r += n
	return n
}

// line takes out one line with its end, of at most limit bytes. The line is valid until the next read. What is no end of a line after so many
// bytes is errLongLine, an end of the connection io.ErrUnexpectedEOF.
func (in *input) line(limit int) ([]byte, error) {
	seen := 0
	for {
		for p := in.buf[in.r:in.w]; seen < len(p); seen++ {
			if seen == limit {
				return nil, errLongLine
			}
			if p[seen] == '\n' {
				in.r += seen + 1
				return p[:seen+1], nil
			}
		}
		if err := in.fill(); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
}

var errLongLine = errors.New("a line of a chunked body is too long")

// tryRead is called with the connection's descriptor each time there may be something to read, and tells whether that is so. Unless somebody
// said where to, it reads into a buffer from the pool, which goes back if there was nothing.
func (in *input) tryRead(fd uintptr) bool {
	if in.into != nil {
		in.n, in.err = in.readNow(fd, in.into)
		return !errors.Is(in.err, sock.ErrNothing)
	}
	in.take()
	in.n, in.err = in.readNow(fd, in.buf)
	if errors.Is(in.err, sock.ErrNothing) {
		in.rest()
		return false
	}
	return true
}

func (in *input) readNow(fd uintptr, p []byte) (int, error) {
	if in.secure != nil {
		return in.secure.read(fd, p)
	}
	return sock.Read(fd, p)
}
