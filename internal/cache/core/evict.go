package core

import "github.com/perigee-llm/perigee/internal/cache/storage/dram"

// room makes room for a block, at the expense of others if need be, and returns false if there is none to be made: then the newcomer is
// dropped, never somebody who is held. A tenant at its bound makes room among its own; otherwise the books say who goes.
func (c *Core) room(n *dram.Newcomer) bool {
	slots, size, free := c.books.Arena(n.Arena)
	need := int64(n.Parts) * int64(size)
	limit := c.scopeList[n.Scope].budget.Resident
	if n.Parts > slots || limit > 0 && need > limit {
		return false
	}
	if free >= n.Parts && (limit == 0 || c.books.ScopeResident(n.Scope)+need <= limit) {
		return true
	}
	// What the newcomer continues must not go to make room for it; what is not visible does not go.
	q, _ := c.books.FindNear(n.Before, dram.Key{Space: n.Key.Space, Group: n.Key.Group, Hash: n.Parent})
	if q != dram.None && c.books.State(q) == dram.Visible {
		c.books.Hold(q)
		defer c.unhold(q)
	}
	for limit > 0 && c.books.ScopeResident(n.Scope)+need > limit {
		p, ok := c.ownVictim(n, q)
		if !ok {
			return false
		}
		c.drop(p, Evicted)
	}
	for {
		if _, _, free := c.books.Arena(n.Arena); free >= n.Parts {
			return true
		}
		p, ok := c.victim(n.Arena, n.Scope, q)
		if !ok {
			return false
		}
		c.drop(p, Evicted)
	}
}

// roomAhead makes room for the new blocks of a run that blocks begin with, all at once, and returns how many blocks there is nothing more to be done
// for: at least one. The same blocks go as if it was made for one after the other; but slots that were left together are free together, so that
// the run lies in a row again (see dram.Newcomer.Before).
func (c *Core) roomAhead(s *session, blocks []Block, scope int) int {
	g := &s.layout[blocks[0].Group]
	a, parts := s.arenas[g.Arena].at, len(g.PartBytes)
	if _, _, free := c.books.Arena(a); free >= len(blocks)*parts { // whatever is there of them already
		return len(blocks)
	}
	n, identity := 0, s.identity
	for i := range blocks {
		b := &blocks[i]
		if i%warmRun == 0 {
			c.warm(s, blocks[i:min(i+warmRun, len(blocks))])
		}
		if identity += len(b.Identity); identity > c.lim.Identity || b.Group != blocks[0].Group || i > 0 && b.Parent != blocks[i-1].Hash {
			break
		}
		if _, there := c.books.Find(dram.Key{Space: s.space, Group: b.Group, Hash: b.Hash}); there {
			break
		}
		n++
	}
	_, _, free := c.books.Arena(a)
	if n < 2 || free >= n*parts || c.scopeList[scope].budget.Resident > 0 {
		return max(1, n)
	}
	q, _ := c.books.Find(dram.Key{Space: s.space, Group: blocks[0].Group, Hash: blocks[0].Parent})
	if q != dram.None && c.books.State(q) == dram.Visible {
		c.books.Hold(q)
		defer c.unhold(q)
	}
	defer c.books.Expect(a, scope, 0)
	for i := range n {
		if i%warmRun == 0 {
			c.warmed ^= c.books.WarmVictims(a, scope, min(warmRun, n-i)*parts, c.now)
		}
		for free < (i+1)*parts {
			p, ok := c.victim(a, scope, q)
			if !ok {
				return n
			}
			c.drop(p, Evicted)
			_, _, free = c.books.Arena(a)
		}
		c.books.Expect(a, scope, (i+1)*parts)
	}
	return n
}

// victim is the next block to go for one that continues parent (None: none). What only blocks of other arenas or tenants continue goes where there is no
// leaf to go: those may stay for ever, and so would it.
func (c *Core) victim(arena, scope int, parent dram.Page) (dram.Page, bool) {
	if p, ok := c.books.Victim(arena, scope, false, c.now); ok {
		return p, true
	}
	if p, ok := c.books.Victim(arena, scope, true, c.now); !ok {
		return p, false // and nothing has to be spared: a chain that fills all of an arena is long
	}
	c.spare(parent)
	return c.books.Victim(arena, scope, true, c.now)
}

// ownVictim is the tenant's next block to go, in the newcomer's arena or else in any.
func (c *Core) ownVictim(n *dram.Newcomer, parent dram.Page) (dram.Page, bool) {
	if p, ok := c.ownOf(n, false); ok {
		return p, true
	}
	if p, ok := c.ownOf(n, true); !ok {
		return p, false
	}
	c.spare(parent)
	return c.ownOf(n, true)
}

