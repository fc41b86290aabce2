package core

import (
	"slices"

	"github.com/perigee-llm/perigee/internal/cache/planning"
	"github.com/perigee-llm/perigee/internal/cache/storage/dram"
)

// query is one admitted operation.
//
//	(asked) ──▶ waiting (for bytes) ──▶ reading ──▶ leased ──▶ (retired)
//	   └─────────────┴───────────────────┴──Ready with nothing, Cancel, Lost, a higher revision──▶ (retired)
//
// A retired operation needs no record: a session's operation numbers only grow, so one at or below the last that is not here has
// ended. That is the whole of its tombstone, and it costs nothing.
type query struct {
	sess     *session
	ticket   Ticket
	seq      uint64
	mode     Mode
	acct     account
	priority int32
	want     []Want // its own copy, while it waits for bytes
	content  [16]byte
	consume  uint32
	deadline Time
	waits    bool // for bytes: so many at the last look, and what kept it back
	need     int64
	by       bound

	asked   int         // blocks
	pages   []dram.Page // held, group by group; some may still be read
	ends    []int       // of each group in pages
	low     []int       // places in pages of those that were not in memory
	pending int         // of pages that are being read
	bytes   int64       // charged
	lease   LeaseID     // once ready
}

func (c *Core) query(e *Query) {
	s := c.sessionOf(e.Session, KindQuery, e.Ticket.Op)
	if s == nil {
		return
	}
	acct, class := c.mayQuery(s, e)
	if class != NoClass {
		c.refuse(s.id, KindQuery, e.Ticket.Op, class)
		return
	}
	content := digestOf(e)
	if old := s.queries[e.Ticket.Op]; old != nil {
		switch {
		case e.Ticket.Revision < old.ticket.Revision || e.Ticket.Revision == old.ticket.Revision && content != old.content:
			c.refuse(s.id, KindQuery, e.Ticket.Op, StaleTicket)
			return
		case e.Ticket.Revision == old.ticket.Revision:
			c.again(old)
			return
		}
		c.abandonQuery(old)
	} else if e.Ticket.Op <= s.lastOp {
		c.refuse(s.id, KindQuery, e.Ticket.Op, Retired)
		return
	}
	if e.Mode == Discover {
		s.lastOp = max(s.lastOp, e.Ticket.Op)
		c.discover(s, e)
		return
	}
	q := &query{
		sess: s, ticket: e.Ticket, mode: e.Mode, acct: acct, priority: e.Priority, content: content, consume: e.Consumers,
		want: e.Demand, deadline: c.now + c.wait(e),
	}
	q.asked = q.names()
	c.admit(q)
}

func (c *Core) wait(e *Query) Time {
	if e.Wait <= 0 || e.Wait > c.lim.Wait {
		return c.lim.Wait
	}
	return e.Wait
}

func (c *Core) mayQuery(s *session, e *Query) (account, Class) {
	if e.Ticket.Op == 0 || e.Ticket.Revision == 0 || len(e.Demand) == 0 || e.Mode > Warm {
		return account{}, Invalid
	}
	if (e.Mode == Prefix || e.Mode == Warm) && len(e.Demand) != 1 {
		return account{}, Invalid
	}
	n := 0
	for i, w := range e.Demand {
		again := slices.ContainsFunc(e.Demand[:i], func(v Want) bool { return v.Group == w.Group })
		if again || uint64(w.Group) >= uint64(len(s.layout)) {
			return account{}, Invalid
		}
		parts := len(s.layout[w.Group].PartBytes)
		if reads := e.Mode == Prefix || e.Mode == Exact; reads && e.Consumers != 1 && int(e.Consumers) != parts {
			return account{}, Invalid
		}
		n += len(w.Hashes)
	}
	if n > c.lim.Blocks {
		return account{}, Invalid
	}
	sc, class := c.charged(s, e.Scope)
	return account{s, sc, e.Mode == Warm}, class
}

// again answers a repetition.
func (c *Core) again(q *query) {
	if q.lease == (LeaseID{}) {
		c.do(Loading{q.sess.id, q.ticket})
		return
	}
	c.do(c.readyOf(q))
}

