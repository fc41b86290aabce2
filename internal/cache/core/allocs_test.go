//go:build !race

package core

import (
	"runtime"
	"testing"
)

// histories is how many the simulator runs; the race detector makes each ten times as slow, and there is nothing here to race.
const histories = 2000

// TestAllocs holds what a publish of one block costs the collector, with its eviction and its seal: the answers of the two.
func TestAllocs(t *testing.T) {
	p := newFullPool(4, 1000)
	if n := testing.AllocsPerRun(2000, p.insert); n > 2 {
		t.Errorf("%.1f allocations, at most 2", n)
	}
}

// TestInstead: the books need not be larger for what takes another's place.
func TestInstead(t *testing.T) {
	const slots = 100_000
	p := newFullPool(1, slots)
	id := SessionID{1, 2}
	p.c.Step(p.now, &Fenced{p.sessions[0]}, nil)
	e := &Register{Session: id, Instance: "B", Namespace: Namespace{1}, Layout: []Group{{PartBytes: []uint32{4096}}}, Arenas: []Arena{{1, slots, 4096}}, Instead: []uint32{0}}
	p.c.Step(p.now, &Empty{Arena: 0}, nil)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	out := p.c.Step(p.now, e, nil)
	runtime.ReadMemStats(&after)
	if _, ok := out[len(out)-1].(Registered); !ok {
		t.Fatalf("%+v", out)
	}
	if n := float64(after.TotalAlloc-before.TotalAlloc) / slots; n > 20 {
		t.Errorf("%.1f bytes a slot, of which the slots themselves are 16", n)
	}
}
