package dram

// Victim returns the block of an arena that goes next to make room for a block of the scope: the first leaf of the scopes that
// have more than their share, or else of the scope's own. ok is false if nothing may go.
func (s *Store) Victim(arena, scope int) (p Page, ok bool) {
	p = None
	var lead leaf
	for _, l := range s.arenas[arena].lanes {
		if len(l.heap) == 0 {
			continue
		}
		if t := &s.scopes[l.scope]; t.resident <= t.share {
			continue
		}
		if top := l.heap[0]; p == None || top.before(lead) {
			p, lead = top.page, top
		}
	}
	if p != None {
		return p, true
	}
	return s.VictimOf(arena, scope)
}

// VictimOf returns the block of the scope in the arena that goes first.
func (s *Store) VictimOf(arena, scope int) (p Page, ok bool) {
	for _, l := range s.arenas[arena].lanes {
		if l.scope == int32(scope) && len(l.heap) > 0 {
			return l.heap[0].page, true
		}
	}
	return None, false
}
