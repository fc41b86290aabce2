//go:build !race

// It holds two million claims one after the other, which the race detector stretches to a minute; there is one goroutine.

package index

import (
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// TestLitterIsBounded has a holder begin anew all the time, beside one that does nothing, while nobody calls Sweep.
func TestLitterIsBounded(t *testing.T) {
	event := func(first, n int) *prefix.Event {
		e := &prefix.Event{Kind: prefix.Stored, BlockSize: 1}
		for i := range n {
			e.Hashes = append(e.Hashes, prefix.Hash(first+i))
			e.Tokens = append(e.Tokens, uint32(first+i))
		}
		return e
	}
	begin := func() (*Index, Holder) {
		ix := New(Config{Model: "m", BlockSize: 1})
		still := ix.Open(1, 0)
		ix.Mark(still, Exact)
		ix.Apply(still, event(1<<30, 1000))
		return ix, ix.Open(2, 0)
	}
	check := func(t *testing.T, ix *Index) {
		t.Helper()
		if a := ix.About(0); a.Claims != 1000 {
			t.Errorf("the one that did nothing has %d claims, want 1000", a.Claims)
		}
		for more := true; more; {
			more = ix.Sweep(1 << 16)
		}
		if s := ix.Stats(); s.Dead != 0 || s.Blocks != 1000 || ix.litter != 0 {
			t.Errorf("when all is swept there are %+v, litter %d", s, ix.litter)
		}
	}
	t.Run("many ends", func(t *testing.T) {
		ix, h := begin()
		for n := range 20_000 {
			ix.Apply(h, event(n, 1))
			ix.Apply(h, &prefix.Event{Kind: prefix.Cleared})
		}
		if n := len(ix.tenures); n > 2*(muchDead+reclaimBatch) {
			t.Errorf("%d tenures, each of which costs whoever changes a holder", n)
		}
		ix.Withdraw(h)
		check(t, ix)
	})
	t.Run("large ends", func(t *testing.T) {
		ix, h := begin()
		const most = 1 << 16
		for n := range 28 {
			ix.Apply(h, event(n*most, most))
			ix.Withdraw(h)
		}
		if s := ix.Stats(); s.Dead > muchLitter+4*most {
			t.Errorf("%d claims wait to be swept", s.Dead)
		}
		check(t, ix)
	})
}
