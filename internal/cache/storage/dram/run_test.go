package dram

import (
	"slices"
	"testing"

	"github.com/perigee-llm/perigee/internal/script"
)

// TestFindRun compares with Find, one after another; and HoldUsed with Hold and Touch, by the order in which the blocks go.
func TestFindRun(t *testing.T) {
	r := script.Rand(t)
	one, two := New(LRU{}), New(LRU{})
	if got := one.FindRun(nil, 0, 0, make([]Hash, 2), false); !slices.Equal(got, []Page{None, None}) {
		t.Errorf("without arenas: %v", got)
	}
	for _, s := range []*Store{one, two} {
		s.AddArena(64, 1, 0)
		s.AddArena(64, 1, 0) // of the other space
		s.AddScope(0)
		for i := range 50 {
			p := s.Begin(&Newcomer{Key: Key{uint32(i % 2), uint32(i % 3), blockHash(uint64(i))}, Arena: i % 2, Parts: 1})
			at, _ := s.Grant(p, 0, 0)
			s.Seal(i%2, at, 0)
			s.Show(p, Retained, 0)
		}
	}
	for round := range 200 {
		space, group := uint32(r.IntN(2)), uint32(r.IntN(3))
		var hashes []Hash
		for range r.IntN(20) {
			hashes = append(hashes, blockHash(uint64(r.IntN(60)/(1+round%6))))
		}
		var want []Page
		for _, h := range hashes {
			p, _ := one.Find(Key{space, group, h})
			want = append(want, p)
		}
		if got := one.FindRun([]Page{7}, space, group, hashes, false); !slices.Equal(got[1:], want) {
			t.Fatalf("%v, want %v", got[1:], want)
		}
		if i := slices.Index(want, None); i >= 0 {
			want = want[:i]
		}
		got := one.FindRun(nil, space, group, hashes, true)
		if !slices.Equal(got, want) {
			t.Fatalf("up to the first that is not there: %v, want %v", got, want)
		}
		for _, p := range got {
			one.HoldUsed(p, Time(round))
			two.Hold(p)
			two.Touch(p, Time(round))
		}
		for _, p := range got {
			one.Unhold(p)
			two.Unhold(p)
		}
		if wrong := one.Check(); wrong != "" {
			t.Fatal(wrong)
		}
	}
	for arena := 0; arena < 2; {
		p, more := one.Victim(arena, 0, false, 1000)
		q, _ := two.Victim(arena, 0, false, 1000)
		if p != q {
			t.Fatalf("block %d goes, want %d", p, q)
		}
		if !more {
			arena++
			continue
		}
		one.Doom(p)
		two.Doom(q)
	}
	if one.Blocks() > 0 {
		t.Errorf("%d blocks never go", one.Blocks())
	}
}
