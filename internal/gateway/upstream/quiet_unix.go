//go:build unix

package upstream

import (
	"errors"
	"syscall"
)

// quiet tells whether an idle connection is as it should be: open, with nothing to read. It looks without waiting and without
// taking anything, so a connection that the engine closed a while ago is not tried first.
func (c *conn) quiet() bool {
	if c.raw == nil {
		return true // nothing can be known; a request that fails on it says that the connection was reused
	}
	ok := false
	err := c.raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		ok = errors.Is(err, syscall.EAGAIN)
		return true
	})
	return err == nil && ok
}
