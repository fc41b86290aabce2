package book

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/managerwire"
	"github.com/perigee-llm/perigee/internal/script"
)

var spaces = []*Space{
	{Namespace: managerwire.Namespace{1}, Model: "m", BlockSize: 16, Groups: 1},
	{Namespace: managerwire.Namespace{2}, Model: "n", BlockSize: 32, Groups: 2},
}

func key1(n int) chain.Key { return chain.Key{Lo: uint64(n), Hi: 1} }

// told is what a gateway makes of events: naive.
type told struct {
	names   map[string]string // namespace and name to parent and model
	engines map[uint64]string
}

func newTold() *told { return &told{map[string]string{}, map[uint64]string{}} }

func at(n managerwire.Namespace, k chain.Key) string { return fmt.Sprintf("%d/%d", n[0], k.Lo) }

func (g *told) apply(t *testing.T, events []managerwire.Event) {
	t.Helper()
	for _, e := range events {
		switch e.Kind {
		case managerwire.BlockStored:
			parent := e.Parent
			for _, k := range e.Chain {
				if _, again := g.names[at(e.Namespace, k)]; again {
					t.Errorf("%s is told twice", at(e.Namespace, k))
				}
				g.names[at(e.Namespace, k)] = fmt.Sprint(parent.Lo, e.Model, e.BlockSize, e.Medium)
				parent = k
			}
		case managerwire.BlockRemoved:
			for _, k := range e.Chain {
				if _, there := g.names[at(e.Namespace, k)]; !there {
					t.Errorf("%s is taken back and was not told", at(e.Namespace, k))
				}
				delete(g.names, at(e.Namespace, k))
			}
		case managerwire.AllBlocksCleared:
			maps.DeleteFunc(g.names, func(name, _ string) bool { return name[:2] == fmt.Sprintf("%d/", e.Namespace[0]) })
		case managerwire.Attached:
			g.engines[e.Instance] = fmt.Sprint(e.Engine, e.Rank, e.Namespace[0], e.Media)
		case managerwire.Detached:
			if _, there := g.engines[e.Instance]; !there {
				t.Errorf("engine %d leaves and was not told", e.Instance)
			}
			delete(g.engines, e.Instance)
		}
	}
}

// TestModel: whatever comes and goes, and whenever it is told, what was told adds up to what a naive count says, and to the snapshot.
func TestModel(t *testing.T) {
	rng := script.Rand(t)
	for range 200 {
		var b Book
		var p Pending
		g := newTold()
		type group struct{ space, name, group int }
		count := map[group]int{}
		engines := map[uint64]bool{}
		next := uint64(0)
		for range 1 + rng.IntN(120) {
			switch rng.IntN(12) {
			case 0:
				next++
				p.Attach(next, Engine{URL: "http://e", Rank: managerwire.AllRanks, Space: spaces[rng.IntN(2)]})
				engines[next] = true
			case 1:
				n := uint64(rng.IntN(int(next) + 2)) // also one that never was
				p.Detach(n)
				delete(engines, n)
			case 2, 3:
				g.apply(t, b.Apply(&p))
				check(t, g, func(s, n int) bool {
					whole := true
					for i := range spaces[s].Groups {
						whole = whole && count[group{s, n, i}] > 0
					}
					return whole
				}, engines)
				snap := newTold()
				snap.apply(t, b.Snapshot())
				if d := cmp.Diff(g, snap, cmp.AllowUnexported(told{})); d != "" {
					t.Fatalf("the snapshot is another (-told, +snapshot):\n%s", d)
				}
				if b.Names() != len(g.names) {
					t.Fatalf("%d names, %d told", b.Names(), len(g.names))
				}
			default:
				s := rng.IntN(2)
				k := group{s, 1 + rng.IntN(6), rng.IntN(spaces[s].Groups)}
				if rng.IntN(2) == 0 {
					p.Visible(spaces[s], uint32(k.group), parentOf(k.name), key1(k.name))
					count[k]++
				} else if count[k] > 0 {
					p.Removed(spaces[s].Namespace, uint32(k.group), key1(k.name))
					count[k]--
				}
			}
		}
	}
}

func parentOf(n int) (k chain.Key) {
	if n > 1 {
		k = key1(n - 1)
	}
	return k
}

func check(t *testing.T, g *told, whole func(space, name int) bool, engines map[uint64]bool) {
	t.Helper()
	for s := range spaces {
		for n := 1; n <= 6; n++ {
			if _, is := g.names[at(spaces[s].Namespace, key1(n))]; is != whole(s, n) {
				t.Fatalf("space %d, name %d: told %v, want %v", s, n, is, whole(s, n))
			}
		}
	}
	for n := range engines {
		if g.engines[n] == "" {
			t.Fatalf("engine %d is not told", n)
		}
	}
	if len(g.engines) != len(engines) {
		t.Fatalf("%d engines told, %d there", len(g.engines), len(engines))
	}
}