// admit decides a new query.
func (c *Core) admit(q *query) {
	n, why := c.look(q)
	by := c.full(q.acct, n)
	if by == fits {
		by = c.mustQueue(q)
	}
	switch {
	case why != Found:
		c.nothing(q, why)
	case n > c.most(q.acct):
		// Busy, for a speculative one, would have it asked again for ever.
		c.nothing(q, TooLarge)
	case len(c.open) >= c.lim.Queries || len(q.sess.queries) >= c.lim.SessionQueries, by != fits && (q.mode == Warm || c.manyNames(q)):
		c.stats.Busy++
		c.do(Busy{q.sess.id, q.ticket})
		return // and the number is not used up
	default:
		c.enter(q)
		if by != fits {
			c.enqueue(q, by, n)
			c.stats.BudgetWaits++
		} else {
			c.take(q, n)
		}
		// Who keeps back whom is told anew: of whoever waits for everybody's bytes it may be his session's that are used up now, and then those
		// behind him go on.
		c.freed = c.freed || len(c.waiting) > 0
		if q.lease == (LeaseID{}) && q.sess.queries[q.ticket.Op] == q {
			c.do(Loading{q.sess.id, q.ticket})
		}
	}
	q.sess.lastOp = max(q.sess.lastOp, q.ticket.Op)
}

func (c *Core) enter(q *query) {
	c.seq++
	q.seq = c.seq
	q.sess.queries[q.ticket.Op] = q
	c.open = append(c.open, q)
}

// leave retires a query. Its lease, if it has one, goes on without it.
func (c *Core) leave(q *query) {
	if q.sess.queries[q.ticket.Op] == q {
		delete(q.sess.queries, q.ticket.Op)
	}
	if i := slices.Index(c.open, q); i >= 0 {
		c.open = slices.Delete(c.open, i, i+1)
	}
	if q.waits {
		c.dequeue(q)
		c.freed = true // no bytes, but whom it kept back may go on
	}
}

// nothing ends a query with nothing.
func (c *Core) nothing(q *query, why Why) {
	c.leave(q)
	c.stats.Nothing[why]++
	c.countQuery(q, why)
	c.do(Ready{Session: q.sess.id, Ticket: q.ticket, Why: why})
}

// abandonQuery ends a query without a word: what it holds is let go of, and what is being read for it goes on without it.
func (c *Core) abandonQuery(q *query) {
	if q.lease != (LeaseID{}) {
		l := &c.leases[q.lease.Index]
		l.closed, l.query = true, nil
		c.stopCopies(l.sess, q.lease)
		c.leave(q)
		c.settleLease(q.lease.Index)
		return
	}
	c.letGo(q, 0)
	c.leave(q)
}

func (c *Core) poll(e *Poll) {
	s := c.sessionOf(e.Session, KindPoll, e.Ticket.Op)
	if s == nil {
		return
	}
	switch q := s.queries[e.Ticket.Op]; {
	case q == nil && e.Ticket.Op <= s.lastOp:
		c.refuse(s.id, KindPoll, e.Ticket.Op, Retired)
	case q == nil || e.Ticket.Revision != q.ticket.Revision:
		c.refuse(s.id, KindPoll, e.Ticket.Op, StaleTicket)
	default:
		c.again(q)
	}
}

func (c *Core) cancel(e *Cancel) {
	s := c.sessionOf(e.Session, KindCancel, e.Ticket.Op)
	if s == nil {
		return
	}
	if q := s.queries[e.Ticket.Op]; q != nil && q.ticket.Revision == e.Ticket.Revision {
		c.abandonQuery(q)
	}
}

func (c *Core) discover(s *session, e *Query) {
	a := Candidates{Session: s.id, Ticket: e.Ticket, Positions: make([][]uint32, len(e.Demand))}
	n := &c.stats.Asked[Discover]
	c.stats.Queries[Discover]++
	for g, w := range e.Demand {
		pages, has := c.find(s, w, false)
		for i := range pages {
			switch route, why := c.cfg.Routes.Own(has(i)); {
			case why != planning.Chosen:
				n[Absent]++
				continue
			case route == planning.FromDisk:
				n[Below]++
			default:
				n[InMemory]++
			}
			a.Positions[g] = append(a.Positions[g], uint32(i))
		}
	}
	c.do(a)
}

// readyOf is the answer of a query with a lease.
func (c *Core) readyOf(q *query) Ready {
	r := Ready{Session: q.sess.id, Ticket: q.ticket, Why: Found, Lease: q.lease, Hits: make([]uint32, len(q.ends))}
	from := 0
	for g, end := range q.ends {
		r.Hits[g] = uint32(end - from)
		from = end
	}
	last := -1
	for _, p := range q.pages {
		at := c.books.ArenaOf(p)
		if at == last {
			continue // most often all are in one
		}
		last = at
		id := c.arenaList[at].id
		if i, there := slices.BinarySearch(r.Arenas, id); !there {
			r.Arenas = slices.Insert(r.Arenas, i, id)
		}
	}
	return r
}

func cloneWant(w []Want) []Want {
	w = slices.Clone(w)
	for i := range w {
		w[i].Hashes = slices.Clone(w[i].Hashes)
	}
	return w
}
