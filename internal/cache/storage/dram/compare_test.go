//go:build !race

package dram

import (
	"container/heap"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/trace"
)

// compared are the policies of the table in docs/cache-eviction.md.
var compared = []struct {
	name string
	make func() Policy
}{
	{"LRU", func() Policy { return LRU{} }},
	{"decayed count, half-life 2 min", func() Policy { return Decayed{2 * time.Minute} }},
	{"decayed count, half-life 10 min", func() Policy { return Decayed{10 * time.Minute} }},
	{"learned (the default)", func() Policy { return new(Learned) }},
}

var capacities = []int{1000, 3000, 10000, 30000}

// TestCompare runs the embedded trace and made-up conversations through each policy and the offline optimum, wants the tables in the
// documentation to say what comes out, and holds what the default promises.
func TestCompare(t *testing.T) {
	raw, err := os.ReadFile("../../../../docs/cache-eviction.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, load := range []struct {
		name  string
		reqs  []trace.Request
		least map[int]float64 // of LRU's gap to the optimum that the default closes, by capacity
	}{
		{"trace", traceOf(t), map[int]float64{3000: 0.05, 10000: 0.05}},
		{"chats", chats(3000, 1), map[int]float64{1000: 0.1, 3000: 0.05, 10000: 0.25}},
	} {
		rates := map[string][]float64{}
		for _, p := range compared {
			for _, n := range capacities {
				rates[p.name] = append(rates[p.name], hitRate(load.reqs, n, p.make()))
			}
			wantLine(t, string(raw), load.name, p.name, rates[p.name])
		}
		best := []float64{}
		for _, n := range capacities {
			best = append(best, belady(load.reqs, n))
		}
		wantLine(t, string(raw), load.name, "Belady (knows the future)", best)
		lru, own := rates["LRU"], rates["learned (the default)"]
		for i, n := range capacities {
			closed := (own[i] - lru[i]) / (best[i] - lru[i])
			t.Logf("%s, %d blocks: %.1f %% of the gap", load.name, n, 100*closed)
			if own[i] < lru[i]-0.005 || closed < load.least[n] {
				t.Errorf("%s, %d blocks: %.4f, LRU %.4f: %.1f %% of its gap to the optimum is closed", load.name, n, own[i], lru[i], 100*closed)
			}
		}
	}
}

func wantLine(t *testing.T, docs, load, name string, rates []float64) {
	text := "| " + name
	for _, r := range rates {
		text += fmt.Sprintf(" | %.4f", r)
	}
	if text += " |"; !strings.Contains(docs, text) {
		t.Errorf("docs/cache-eviction.md lacks, for %s\n%s", load, text)
	}
}

func traceOf(tb testing.TB) (reqs []trace.Request) {
	for r, err := range trace.Synthetic() {
		if err != nil {
			tb.Fatal(err)
		}
		reqs = append(reqs, r)
	}
	return reqs
}

// hitRate is the share of all blocks of the requests that are in a leading run of blocks in memory as their request comes; then
// the request has all its blocks in memory, or as many as there is room for.
func hitRate(reqs []trace.Request, capacity int, p Policy) float64 {
	s := New(p)
	s.AddArena(uint32(capacity), 1, 0)
	s.AddScope(0)
	hits, all := 0, 0
	for _, r := range reqs {
		all += len(r.Blocks)
		run, ends := 0, false
		var held []Page
		for i, id := range r.Blocks {
			k := Key{Hash: blockHash(id)}
			q, ok := s.Find(k)
			if ends = ends || !ok; ok {
				s.Touch(q, r.Arrival)
			} else if q = s.bring(k, parentOf(r.Blocks, i), r.Arrival); q == None {
				break
			}
			if !ends {
				run++
			}
			s.Hold(q)
			held = append(held, q)
		}
		for i := len(held) - 1; i >= 0; i-- {
			s.Unhold(held[i])
		}
		hits += run
	}
	return float64(hits) / float64(all)
}

func parentOf(ids []uint64, i int) Hash {
	if i == 0 {
		return Hash{}
	}
	return blockHash(ids[i-1])
}

// belady is the hit rate of the offline optimum: the block goes whose next use is the furthest away, of a prompt the last one first.
func belady(reqs []trace.Request, capacity int) float64 {
	next := map[uint64]int{}
	after := make([][]int, len(reqs)) // the request that uses the block next
	for i := len(reqs) - 1; i >= 0; i-- {
		for _, id := range reqs[i].Blocks {
			n, ok := next[id]
			if !ok {
				n = math.MaxInt32
			}
			after[i] = append(after[i], n)
		}
		for _, id := range reqs[i].Blocks {
			next[id] = i
		}
	}
	in := map[uint64]int{} // next use of what is in memory
	var q furthest
	hits, all := 0, 0
	for i, r := range reqs {
		all += len(r.Blocks)
		for _, id := range r.Blocks {
			if _, ok := in[id]; !ok {
				break
			}
			hits++
		}
		for j, id := range r.Blocks {
			in[id] = after[i][j]
			heap.Push(&q, use{after[i][j], j, id})
			for len(in) > capacity {
				if u := heap.Pop(&q).(use); in[u.id] == u.next {
					delete(in, u.id)
				}
			}
		}
	}
	return float64(hits) / float64(all)
}

type use struct {
	next, depth int
	id          uint64
}

type furthest []use

func (f furthest) Len() int { return len(f) }
func (f furthest) Less(i, j int) bool {
	if f[i].next != f[j].next {
		return f[i].next > f[j].next
	}
	return f[i].depth > f[j].depth
}
func (f furthest) Swap(i, j int) { f[i], f[j] = f[j], f[i] }
func (f *furthest) Push(x any)   { *f = append(*f, x.(use)) }
func (f *furthest) Pop() any {
	old := *f
	x := old[len(old)-1]
	*f = old[:len(old)-1]
	return x
}
