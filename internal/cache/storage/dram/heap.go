package dram

// lane is the heap of leaves that may go, of one scope in one arena. It is a heap of four children a node: a pop touches half as many
// cache lines as with two.
type lane struct {
	scope int32
	heap  []leaf
}

type leaf struct {
	score     float64
	page      Page
	residency Residency
}

// before is the order in which leaves go. Pages break ties, so that the same history evicts the same blocks.
func (a leaf) before(b leaf) bool {
	if a.residency != b.residency {
		return a.residency < b.residency
	}
	if a.score != b.score {
		return a.score < b.score
	}
	return a.page < b.page
}

func (s *Store) push(l *lane, p Page) {
	g := &s.pages[p]
	l.heap = append(l.heap, leaf{g.score, p, g.residency})
	s.up(l, len(l.heap)-1)
}

// pull takes p out of the heap.
func (s *Store) pull(l *lane, p Page) {
	i := int(s.pages[p].heapAt)
	s.pages[p].heapAt = -1
	n := len(l.heap) - 1
	last := l.heap[n]
	l.heap = l.heap[:n]
	if i == n {
		return
	}
	l.heap[i] = last
	s.down(l, s.up(l, i))
}

func (s *Store) up(l *lane, i int) int {
	e := l.heap[i]
	for i > 0 {
		parent := (i - 1) / 4
		if !e.before(l.heap[parent]) {
			break
		}
		l.heap[i] = l.heap[parent]
		s.pages[l.heap[i].page].heapAt = int32(i)
		i = parent
	}
	l.heap[i] = e
	s.pages[e.page].heapAt = int32(i)
	return i
}

func (s *Store) down(l *lane, i int) {
	e := l.heap[i]
	for {
		best, first := i, 4*i+1
		lead := e
		for c := first; c < min(first+4, len(l.heap)); c++ {
			if l.heap[c].before(lead) {
				best, lead = c, l.heap[c]
			}
		}
		if best == i {
			break
		}
		l.heap[i] = lead
		s.pages[lead.page].heapAt = int32(i)
		i = best
	}
	l.heap[i] = e
	s.pages[e.page].heapAt = int32(i)
}
