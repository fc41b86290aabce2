//go:build unix

package wire

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

// reportBlocks reports the processor's time for each of n blocks.
func reportBlocks(b *testing.B, spent time.Duration, n int) {
	b.ReportMetric(float64(spent)/float64(n), "cpu-ns/block")
	b.ReportMetric(float64(n)/spent.Seconds()/1e6, "Mblocks/cpu-s")
}
