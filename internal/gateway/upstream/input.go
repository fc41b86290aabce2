package upstream

import (
	"bufio"
	"io"
	"net"
	"sync"
	"syscall"
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

func newInput(nc net.Conn) *input {
	in := &input{nc: nc, bare: bareConn(nc), fd: -1}
	in.try = in.tryRead
	return in
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
		return in.readNow(p)
	}
	return in.nc.Read(p)
}

var _ io.Reader = (*input)(nil)