func (c *Core) ownOf(n *dram.Newcomer, last bool) (dram.Page, bool) {
	if p, ok := c.books.VictimOf(n.Arena, n.Scope, last, c.now); ok {
		return p, true
	}
	for _, a := range c.arenaList {
		if p, ok := c.books.VictimOf(a.at, n.Scope, last, c.now); ok {
			return p, true
		}
	}
	return dram.None, false
}

// mostSpared bounds the look at a chain, and so what a message can cost that continues a long one: some ten milliseconds. It is a million tokens in blocks of 16; a
// longer prompt's head may go for its tail.
const mostSpared = 1 << 16

// spare holds the chain that a newcomer continues until the step ends: where its blocks lie in several arenas, its head would go for its tail. What a step
// has gone over once it does not go over again.
func (c *Core) spare(p dram.Page) {
	for ; p != dram.None && !c.climbed[p] && len(c.climbed) < mostSpared; p = c.books.ParentPage(p) {
		c.climbed[p] = true
		if c.books.State(p) == dram.Visible {
			c.books.Hold(p)
			c.spared = append(c.spared, p)
		}
	}
}

func (c *Core) spareNoMore() {
	if len(c.climbed) == 0 {
		return
	}
	for _, p := range c.spared {
		c.unhold(p)
	}
	c.spared = c.spared[:0]
	clear(c.climbed)
}

// drop withdraws a visible block. Its slots are free when nobody holds it any more.
func (c *Core) drop(p dram.Page, why Reason) {
	k := c.books.Key(p)
	c.residence()
	c.stats.Removed[why]++
	r := &c.made.removed.take(1)[0]
	*r = Removed{Namespace: c.spaceList[k.Space].name, Group: k.Group, Hash: k.Hash, Chain: c.books.Chain(p), Reason: why}
	c.do(r)
	c.books.Doom(p)
	c.free(p)
}

func (c *Core) evict(e *Evict) {
	a := c.arenas[e.Arena]
	if a == nil {
		c.refuse(SessionID{}, KindEvict, uint64(e.Arena), Invalid)
		return
	}
	for range e.Blocks {
		p, ok := c.victim(a.at, -1, dram.None)
		if !ok {
			return
		}
		c.drop(p, Evicted)
	}
}

// flush drops the blocks of a namespace, those below memory included, and those on their way: what is being written now was computed
// before the flush was asked for.
func (c *Core) flush(e *Flush) {
	sp, known := c.spaces[e.Namespace]
	all := e.Namespace == Namespace{}
	if e.Part.From == 0 {
		for k := range c.backed {
			if all || known && k.Space == sp {
				delete(c.backed, k)
			}
		}
	}
	c.walk(e.Part, func(p dram.Page) bool {
		if space, _ := c.books.PlaceOf(p); !all && (!known || space != sp) {
			return false
		}
		switch r := c.reads[p]; {
		case r != nil:
			c.dropRead(r)
		case c.books.State(p) == dram.Visible:
			c.drop(p, Flushed)
		default:
			c.giveUp(p)
		}
		return true
	})
}

// empty drops what nobody holds of an arena.
func (c *Core) empty(e *Empty) {
	a := c.arenas[e.Arena]
	switch {
	case a == nil:
		c.refuse(SessionID{}, KindEmpty, uint64(e.Arena), Invalid)
		return
	case a.writer != nil:
		c.refuse(SessionID{}, KindEmpty, uint64(e.Arena), ArenaBusy)
		return
	}
	c.walk(e.Part, func(p dram.Page) bool {
		if c.books.ArenaOf(p) != a.at || c.books.State(p) != dram.Visible || c.books.Holds(p) > 0 {
			return false
		}
		c.drop(p, Flushed)
		return true
	})
}

// walk has part of all blocks looked at, Filling and Visible ones. drop tells whether it has dropped the one that it is shown.
func (c *Core) walk(part Part, drop func(dram.Page) bool) {
	const perDrop = 16 // are looked at in the time in which one is dropped
	left := perDrop * int(part.Most)
	if part.Most == 0 {
		left = unbounded
	}
	at := dram.Page(part.From)
	for ; c.books.Numbered(at) && left > 0; at++ {
		left--
		if c.books.There(at) && drop(at) {
			left -= perDrop - 1
		}
	}
	if part.Most > 0 {
		c.do(WalkedTo{uint32(at), c.books.Numbered(at)})
	}
}
