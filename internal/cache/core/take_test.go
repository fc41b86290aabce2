package core

// take reads one action.
func (s *sim) take(ev Event, a Action) {
	switch a := a.(type) {
	case Granted:
		s.granted(ev.(*Publish), a)
	case *Visible:
		s.m.show(*a)
		for k, r := range s.m.reads {
			if r.Slots[0].Slot == a.Slots[0].Slot {
				delete(s.m.reads, k)
			}
		}
	case *Named:
		s.m.named(a)
		s.sum.Named++
	case *Removed:
		s.m.remove(*a)
		s.sum.Evicted += b2i(a.Reason == Evicted)
	case *Freed:
		s.m.freed(a.Slot)
	case Read:
		s.reading(a)
	case Ready:
		s.ready(a)
	case Candidates:
		var hits []uint32
		for _, at := range a.Positions {
			hits = append(hits, uint32(len(at)))
		}
		s.answered(ev.(*Query), hits)
	case Plan:
		s.plan(a)
	case CopyIn:
		s.copyIn(a)
	case CopyOut:
		s.copyOut(a)
	case CloseSession:
		s.sum.Closed++
	}
}

func (s *sim) granted(e *Publish, a Granted) {
	c := s.clientOf(a.Session)
	for i, g := range a.Blocks {
		b := &e.Blocks[i]
		k := blockKey{c.ns, b.Group, b.Hash}
		f := s.m.filling[k]
		if there := s.m.visible[k] != nil || f != nil || s.m.isRead(k); there && s.m.parents[k] == (blockKey{}) && g.Disposition != NoRoom {
			s.begin(k, b.Parent) // its parent may have come after it
		}
		switch g.Disposition {
		case Write:
			if s.m.visible[k] != nil || f != nil && f.sess != c.id {
				s.t.Errorf("%v granted, and it is visible or another's", k)
			}
			if f == nil {
				s.m.home[k] = modelHome{g.Slot.Arena, e.Scope}
				s.begin(k, b.Parent)
				s.m.filling[k] = &modelFill{sess: c.id}
			}
			s.m.filling[k].at = s.m.now
			s.m.granted(g.Slot, c.id)
			s.m.grants[g.Slot] = &modelGrant{key: k, part: int(e.Part), sess: c.id, at: s.m.now}
			c.slots = append(c.slots, g.Slot)
		case Present:
			if s.m.visible[k] == nil {
				s.t.Errorf("%v present, and it is not", k)
			} else if !b.Chain.IsZero() && s.m.visible[k].chain.IsZero() {
				s.t.Errorf("%v has no name, and its publisher knows one", k)
			}
		case Taken:
			if f == nil && !s.m.isRead(k) {
				s.t.Errorf("%v taken, and nobody has it", k)
			}
		case NoRoom:
			s.noRoom(c, k)
		}
	}
}

// noRoom wants a refusal for want of room to be true: nothing of the arena may go.
func (s *sim) noRoom(c *client, k blockKey) {
	if s.reads || !s.m.lru {
		return // what a query holds while it reads, and several blocks at once, are not the model's
	}
	arena := s.c.sessions[c.id].arenas[0].id
	for other, b := range s.m.visible {
		if b.slots[0].Slot.Arena == arena && !s.m.spared(other) && s.m.mayGo(other) {
			s.t.Errorf("no room for %v, and %v may go", k, other)
		}
	}
}

// begin notes what a block that begins continues.
func (s *sim) begin(k blockKey, parent Hash) {
	p := blockKey{k.ns, k.group, parent}
	if s.m.visible[p] != nil || s.m.filling[p] != nil || s.m.isRead(p) {
		s.m.parents[k] = p
	}
}

func (s *sim) reading(a Read) {
	at, _ := s.c.books.SlotAt(s.c.arenas[a.Slots[0].Slot.Arena].at, a.Slots[0].Slot.Index)
	key := s.c.books.Key(at.Page) // what is read is told by the extent alone, and two keys may have the same
	k := blockKey{s.c.spaceList[key.Space].name, key.Group, key.Hash}
	if s.m.visible[k] != nil || s.m.filling[k] != nil || s.m.isRead(k) {
		s.t.Errorf("%v is read, and it is there", k)
	}
	for _, t := range a.Slots {
		s.m.granted(t.Slot, SessionID{})
	}
	s.m.reads[a.Read], s.m.readKey[a.Read] = a, k
	s.m.home[k] = modelHome{a.Slots[0].Slot.Arena, s.c.scopeList[s.c.books.ScopeOf(at.Page)].id}
	var parent Hash
	for i := 1; i <= nodes; i++ {
		if way := path(i); way[len(way)-1] == k.hash && len(way) > 1 {
			parent = way[len(way)-2]
		}
	}
	s.begin(k, parent)
}

