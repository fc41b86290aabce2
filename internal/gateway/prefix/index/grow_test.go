//go:build !race

// They fill tables entry by entry, which the race detector stretches; there is one goroutine.

package index

import (
	"math"
	"math/rand/v2"
	"testing"
)

// bucketsForTest counts the buckets of a table.
func (t *table) bucketsForTest() (n int) {
	for i := range t.shards {
		if a := t.shards[i].store.Load(); a != nil {
			n += len(a.buckets)
		}
	}
	return n
}

// TestLarger: a shard on its steps goes to the next of them, one that is elsewhere to one that is not much nearer or farther, and the steps of all
// shards are evenly apart.
func TestLarger(t *testing.T) {
	for shard := range 1 << shardBits {
		for n := range 3000 {
			got := larger(shard, n)
			if least := max(n+1, n*5/4); got < least || float64(got) > growth*float64(least) {
				t.Fatalf("shard %d from %d buckets: %d", shard, n, got)
			}
		}
		for n := larger(shard, 100); n < 1<<21; {
			got := larger(shard, n)
			if f := float64(got) / float64(n); f < growth*0.99 || f > growth*1.01 {
				t.Fatalf("shard %d from %d buckets, a step of its own: %d", shard, n, got)
			}
			n = got
		}
	}
	var sizes [1 << shardBits]int
	for shard := range sizes {
		sizes[shard] = larger(shard, 0)
	}
	for most := 1000; most < 1<<20; most += most / 100 {
		all := 0
		for shard, n := range sizes {
			for n < most {
				n = larger(shard, n)
			}
			sizes[shard] = n
			all += n
		}
		mean := (growth - 1) / math.Log(growth)
		if f := float64(all) / float64(most<<shardBits); math.Abs(f-mean) > 0.02 {
			t.Errorf("where a shard needs %d buckets they have %.3f times as many, want %.3f", most, f, mean)
		}
	}
}

// TestLoadIsEven: with however many blocks, from some ten thousand on, a table has no more memory than its part of 48 bytes a block.
func TestLoadIsEven(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	m := newTableModel(t)
	least, most := 100.0, 0.0
	for id := range uint32(1 << 21) {
		m.insert(r.Uint64(), id+1)
		if n := int(id) + 1; n >= 1<<16 && n%1024 == 0 {
			bytes := float64(m.table.bucketsForTest()*64) / float64(n)
			least, most = min(least, bytes), max(most, bytes)
			if bytes > (48-34)/2 {
				t.Errorf("%d entries have %.2f bytes each", n, bytes)
			}
		}
	}
	t.Logf("%.2f to %.2f bytes an entry", least, most)
}
