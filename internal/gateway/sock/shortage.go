package sock

import (
	"errors"
	"syscall"
)

// Shortage tells whether a connection could not be made or taken for want of something of this host's: descriptors, memory, or ports of its own. Who is at the
// other end has nothing to do with it. It may be called by any goroutine.
func Shortage(err error) bool {
	for _, e := range [...]error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
