package dram

// Victim returns the block of an arena that goes next to make room for a block of the scope: the first leaf of the scopes that
// have more than their share, or else of the scope's own. ok is false if nothing may go.
func (s *Store) Victim(arena, scope int, now Time) (p Page, ok bool) {
	best := candidate{page: None}
	for _, l := range s.arenas[arena].lanes {
		if t := &s.scopes[l.scope]; t.resident+t.expected > t.share {
			best = s.firstOf(l, best, now)
		}
	}
	if best.page != None {
		return best.page, true
	}
	return s.VictimOf(arena, scope, now)
}

// VictimOf returns the block of the scope in the arena that goes first.
func (s *Store) VictimOf(arena, scope int, now Time) (p Page, ok bool) {
	best := candidate{page: None}
	for _, l := range s.arenas[arena].lanes {
		if l.scope == int32(scope) {
			best = s.firstOf(l, best, now)
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

// firstOf returns the better of best and the lane's first leaf. A Reclaimable one goes before all others; among those the oldest.
func (s *Store) firstOf(l *lane, best candidate, now Time) candidate {
	for i, h := range l.heaps {
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
