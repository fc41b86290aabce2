//go:build unix

package index

import (
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// queries returns what is asked: the prompts 0 to 63 as they are, or with their second half unknown, or others.
func queries(w w1, kind string) [][]uint32 {
	var all [][]uint32
	for p := range min(64, w.prompts) {
		q := w1Prompt(p)
		switch other := w1Prompt(1<<20 + p); kind {
		case "half":
			copy(q[w1Tokens/2:], other)
		case "miss":
			q = other
		}
		all = append(all, q)
	}
	return all
}

// BenchmarkLookup is hash, look-up and score; keys is the look-up alone.
func BenchmarkLookup(b *testing.B) {
	for _, c := range []struct {
		name string
		w    w1
	}{
		{"64 engines/R=1", w1{64, w1Prompts, 1}},
		{"64 engines/R=4", w1{64, w1Prompts, 4}},
		{"64 engines/hot", w1{64, 64, 64}},
		{"1000 engines/R=1", w1{1000, w1Prompts, 1}},
		{"1000 engines/R=4", w1{1000, w1Prompts, 4}},
	} {
		b.Run(c.name, func(b *testing.B) {
			ix, _ := c.w.load(w1Blocks, false)
			for _, kind := range []string{"full", "half", "miss"} {
				benchLookup(b, kind, queries(c.w, kind), func(q *prefix.Query, m *prefix.Match) { ix.Lookup(q, m) })
			}
			benchKeys(b, ix, queries(c.w, "full"))
		})
		if c.w.engines == 1000 {
			continue
		}
		b.Run(c.name+"/naive", func(b *testing.B) {
			n := c.w.loadNaive()
			benchLookup(b, "full", queries(c.w, "full"), func(q *prefix.Query, m *prefix.Match) { n.lookup(q.Tokens, m) })
		})
	}
}

func benchLookup(b *testing.B, name string, all [][]uint32, lookup func(*prefix.Query, *prefix.Match)) {
	b.Run(name, func(b *testing.B) {
		var m prefix.Match
		best := uint32(0)
		b.ReportAllocs()
		since := cpuTime()
		for i := 0; b.Loop(); i++ {
			lookup(&prefix.Query{Tokens: all[i%len(all)]}, &m)
			best += score(&m)
		}
		reportCPU(b, since, b.N, "op")
		b.ReportMetric(float64(len(m.Held)), "held")
		_ = best
	})
}

// BenchmarkLookupScattered looks up blocks that lie all over the memory, as after months of evictions: 256 prompts at a time grew block by
// block in turns.
func BenchmarkLookupScattered(b *testing.B) {
	w := w1{64, w1Prompts, 1}
	ix, holders := w1{64, 0, 0}.load(1, false)
	for first := 0; first < w.prompts; first += 256 {
		var told [w1Blocks][]prefix.Event
		for p := first; p < first+256; p++ {
			at := 0
			w.eachOf(p, 1, false, func(_ int, e *prefix.Event) {
				told[at] = append(told[at], *e)
				at++
			})
		}
		for i := range told {
			for p := range told[i] {
				if out := ix.Apply(holders[(first+p)%64], &told[i][p]); out.Result != Applied {
					b.Fatal(out.Result)
				}
			}
		}
	}
	benchKeys(b, ix, queries(w, "full"))
}

func benchKeys(b *testing.B, ix *Index, all [][]uint32) {
	var keys [][]chain.Key
	for _, q := range all {
		keys = append(keys, chain.Root{Model: "m", BlockSize: w1Block}.Key().Append(nil, q, w1Block))
	}
	b.Run("keys", func(b *testing.B) {
		var m prefix.Match
		b.ReportAllocs()
		since := cpuTime()
		for i := 0; b.Loop(); i++ {
			ix.LookupKeys(keys[i%len(keys)], &m)
		}
		reportCPU(b, since, b.N, "op")
		b.ReportMetric(float64(len(m.Held)), "held")
	})
}

// BenchmarkApply tells events that are decoded already to an index that is empty at first.
func BenchmarkApply(b *testing.B) {
	w := w1{64, w1Prompts, 1}
	for _, c := range []struct {
		name string
		per  int
	}{{"32 blocks", 32}, {"1 block", 1}} {
		type told struct {
			engine int
			e      prefix.Event
		}
		var events []told
		w.each(c.per, false, func(engine int, e *prefix.Event) { events = append(events, told{engine, *e}) })
		b.Run(c.name, func(b *testing.B) {
			since := cpuTime()
			var laps laps
			for b.Loop() {
				ix, holders := w1{64, 0, 0}.load(1, false)
				laps.begin()
				for i := range events {
					ix.Apply(holders[events[i].engine], &events[i].e)
					if (i+1)*c.per%2048 == 0 {
						laps.lap()
					}
				}
			}
			reportCPU(b, since, b.N*w.blocks(), "block")
			laps.report(b, 2048, "block")
		})
		b.Run(c.name+"/naive", func(b *testing.B) {
			since := cpuTime()
			var laps laps
			for b.Loop() {
				n := newNaive()
				laps.begin()
				for i := range events {
					n.apply(events[i].engine, &events[i].e)
					if (i+1)*c.per%2048 == 0 {
						laps.lap()
					}
				}
			}
			reportCPU(b, since, b.N*w.blocks(), "block")
			laps.report(b, 2048, "block")
		})
	}
}

// BenchmarkChurn stores 32 blocks and removes 32 others by each operation, in an index of a million that stays as full as it is.
func BenchmarkChurn(b *testing.B) {
	w := w1{64, w1Prompts, 1}
	ix, holders := w.load(32, false)
	var events []prefix.Event
	for p := range 256 {
		w.eachOf(1<<22+p, 32, false, func(_ int, e *prefix.Event) { events = append(events, *e) })
	}
	var l laps
	since := cpuTime()
	l.begin()
	for i := 0; b.Loop(); i++ {
		at := i % len(events)
		ix.Apply(holders[at/16%64], &events[at])
		last := (i + len(events) - 1024) % len(events)
		ix.Apply(holders[last/16%64], &prefix.Event{Kind: prefix.Removed, Hashes: events[last].Hashes, AnyTier: true})
		l.lap()
	}
	reportCPU(b, since, 64*b.N, "block")
	l.report(b, 64, "block")
}

// BenchmarkLookupInFlood looks up while another goroutine stores and removes without a pause, and while nobody does: compare their
// percentiles. It needs two processors of its own.
func BenchmarkLookupInFlood(b *testing.B) {
	w := w1{64, w1Prompts, 1}
	ix, holders := w.load(32, false)
	all := queries(w, "full")
	var stores, removals []prefix.Event
	for p := range 64 {
		w.eachOf(1<<22+p, 32, false, func(_ int, e *prefix.Event) {
			stores = append(stores, *e)
			removals = append(removals, prefix.Event{Kind: prefix.Removed, Hashes: e.Hashes, AnyTier: true})
		})
	}
	for _, flooded := range []bool{false, true} {
		b.Run("flood="+strconv.FormatBool(flooded), func(b *testing.B) {
			var stop atomic.Bool
			var told atomic.Int64
			var writer sync.WaitGroup
			if flooded {
				writer.Go(func() {
					for i := 0; !stop.Load(); i++ {
						e := &stores[i%len(stores)]
						if i/len(stores)%2 == 1 {
							e = &removals[i%len(stores)]
						}
						ix.Apply(holders[i/512%64], e)
						told.Add(32)
					}
				})
			}
			var l laps
			var m prefix.Match
			l.begin()
			for i := 0; b.Loop(); i++ {
				ix.Lookup(&prefix.Query{Tokens: all[i%len(all)]}, &m)
				l.lap()
			}
			b.ReportMetric(float64(told.Load())/b.Elapsed().Seconds(), "blocks/s")
			stop.Store(true)
			writer.Wait()
			l.report(b, 1, "lookup")
		})
	}
}

// laps are the times of many short stretches of one benchmark. Where others compute too, the quickest tenth was let alone.
type laps struct {
	last time.Time
	all  []time.Duration
}

func (l *laps) begin() { l.last = time.Now() }

func (l *laps) lap() {
	now := time.Now()
	l.all, l.last = append(l.all, now.Sub(l.last)), now
}

// report reports percentiles of what each of the n things in a lap took.
func (l *laps) report(b *testing.B, n int, unit string) {
	slices.Sort(l.all)
	for _, p := range []int{10, 50, 99} {
		b.ReportMetric(float64(l.all[len(l.all)*p/100])/float64(n), "p"+strconv.Itoa(p)+"-ns/"+unit)
	}
}
