package dram

import (
	"testing"
	"time"
)

// TestGrow: when a pool becomes larger nothing that there is moves, and afterwards a few entries of the index with each block: all of them in one message never. It
// becomes larger again while that goes on.
func TestGrow(t *testing.T) {
	const blocks = 20_000
	s := New(nil)
	s.AddScope(0)
	s.AddArena(blocks, 1, 0)
	for i := range blocks {
		s.bring(Key{Hash: blockHash(uint64(i))}, Hash{}, 0)
	}
	begin := func(arena, i int) {
		p := s.Begin(&Newcomer{Key: Key{Hash: blockHash(uint64(i))}, Arena: arena, Parts: 1})
		at, _ := s.Grant(p, 0, 0)
		s.Seal(arena, at, 0)
		s.Show(p, Retained, 0)
	}
	old := func() (n int) { return s.index.all() - s.index.used }
	for round, more := range []int{5 * blocks, 6 * blocks, 7 * blocks} {
		if s.AddArena(uint32(more), 1, 0); s.index.used > 0 {
			t.Fatal("entries of the index were moved under the lock in which an engine registers")
		}
		for n := range 500 {
			before := old()
			begin(1, blocks+500*round+n)
			if moved := before - old(); moved > perPut {
				t.Fatalf("%d entries of the index were moved for one block", moved)
			}
			// Blocks of all tables are found, and go.
			for _, i := range []int{n, blocks - 1 - n} {
				i += 1000 * round * (1 - 2*(i/(blocks/2)))
				k := Key{Hash: blockHash(uint64(i))}
				p, ok := s.Find(k)
				if run := s.FindRun(nil, 0, 0, []Hash{k.Hash}, true); !ok || len(run) != 1 || run[0] != p {
					t.Fatalf("block %d is lost", i)
				}
				if n%2 == 0 {
					s.Doom(p)
					s.Free(p, func(uint32, uint32) {})
				}
			}
		}
		if wrong := s.Check(); wrong != "" {
			t.Fatal(wrong)
		}
	}
	if old() == 0 {
		t.Error("nothing was left to be moved")
	}
	for i := 3 * blocks; old() > 0; i++ {
		if begin(2, i); i == 4*blocks {
			t.Fatal("what was there is never moved")
		}
	}
	if wrong := s.Check(); wrong != "" || len(s.index.old) > 0 {
		t.Error(wrong, len(s.index.old))
	}
}

// TestGrowEmpty: where a pool that is nearly empty becomes larger, the few entries of its index are not looked for all at once.
func TestGrowEmpty(t *testing.T) {
	const slots = 200_000
	s := New(nil)
	s.AddScope(0)
	s.AddArena(slots, 1, 0)
	first := Key{Hash: blockHash(1)}
	s.bring(first, Hash{}, 0)
	_, place := s.place(&first)
	s.AddArena(slots, 1, 0)
	begun := 0
	for ; len(s.index.old) > 0; begun++ {
		s.bring(Key{Hash: blockHash(uint64(2 + begun))}, Hash{}, 0)
		if _, there := s.Find(first); !there {
			t.Fatal("the block is lost")
		}
	}
	if least := place / (perPut * mostEmpty); begun < least || begun > least+2 || least < 10 {
		t.Errorf("place %d of the old index was reached with block %d, want %d", place, begun, least+1)
	}
	if wrong := s.Check(); wrong != "" {
		t.Error(wrong)
	}
}

// TestGrowGhosts: a pool that becomes larger remembers what has gone, until as much has gone since.
func TestGrowGhosts(t *testing.T) {
	var g ghosts
	const n, many = 2000, 1 << 20
	d := func(i int) uint64 { k := Key{Hash: blockHash(uint64(i))}; return new(Store).digest(&k) }
	known := func(from int) (all int) {
		for i := from; i < from+n; i++ {
			if score, uses, ok := g.recall(d(i)); ok && nearScore(score, uint64(i), uint64(12*n)) && uses == 3 {
				all++
			}
		}
		return all
	}
	remember := func(from, to int) {
		for i := from; i < to; i++ {
			g.remember(d(i), float32(i), 3)
		}
	}
	g.grow(1)
	remember(0, 2*n)
	g.grow(many)
	if got := known(0); got < n*99/100 {
		t.Errorf("%d of %d are remembered", got, n)
	}
	remember(2*n, 3*n)
	g.grow(2 * many) // fewer have gone since the last time than before it
	if got := known(n); got < n*99/100 {
		t.Errorf("%d of %d are remembered after the pool has grown twice", got, n)
	}
	remember(10*n, 12*n)
	if g.older != nil {
		t.Error("as many have gone since, and the old ones are still kept")
	}
}

// BenchmarkAddArena is what everybody waits for when an engine registers with a quarter of a pool that is full but for it.
func BenchmarkAddArena(b *testing.B) {
	const blocks = 1 << 20
	for range b.N {
		b.StopTimer()
		s := New(nil)
		s.AddScope(0)
		s.AddArena(3*blocks, 1, 0)
		for i := range 3 * blocks {
			s.bring(Key{Hash: blockHash(uint64(i))}, Hash{}, time.Duration(i))
		}
		b.StartTimer()
		s.AddArena(blocks, 1, 0)
	}
}
