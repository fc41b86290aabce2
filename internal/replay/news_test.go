package replay

import (
	"context"
	"maps"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/script"
)

// TestNewsAgainstTheCache lets a gateway hear of random changes, of which some are lost, out of step with their time: once it has what
// it missed it knows exactly what the engine holds; where that never comes it knows no block that the engine has not.
func TestNewsAgainstTheCache(t *testing.T) {
	rng := script.Rand(t)
	credited := 0
	for range 2000 {
		repaired := rng.IntN(2) == 0
		l := &link{holds: map[engine.BlockHash]struct{}{}}
		truth := map[engine.BlockHash]struct{}{}
		chain := []engine.BlockHash{{Hi: 1}, {Hi: 2}, {Hi: 3}, {Hi: 4}, {Hi: 5}, {Hi: 6}}
		var way []uint64 // what is under way
		deliver := func() {
			n := way[0]
			way = way[1:]
			if l.arrived(n) && !l.mending {
				l.mending = true
			}
			if l.mending && (!repaired || rng.IntN(3) == 0) {
				l.mend(repaired)
			}
		}
		for range 40 {
			n := &news{}
			held := 0 // a prefix, as the engine's leaf-first eviction keeps it
			for held < len(chain) {
				if _, there := truth[chain[held]]; !there {
					break
				}
				held++
			}
			if held > 0 && rng.IntN(2) == 0 {
				n.events, n.chains = []engine.KVEvent{{Kind: engine.BlockRemoved, Hashes: chain[held-1 : held]}}, [][]engine.BlockHash{nil}
				delete(truth, chain[held-1])
			} else if held < len(chain) {
				ev := engine.KVEvent{Kind: engine.BlockStored, Hashes: chain[held : held+1]}
				if held > 0 {
					ev.Parent, ev.HasParent = chain[held-1], true
				}
				n.events, n.chains = []engine.KVEvent{ev}, [][]engine.BlockHash{chain}
				truth[chain[held]] = struct{}{}
			}
			l.sent++
			lost := rng.IntN(4) == 0
			l.inbox = append(l.inbox, letter{number: l.sent, news: n, lost: lost})
			if !lost {
				way = append(way, l.sent)
			}
			for len(way) > 0 && rng.IntN(2) == 0 {
				deliver()
			}
		}
		l.sent++ // a last one, which shows what is missing
		l.inbox = append(l.inbox, letter{number: l.sent, news: &news{}})
		for way = append(way, l.sent); len(way) > 0; {
			deliver()
		}
		if l.mending {
			l.mend(repaired)
		}
		if repaired && !maps.Equal(l.holds, truth) {
			t.Fatalf("it knows of %v, the engine has %v", l.holds, truth)
		}
		for h := range l.holds {
			if _, there := truth[h]; !there {
				t.Fatalf("it credits %v, which the engine has not: %v", h, truth)
			}
			credited++
		}
	}
	if credited < 1000 {
		t.Errorf("only %d blocks were credited: the test shows nothing", credited)
	}
}

// TestNewsCost holds the order of what news are worth: late is worse than at once, lost without repair is worse than lost.
func TestNewsCost(t *testing.T) {
	hit := func(change func(*Options)) float64 {
		o := Options{
			Engines: 4, Gateways: 2, Seed: 1,
			Engine: engine.Config{BlockSize: 4, KVBlocks: 64, MaxBatchTokens: 16, MaxRunning: 4, Timing: engine.Timing{
				StepFixed: 10 * time.Millisecond, PrefillPerToken: time.Millisecond, DecodePerSeq: time.Millisecond, PerKVToken: -1,
			}},
		}
		change(&o)
		c, err := ByName("cost")
		if err != nil {
			t.Fatal(err)
		}
		r, err := Run(context.Background(), o, c, families(2000))
		if err != nil {
			t.Fatal(err)
		}
		rate, _ := r.HitRate()
		if sent := r.EventsSent > 0; sent == (o.EventDelay == 0 && o.EventLoss == 0) || r.EventsLost > r.EventsSent {
			t.Errorf("%d events of %d lost", r.EventsLost, r.EventsSent)
		}
		return rate
	}
	perfect := hit(func(*Options) {})
	late := hit(func(o *Options) { o.EventDelay = 5 * time.Second })
	lost := hit(func(o *Options) { o.EventLoss = 0.2 })
	never := hit(func(o *Options) { o.EventLoss, o.EventRepair = 0.2, -1 })
	outage := hit(func(o *Options) {
		o.EventLoss, o.Outages = 0.2, []Outage{{Engine: 1, At: 5 * time.Second, For: 3 * time.Second}}
	})
	t.Logf("hit: perfect %.3f, late %.3f, lost %.3f, never repaired %.3f, with an outage %.3f", perfect, late, lost, never, outage)
	if !(late < perfect) || !(never < lost) || outage <= 0 {
		t.Error("not in order")
	}
}

// families are requests whose prompts begin as one of a few do.
func families(n int) Source {
	return func(yield func(Arrival, error) bool) {
		for i := range n {
			family := keyed(7, uint64(i)) % 6
			var blocks []engine.BlockHash
			var h engine.BlockHash
			for b := range 5 {
				id := engine.BlockHash{Hi: family, Lo: uint64(b)}
				if b == 4 {
					id = engine.BlockHash{Hi: uint64(i), Lo: 99}
				}
				h = h.Link(id)
				blocks = append(blocks, h)
			}
			if !yield(Arrival{At: time.Duration(i) * 12 * time.Millisecond, InputTokens: 19, OutputTokens: 3, Blocks: blocks}, nil) {
				return
			}
		}
	}
}
