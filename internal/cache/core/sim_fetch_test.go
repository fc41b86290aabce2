package core

// fetch lets a client ask and restore in one.
func (s *sim) fetch(c *client) {
	w := s.wanted(c)
	e := &Fetch{Session: c.id, Scope: s.tenant(), Group: w.Group, Hashes: w.Hashes, All: s.r.IntN(4) == 0}
	wrong := s.r.IntN(10) == 0
	for range len(w.Hashes)*s.parts + b2i(wrong) {
		s.somewhere(&e.Pages)
	}
	run, below := s.m.run(c.ns, w, false), s.m.run(c.ns, w, true)
	busy := s.mayBeBusy(c, e, run, below)
	s.event(e)
	s.wantRefused(wrong, Invalid)
	n := 0
	for _, a := range s.answers {
		switch a := a.(type) {
		case Fetched:
			n++
			s.answered(&Query{Mode: Prefix, Demand: []Want{w}}, nil)
			if a.Copy != 0 || a.Found != 0 || a.Good != 0 || a.Why == Found {
				s.t.Errorf("at once: %v", text(a))
			}
			s.wantNothing(c, e, a.Why, below)
		case Busy:
			if a.Ticket != (Ticket{}) {
				continue // another's
			}
			n++
			s.sum.Hurried++
			if a.Session != c.id || !busy {
				s.t.Errorf("busy, and %d are there, %d with those below", run, below)
			}
		case CopyOut:
			n++
			s.sum.Fetched++
			s.wantAll(c, e, len(a.Slots)/s.parts, run, below)
		}
	}
	if n != b2i(!wrong) {
		s.t.Errorf("%d answers to a fetch", n)
	}
}

// most is how many blocks the client's budgets can ever hold, tenants apart.
func (s *sim) most(c *client) int { return int(s.m.own[c.id]) / (100 * s.parts) }

// mayBeBusy says that a query would have to wait: to read, or for bytes.
func (s *sim) mayBeBusy(c *client, e *Fetch, run, below int) bool {
	if below > run || len(s.c.waiting) > 0 || s.c.freed {
		return true
	}
	need := int64(100 * s.parts * min(run, s.most(c)))
	tenant, used := s.c.scopeList[s.c.sessions[c.id].scope].id, int64(0)
	if e.Scope != 0 {
		tenant = e.Scope
	}
	if i, known := s.c.scopes[tenant]; known {
		used = s.c.scopeList[i].used
	}
	most := s.m.query[tenant]
	if block := int64(100 * s.parts); most > 0 {
		need = min(need, most/block*block)
	}
	return s.c.used.bytes+need > s.m.total || s.c.sessions[c.id].used.bytes+need > s.m.own[c.id] || most > 0 && used+need > most
}

// wantNothing compares an answer without pages with what the model has.
func (s *sim) wantNothing(c *client, e *Fetch, why Why, below int) {
	switch {
	case why == Missing && below > 0 && !(e.All && (below < len(e.Hashes) || s.most(c) < len(e.Hashes) || s.tenants)):
		s.t.Errorf("missing, and the model has %d of %d", below, len(e.Hashes))
	case why == TooLarge && !s.tenants && s.most(c) > 0:
		s.t.Errorf("%d blocks are too large for %d bytes", below, s.m.own[c.id])
	case why == TimedOut || why == Unreadable:
		s.t.Errorf("at once: %s", whyNames[why])
	}
}

// wantAll compares how many blocks are copied with what the model has.
func (s *sim) wantAll(c *client, e *Fetch, got, run, below int) {
	switch want := min(run, s.most(c)); {
	case got > want || got < want && !s.tenants:
		s.t.Errorf("%d are copied, and the model has %d", got, want)
	case below > run && s.most(c) > run && !s.tenants:
		s.t.Errorf("%d are copied, and %d are to be had", got, below)
	case e.All && got < len(e.Hashes):
		s.t.Errorf("%d of %d are copied", got, len(e.Hashes))
	}
}

// fetching makes the lease of a fetch, which nobody is told of.
func (s *sim) fetching(e *Fetch, a CopyOut) {
	c := s.clientOf(a.Session)
	l := &modelLease{
		sess: a.Session, consumers: 1, started: map[uint32]bool{0: true}, done: map[uint32]bool{}, ours: map[uint32]bool{0: true}, deadline: s.m.now + s.m.patience,
	}
	if s.m.leases[a.Lease] != nil {
		s.t.Errorf("lease %v is another's", a.Lease)
	}
	hits := len(a.Slots) / s.parts
	for _, h := range e.Hashes[:hits] {
		k := blockKey{c.ns, e.Group, h}
		b := s.m.visible[k]
		if b == nil {
			s.t.Errorf("%v is copied and not visible", k)
			return
		}
		b.used = s.m.now
		l.keys, l.slots = append(l.keys, k), append(l.slots, b.slots)
	}
	s.m.leases[a.Lease] = l
	c.leases = append(c.leases, a.Lease)
	s.answered(&Query{Mode: Prefix, Demand: []Want{{e.Group, e.Hashes}}}, []uint32{uint32(hits)})
}
