//go:build !race

// They fill tables entry by entry, which the race detector stretches to a minute; there is one goroutine.

package index

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// tableModel is a table beside a map that says what is in it.
type tableModel struct {
	t      *testing.T
	table  table
	hash   map[uint32]uint64
	ids    []uint32 // keys of hash, in the order of their numbers' places below
	place  map[uint32]int
	asked  int // hashes
	lookup hashes
}

func newTableModel(t *testing.T) *tableModel {
	m := &tableModel{t: t, hash: map[uint32]uint64{}, place: map[uint32]int{}}
	m.lookup = func(ids *[batch]uint32, into *[batch]uint64) {
		for i, id := range ids {
			if id == 0 {
				continue
			}
			h, there := m.hash[id]
			if !there {
				t.Fatalf("the hash of %d is asked for, which is not there", id)
			}
			into[i] = h
			m.asked++
		}
	}
	return m
}

func (m *tableModel) insert(hash uint64, id uint32) {
	m.table.insert(hash, id, m.lookup) // it must not ask for the hash of the one that comes
	m.hash[id] = hash
	m.place[id] = len(m.ids)
	m.ids = append(m.ids, id)
}

func (m *tableModel) remove(id uint32) {
	m.table.remove(m.hash[id], id, func(ids *[batch]uint32, into *[batch]uint64) {
		if slices.Contains(ids[:], id) {
			m.t.Fatalf("the hash of %d is asked for, which is gone", id)
		}
		m.lookup(ids, into)
	})
	last := len(m.ids) - 1
	m.ids[m.place[id]], m.place[m.ids[last]] = m.ids[last], m.place[id]
	m.ids = m.ids[:last]
	delete(m.hash, id)
	delete(m.place, id)
}

// found tells how often a search for the hash comes to the block, and how many candidates it has.
func (m *tableModel) found(hash uint64, id uint32) (times, candidates int) {
	var s search
	for c := m.table.search(&s, hash); c != 0; c = s.next() {
		if candidates++; c == id {
			times++
		}
	}
	return times, candidates
}

// check holds every entry, and the words of all buckets, against the map.
func (m *tableModel) check() {
	m.t.Helper()
	for id, hash := range m.hash {
		if n, _ := m.found(hash, id); n != 1 {
			m.t.Fatalf("%d with hash %x is found %d times", id, hash, n)
		}
	}
	for i := range m.table.shards {
		a := m.table.shards[i].store.Load()
		if a == nil {
			continue
		}
		n, away := 0, 0
		passed := make([]int, len(a.buckets))
		for at := range a.buckets {
			b := &a.buckets[at]
			for slot := 1; slot <= slots; slot++ {
				if b.at(slot) == 0 {
					if b.word()&awayBit(slot) != 0 {
						m.t.Fatalf("slot %d is free, and what it holds is said to be from elsewhere", slot)
					}
					continue
				}
				n++
				home, _ := a.home(m.hash[b.at(slot)&(1<<a.idBits-1)])
				if (home != at) != (b.word()&awayBit(slot) != 0) {
					m.t.Fatalf("bucket %d has an entry of %d, and its word is %x", at, home, b.word())
				}
				if home != at {
					away++
				}
				for ; home != at; home = (home + 1) % len(a.buckets) {
					passed[home]++
				}
			}
		}
		if n != m.table.shards[i].live {
			m.t.Fatalf("%d entries, counted %d", n, m.table.shards[i].live)
		}
		if away != m.table.shards[i].away {
			m.t.Fatalf("%d entries lie behind their bucket, counted %d", away, m.table.shards[i].away)
		}
		for at, n := range passed {
			if got := int(a.buckets[at].word() & manyPassed); got != n && (got != manyPassed || n > 3*manyPassed) {
				m.t.Fatalf("%d passed bucket %d, counted %d", n, at, got)
			}
		}
	}
}

// TestTable does the same at random to a table and to a map, with hashes and numbers of several sorts.
func TestTable(t *testing.T) {
	for name, c := range map[string]struct {
		hash func(*rand.Rand) uint64
		id   func(*rand.Rand, int) uint32 // of the n-th
		ask  float64                      // the most hashes asked for, for each entry
	}{
		"dense numbers":  {func(r *rand.Rand) uint64 { return r.Uint64() }, func(_ *rand.Rand, n int) uint32 { return uint32(n) }, 1},
		"sparse numbers": {func(r *rand.Rand) uint64 { return r.Uint64() }, func(r *rand.Rand, _ int) uint32 { return 1 + r.Uint32N(maxID) }, 100},
		"one shard":      {func(r *rand.Rand) uint64 { return r.Uint64() >> shardBits }, func(_ *rand.Rand, n int) uint32 { return uint32(n) }, 100},
		"few quotients":  {func(r *rand.Rand) uint64 { return r.Uint64N(8)<<(60-shardBits) | r.Uint64N(4) }, func(_ *rand.Rand, n int) uint32 { return uint32(n) }, 1000},
		"one hash":       {func(*rand.Rand) uint64 { return 1 << 63 }, func(_ *rand.Rand, n int) uint32 { return uint32(n) }, 1000},
		"the last ones":  {func(r *rand.Rand) uint64 { return ^uint64(0) - r.Uint64N(3) }, func(r *rand.Rand, _ int) uint32 { return maxID - r.Uint32N(1<<20) }, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			seed := rand.Uint64()
			t.Log("seed", seed)
			r := rand.New(rand.NewPCG(seed, 0))
			m := newTableModel(t)
			n := 0
			grow := func(to int) {
				for len(m.ids) < to {
					n++
					id := c.id(r, n)
					if _, there := m.hash[id]; !there {
						m.insert(c.hash(r), id)
					}
				}
			}
			most := 20_000
			if c.ask == 1000 {
				most = 1500
			}
			grow(most)
			m.check()
			if got := float64(m.asked) / float64(most); got > c.ask {
				t.Errorf("%.2f hashes were asked for, for each entry", got)
			}
			for range most / 2 {
				if r.IntN(2) == 0 {
					m.remove(m.ids[r.IntN(len(m.ids))])
				} else {
					grow(len(m.ids) + 1)
				}
			}
			m.check()
			for len(m.ids) > most/50 {
				m.remove(m.ids[r.IntN(len(m.ids))])
			}
			m.check()
			grow(most / 4)
			m.check()
			for len(m.ids) > 0 {
				m.remove(m.ids[r.IntN(len(m.ids))])
			}
			m.check()
		})
	}
}

