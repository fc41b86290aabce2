package zmtp

import (
	"errors"
	"syscall"
)

// isShortage tells whether accepting failed for want of something that may be there again soon.
func isShortage(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
