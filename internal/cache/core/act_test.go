package core

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// act lets a client say something: mostly what makes sense, now and then what does not.
func (s *sim) act(c *client) {
	switch n := s.r.IntN(50); {
	case n == 49:
		s.learn(c)
	case n >= 40:
		s.copies(c)
	case n < 8:
		s.publish(c)
	case n < 19:
		s.seal(c)
	case n < 20:
		s.abandon(c)
	case n < 27:
		s.ask(c)
	case n < 30 && len(c.asked) > 0:
		s.repeat(c)
	case n < 34:
		s.start(c)
	case n < 39:
		s.copied(c)
	default:
		s.release(c)
	}
}

func (s *sim) publish(c *client) {
	c.pub++
	if c.again != nil { // the other ranks of the instance mostly publish the same
		e := *c.again
		e.Op, e.Part, c.again = c.pub, 1-e.Part, nil
		s.m.spare = blockKey{c.ns, e.Blocks[0].Group, e.Blocks[0].Parent}
		s.event(&e)
		s.m.spare = blockKey{}
		return
	}
	e := &Publish{Session: c.id, Op: c.pub, Part: uint32(s.r.IntN(s.parts))}
	if s.parts == 2 && s.r.IntN(8) > 0 {
		c.again = e
	}
	if s.r.IntN(20) == 0 {
		e.Op = uint64(s.r.IntN(3))
	}
	e.Scope = s.tenant()
	way := path(1 + s.r.IntN(nodes))
	from := len(way) - 1
	if !s.m.lru && s.r.IntN(2) == 0 {
		from = 0 // the model knows the victims of single blocks only
	}
	group, named := uint32(s.r.IntN(2)), s.r.IntN(4) > 0
	for i := from; i < len(way); i++ {
		b := Block{Group: group, Hash: way[i], Identity: []byte(nameOf(way[i]))}
		if named {
			b.Chain = chainOf(nameOf(way[i]))
		}
		if i > 0 {
			b.Parent = way[i-1]
		}
		e.Blocks = append(e.Blocks, b)
	}
	s.m.spare = blockKey{c.ns, group, e.Blocks[0].Parent}
	s.event(e)
	s.m.spare = blockKey{}
}

// learn says what some blocks are named, and wants those of them that are there and have no name to be named.
func (s *sim) learn(c *client) {
	e := &Learned{Session: c.id}
	for _, h := range path(1 + s.r.IntN(nodes)) {
		e.Blocks = append(e.Blocks, LearnedBlock{Hash: h, Chain: chainOf(nameOf(h))})
	}
	s.event(e)
	for k, b := range s.m.visible {
		if k.ns == c.ns && b.chain.IsZero() && slices.ContainsFunc(e.Blocks, func(l LearnedBlock) bool { return l.Hash == k.hash }) {
			s.t.Errorf("%v was learned, and has no name", k)
		}
	}
}

// tenant is who a message is charged to.
func (s *sim) tenant() Scope {
	if !s.tenants {
		return 0
	}
	return Scope(s.r.IntN(4))
}

// slotOf is a slot that the client speaks of: of its own, or one that it makes up.
func (s *sim) slotOf(c *client) SlotRef {
	if len(c.slots) == 0 || s.r.IntN(12) == 0 {
		return SlotRef{uint32(s.r.IntN(3)), uint32(s.r.IntN(6)), uint32(s.r.IntN(4))}
	}
	for _, slot := range c.slots {
		if g := s.m.grants[slot]; g != nil && g.sess == c.id && s.r.IntN(4) > 0 {
			return slot
		}
	}
	return c.slots[max(0, len(c.slots)-1-s.r.IntN(6))]
}

