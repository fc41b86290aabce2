//go:build unix && !linux

package sock

import (
	"errors"
	"syscall"
)

func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	if err != nil && !errors.As(err, &errno) {
		return syscall.EIO
	}
	return errno
}

func read(fd uintptr, p []byte, _ bool) (int, syscall.Errno) {
	n, err := syscall.Read(int(fd), p)
	return n, errnoOf(err)
}

func peek(fd uintptr) (int, syscall.Errno) {
	var b [1]byte
	n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	return n, errnoOf(err)
}

func write(fd uintptr, p []byte, _ bool) (int, syscall.Errno) {
	n, err := syscall.Write(int(fd), p)
	return n, errnoOf(err)
}

const vectored = false // package syscall has no call for it

func writev(uintptr, []syscall.Iovec, bool) (int, syscall.Errno) { return 0, syscall.ENOSYS }