// TestSnapshotOrder: parents before children, in runs, however the map turns; also where somebody made a chain bite its tail.
func TestSnapshotOrder(t *testing.T) {
	var p Pending
	var b Book
	const n = 3 * managerwire.ChunkBlocks
	for i := 1; i <= n; i++ {
		p.Visible(spaces[0], 0, parentOf(i), key1(i))
	}
	p.Visible(spaces[0], 0, key1(n+2), key1(n+1))
	p.Visible(spaces[0], 0, key1(n+1), key1(n+2))
	live := b.Apply(&p)
	if len(live) != 4 {
		t.Errorf("%d events for blocks in their order", len(live))
	}
	seen := map[chain.Key]bool{{}: true}
	events := b.Snapshot()
	for _, e := range events {
		if !seen[e.Parent] && e.Parent.Lo <= n {
			t.Fatalf("%v before its parent", e.Chain[0])
		}
		for _, k := range e.Chain {
			seen[k] = true
		}
	}
	if len(seen) != n+3 || len(events) > 200 {
		t.Errorf("%d names in %d events", len(seen)-1, len(events))
	}
	total := 0
	for part := range Batches(events) {
		blocks := 0
		for _, e := range part {
			blocks += max(1, len(e.Chain))
		}
		if total += len(part); blocks > managerwire.ChunkBlocks {
			t.Errorf("%d blocks in a batch", blocks)
		}
	}
	if total != len(events) {
		t.Errorf("%d of %d events are in batches", total, len(events))
	}
}

// TestBounds: what came and went is not kept, and what cannot be told is said so.
func TestBounds(t *testing.T) {
	var p Pending
	for i := range 1000 {
		p.Visible(spaces[0], 0, chain.Key{}, key1(1+i))
		p.Removed(spaces[0].Namespace, 0, key1(1+i))
		p.Attach(uint64(i), Engine{URL: "http://e", Space: spaces[0]})
		p.Detach(uint64(i))
	}
	if !p.Empty() || p.Len() != 0 {
		t.Errorf("%d notes of nothing", p.Len())
	}
	noModel := *spaces[0]
	noModel.Model = ""
	if p.Visible(spaces[0], 0, chain.Key{}, chain.Key{}) || p.Visible(&noModel, 0, chain.Key{}, key1(1)) || p.Visible(spaces[0], 1, chain.Key{}, key1(1)) {
		t.Error("a block is told that has no name, no model or no such group")
	}
	long := string(make([]byte, managerwire.MaxEngine+1))
	if p.Attach(1, Engine{Space: spaces[0]}) || p.Attach(1, Engine{URL: long, Space: spaces[0]}) ||
		p.Attach(1, Engine{URL: "http://e", Rank: managerwire.MaxRank + 1, Space: spaces[0]}) {
		t.Error("an engine is told that no gateway would take")
	}
	p.Removed(spaces[0].Namespace, 0, key1(9)) // of one that could not be told
	var b Book
	if e := b.Apply(&p); len(e) != 0 {
		t.Errorf("%+v", e)
	}
}

func TestPrices(t *testing.T) {
	var b Book
	var p Pending
	var c Prices
	p.Attach(1, Engine{URL: "http://e", Space: spaces[0]})
	b.Apply(&p)
	if got := c.Events(0, &b); len(got) != 0 {
		t.Fatalf("a price of what was never measured: %+v", got)
	}
	price := func(now time.Duration) managerwire.Event {
		t.Helper()
		got := c.Events(now, &b)
		if len(got) != 1 || got[0].Instance != 1 || got[0].Engine != "http://e" || got[0].Medium != managerwire.CPU {
			t.Fatalf("%+v", got)
		}
		return got[0]
	}
	c.Restored(1, time.Second, 1000, 20*time.Millisecond)
	if e := price(3 * time.Second); e.Fixed != 0 || e.PerToken != 20e-6 || e.Samples != 1 || e.Age != 2 || e.Error != 1 {
		t.Errorf("of one: %+v", e)
	}
	for i := 1; i <= 100; i++ { // 5 ms and 10 µs a token
		c.Restored(1, time.Second, 100*i, 5*time.Millisecond+time.Duration(i)*time.Millisecond)
	}
	if e := price(time.Second); math.Abs(e.Fixed-0.005) > 1e-9 || math.Abs(e.PerToken-1e-5) > 1e-12 || e.Samples != 64 || e.Error > 0.01 {
		t.Errorf("of a line: %+v", e)
	}
	c.Restored(2, time.Second, 100, time.Second) // nobody's
	if e := price(time.Second + priceLife); e.Samples != 64 {
		t.Errorf("%+v", e)
	}
	if got := c.Events(2*time.Second+priceLife, &b); len(got) != 0 || len(c.samples) != 0 {
		t.Errorf("long after: %+v", got)
	}
}

// TestLine: never negative and always finite, whatever was measured.
func TestLine(t *testing.T) {
	rng := script.Rand(t)
	for range 2000 {
		var s []sample
		for range 1 + rng.IntN(10) {
			s = append(s, sample{tokens: float64(1 + rng.IntN(5)*rng.IntN(100000)), seconds: rng.Float64() * float64(rng.IntN(3))})
		}
		fixed, per := line(s)
		if !(fixed >= 0 && per >= 0) || math.IsInf(fixed+per, 0) {
			t.Fatalf("%v and %v of %+v", fixed, per, s)
		}
	}
	if fixed, per := line([]sample{{tokens: 100, seconds: 2}, {tokens: 200, seconds: 1}}); fixed != 1.5 || per != 0 {
		t.Errorf("falling: %v, %v", fixed, per)
	}
}

func BenchmarkVisible(b *testing.B) {
	var p Pending
	var k Book
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		i++
		p.Visible(spaces[0], 0, key1(i-1), key1(i))
		if i%1000 == 0 {
			b.StopTimer()
			k.Apply(&p)
			k = Book{}
			b.StartTimer()
		}
	}
}

func BenchmarkSnapshot(b *testing.B) {
	var p Pending
	var k Book
	rng := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		var parent chain.Key
		for range 100 {
			name := chain.Key{Lo: rng.Uint64(), Hi: rng.Uint64()}
			p.Visible(spaces[0], 0, parent, name)
			parent = name
		}
	}
	k.Apply(&p)
	for b.Loop() {
		k.Snapshot()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100_000, "ns/name")
}