// answered adds up what answered queries asked for and got.
func (s *sim) answered(e *Query, hits []uint32) {
	s.m.counted[e.Mode]++
	for _, w := range e.Demand {
		s.m.asked[e.Mode] += int64(len(w.Hashes))
	}
	for _, n := range hits {
		s.m.hits[e.Mode] += int64(n)
	}
}

// checkCounts wants the tiers of all queries to add up to what they asked for, and what was there to what they got.
func (s *sim) checkCounts() {
	st := s.c.Stats()
	for mode, n := range st.Asked {
		hits := n[InMemory] + n[Below]
		if got := hits + n[Absent] + n[Unserved]; got != s.m.asked[mode] || hits != s.m.hits[mode] || st.Queries[mode] != s.m.counted[mode] {
			s.t.Errorf("%d queries of mode %d and their tiers %v, and the model has %d, %d blocks asked for and %d found",
				st.Queries[mode], mode, n, s.m.counted[mode], s.m.asked[mode], s.m.hits[mode])
		}
		if !s.reads && n[Below] > 0 {
			s.t.Errorf("%d blocks were below, where nothing is", n[Below])
		}
	}
	s.sum.Below += int(st.Asked[Prefix][Below])
	s.sum.Unserved += int(st.Asked[Exact][Unserved])
}

func (s *sim) ready(a Ready) {
	k := ticketKey{a.Session, a.Ticket.Op}
	q := s.m.queries[k]
	if q == nil || q.ev.Ticket != a.Ticket {
		s.t.Errorf("ready for %v, which nobody asks", a.Ticket)
		return
	}
	if a.Lease == (LeaseID{}) || s.m.leases[a.Lease] == nil {
		s.answered(q.ev, a.Hits)
	}
	if a.Lease == (LeaseID{}) {
		delete(s.m.queries, k)
		return
	}
	if s.m.leases[a.Lease] != nil {
		return // said again
	}
	l := &modelLease{
		sess: a.Session, ticket: a.Ticket, consumers: q.ev.Consumers, started: map[uint32]bool{}, done: map[uint32]bool{},
		ours:     map[uint32]bool{},
		deadline: s.m.now + s.m.ttl,
	}
	for g, w := range q.ev.Demand {
		if q.ev.Mode == Exact && int(a.Hits[g]) != len(w.Hashes) {
			s.t.Errorf("an exact demand got %v", a.Hits)
		}
		for _, h := range w.Hashes[:a.Hits[g]] {
			b := s.m.visible[blockKey{q.ns, w.Group, h}]
			if b == nil {
				s.t.Errorf("%v is leased and not visible", h)
				return
			}
			b.used = s.m.now
			l.keys = append(l.keys, blockKey{q.ns, w.Group, h})
			l.slots = append(l.slots, b.slots)
		}
	}
	s.m.leases[a.Lease] = l
	c := s.clientOf(a.Session)
	c.leases = append(c.leases, a.Lease)
}

func (s *sim) plan(a Plan) {
	l := s.m.leases[a.Lease]
	i := 0
	for _, slots := range l.slots {
		for part, t := range slots {
			if l.consumers > 1 && part != int(a.Consumer) {
				continue
			}
			if i >= len(a.Slots) || a.Slots[i] != t {
				s.t.Errorf("plan %v, and the lease was given for %v", a.Slots, l.slots)
				return
			}
			if now, ok := s.c.Reading(a.Session, a.Lease, a.Consumer, uint32(i)); !ok || now != t {
				s.t.Errorf("page %d is read from %v (%v), and the plan is %v", i, now, ok, a.Slots)
			}
			i++
		}
	}
	if _, more := s.c.Reading(a.Session, a.Lease, a.Consumer, uint32(i)); more {
		s.t.Errorf("page %d is read, and the plan is %v", i, a.Slots)
	}
	if i != len(a.Slots) {
		s.t.Errorf("plan %v is longer than the lease", a.Slots)
	}
}
