package core

import (
	"slices"

	"github.com/perigee-llm/perigee/internal/cache/storage/dram"
)

// session is one registered instance.
//
//	(new) ──Register──▶ live ──Lost──▶ quarantined ──Fenced──▶ (gone)
type session struct {
	id       SessionID
	instance string
	live     bool
	closing  bool // CloseSession was said

	space  uint32
	scope  int
	layout []Group
	arenas []*arena

	lastOp, lastPublish uint64
	queries             map[uint64]*query
	publishes           []*publish // few: a list is faster than a map
	spare               *publish   // a record to use again

	identity int // bytes of the identity records of unfinished blocks

	pools  map[uint32]offered
	copies []*copying // under way, oldest first
	pieces int        // of them
	gone   bool       // its process is: it is fenced when the last copy has ended

	budget int64 // bytes that its queries may hold
	used   usage
	names  int    // of its waiting queries
	kept   uint64 // the pass in which one of them was kept back by the session's bound
}

// sessionOf returns the live session, or refuses the event.
func (c *Core) sessionOf(id SessionID, k EventKind, ref uint64) *session {
	s := c.recent
	if s == nil || s.id != id {
		s = c.sessions[id]
	}
	if s != nil && s.live {
		c.recent = s
		return s
	}
	c.refuse(id, k, ref, StaleSession)
	return nil
}

func (c *Core) register(e *Register) {
	if class := c.MayRegister(e); class != NoClass {
		c.refuse(e.Session, KindRegister, 0, class)
		return
	}
	sp, ok := c.spaceOf(e.Namespace)
	sc, ok2 := c.scopeOf(e.Scope, nil)
	if !ok || !ok2 {
		c.refuse(e.Session, KindRegister, 0, TooMany)
		return
	}
	for _, id := range e.Instead { // first, so that the books need not grow for what takes their place
		c.dropArena(c.arenas[id])
		delete(c.arenas, id)
	}
	s := &session{
		id: e.Session, instance: e.Instance, live: true, space: sp, scope: sc, layout: cloneLayout(e.Layout),
		queries: map[uint64]*query{}, budget: e.QueryBytes,
	}
	c.spaceList[sp].layout = s.layout
	for _, a := range e.Arenas {
		s.arenas = append(s.arenas, c.takeArena(a, s))
	}
	c.sessions[s.id], c.instances[s.instance] = s, s
	c.do(Registered{s.id})
}

// MayRegister says why a Register would be refused now, but for want of a name's place.
func (c *Core) MayRegister(e *Register) Class {
	switch {
	case e.Session.Epoch != c.cfg.Epoch || e.Session.Number == 0:
		return StaleSession
	case c.sessions[e.Session] != nil:
		return Repeated
	case c.instances[e.Instance] != nil:
		return InstanceBusy
	case len(c.sessions) >= c.lim.Sessions:
		return TooMany
	case !validLayout(e) || e.QueryBytes < 0:
		return Invalid
	}
	for _, a := range e.Arenas {
		if old := c.arenas[a.ID]; old != nil && (old.writer != nil || !c.fits(old, a, e.Namespace) && c.inUse(old)) {
			return ArenaBusy
		}
	}
	for i, id := range e.Instead {
		switch own := slices.ContainsFunc(e.Arenas, func(a Arena) bool { return a.ID == id }); {
		case own, c.arenas[id] == nil, slices.Contains(e.Instead[:i], id):
			return Invalid
		case !c.MayRetire(id):
			return ArenaBusy
		}
	}
	if !c.roomForArenas(e) {
		return TooMany
	}
	// Two layouts under one namespace would make one block two shapes.
	if sp, known := c.spaces[e.Namespace]; known {
		if l := c.spaceList[sp].layout; l != nil && !sameLayout(l, e.Layout) {
			return Invalid
		}
	}
	return NoClass
}

// roomForArenas says that the books have numbers for a session's slots and arenas.
func (c *Core) roomForArenas(e *Register) bool {
	slots, arenas := c.books.Slots(), len(c.arenas)
	for _, a := range e.Arenas {
		slots += int(a.Slots)
		if old := c.arenas[a.ID]; old != nil { // what is kept of it, or goes for it
			n, _, _ := c.books.Arena(old.at)
			slots -= n
		} else {
			arenas++
		}
	}
	for _, id := range e.Instead {
		n, _, _ := c.books.Arena(c.arenas[id].at)
		slots, arenas = slots-n, arenas-1
	}
	return slots <= dram.MaxSlots && arenas <= dram.MaxArenas
}

func validLayout(e *Register) bool {
	if len(e.Layout) == 0 || len(e.Layout) > maxGroups || len(e.Arenas) == 0 || len(e.Arenas) > maxGroups || len(e.Instance) > maxInstance {
		return false
	}
	for i, a := range e.Arenas {
		again := slices.ContainsFunc(e.Arenas[:i], func(b Arena) bool { return b.ID == a.ID })
		if again || a.Slots == 0 || a.Slots > maxSlots || a.SlotBytes == 0 {
			return false
		}
	}
	for _, g := range e.Layout {
		if len(g.PartBytes) == 0 || len(g.PartBytes) > MaxParts || uint64(g.Arena) >= uint64(len(e.Arenas)) {
			return false
		}
		for _, n := range g.PartBytes {
			if n == 0 || n > e.Arenas[g.Arena].SlotBytes {
				return false
			}
		}
	}
	return true
}

