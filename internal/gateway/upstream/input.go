package upstream

import (
	"bufio"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"

	"github.com/perigee-llm/perigee/internal/gateway/sock"
)

// input is a connection's side for reading. It has a buffer only from the first byte that comes to the last that is taken: of a
// thousand streams nearly all are waiting for their engines, and 4 KiB for each of them would be what the gateway's memory goes to.
type input struct {
	nc      net.Conn
	br      *bufio.Reader      // nil: nothing is buffered
	bare    syscall.RawConn    // nil: it can be waited for only with a buffer
	try     func(uintptr) bool // tryRead, made once
	fd      int                // while tryRead runs: what is read must not wait
	waitErr error              // what tryRead met
}

// readers are the buffers.
var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, ReadBuffer) }}

// of makes it the connection's.
func (in *input) of(nc net.Conn) {
	in.nc, in.bare, in.fd, in.try = nc, sock.Raw(nc), -1, in.tryRead
}

// wait returns when something is buffered, or with the error that a read would meet.
func (in *input) wait() error {
	if in.buffered() > 0 {
		return nil
	}
	if in.bare == nil {
		_, err := in.reader().Peek(1)
		return err
	}
	in.rest()
	in.waitErr = nil
	if err := in.bare.Read(in.try); err != nil {
		return err
	}
	return in.waitErr
}

// reader returns the buffer, with what is in it.
func (in *input) reader() *bufio.Reader {
	in.take()
	return in.br
}

func (in *input) take() {
	if in.br == nil {
		in.br = readers.Get().(*bufio.Reader)
		in.br.Reset(in)
	}
}

// rest gives the buffer back. What is in it is lost.
func (in *input) rest() {
	if in.br != nil {
		in.br.Reset(nil)
		readers.Put(in.br)
		in.br = nil
	}
}

func (in *input) buffered() int {
	if in.br == nil {
		return 0
	}
	return in.br.Buffered()
}

// Read implements io.Reader for the buffer.
func (in *input) Read(p []byte) (int, error) {
	if in.fd >= 0 {
		return sock.Read(uintptr(in.fd), p)
	}
	return in.nc.Read(p)
}

var _ io.Reader = (*input)(nil)

// tryRead is called with the connection's descriptor each time there may be something to read, and tells whether that is so. It reads
// into a buffer from the pool, which goes back if there was nothing, so waiting costs no system call more than it does with a buffer:
// asking first and then reading would cost one for each part of a stream.
func (in *input) tryRead(fd uintptr) bool {
	in.fd = int(fd)
	_, err := in.reader().Peek(1)
	in.fd = -1
	if errors.Is(err, sock.ErrNothing) {
		in.rest()
		return false
	}
	in.waitErr = err
	return true
}
