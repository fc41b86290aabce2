package dram

// lane holds the leaves that may go, of one scope in one arena: a heap for the Reclaimable ones, and one for each class of the
// policy. The heaps have four children a node: a pop touches half as many cache lines as with two.
type lane struct {
	scope int32
	heaps [][]leaf // Reclaimable, then the classes
}

// leaf is 8 bytes.
type leaf struct {
	score float32
	page  Page
}

// before is the order in which the leaves of a heap go. Pages break ties, so that the same history evicts the same blocks.
func (a leaf) before(b leaf) bool {
	if a.score != b.score {
		return a.score < b.score
	}
	return a.page < b.page
}

// heapOf is the place of a block's heap in its lane.
func (g *page) heapOf() int {
	if g.residency == Reclaimable {
		return 0
	}
	return 1 + int(g.class)
}

func (s *Store) push(l *lane, p Page) {
	g := &s.pages[p]
	h := &l.heaps[g.heapOf()]
	*h = append(*h, leaf{g.score(), p})
	s.up(*h, len(*h)-1)
}

// pull takes p out of its heap.
func (s *Store) pull(l *lane, p Page) {
	at := &l.heaps[s.pages[p].heapOf()]
	i := int(^s.pages[p].below)
	s.pages[p].below = 0
	n := len(*at) - 1
	last := (*at)[n]
	*at = (*at)[:n]
	if i == n {
		return
	}
	(*at)[i] = last
	s.down(*at, s.up(*at, i))
}

func (s *Store) up(h []leaf, i int) int {
	e := h[i]
	for i > 0 {
		parent := (i - 1) / 4
		if !e.before(h[parent]) {
			break
		}
		h[i] = h[parent]
		s.pages[h[i].page].below = ^int32(i)
		i = parent
	}
	h[i] = e
	s.pages[e.page].below = ^int32(i)
	return i
}

func (s *Store) down(h []leaf, i int) {
	e := h[i]
	for {
		best, first := i, 4*i+1
		lead := e
		for c := first; c < min(first+4, len(h)); c++ {
			if h[c].before(lead) {
				best, lead = c, h[c]
			}
		}
		if best == i {
			break
		}
		h[i] = lead
		s.pages[lead.page].below = ^int32(i)
		i = best
	}
	h[i] = e
	s.pages[e.page].below = ^int32(i)
}
