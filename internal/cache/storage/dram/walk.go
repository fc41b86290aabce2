package dram

import "iter"

// Pages yields the blocks that can be found, Filling or Visible, in the order of their numbers. Those that come and go meanwhile
// may or may not be among them.
func (s *Store) Pages() iter.Seq[Page] {
	return func(yield func(Page) bool) {
		for p := range s.pages {
			if st := s.pages[p].state; (st == Filling || st == Visible) && !yield(Page(p)) {
				return
			}
		}
	}
}

// Numbered says that there is, or was, a block of that number: there is none with a higher number than one for which it says no.
func (s *Store) Numbered(p Page) bool { return int(p) < len(s.pages) }

// There says that the block of a number can be found, Filling or Visible.
func (s *Store) There(p Page) bool {
	st := s.pages[p].state
	return st == Filling || st == Visible
}

// Held says that an arena has a block that is held, filling or doomed: something in it may not be dropped.
func (s *Store) Held(arena int) bool { return s.arenas[arena].held > 0 || s.arenas[arena].unseen > 0 }

// RemoveArena forgets an arena that has no block, and returns the highest generation that a slot of it had. Its number is for another one.
func (s *Store) RemoveArena(at int) (gen uint32) {
	a := s.arenas[at]
	mustBe(a.freeCount == len(a.slots), "an arena was removed with blocks in it")
	s.slotTotal -= len(a.slots)
	for i := range a.slots {
		gen = max(gen, a.slots[i].gen)
	}
	*a = arena{free: -1}
	s.spareArenas = append(s.spareArenas, at)
	return gen
}

// All yields the blocks in whatever state, Doomed ones included.
func (s *Store) All() iter.Seq[Page] {
	return func(yield func(Page) bool) {
		for p := range s.pages {
			if s.pages[p].state != free && !yield(Page(p)) {
				return
			}
		}
	}
}
