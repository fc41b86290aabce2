package manager

import (
	"context"
	"os"

	"golang.org/x/sys/unix"
)

// waitPidfd waits until the process has ended: the kernel says so when the last of its threads has let go of its memory. It returns
// false if the context ends first.
func waitPidfd(ctx context.Context, f *os.File) bool {
	raw, err := f.SyscallConn()
	if err != nil {
		return false
	}
	stop := context.AfterFunc(ctx, func() { f.Close() })
	defer stop()
	over := false
	err = raw.Read(func(fd uintptr) bool {
		over = readable(fd)
		return over
	})
	return err == nil && over
}

// hasEnded tells whether the process has ended, also when its pidfd is closed.
func hasEnded(f *os.File) bool {
	raw, err := f.SyscallConn()
	if err != nil {
		return true
	}
	over := false
	err = raw.Control(func(fd uintptr) { over = readable(fd) })
	return err != nil || over
}

func readable(fd uintptr) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return err == nil && n == 1 && p[0].Revents&unix.POLLIN != 0
}
