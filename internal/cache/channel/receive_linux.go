package channel

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// receiver reads a connection's bytes, and keeps the one descriptor that may come along. It is the reader's alone. While nothing comes it has no
// buffer: what waits for bytes borrows one when there are some.
type receiver struct {
	raw  syscall.RawConn
	buf  *[readAhead]byte // nil: nothing is buffered
	r, w int              // what is buffered
	// file is the last descriptor that came and that no frame has had; nil: none did.
	file *os.File
	// oob has room for one descriptor: of more, the kernel drops those behind the first. What one peer can make us hold is two: this
	// one, and the one that its frame in hand has.
	oob [unix.SizeofCmsghdr + 4]byte

	recv    func(fd uintptr) bool // receive, made once
	into    []byte                // where it reads to; nil: what is buffered
	n, oobn int                   // what it read
	err     error
}

// readAhead is what a connection borrows for reading, in bytes: most messages are shorter, a Fetch of SGLang's 128 pages as well, and of longer ones the rest is read to where it belongs.
const readAhead = 8 << 10

var aheads = sync.Pool{New: func() any { return new([readAhead]byte) }}

func newReceiver(uc *net.UnixConn) (*receiver, error) {
	raw, err := uc.SyscallConn()
	if err != nil {
		return nil, err
	}
	r := &receiver{raw: raw}
	r.recv = r.receive
	return r, nil
}

// receive is one look at the socket. It returns false if nothing is there: it is called again when something is.
func (r *receiver) receive(fd uintptr) bool {
	b := r.into
	if b == nil {
		if r.buf == nil {
			r.buf = aheads.Get().(*[readAhead]byte)
		}
		b = r.buf[r.w:]
	}
	for {
		r.n, r.oobn, _, _, r.err = unix.Recvmsg(int(fd), b, r.oob[:], unix.MSG_CMSG_CLOEXEC)
		switch r.err {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			r.rest()
			return false
		}
		return true
	}
}

// rest gives the buffer back if nothing is in it.
func (r *receiver) rest() {
	if r.buf != nil && r.r == r.w {
		aheads.Put(r.buf)
		r.buf, r.r, r.w = nil, 0, 0
	}
}

// fill waits for bytes, and reads them to into, or if that is nil behind what is buffered, where there has to be room. It returns how many.
func (r *receiver) fill(into []byte) (int, error) {
	r.into = into
	err := r.raw.Read(r.recv)
	r.into = nil
	if err == nil {
		err = r.err
	}
	if err != nil {
		return 0, err
	}
	if r.oobn > 0 {
		r.keep(r.oob[:r.oobn])
	}
	if r.n == 0 {
		return 0, io.EOF
	}
	if into == nil {
		r.w += r.n
	}
	return r.n, nil
}

// wait waits until something is buffered.
func (r *receiver) wait() error {
	if r.r < r.w {
		return nil
	}
	r.rest()
	_, err := r.fill(nil)
	return err
}

// peek returns the next n bytes, at most readAhead, which are good until the next call.
func (r *receiver) peek(n int) ([]byte, error) {
	if r.r > 0 && r.r+n > readAhead {
		r.r, r.w = 0, copy(r.buf[:], r.buf[r.r:r.w])
	}
	for r.w-r.r < n {
		if _, err := r.fill(nil); err != nil {
			return nil, err
		}
	}
	return r.buf[r.r : r.r+n], nil
}

func (r *receiver) discard(n int) { r.r += n }

func (r *receiver) buffered() int { return r.w - r.r }

// Read implements io.Reader.
func (r *receiver) Read(b []byte) (int, error) {
	if r.r == r.w {
		if r.rest(); len(b) >= readAhead {
			return r.fill(b)
		}
		if _, err := r.fill(nil); err != nil {
			return 0, err
		}
	}
	n := copy(b, r.buf[r.r:r.w])
	r.r += n
	return n, nil
}

// close lets go of what it holds.
func (r *receiver) close() {
	r.drop()
	r.r = r.w
	r.rest()
}

// keep takes in the descriptor of a control message, and drops the one before it.
func (r *receiver) keep(oob []byte) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			r.drop()
			r.file = os.NewFile(uintptr(fd), "offered")
		}
	}
}

// take gives the descriptor to a frame.
func (r *receiver) take() *os.File {
	f := r.file
	r.file = nil
	return f
}

func (r *receiver) drop() {
	if r.file != nil {
		r.file.Close()
		r.file = nil
	}
}

// HungUp says that the peer will say nothing more: it has ended, or shut its end for writing. For the connection's own Frame only.
func (c *Conn) HungUp() bool {
	raw, err := c.uc.SyscallConn()
	if err != nil {
		return true
	}
	up := false
	raw.Control(func(fd uintptr) {
		p := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		for err = unix.EINTR; err == unix.EINTR; { // a signal, and the runtime sends many, is no end
			_, err = unix.Poll(p[:], 0)
		}
		up = err == nil && p[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) == 0
	})
	return !up
}

// TakeFile gives the descriptor that came with the frame in hand to the caller, who closes it; nil if none arrived, or it was taken. For
// the connection's own Frame only.
func (c *Conn) TakeFile() *os.File {
	f := c.file
	c.file = nil
	return f
}
