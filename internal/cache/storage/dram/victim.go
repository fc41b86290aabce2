package dram

// Victim returns the block of an arena that goes next to make room for a block of the scope: the first leaf of the scopes that
// have more than their share, or else of the scope's own. With last it is not a leaf but a block that only blocks of other lanes continue: those do
// not go for this arena's sake, or not for this scope's, and would keep it for good where there is no leaf. ok is false if nothing may go.
func (s *Store) Victim(arena, scope int, last bool, now Time) (p Page, ok bool) {
	best := candidate{page: None}
	for _, l := range s.arenas[arena].lanes {
		if t := &s.scopes[l.scope]; t.resident+t.expected > t.share {
			best = s.firstOf(l.order(last), best, now)
		}
	}
	if best.page != None {
		return best.page, true
	}
	return s.VictimOf(arena, scope, last, now)
}

// VictimOf returns the leaf of the scope in the arena that goes first; or, if last, the block that only blocks of other lanes continue.
func (s *Store) VictimOf(arena, scope int, last bool, now Time) (p Page, ok bool) {
	best := candidate{page: None}
	for _, l := range s.arenas[arena].lanes {
		if l.scope == int32(scope) {
			best = s.firstOf(l.order(last), best, now)
		}
	}
	return best.page, best.page != None
}

// candidate is the first leaf found so far.
type candidate struct {
	page        Page
	reclaimable bool
	rank        float64
}

// firstOf returns the better of best and the first of a lane's order. A Reclaimable one goes before all others; among those the oldest.
func (s *Store) firstOf(heaps [][]leaf, best candidate, now Time) candidate {
	for i, h := range heaps {
		if len(h) == 0 || i > 0 && best.reclaimable {
			continue
		}
		c := candidate{h[0].page, i == 0, float64(h[0].score)}
		if i > 0 {
			c.rank = s.policy.Rank(i-1, float64(h[0].score), s.visible, now)
		}
		if best.page == None || c.reclaimable && !best.reclaimable || c.rank < best.rank {
			best = c
		}
	}
	return best
}
