package core

import (
	"maps"
	"slices"
)

// modelCopy is a copy that the shell makes.
type modelCopy struct {
	sess     SessionID
	out      bool
	fetch    bool
	slots    []PlanSlot
	grants   []*modelGrant // in: nil for a slot that was not granted
	lease    LeaseID
	consumer uint32
}

// copies lets a client have its pages copied by the shell.
func (s *sim) copies(c *client) {
	switch n := s.r.IntN(11); {
	case !c.offered || n == 0:
		s.offer(c)
	case n < 5:
		s.publishFrom(c)
	case n < 8:
		s.fetch(c)
	default:
		s.restoreInto(c)
	}
}

func (s *sim) offer(c *client) {
	s.event(&OfferPool{c.id, 0, 1 << 20, [2]uint64{uint64(c.id.Number)}})
	s.wantRefused(c.offered, Repeated)
	c.offered = true
}

// somewhere is a page in one piece where no other copy is.
func (s *sim) somewhere(p *Pages) {
	s.place = (s.place + 1) % 5000
	p.Counts = append(p.Counts, 1)
	p.Pieces = append(p.Pieces, Piece{Offset: uint64(200 * s.place)})
}

func (s *sim) publishFrom(c *client) {
	e := &PublishFrom{Session: c.id}
	for range 1 + s.r.IntN(3) {
		e.Slots = append(e.Slots, s.slotOf(c))
		s.somewhere(&e.Pages)
	}
	wrong := s.r.IntN(10) == 0
	if wrong {
		e.Pages.Pieces[0].Offset = 1<<20 + 1
	}
	s.event(e)
	s.wantRefused(wrong, Invalid)
}

// copyIn notes a copy that begins, and wants every slot of it to be the client's and nobody else's to fill.
func (s *sim) copyIn(a CopyIn) {
	k := &modelCopy{sess: a.Session, slots: a.Slots, grants: make([]*modelGrant, len(a.Slots))}
	for i, t := range a.Slots {
		slot := s.answersTo.(*PublishFrom).Slots[i]
		g := s.m.grants[slot]
		free := g != nil && g.sess == a.Session && g.copy == 0
		if t.Bytes > 0 && (!free || t.Slot != slot) || t.Bytes == 0 && free && !g.dead {
			s.t.Errorf("slot %v is to be filled: %v", slot, t)
		}
		if t.Bytes > 0 && free {
			g.copy, k.grants[i] = a.Copy, g
		}
	}
	s.m.copies[a.Copy] = k
}

func (s *sim) restoreInto(c *client) {
	e := &RestoreInto{Session: c.id, Lease: s.leaseOf(c), Consumer: uint32(s.r.IntN(s.parts))}
	l := s.known(c, e.Lease)
	n := 1
	if l != nil && e.Consumer < l.consumers {
		n = len(l.keys)
		if l.consumers == 1 {
			n *= s.parts
		}
	}
	wrong := s.r.IntN(10) == 0
	if wrong {
		n++
	}
	for range n {
		s.somewhere(&e.Pages)
	}
	class := s.mayStart(l, e.Consumer)
	if class == NoClass && wrong {
		class = Invalid
	}
	if class == NoClass {
		l.started[e.Consumer], l.ours[e.Consumer] = true, true
		l.deadline = s.m.now + s.m.patience
	}
	s.event(e)
	s.wantRefused(class != NoClass, class)
}

func (s *sim) copyOut(a CopyOut) {
	e, fetch := s.answersTo.(*Fetch)
	if fetch {
		s.fetching(e, a)
	}
	s.plan(Plan{a.Session, a.Lease, a.Consumer, a.Slots})
	s.m.copies[a.Copy] = &modelCopy{sess: a.Session, out: true, fetch: fetch, slots: a.Slots, lease: a.Lease, consumer: a.Consumer}
}

// endCopy ends one of the shell's copies.
func (s *sim) endCopy() {
	ids := slices.Sorted(maps.Keys(s.m.copies))
	id := ids[s.r.IntN(len(ids))]
	k := s.m.copies[id]
	delete(s.m.copies, id)
	var ev Event
	var want Action
	if k.out {
		ev, want = s.outDone(id, k)
	} else {
		ev, want = s.inDone(id, k)
	}
	if late := s.m.late[k.sess]; late && !s.m.hasCopies(k.sess) { // it was fenced long ago, and now it is
		delete(s.m.late, k.sess)
		s.m.fenced(k.sess)
		s.sum.Late++
	}
	s.event(ev)
	n := 0
	for _, a := range s.answers {
		switch a := a.(type) {
		case CopiedIn:
			n++
			if w, ok := want.(CopiedIn); !ok || a.Copy != id || !slices.Equal(a.Slots, w.Slots) {
				s.t.Errorf("%v, want %v", text(a), want)
			}
		case CopiedOut:
			n++
			if a != want {
				s.t.Errorf("%v, want %v", text(a), want)
			}
		case Fetched:
			n++
			if a != want {
				s.t.Errorf("%v, want %v", text(a), want)
			}
		}
	}
	if alive := s.m.alive[k.sess]; n != b2i(alive) {
		s.t.Errorf("%d answers for a session that is alive: %v", n, alive)
	}
}

func (s *sim) inDone(id CopyID, k *modelCopy) (Event, Action) {
	e := &InDone{Copy: id, Pages: make([]CopiedPage, len(k.slots))}
	fates := make([]SlotFate, len(k.slots))
	for i, g := range k.grants {
		fates[i] = SlotStale
		if g == nil {
			continue
		}
		p := &e.Pages[i]
		if p.OK = s.r.IntN(6) > 0; p.OK {
			p.Checksum = tagOf(g.key, g.part)
		}
		slot := k.slots[i].Slot
		s.m.memory[placeOf(slot)] = p.Checksum
		s.m.truth[slot] = content{key: g.key, part: g.part, tag: p.Checksum}
		delete(s.m.writers, placeOf(slot))
		delete(s.m.grants, slot)
		switch {
		case g.dead:
		case p.OK:
			fates[i] = SlotFilled
			s.sum.Filled++
			if f := s.m.filling[g.key]; f != nil {
				f.at = s.m.now
			}
		default:
			fates[i] = SlotFailed
			s.m.giveUp(g.key)
		}
	}
	return e, CopiedIn{k.sess, id, fates}
}

func (s *sim) outDone(id CopyID, k *modelCopy) (Event, Action) {
	l := s.m.leases[k.lease]
	e := &OutDone{Copy: id, Good: uint32(len(k.slots))}
	bad := uint32(0)
	if e.Outcome, bad = s.read(l, k.consumer); e.Outcome != Done {
		e.Good = bad
	} else {
		s.sum.Poured++
	}
	l.done[k.consumer] = true
	delete(l.ours, k.consumer)
	l.failed = l.failed || e.Outcome != Done
	l.closed = l.closed || e.Outcome != Done
	if k.fetch {
		return e, Fetched{k.sess, id, Found, e.Outcome, uint32(len(k.slots)), e.Good}
	}
	return e, CopiedOut{k.sess, id, k.lease, k.consumer, e.Outcome, e.Good, uint32(len(k.slots))}
}

// hasCopies says that the shell copies for a session.
func (m *model) hasCopies(id SessionID) bool {
	for _, k := range m.copies {
		if k.sess == id {
			return true
		}
	}
	return false
}

// fenced ends what the process of a lost session could still touch.
func (m *model) fenced(id SessionID) {
	for p, w := range m.writers {
		if w == id {
			delete(m.writers, p)
		}
	}
	for l, lease := range m.leases {
		if lease.sess == id {
			delete(m.leases, l)
		}
	}
}
