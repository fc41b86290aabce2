package core

// checkBudgets wants nobody to hold more than one of his budgets.
func (s *sim) checkBudgets() {
	all, spec := int64(0), int64(0)
	own, ownSpec, tenants := map[SessionID]int64{}, map[SessionID]int64{}, map[Scope]int64{}
	charge := func(a account, n int64) {
		all += n
		own[a.sess.id] += n
		tenants[s.c.scopeList[a.scope].id] += n
		if a.spec {
			spec += n
			ownSpec[a.sess.id] += n
		}
	}
	for _, q := range s.c.open {
		charge(q.acct, q.bytes)
	}
	for i := range s.c.leases {
		if l := &s.c.leases[i]; l.sess != nil {
			charge(l.acct, l.bytes)
		}
	}
	for _, r := range s.c.readByID {
		if r.bytes > 0 { // else those are charged who wait for it
			charge(r.acct, r.bytes)
		}
	}
	if all > s.m.total || spec > s.m.spec {
		s.t.Errorf("queries have %d of %d bytes, speculative ones %d of %d", all, s.m.total, spec, s.m.spec)
	}
	for id, n := range own {
		if most := s.m.own[id]; n > most || ownSpec[id] > most/4 {
			s.t.Errorf("session %v has %d bytes of %d, on speculation %d", id, n, most, ownSpec[id])
		}
	}
	for id, n := range tenants {
		if most := s.m.query[id]; most > 0 && n > most {
			s.t.Errorf("tenant %d has %d bytes of %d", id, n, most)
		}
	}
	s.sum.Speculative += int(spec)
}

// checkLine goes through the line as anybody would, without the marks and the reasons that the core keeps: nobody in it could go on.
func (s *sim) checkLine() {
	if s.c.freed {
		s.sum.Later++
		return // the next step goes on with it
	}
	names := map[*session]int{}
	sessions, tenants := map[*session]bool{}, map[int]bool{}
	stopped := false
	for i, q := range s.c.waiting {
		if i > 0 && (q.priority > s.c.waiting[i-1].priority || q.priority == s.c.waiting[i-1].priority && q.seq < s.c.waiting[i-1].seq) {
			s.t.Errorf("%v of %v stands at the wrong place", q.ticket, q.sess.id)
		}
		for _, w := range q.want {
			names[q.sess] += len(w.Hashes)
		}
		if names[q.sess] > s.c.lim.WaitingNames {
			s.t.Errorf("%v has %d names that wait", q.sess.id, names[q.sess])
		}
		if stopped || sessions[q.sess] || tenants[q.acct.scope] {
			continue
		}
		room := func(used, most int64) bool { return most == 0 || used+q.need <= most }
		tenant := s.c.scopeList[q.acct.scope]
		switch {
		case !room(q.sess.used.bytes, s.m.own[q.sess.id]):
			sessions[q.sess] = true
			s.sum.Kept[bySession]++
		case !room(tenant.used, s.m.query[tenant.id]):
			tenants[q.acct.scope] = true
			s.sum.Kept[byScope]++
		case !room(s.c.used.bytes, s.m.total):
			stopped = true
			s.sum.Kept[byTotal]++
		default:
			s.t.Errorf("%v of %v waits, and its %d bytes fit", q.ticket, q.sess.id, q.need)
		}
	}
}
