//go:build !race

package core

import "testing"

// histories is how many the simulator runs; the race detector makes each ten times as slow, and there is nothing here to race.
const histories = 2000

// TestAllocs holds what a publish of one block costs the collector, with its eviction and its seal: the answers of the two.
func TestAllocs(t *testing.T) {
	p := newFullPool(4, 1000)
	if n := testing.AllocsPerRun(2000, p.insert); n > 2 {
		t.Errorf("%.1f allocations, at most 2", n)
	}
}