// TestManyPass has more entries pass a bucket than its word counts: it stays where it is, and nothing is lost.
func TestManyPass(t *testing.T) {
	m := newTableModel(t)
	const n = manyPassed + 200
	for id := range uint32(n) {
		m.insert(7<<40, id+1)
	}
	for id := range uint32(n - 20) {
		m.remove(id + 1)
	}
	for id := uint32(n - 20); id < n; id++ {
		if times, _ := m.found(7<<40, id+1); times != 1 {
			t.Errorf("%d is found %d times", id+1, times)
		}
	}
	if times, _ := m.found(7<<40, 1); times != 0 {
		t.Error("what was removed is found")
	}
}

// TestQuotient moves an entry between arrays of all sizes and formats without its hash being asked for, to where its hash says.
func TestQuotient(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		n := 2 + r.IntN(1<<uint(r.IntN(12)))
		old := &array{buckets: make([]bucket, n), idBits: uint(9 + r.IntN(18))}
		if !old.recovers() {
			continue
		}
		hash := r.Uint64()
		at, tag := old.home(hash)
		old.buckets[at].set(1, tag|1)
		into := &array{buckets: make([]bucket, 1+r.IntN(2*n)), idBits: uint(9 + r.IntN(18))}
		f := fresh{array: into, used: make([]uint8, len(into.buckets))}
		f.move(old, func(ids *[batch]uint32, _ *[batch]uint64) {
			if ids[0] != 0 {
				t.Fatal("a hash is asked for")
			}
		})
		to, tag := into.home(hash)
		if got := into.buckets[to].at(1); got != tag|1 {
			t.Fatalf("%d buckets with numbers of %d bits into %d of %d: %x, want %x", n, old.idBits, len(into.buckets), into.idBits, got, tag|1)
		}
	}
}

// TestGrowingAsksRarely: a table that is filled with dense numbers asks for few hashes, at every size.
func TestGrowingAsksRarely(t *testing.T) {
	m := newTableModel(t)
	r := rand.New(rand.NewPCG(3, 4))
	before := 0
	for n, id := 1<<12, uint32(0); n <= 1<<16; n *= 2 {
		for int(id) < n {
			id++
			m.insert(r.Uint64(), id)
		}
		if got := float64(m.asked-before) / float64(n/2); got > 1.5 && n > 1<<13 {
			t.Errorf("up to %d blocks %.2f hashes are asked for, for each", n, got)
		}
		before = m.asked
	}
}

// TestAges: blocks come and go in a table that is as full as they may be, and what finds nothing does not have to go far.
func TestAges(t *testing.T) {
	for _, load := range []int{75, 80, 88} {
		m := newTableModel(t)
		r := rand.New(rand.NewPCG(5, uint64(load)))
		const n = 1 << 15
		buckets := n * 100 / (slots * load)
		for i := range m.table.shards {
			m.table.resize(&m.table.shards[i], buckets>>shardBits, 0, m.lookup)
		}
		for id := range uint32(n) {
			m.insert(r.Uint64(), id+1)
		}
		for range 4 * n {
			id := m.ids[r.IntN(len(m.ids))]
			m.remove(id)
			m.insert(r.Uint64(), id)
		}
		m.check()
		seen := 0
		for range n {
			var s search
			for id := m.table.search(&s, r.Uint64()); id != 0; {
				id = s.next()
			}
			if seen++; s.buckets != nil {
				seen += len(s.buckets) - 1 - s.left
			}
		}
		all := 0
		for i := range m.table.shards {
			all += len(m.table.shards[i].store.Load().buckets)
		}
		if got := float64(seen) / n; got > 5 {
			t.Errorf("filled to %d %%: a search goes through %.1f buckets", load, got)
		}
		if got := float64(n) / float64(all*slots); got < 0.7 {
			t.Errorf("filled to %d %%: %.2f at the end", load, got)
		}
	}
}
