package channel

import (
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// receiver reads a connection's bytes, and keeps the one descriptor that may come along. It is the reader's alone.
type receiver struct {
	uc *net.UnixConn
	// file is the last descriptor that came and that no frame has had; nil: none did.
	file *os.File
	// oob has room for one descriptor: of more, the kernel drops those behind the first. What one peer can make us hold is two: this
	// one, and the one that its frame in hand has.
	oob [unix.SizeofCmsghdr + 4]byte
}

// Read implements io.Reader.
func (r *receiver) Read(b []byte) (int, error) {
	n, oobn, _, _, err := r.uc.ReadMsgUnix(b, r.oob[:])
	if oobn > 0 {
		r.keep(r.oob[:oobn])
	}
	if err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
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
		_, err = unix.Poll(p[:], 0)
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
