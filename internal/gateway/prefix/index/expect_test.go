//go:build !race

// They fill tables entry by entry, which the race detector stretches; there is one goroutine.

package index

import (
	"fmt"
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

// TestExpectedSizes: what a shard grows to, from a size, with so many blocks expected.
func TestExpectedSizes(t *testing.T) {
	for _, c := range []struct{ n, expected, want int }{
		{0, 0, 1},
		{1, 0, 2},
		{100, 0, 125},
		{100, 80 * perBucket, 125},   // more came than was expected
		{100, 124 * perBucket, 125},  // a last step, smaller than any
		{100, 130 * perBucket, 130},  // a last step
		{100, 249 * perBucket, 249},  // nearly 2.5 times is the most
		{100, 250 * perBucket, 125},  // half of it, then all
		{100, 400 * perBucket, 200},  // double
		{200, 400 * perBucket, 400},  // just right
		{100, 1600 * perBucket, 200}, // the last three doublings are to come
		{0, maxID, 1},
		{1, maxID, 2},
	} {
		tab := table{expected: func() int { return c.expected }}
		if got := tab.next(c.n); got != c.want {
			t.Errorf("from %d buckets with %d blocks expected: %d, want %d", c.n, c.expected, got, c.want)
		}
	}
	for n := range 5000 {
		tab := table{expected: func() int { return n * 977 }}
		for at := range 300 {
			got := tab.next(at)
			if least := max(at+1, at*5/4); got < least || got >= 2*least {
				t.Fatalf("from %d buckets with %d blocks expected: %d", at, n*977, got)
			}
		}
	}
}

// TestExpect fills an index of which it is said how full it will be: nothing is made in advance, each shard grows by doubling, and when all is
// there it is as large as it has to be.
func TestExpect(t *testing.T) {
	const prompts, blocks = 40, 400
	grown := func(expect int) (arrays, buckets int) {
		f := newFleet(t, 2, Config{})
		f.ix.Expect(f.engines[0], expect)
		f.ix.Expect(f.engines[1], expect/4)
		if n := f.ix.names.bucketsForTest(); n != 0 {
			t.Errorf("%d buckets of nothing", n)
		}
		last := [1 << shardBits]*array{}
		for p := range prompts {
			for at := 0; at < blocks; at += 8 {
				f.apply(p%2, event(1+p, at, at+8), Applied)
				for i := range last {
					if a := f.ix.names.shards[i].store.Load(); a != last[i] {
						last[i] = a
						arrays++
					}
				}
			}
		}
		for p := range prompts {
			f.want(1+p, blocks, p%2, blocks)
		}
		f.ix.checkForTest(t)
		return arrays, f.ix.names.bucketsForTest()
	}
	const all = prompts * blocks
	plain, _ := grown(0)
	doubled, buckets := grown(all * 4 / 5) // with a quarter of it for the other engine
	// 250 blocks a shard need 23 buckets: 1, 2, 5, 11, 23, and now and then one more; by quarters 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 18, 22.
	if doubled > 6<<shardBits || plain < 10<<shardBits {
		t.Errorf("%d arrays with a size expected, %d without", doubled, plain)
	}
	if load := float64(all) / float64(buckets*slots); load < 0.6 || load > 0.76 {
		t.Errorf("the full table has a load of %.2f, want 0.75 or less, since the other engine has more than was said", load)
	}
	// What is expected and never comes costs less than 2.5 times the buckets.
	if _, most := grown(1 << 25); float64(all)/float64(most*slots) < 0.9/2.5-0.05 {
		t.Errorf("%d buckets for %d blocks", most, all)
	}
}

// TestForeseen is what an index counts on, with answers.
func TestForeseen(t *testing.T) {
	f := newFleet(t, 4, Config{MaxBlocks: 5000})
	want := func(n int) {
		t.Helper()
		if got := f.ix.foreseen(); got != n {
			t.Errorf("foreseen %d, want %d", got, n)
		}
	}
	want(0)
	f.ix.Expect(f.engines[0], 1000)
	f.ix.Expect(f.engines[1], 500)
	want(1500)
	f.apply(0, event(1, 0, 100), Applied)
	want(1500)
	f.apply(1, event(1, 0, 100), Applied) // the same: half of what came was new
	want(100 + (900+400)/2)
	f.apply(2, event(2, 0, 100), Applied) // nothing was expected of it: two thirds were new
	want(200 + 1300*2/3)
	f.ix.Expect(f.engines[0], 50) // it has more
	want(200 + 400*2/3)
	f.ix.Expect(f.engines[0], -7)
	want(200 + 400*2/3)
	f.ix.Expect(f.engines[3], 1<<40)
	want(5000)
	f.ix.Close(f.engines[3])
	want(200 + 400*2/3)
	f.ix.Expect(f.engines[3], 1000) // nobody
	want(200 + 400*2/3)
	f.ix.Withdraw(f.engines[1]) // its claims are to come again; the first engine has all of them
	want(200 + 500)
}

// TestTableExpected does the same at random to tables that expect more than comes, or less, and to maps.
func TestTableExpected(t *testing.T) {
	for _, expected := range []int{1, 3000, 5000, 40_000, maxID} {
		t.Run(fmt.Sprint(expected), func(t *testing.T) {
			seed := rand.Uint64()
			t.Log("seed", seed)
			r := rand.New(rand.NewPCG(seed, 0))
			m := newTableModel(t)
			m.table.expected = func() int { return expected }
			id := uint32(0)
			for range 3 {
				for len(m.ids) < 5000 {
					id++
					m.insert(r.Uint64(), id)
				}
				m.check()
				if id == 5000 && m.asked > 5000 {
					t.Errorf("%d hashes were asked for", m.asked)
				}
				for len(m.ids) > 700 {
					m.remove(m.ids[r.IntN(len(m.ids))])
				}
				m.check()
			}
		})
	}
}
