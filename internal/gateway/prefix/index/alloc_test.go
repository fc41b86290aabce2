//go:build !race

package index

import (
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// TestAllocatesNothing holds what is done for each request and each message: a garbage collector that never runs holds nobody up.
func TestAllocatesNothing(t *testing.T) {
	f := newFleet(t, 8, Config{})
	for e := range 8 {
		f.apply(e, event(1, 0, 64), Applied)
	}
	var m prefix.Match
	q := &prefix.Query{Tokens: prompt(1, 80), LoRA: "", Salt: ""}
	look := func() { f.ix.Lookup(q, &m) }
	look()
	if n := testing.AllocsPerRun(100, look); n > 0 {
		t.Errorf("a look-up allocates %v times", n)
	}
	stored := event(2, 0, 32)
	removed := &prefix.Event{Kind: prefix.Removed, Hashes: named(2, 0, 32)}
	change := func() {
		f.ix.Apply(f.engines[0], stored)
		f.ix.Apply(f.engines[0], removed)
	}
	for range 200 {
		change() // until the memory that waits for readers has its size
	}
	if n := testing.AllocsPerRun(100, change); n > 0 {
		t.Errorf("a store and a removal allocate %v times", n)
	}
}
