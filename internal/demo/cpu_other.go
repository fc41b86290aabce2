//go:build !unix

package demo

import "time"

// cpuTime is the time that this process has spent on processors, and false where it cannot be known.
func cpuTime() (time.Duration, bool) { return 0, false }
