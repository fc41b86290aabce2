package dram

// FindRun appends the blocks of a space and group with the hashes, in their order, to dst: Filling and Visible ones, and None for what is
// not there. With stop it ends before the first that is not there. It is Find for many at once: a query asks for hundreds, and a call
// each, with a key made for it, costs more than the look itself.
func (s *Store) FindRun(dst []Page, space, group uint32, hashes []Hash, stop bool) []Page {
	entries := s.index.entries
	if len(entries) == 0 {
		return s.nowhere(dst, len(hashes), stop)
	}
	for i := range hashes {
		h := &hashes[i]
		tag := tagOf(s.digestOf(space, group, h))
		p := None
		for at := s.index.home(tag); entries[at].page != 0; {
			if e := entries[at]; e.tag == tag {
				if g := s.at(e.page - 1); g.hash == *h && uint32(g.group) == group && s.spaceOf(g) == space {
					p = e.page - 1
					break
				}
			}
			if at++; at == len(entries) {
				at = 0
			}
		}
		if p == None && len(s.index.old) > 0 {
			p, _ = s.Find(Key{space, group, *h})
		}
		if p == None && stop {
			break
		}
		dst = append(dst, p)
	}
	return dst
}

func (s *Store) nowhere(dst []Page, n int, stop bool) []Page {
	if !stop {
		for range n {
			dst = append(dst, None)
		}
	}
	return dst
}

// HoldUsed is Hold and then Touch for a Visible block, without a place among the leaves in between.
func (s *Store) HoldUsed(p Page, now Time) {
	g := s.at(p)
	mustBe(g.state() == Visible, "a block was held and used that is not visible")
	if g.leaf() {
		s.pull(s.laneOf(g), p)
	}
	s.hold(g)
	s.use(p, Retained, now, false)
}

// Warm has what is looked at as a block begins and is shown brought into the cache, and returns something that depends on it: the place where
// its entry begins to be looked for, and the ghosts among which its own would be.
func (s *Store) Warm(space, group uint32, hash *Hash) uint32 {
	if len(s.index.entries) == 0 {
		return 0
	}
	return s.warm(s.digestOf(space, group, hash))
}

func (s *Store) warm(digest uint64) uint32 {
	return s.index.entries[s.index.home(tagOf(digest))].tag ^ uint32(s.ghosts.set(digest).ways[0].tagged)
}

// WarmShown is Warm for a block that will be shown.
func (s *Store) WarmShown(p Page) uint32 {
	g := s.at(p)
	return uint32(s.ghosts.set(s.digestOf(s.spaceOf(g), uint32(g.group), &g.hash)).ways[0].tagged)
}

// WarmVictims is Warm for the blocks that are likely to go if n are needed: the next one, and those that it continues, which are leaves in their
// turn. Each costs half a microsecond of waiting for memory otherwise, one after the other.
func (s *Store) WarmVictims(arena, scope, n int, now Time) (seen uint32) {
	p, ok := s.Victim(arena, scope, false, now)
	if !ok {
		return 0
	}
	slots := s.arenas[arena].slots
	for ; n > 0 && p != None; n-- {
		g := s.at(p)
		seen ^= s.warm(s.digestOf(s.spaceOf(g), uint32(g.group), &g.hash))
		if g.first >= 0 && int(g.arena) == arena {
			seen ^= slots[g.first].gen
		}
		p = g.parent
	}
	return seen
}
