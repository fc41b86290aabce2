//go:build !race

// They change a hundred thousand claims one after the other, which the race detector stretches to a minute; there is one goroutine.

package index

import (
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// chunks counts those in use.
func (ix *Index) chunksForTest() (n int) {
	for _, c := range *ix.blocks.dir.Load() {
		if c != nil {
			n++
		}
	}
	return n
}

// TestMemoryComesBack fills an index with two engines' blocks, takes one away, and fills it again: chunks that are empty go, and those that
// are not are filled up before a new one is taken.
func TestMemoryComesBack(t *testing.T) {
	const prompts, blocks = 60, 500
	f := newFleet(t, 2, Config{})
	f.ix.epochs.batch = 1
	fill := func(engine int) {
		for p := range prompts {
			f.apply(engine, event(1+p+engine*prompts, 0, blocks), Applied)
		}
	}
	fill(0)
	one := f.ix.chunksForTest()
	fill(1)
	both := f.ix.chunksForTest()
	if least := 2 * prompts * blocks / chunkSize; one < least/2 || both < least || both > least+2 {
		t.Fatalf("%d chunks for one engine, %d for two", one, both)
	}

	f.ix.Withdraw(f.engines[0])
	f.ix.Mark(f.engines[0], Exact)
	for f.ix.Sweep(1000) {
	}
	f.ix.Sweep(0) // takes back what the last one freed
	if got := f.ix.chunksForTest(); got > both-one+2 {
		t.Errorf("%d chunks are left of %d", got, both)
	}
	fill(0)
	if got := f.ix.chunksForTest(); got > both+1 {
		t.Errorf("%d chunks for what %d held", got, both)
	}

	for p := range 2 * prompts { // every other block of everything
		var hashes []prefix.Hash
		for i := 0; i < blocks; i += 2 {
			hashes = append(hashes, named(1+p, i, i+1)...)
		}
		f.apply(p/prompts, &prefix.Event{Kind: prefix.Removed, Hashes: hashes}, Applied)
	}
	f.ix.Sweep(0)
	fill(0)
	fill(1)
	if got := f.ix.chunksForTest(); got > both+1 {
		t.Errorf("%d chunks after holes were filled, want %d", got, both)
	}
	for p := range 2 * prompts {
		f.want(1+p, blocks, p/prompts, blocks)
	}
	f.ix.checkForTest(t)

	f.ix.Close(f.engines[0])
	f.ix.Close(f.engines[1])
	for f.ix.Sweep(1000) {
	}
	f.ix.Sweep(0)
	if got := f.ix.chunksForTest(); got > 2 {
		t.Errorf("%d chunks of nothing", got)
	}
	for i := range f.ix.names.shards {
		for _, table := range []*table{&f.ix.names, &f.ix.aliases} {
			if n := len(table.shards[i].store.Load().buckets); n > 2 {
				t.Errorf("%d buckets of nothing", n)
			}
		}
	}
}

// TestManySets gives each block of a prompt its own set, by engines that hold ever more of it.
func TestManySets(t *testing.T) {
	const engines = 300
	f := newFleet(t, engines, Config{})
	for e := range engines {
		f.apply(e, event(1, 0, e+1), Applied)
	}
	if s := f.ix.Stats(); s.Sets != engines || s.Blocks != engines {
		t.Errorf("%+v", s)
	}
	for e := range engines {
		f.want(1, engines, e, e+1)
	}
	f.ix.checkForTest(t)
	for e := range engines {
		f.apply(e, &prefix.Event{Kind: prefix.Removed, Hashes: named(1, 0, e+1)}, Applied)
	}
	if s := f.ix.Stats(); s != (Stats{}) {
		t.Errorf("%+v is left", s)
	}
}