func (s *sim) seal(c *client) {
	if s.r.IntN(3) > 0 {
		one, class := s.written(c)
		s.event(&Sealed{Session: c.id, Slot: one.Slot, Checksum: one.Checksum})
		s.wantRefused(class != NoClass, cmp.Or(class, StaleSlot))
		return
	}
	e := &SealedRun{Session: c.id}
	want, got := map[uint32]Class{}, map[uint32]Class{} // by place
	for i := range 1 + uint32(s.r.IntN(5)) {
		one, class := s.written(c)
		e.Slots = append(e.Slots, one)
		if class != NoClass {
			want[i] = class
		}
	}
	s.event(e)
	for _, a := range s.answers {
		if r, ok := a.(Refused); ok && r.Event == KindSealedRun {
			got[r.Item] = r.Class
		}
	}
	if !maps.Equal(got, want) {
		s.t.Errorf("of a run %v are refused, want %v", got, want)
	}
}

// written has a client write a slot, and says why its seal is to be refused.
func (s *sim) written(c *client) (e SealedSlot, class Class) {
	slot := s.slotOf(c)
	g := s.m.grants[slot]
	if g != nil && g.sess != c.id {
		g = nil
	}
	e = SealedSlot{Slot: slot, Checksum: s.r.Uint64()}
	if g != nil && g.copy != 0 {
		return e, Repeated
	}
	if g != nil {
		e.Checksum = tagOf(g.key, g.part) // what is published for one key is one content, unless somebody lies
		s.m.memory[placeOf(slot)] = e.Checksum
		k := content{key: g.key, part: g.part, tag: e.Checksum}
		if s.r.IntN(15) == 0 { // it never wrote, or wrote something else
			s.m.memory[placeOf(slot)], k.lie = s.r.Uint64(), true
		}
		s.m.truth[slot] = k
		delete(s.m.grants, slot)
		delete(s.m.writers, placeOf(slot))
		if f := s.m.filling[g.key]; f != nil && !g.dead {
			f.at = s.m.now
		}
	}
	if g == nil || g.dead {
		return e, StaleSlot
	}
	return e, NoClass
}

func (s *sim) abandon(c *client) {
	slot := s.slotOf(c)
	g := s.m.grants[slot]
	known := g != nil && g.sess == c.id
	if known && g.copy != 0 {
		s.event(&Abandoned{c.id, slot})
		s.wantRefused(true, Repeated)
		return
	}
	if known {
		delete(s.m.grants, slot)
		delete(s.m.writers, placeOf(slot))
		if !g.dead {
			s.m.giveUp(g.key)
		}
	}
	s.event(&Abandoned{c.id, slot})
	s.wantRefused(!known, StaleSlot)
}

// wantRefused compares with the first answer of the event.
func (s *sim) wantRefused(want bool, class Class) {
	got := NoClass
	if len(s.answers) > 0 {
		if a, ok := s.answers[0].(Refused); ok {
			got = a.Class
		}
	}
	if !want {
		class = NoClass
	} else {
		s.sum.Stale++
	}
	if got != class {
		s.t.Errorf("refused as %q, want %q", classNames[got], classNames[class])
	}
}

func (s *sim) ask(c *client) {
	c.op++
	e := &Query{Session: c.id, Ticket: Ticket{c.op, 1}, Mode: Mode(s.r.IntN(4)), Consumers: 1, Priority: int32(s.r.IntN(2))}
	e.Scope = s.tenant()
	if s.r.IntN(2) == 0 {
		e.Consumers = uint32(s.parts)
	}
	e.Demand = []Want{s.wanted(c)}
	if e.Mode == Exact || e.Mode == Discover {
		e.Demand = append(e.Demand, Want{1 - e.Demand[0].Group, e.Demand[0].Hashes[len(e.Demand[0].Hashes)/2:]})
	}
	if old := s.m.queries[ticketKey{c.id, uint64(1 + s.r.IntN(int(c.op)))}]; old != nil && s.r.IntN(3) == 0 {
		c.op--
		e.Ticket = Ticket{old.ev.Ticket.Op, old.ev.Ticket.Revision + 1}
		s.superseded(old)
	}
	c.asked = append(c.asked, e)
	s.ask1(c, e)
}

