package dram

import "testing"

// TestRunInARow: a block that continues another one lies behind it if it can, wherever the slots came free.
func TestRunInARow(t *testing.T) {
	s := New(nil)
	s.AddArena(16, 1, 0)
	s.AddScope(0)
	begin := func(n byte, before Page) Page {
		p := s.Begin(&Newcomer{Key: Key{Hash: Hash{n}}, Parent: Hash{n - 1}, Before: before, Parts: 1})
		if wrong := s.Check(); wrong != "" {
			t.Fatal(wrong)
		}
		return p
	}
	free := func(p Page) {
		s.Doom(p)
		s.Free(p, func(_, _ uint32) {})
		if wrong := s.Check(); wrong != "" {
			t.Fatal(wrong)
		}
	}
	var first []Page
	before := None
	for i := range byte(16) {
		before = begin(100+i, before)
		first = append(first, before)
	}
	for _, i := range []int{9, 3, 5, 4, 8, 10} {
		free(first[i])
	}
	// The slot that came free last, the list's beginning, then those that follow it; then what is left: 8, 9, and from below 3, 4, 5.
	before = None
	for i, want := range []uint32{10, 8, 9, 4, 5, 3} {
		before = begin(10+byte(i), before)
		if got := s.SlotOf(before, 0); got != want {
			t.Errorf("block %d is in slot %d, want %d", i, got, want)
		}
	}
}
