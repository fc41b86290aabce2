//go:build unix

package upstream

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"syscall"
)

// bareConn returns the system's side of a connection whose bytes are what the engine sent, or nil: what comes over a TLS connection's
// socket may be no byte of an answer.
func bareConn(nc net.Conn) syscall.RawConn {
	if _, ok := nc.(*tls.Conn); ok {
		return nil
	}
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// errNothing means that nothing has come yet.
var errNothing = errors.New("nothing to read yet")

// tryRead is called with the connection's descriptor each time there may be something to read, and tells whether that is so. It reads
// into a buffer from the pool, which goes back if there was nothing, so waiting costs no system call more than it does with a buffer:
// asking first and then reading would cost one for each part of a stream.
func (in *input) tryRead(fd uintptr) bool {
	in.fd = int(fd)
	_, err := in.reader().Peek(1)
	in.fd = -1
	if errors.Is(err, errNothing) {
		in.rest()
		return false
	}
	in.waitErr = err
	return true
}

// readNow reads what there is, without waiting.
func (in *input) readNow(p []byte) (int, error) {
	for {
		n, err := syscall.Read(in.fd, p)
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EAGAIN):
			return 0, errNothing
		case err != nil:
			return 0, &net.OpError{Op: "read", Net: "tcp", Err: err}
		case n <= 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}
