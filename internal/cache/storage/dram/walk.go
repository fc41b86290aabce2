package dram

import "iter"

// Pages yields the blocks that can be found, Filling or Visible, in the order of their numbers. Those that come and go meanwhile
// may or may not be among them.
func (s *Store) Pages() iter.Seq[Page] {
	return func(yield func(Page) bool) {
		for p := range s.fresh {
			if s.There(p) && !yield(p) {
				return
			}
		}
	}
}

// Numbered says that there is, or was, a block of that number; of those above one for which it is false there is none.
func (s *Store) Numbered(p Page) bool { return p < s.fresh }

// There says that the block of a number can be found, Filling or Visible.
func (s *Store) There(p Page) bool {
	st := s.at(p).state()
	return st == Filling || st == Visible
}

// Held says that an arena has a block that is held, filling or doomed: something in it may not be dropped.
func (s *Store) Held(arena int) bool { return s.arenas[arena].held > 0 || s.arenas[arena].unseen > 0 }

// RemoveArena forgets an arena that has no block. Its number is for another one.
func (s *Store) RemoveArena(at int) {
	a := s.arenas[at]
	mustBe(a.freeCount == len(a.slots), "an arena was removed with blocks in it")
	s.slotTotal -= len(a.slots)
	freeTable(s.memory, a.slots)
	*a = arena{free: -1}
	s.spareArenas = append(s.spareArenas, at)
}

// LastGen is the highest generation that a slot of an arena had. It goes over all of them.
func (s *Store) LastGen(at int) uint32 {
	a := s.arenas[at]
	gen := a.gen
	for i := range a.slots[:a.fresh] {
		gen = max(gen, a.slots[i].gen)
	}
	return gen
}

// All yields the blocks in whatever state, Doomed ones included.
func (s *Store) All() iter.Seq[Page] {
	return func(yield func(Page) bool) {
		for p := range s.fresh {
			if s.at(p).state() != free && !yield(p) {
				return
			}
		}
	}
}