// Bounds of a registration.
const (
	maxGroups   = 64      // hybrid models have two to four
	maxInstance = 256     // bytes of a name
	maxSlots    = 1 << 28 // of an arena: a terabyte of 4 KiB pages
)

func sameLayout(a, b []Group) bool {
	return slices.EqualFunc(a, b, func(x, y Group) bool { return slices.Equal(x.PartBytes, y.PartBytes) })
}

func cloneLayout(l []Group) []Group {
	l = slices.Clone(l)
	for i := range l {
		l[i].PartBytes = slices.Clone(l[i].PartBytes)
	}
	return l
}

// fits says that an arena can be taken over with what is in it.
func (c *Core) fits(old *arena, a Arena, n Namespace) bool {
	slots, size, _ := c.books.Arena(old.at)
	return slots == int(a.Slots) && size == a.SlotBytes && c.spaceList[old.space].name == n
}

// inUse says that something in an arena may not be dropped now.
func (c *Core) inUse(a *arena) bool { return c.books.Held(a.at) }

// takeArena gives an arena to a session: a new one, one that a fenced session left with its blocks, or the place of one whose blocks
// are of no use to the session.
func (c *Core) takeArena(a Arena, s *session) *arena {
	old := c.arenas[a.ID]
	if old != nil && c.fits(old, a, c.spaceList[s.space].name) {
		old.writer = s
		return old
	}
	gen := uint32(0)
	if old != nil { // a word about a slot of the old shape must not fit one of the new
		gen = c.books.LastGen(old.at)
		c.dropArena(old)
	}
	r := &arena{id: a.ID, at: c.books.AddArena(a.Slots, a.SlotBytes, gen), writer: s, space: s.space}
	c.arenas[a.ID] = r
	if r.at < len(c.arenaList) {
		c.arenaList[r.at] = r
	} else {
		c.arenaList = append(c.arenaList, r)
	}
	c.pool += int64(a.Slots) * int64(a.SlotBytes)
	c.freed = true // the bounds may be parts of it
	return r
}

// dropArena empties an arena and forgets its shape. Nothing in it is held.
func (c *Core) dropArena(a *arena) {
	slots, size, free := c.books.Arena(a.at)
	if free < slots {
		for p := range c.books.Pages() {
			if c.books.ArenaOf(p) == a.at {
				c.drop(p, Flushed)
			}
		}
	}
	c.pool -= int64(slots) * int64(size)
	c.books.RemoveArena(a.at)
}

// MayRetire says that a Retire of the arena would be accepted now.
func (c *Core) MayRetire(id uint32) bool {
	a := c.arenas[id]
	return a != nil && a.writer == nil && !c.inUse(a)
}

func (c *Core) retire(e *Retire) {
	a := c.arenas[e.Arena]
	if a == nil || !c.MayRetire(e.Arena) {
		class := Invalid
		if a != nil {
			class = ArenaBusy
		}
		c.refuse(SessionID{}, KindRetire, uint64(e.Arena), class)
		return
	}
	c.dropArena(a)
	delete(c.arenas, e.Arena)
}

// lost ends all that a session wanted. What its process may still touch stays quarantined.
func (c *Core) lost(id SessionID) {
	s := c.sessions[id]
	if s == nil || !s.live {
		return
	}
	s.live = false
	delete(c.instances, s.instance)
	for _, q := range slices.Clone(c.open) {
		if q.sess == s {
			c.abandonQuery(q)
		}
	}
	for i := range c.leases {
		if l := &c.leases[i]; l.sess == s {
			l.closed = true
			c.settleLease(uint32(i))
		}
	}
	for i := range c.grants {
		if g := &c.grants[i]; g.sess == s {
			g.collected = true
			c.giveUp(g.page)
		}
	}
	for _, p := range c.fillsOf(func(f *fill) bool { return f.sess == s }) {
		c.giveUp(p)
	}
	s.publishes = nil
	c.stopCopies(s, LeaseID{})
	c.dropPools(s)
}

// fenced frees what was quarantined: the process can touch nothing any more.
func (c *Core) fenced(id SessionID) {
	s := c.sessions[id]
	if s == nil {
		return
	}
	c.lost(id)
	if s.gone = len(s.copies) > 0; s.gone {
		return // what we touch for it is not free either
	}
	for i := range c.grants {
		if c.grants[i].sess == s {
			c.endGrant(uint32(i))
		}
	}
	for i := range c.leases {
		if c.leases[i].sess == s {
			c.leases[i].done = c.leases[i].started
			c.settleLease(uint32(i))
		}
	}
	for _, a := range s.arenas {
		if a.writer == s {
			a.writer = nil
		}
	}
	delete(c.sessions, id)
	if c.recent == s {
		c.recent = nil
	}
}

func (c *Core) closeSession(s *session, class Class) {
	if s.live && !s.closing {
		s.closing = true
		c.do(CloseSession{s.id, class})
	}
}
