package dram

import (
	"maps"
	"strconv"
)

// Check returns what is wrong with the books, or "". It walks over everything, and is for tests.
func (s *Store) Check() string {
	c := checker{s: s, children: make([]int32, s.fresh), sums: make([]sums, len(s.arenas)), elsewhere: map[Page]int32{}, resident: make([]int64, len(s.scopes))}
	for p := range s.fresh {
		if s.at(p).state() != free {
			c.page(p)
		}
	}
	for p := range s.fresh {
		if g := s.at(p); g.state() == Visible || g.state() == Filling {
			c.want(max(g.below, 0) == c.children[p], p, "counts other children than it has")
		}
	}
	c.want(maps.Equal(c.elsewhere, s.elsewhere), None, "other children of other lanes are counted than there are")
	for i := range s.scopes {
		c.want(s.scopes[i].resident == c.resident[i], None, "a scope's bytes are wrong")
	}
	c.want(c.found == s.index.all() && c.visible == s.visible, None, "the index has another number of blocks")
	for i, a := range s.arenas {
		c.want(c.sums[i] == sums{a.shown, a.held, a.unseen}, None, "an arena's visible, held or unseen blocks do not add up")
		c.arena(a)
	}
	return c.wrong
}

type checker struct {
	s              *Store
	children       []int32
	elsewhere      map[Page]int32
	resident       []int64
	found, visible int
	sums           []sums // by arena
	wrong          string
}

// sums are an arena's numbers of those names.
type sums struct{ shown, held, unseen int }

func (c *checker) want(ok bool, p Page, what string) {
	if !ok && c.wrong == "" {
		c.wrong = what + " (page " + strconv.Itoa(int(p)) + ")"
	}
}

func (c *checker) page(p Page) {
	s, g := c.s, c.s.at(p)
	parts := 0
	a := s.arenas[g.arena]
	for i := g.first; i >= 0; i = a.slots[i].next() {
		t := &a.slots[i]
		parts++
		c.want(t.state() != SlotFree && a.pageOf(i) == p, p, "a slot is not its own")
		c.want(g.state() != Visible || t.state() == SlotSealed, p, "visible with an unsealed slot")
	}
	c.want(parts == int(g.parts), p, "has another number of slots")
	c.resident[s.ScopeOf(p)] += s.Bytes(p)
	sums := &c.sums[g.arena]
	if g.holds > 0 {
		sums.held += int(g.parts)
	}
	if g.state() == Visible {
		sums.shown += int(g.parts)
	} else {
		sums.unseen++
	}
	if q := s.parentOf(p); q != None && g.state() != Doomed {
		if o := s.at(q); o.arena == g.arena && o.lane == g.lane {
			c.children[q]++
		} else {
			c.elsewhere[q]++
		}
	}
	if g.state() == Doomed {
		c.want(!g.leaf(), p, "doomed and among the leaves")
		return
	}
	q, ok := s.Find(s.key(p))
	c.want(ok && q == p, p, "cannot be found")
	c.found++
	may := g.state() == Visible && g.holds == 0 && g.below <= 0
	if g.state() == Visible {
		c.visible++
	}
	c.want(may == g.leaf(), p, "is wrongly among the leaves, or not")
	if l := a.lanes[g.lane]; g.leaf() {
		h, at := *s.heapOf(l, p), ^g.below
		e := h[at]
		c.want(e.page == p && e.score == g.score(), p, "has another score in the heap")
		c.want(at == 0 || !e.before(h[(at-1)/4]), p, "breaks the heap's order")
	}
}

func (c *checker) arena(a *arena) {
	n, states, before := 0, 0, int32(-1)
	for i := a.free; i >= 0; before, i = i, a.slots[i].next() {
		n++
		c.want(a.slots[i].word == uint64(before+1), None, "a free slot follows another one than it says")
		c.want(a.slots[i].state() == SlotFree, None, "a free slot is in use")
	}
	for i := range a.slots {
		if a.slots[i].state() == SlotFree {
			states++
		}
		c.want(i < int(a.fresh) || a.slots[i] == slot{}, None, "a slot was used before its time")
	}
	n += len(a.slots) - int(a.fresh)
	c.want(n == a.freeCount && n == states, None, "the list of free slots is wrong")
}
