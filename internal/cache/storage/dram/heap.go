package dram

// lane holds the blocks that may go, of one scope in one arena: the leaves, a heap for the Reclaimable ones and one for each class of the policy;
// and in as many heaps again those that only blocks of other lanes continue. The heaps have four children a node: a pop touches half as many
// cache lines as with two.
type lane struct {
	scope int32
	heaps [][]leaf // Reclaimable, then the classes; and once more
}

// order is the heaps of the leaves; or, if last, of the blocks that only other lanes' continue.
func (l *lane) order(last bool) [][]leaf {
	half := len(l.heaps) / 2
	if last {
		return l.heaps[half:]
	}
	return l.heaps[:half]
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

// heapOf is the block's heap in its lane.
func (s *Store) heapOf(l *lane, p Page) *[]leaf {
	at := s.at(p).heap()
	if len(s.elsewhere) > 0 && s.elsewhere[p] > 0 {
		at += len(l.heaps) / 2
	}
	return &l.heaps[at]
}

func (s *Store) push(l *lane, p Page) {
	g := s.at(p)
	h := s.heapOf(l, p)
	*h = append(*h, leaf{g.score(), p})
	s.up(*h, len(*h)-1)
}

// pull takes p out of its heap.
func (s *Store) pull(l *lane, p Page) {
	at := s.heapOf(l, p)
	i := int(^s.at(p).below)
	s.at(p).below = 0
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
		s.at(h[i].page).below = ^int32(i)
		i = parent
	}
	h[i] = e
	s.at(e.page).below = ^int32(i)
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
		s.at(lead.page).below = ^int32(i)
		i = best
	}
	h[i] = e
	s.at(e.page).below = ^int32(i)
}
