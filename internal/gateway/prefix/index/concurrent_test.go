package index

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/script"
)

// flood keeps an index busy: engine 0 holds some prompts for good, and the others store and remove theirs, restart and are swept.
type flood struct {
	*rand.Rand
	ix      *Index
	holders []Holder
	tokens  [][]uint32 // by prompt; prompt p belongs to engine p % engines and to no other
}

const (
	floodEngines = 5
	floodPrompts = 200
	floodBlocks  = 20
)

func newFlood(r *rand.Rand) *flood {
	f := &flood{Rand: r, ix: New(Config{Model: "m", BlockSize: 4})}
	f.ix.epochs.batch = 16
	for e := range floodEngines {
		f.holders = append(f.holders, f.ix.Open(uint32(e), 0))
		f.ix.Mark(f.holders[e], Exact)
	}
	for range floodPrompts {
		tokens := make([]uint32, 4*floodBlocks)
		for i := range tokens {
			tokens[i] = r.Uint32N(1000)
		}
		f.tokens = append(f.tokens, tokens)
	}
	for p := 0; p < floodPrompts; p += floodEngines {
		f.store(p)
	}
	return f
}

func (f *flood) hashes(p int) []prefix.Hash {
	hashes := make([]prefix.Hash, floodBlocks)
	for i := range hashes {
		hashes[i] = prefix.Hash(p*floodBlocks + i)
	}
	return hashes
}

func (f *flood) store(p int) {
	f.ix.Apply(f.holders[p%floodEngines], &prefix.Event{Hashes: f.hashes(p), Tokens: f.tokens[p], BlockSize: 4, Tier: prefix.Tier(p % prefix.Tiers)})
}

func (f *flood) step() {
	p := f.IntN(floodPrompts)
	if p%floodEngines == 0 {
		p++
	}
	h := f.holders[p%floodEngines]
	switch n := f.IntN(100); {
	case n < 55:
		f.store(p)
	case n < 95:
		hashes := f.hashes(p)[f.IntN(floodBlocks):]
		f.ix.Apply(h, &prefix.Event{Kind: prefix.Removed, Hashes: hashes, AnyTier: true})
	case n < 97:
		f.ix.Withdraw(h)
		f.ix.Mark(h, Exact)
	case n < 98:
		f.ix.Apply(h, &prefix.Event{Kind: prefix.Cleared})
	case n < 99:
		f.ix.Close(h)
		f.holders[p%floodEngines] = f.ix.Open(uint32(p%floodEngines), 0)
		f.ix.Mark(f.holders[p%floodEngines], Exact)
	default:
		f.ix.Sweep(500)
	}
}

// check looks a prompt up: what is held for good is there in full, and nobody is credited with another's.
func (f *flood) check(t *testing.T, p int, m *prefix.Match) {
	if p%2 == 0 {
		f.ix.Lookup(&prefix.Query{Model: "m", Tokens: f.tokens[p]}, m)
	} else {
		var space [floodBlocks]chain.Key
		f.ix.LookupKeys(chain.Root{Model: "m", BlockSize: 4}.Key().Append(space[:0], f.tokens[p], 4), m)
	}
	for _, held := range m.Held {
		if int(held.Engine) != p%floodEngines || held.Depth.Any() > 4*floodBlocks || held.Depth[prefix.Tier(p%prefix.Tiers)] != held.Depth.Any() {
			t.Errorf("prompt %d: %+v", p, held)
		}
	}
	if d := m.Of(0); p%floodEngines == 0 && d.Any() != 4*floodBlocks {
		t.Errorf("prompt %d, which engine 0 holds: %v", p, d)
	}
}

// TestReadersDuringAFlood is worth most under the race detector: readers read plain memory.
func TestReadersDuringAFlood(t *testing.T) {
	r := script.Rand(t)
	f := newFlood(r)
	var stop atomic.Bool
	var readers sync.WaitGroup
	for range 3 {
		random := rand.New(rand.NewPCG(r.Uint64(), 0))
		readers.Go(func() {
			var m prefix.Match
			for !stop.Load() && !t.Failed() {
				f.check(t, random.IntN(floodPrompts), &m)
			}
		})
	}
	for range 2_500 {
		f.step()
	}
	stop.Store(true)
	readers.Wait()
	f.ix.checkForTest(t)
	for f.ix.Sweep(1000) {
	}
	f.ix.checkForTest(t)
}

// TestReaderHoldsMemory holds a reader inside while all that it might see is removed: nothing of it may be used again before it leaves.
func TestReaderHoldsMemory(t *testing.T) {
	f := newFlood(rand.New(rand.NewPCG(1, 1)))
	f.ix.epochs.batch = 1
	f.store(1)
	r := f.ix.epochs.enter()
	blocks := f.ix.blocks.live
	for range 50 {
		f.ix.Apply(f.holders[1], &prefix.Event{Kind: prefix.Removed, Hashes: f.hashes(1), AnyTier: true})
		f.store(1)
	}
	if got := f.ix.blocks.live; got != blocks+50*floodBlocks {
		t.Errorf("%d blocks are in use, want %d and %d that wait for the reader", got, blocks, 50*floodBlocks)
	}
	f.ix.epochs.leave(r)
	f.store(1)
	if got := f.ix.blocks.live; got != blocks {
		t.Errorf("%d blocks are in use, want %d", got, blocks)
	}
}