// wanted is a path of which something is there, more often than not.
func (s *sim) wanted(c *client) Want {
	best, most := Want{}, -1
	for range 1 + s.r.IntN(4) {
		w := Want{uint32(s.r.IntN(2)), path(1 + s.r.IntN(nodes))}
		if n := s.m.run(c.ns, w, true); n > most {
			best, most = w, n
		}
	}
	return best
}

// superseded closes the lease of a query that is replaced or cancelled.
func (s *sim) superseded(q *modelQuery) {
	for _, l := range s.m.leases {
		if l.sess == q.ev.Session && l.ticket == q.ev.Ticket {
			l.closed = true
		}
	}
	delete(s.m.queries, ticketKey{q.ev.Session, q.ev.Ticket.Op})
}

// ask1 asks, and wants exactly one answer to this ticket, which is one that the model allows.
func (s *sim) ask1(c *client, e *Query) {
	run, below := s.m.run(c.ns, e.Demand[0], false), s.m.run(c.ns, e.Demand[0], true)
	known := s.m.queries[ticketKey{c.id, e.Ticket.Op}] != nil
	s.m.queries[ticketKey{c.id, e.Ticket.Op}] = &modelQuery{ev: e, ns: c.ns}
	behind := s.c.freed && slices.ContainsFunc(s.c.waiting, func(q *query) bool {
		replaced := q.sess.id == c.id && q.ticket.Op == e.Ticket.Op
		return q.priority >= e.Priority && !replaced
	})
	s.event(e)
	n, loading := 0, false
	for _, a := range s.answers {
		switch a := a.(type) {
		case Ready:
			if a.Session != c.id || a.Ticket != e.Ticket || loading {
				continue // it waited, and what it replaced made room
			}
			n++
			if behind && !known && a.Lease != (LeaseID{}) {
				s.t.Errorf("%v overtakes those whose turn had not come yet", e.Ticket)
			}
			if e.Mode == Prefix && !known {
				s.wantHits(c, a, run, below)
			}
		case Busy:
			n += b2i(a.Session == c.id && a.Ticket == e.Ticket)
			s.sum.Busy++
		case Loading:
			loading = true
			n++
			s.sum.Waited++
		case Candidates:
			n++
		case Refused:
			n++
		}
	}
	if n != 1 {
		s.t.Errorf("%d answers to %v", n, e)
	}
	s.settleQueries(e)
}

// settleQueries forgets a query that has ended without a lease.
func (s *sim) settleQueries(e *Query) {
	k := ticketKey{e.Session, e.Ticket.Op}
	for _, a := range s.answers {
		switch a := a.(type) {
		case Busy, Candidates:
			delete(s.m.queries, k)
		case Refused:
			if a.Event == KindQuery && s.m.queries[k] != nil && s.m.queries[k].ev == e {
				delete(s.m.queries, k)
			}
		}
	}
}

