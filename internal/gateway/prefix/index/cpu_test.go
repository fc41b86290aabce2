//go:build unix

package index

import (
	"syscall"
	"testing"
	"time"
)

// cpuTime is what the process has computed so far: on a machine that others use too, wall time says nothing.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// reportCPU reports what each of n things has cost since then.
func reportCPU(b *testing.B, since time.Duration, n int, unit string) {
	b.ReportMetric(float64(cpuTime()-since)/float64(n), "cpu-ns/"+unit)
}
