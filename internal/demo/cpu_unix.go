//go:build unix

package demo

import (
	"syscall"
	"time"
)

// cpuTime is the time that this process has spent on processors, and false where it cannot be known.
func cpuTime() (time.Duration, bool) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, false
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), true
}