// wantHits compares the answer that came at once with what the model could have had.
func (s *sim) wantHits(c *client, a Ready, run, below int) {
	hits, most := 0, int(s.m.own[c.id])/(100*s.parts)
	if a.Hits != nil {
		hits = int(a.Hits[0])
	}
	switch {
	case a.Why == Missing && below > 0:
		s.t.Errorf("missing, and the model has %d", below)
	case a.Why == Found && hits != min(run, most) && (!s.reads && !s.tenants || hits > below):
		s.t.Errorf("%d hits, and the model has %d and %d below", hits, run, below)
	case a.Why == TooLarge && !s.tenants && most > 0:
		s.t.Errorf("%d blocks are too large for %d bytes", below, s.m.total)
	case a.Why == TimedOut || a.Why == Unreadable && !s.reads:
		s.t.Errorf("at once: %s", whyNames[a.Why])
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (s *sim) repeat(c *client) {
	e := c.asked[max(0, len(c.asked)-1-s.r.IntN(4))]
	q := s.m.queries[ticketKey{c.id, e.Ticket.Op}]
	switch s.r.IntN(3) {
	case 0:
		s.event(&Poll{c.id, e.Ticket})
	case 1:
		if q != nil && q.ev.Ticket == e.Ticket {
			s.superseded(q)
		}
		s.event(&Cancel{c.id, e.Ticket})
	default:
		if q == nil { // Busy before, perhaps
			s.ask1(c, e)
			return
		}
		before, late := s.c.Usage(), s.c.freed
		s.event(e)
		if late { // others had their turn
			return
		}
		if after := s.c.Usage(); q.ev == e && (before.Leased != after.Leased || before.Granted != after.Granted) {
			s.t.Errorf("a repetition changed something: %+v, %+v", before, after)
		}
	}
}

func (s *sim) leaseOf(c *client) LeaseID {
	if len(c.leases) == 0 || s.r.IntN(12) == 0 {
		return LeaseID{uint32(s.r.IntN(3)), uint32(s.r.IntN(4))}
	}
	for _, id := range c.leases {
		if s.m.leases[id] != nil && s.r.IntN(4) > 0 {
			return id
		}
	}
	return c.leases[max(0, len(c.leases)-1-s.r.IntN(3))]
}

// known is the model's lease, if it is the client's.
func (s *sim) known(c *client, id LeaseID) *modelLease {
	if l := s.m.leases[id]; l != nil && l.sess == c.id {
		return l
	}
	return nil
}

func (s *sim) start(c *client) {
	e := &Start{Session: c.id, Lease: s.leaseOf(c), Consumer: uint32(s.r.IntN(s.parts)), Into: make([]PlanSlot, 0, s.r.IntN(6))}
	l := s.known(c, e.Lease)
	class := s.mayStart(l, e.Consumer)
	if class == NoClass {
		l.started[e.Consumer] = true
		l.deadline = s.m.now + s.m.patience
	}
	s.event(e)
	s.wantRefused(class != NoClass, class)
}

// mayStart is why a consumer may not start on a lease; nil: there is none.
func (s *sim) mayStart(l *modelLease, consumer uint32) Class {
	switch {
	case l == nil:
		return StaleLease
	case consumer >= l.consumers:
		return Invalid
	case l.started[consumer]:
		return Repeated
	case l.closed || l.spoiled:
		l.closed = true
		l.failed = l.failed || l.spoiled
		return StaleLease
	}
	return NoClass
}

func (s *sim) copied(c *client) {
	e := &Copied{Session: c.id, Lease: s.leaseOf(c), Consumer: uint32(s.r.IntN(s.parts))}
	l, class := s.known(c, e.Lease), NoClass
	switch {
	case l == nil:
		class = StaleLease
	case e.Consumer >= l.consumers || !l.started[e.Consumer] || l.ours[e.Consumer]:
		class = Invalid
	case l.done[e.Consumer]:
		class = Repeated
	default:
		e.Outcome, e.Bad = s.read(l, e.Consumer)
		l.done[e.Consumer] = true
		l.failed = l.failed || e.Outcome != Done
		l.closed = l.closed || e.Outcome != Done
	}
	s.event(e)
	s.wantRefused(class != NoClass, class)
}

// read is the consumer's copy: it compares every slot of its plan with the checksum, as it is now, at the end.
func (s *sim) read(l *modelLease, consumer uint32) (Outcome, uint32) {
	at := uint32(0)
	for i, slots := range l.slots {
		for part, t := range slots {
			if l.consumers > 1 && part != int(consumer) {
				continue
			}
			want := s.m.truth[t.Slot]
			if want.key != l.keys[i] || want.part != part {
				s.t.Errorf("lease for %v serves %v", l.keys[i], want)
			}
			if got := s.m.memory[placeOf(t.Slot)]; got != t.Checksum {
				if !want.lie {
					s.t.Errorf("slot %v of a lease holds %x, published was %x", t.Slot, got, want.tag)
				}
				s.sum.Mismatch++
				return Mismatch, at
			}
			at++
		}
	}
	if s.r.IntN(10) == 0 {
		return Failed, 0
	}
	return Done, 0
}

func (s *sim) release(c *client) {
	e := &Release{c.id, s.leaseOf(c)}
	l := s.known(c, e.Lease)
	if l != nil {
		l.closed = true
	}
	s.event(e)
	s.wantRefused(l == nil, StaleLease)
}

// event steps the core and reads its actions as a shell would.
func (s *sim) event(ev Event) {
	s.log = append(s.log, s.m.now.String()+" "+eventText(ev))
	s.answersTo = ev
	if s.recycles { // whoever got the answers has read them
		s.c.Recycle()
	}
	shown, ours := spoilable(ev)
	s.answers = s.c.Step(s.m.now, shown, nil)
	for _, b := range ours {
		spoil(b)
	}
	s.endLeases()
	for _, a := range s.answers {
		s.log = append(s.log, "    "+text(a))
		s.take(ev, a)
		if v, ok := a.(*Visible); ok {
			s.shown = append(s.shown, v)
		}
	}
	for _, v := range s.shown {
		if v.Identity != nil && string(v.Identity) != nameOf(v.Hash) {
			s.t.Errorf("the identity of %s is %q", nameOf(v.Hash), v.Identity)
		}
	}
	if s.shown = s.shown[max(0, len(s.shown)-8):]; s.recycles {
		s.shown = nil
	}
	if wrong := s.c.Check(); wrong != "" {
		s.t.Errorf("%s", wrong)
	}
	s.checkUsage()
	s.checkBudgets()
	s.checkLine()
}

// spoilable is the event with records of its own, which are ours when the step has ended.
func spoilable(ev Event) (Event, [][]byte) {
	var all [][]byte
	switch e := ev.(type) {
	case *Publish:
		own := *e
		own.Blocks = slices.Clone(e.Blocks)
		for i := range own.Blocks {
			own.Blocks[i].Identity = slices.Clone(own.Blocks[i].Identity)
			all = append(all, own.Blocks[i].Identity)
		}
		return &own, all
	case *Query:
		own := *e
		own.Demand = cloneWant(e.Demand)
		for _, w := range own.Demand {
			for i := range w.Hashes {
				all = append(all, w.Hashes[i][:])
			}
		}
		return &own, all
	}
	return ev, nil
}

// endLeases ends the model's leases that are due, and wants the core to have said so, in the same words and no others.
func (s *sim) endLeases() {
	want := map[string]int{}
	for id := range s.m.leases {
		if ended, said := s.m.endLease(id); ended && said != "" {
			want[said]++
		}
	}
	for _, a := range s.answers {
		if r, ok := a.(Restored); ok {
			want[fmt.Sprintf("restored %v: %v", r.Lease, r.OK)]--
			if r.OK {
				s.sum.Restored++
			} else {
				s.sum.Failed++
			}
		}
	}
	for said, n := range want {
		if n != 0 {
			s.t.Errorf("%q said %d times too few", said, n)
		}
	}
}

func (s *sim) checkUsage() {
	leased := int64(0)
	for _, l := range s.m.leases {
		leased += int64(100 * s.parts * len(l.keys))
	}
	n := 0
	for v := range s.c.Snapshot() {
		b := s.m.visible[blockKey{v.Namespace, v.Group, v.Hash}]
		if b == nil || !slices.Equal(b.slots, v.Slots) {
			s.t.Errorf("the snapshot has %v", text(&v))
		}
		n++
	}
	if n != len(s.m.visible) {
		s.t.Errorf("the snapshot has %d blocks, and %d are visible", n, len(s.m.visible))
	}
	for id, i := range s.c.scopes {
		if limit := s.c.scopeList[i].budget.Resident; limit > 0 && s.c.books.ScopeResident(i) > limit {
			s.t.Errorf("tenant %d has %d bytes", id, s.c.books.ScopeResident(i))
		}
	}
	if u := s.c.Usage(); u.Leased != leased || u.Blocks != len(s.m.visible) || u.Queries > s.m.total {
		s.t.Errorf("%+v, and the model has %d leased and %d visible", u, leased, len(s.m.visible))
	}
}

func (s *sim) clientOf(id SessionID) *client {
	i := slices.IndexFunc(s.clients, func(c *client) bool { return c.id == id })
	return s.clients[i]
}
