package core

import (
	"slices"

	"github.com/perigee-llm/perigee/internal/cache/storage/dram"
)

// lease keeps the blocks of one answer where they are, for a number of consumers that each copy their part once.
//
//	lent ──Start (by each consumer)──▶ being read ──Copied (by each)──▶ (gone)
//	 └──Release, Cancel, LeaseTTL: closed, no further Start──▶ (gone) when nobody is reading
type lease struct {
	sess          *session // nil: the place is free
	query         *query   // nil once the query was replaced
	gen           uint32
	acct          account
	bytes         int64
	pages         []dram.Page
	consumers     uint32
	started, done uint64 // bit per consumer
	ours          uint64 // those that have started and whose pages the shell copies
	began         Time   // of the first Start
	route         Route  // ByManager if it was for any consumer
	failed        bool
	closed        bool // nobody may start any more
	deadline      Time // for the first Start; then for the last Copied
}

// lend makes a lease of what the query holds.
func (c *Core) lend(q *query) {
	var at uint32
	if n := len(c.spareL); n > 0 {
		at, c.spareL = c.spareL[n-1], c.spareL[:n-1]
	} else {
		at = uint32(len(c.leases))
		c.leases = append(c.leases, lease{})
	}
	l := &c.leases[at]
	*l = lease{
		sess: q.sess, query: q, gen: l.gen + 1, acct: q.acct, bytes: q.bytes, pages: q.pages, consumers: q.consume,
		deadline: c.now + c.lim.LeaseTTL,
	}
	q.lease, q.bytes = LeaseID{at, l.gen}, 0
}

// leaseOf returns the lease that a session speaks of, or refuses the event.
func (c *Core) leaseOf(id SessionID, ref LeaseID, k EventKind) *lease {
	s := c.sessionOf(id, k, uint64(ref.Index))
	if s == nil {
		return nil
	}
	if uint64(ref.Index) < uint64(len(c.leases)) {
		if l := &c.leases[ref.Index]; l.sess == s && l.gen == ref.Gen {
			return l
		}
	}
	c.refuse(id, k, uint64(ref.Index), StaleLease)
	return nil
}

func (c *Core) start(e *Start) {
	l := c.startable(e.Session, e.Lease, e.Consumer, KindStart)
	if l == nil {
		return
	}
	c.startOn(l, e.Consumer, ByEngine)
	c.do(Plan{e.Session, e.Lease, e.Consumer, c.planOf(l, e.Consumer, e.Into)})
}

// startOn notes that a consumer starts.
func (c *Core) startOn(l *lease, consumer uint32, r Route) {
	if l.started == 0 {
		l.began = c.now
	}
	l.started |= 1 << consumer
	l.route = max(l.route, r)
	l.deadline = c.now + c.lim.Patience
}

// startable returns the lease that a consumer may start on, or refuses the event.
func (c *Core) startable(id SessionID, ref LeaseID, consumer uint32, k EventKind) *lease {
	l := c.leaseOf(id, ref, k)
	if l == nil {
		return nil
	}
	class := NoClass
	switch {
	case consumer >= l.consumers:
		class = Invalid
	case l.started>>consumer&1 == 1:
		class = Repeated
	case !l.closed && c.spoiled(l):
		l.closed, l.failed = true, true
		class = StaleLease
	case l.closed:
		class = StaleLease
	default:
		return l
	}
	c.refuse(id, k, uint64(ref.Index), class)
	if class == StaleLease {
		c.settleLease(ref.Index)
	}
	return nil
}

// spoiled says that a block of the lease was flushed or found to be corrupt since.
func (c *Core) spoiled(l *lease) bool {
	for _, p := range l.pages {
		if c.books.State(p) == dram.Doomed {
			return true
		}
	}
	return false
}

// planOf is what a consumer copies, in the memory of plan if that is enough: its part of each block, or all parts if it is the only one.
func (c *Core) planOf(l *lease, consumer uint32, plan []PlanSlot) []PlanSlot {
	plan = slices.Grow(plan[:0], len(l.pages))
	for _, p := range l.pages {
		if l.consumers == 1 {
			plan = c.slotsOf(plan, p)
		} else {
			plan = append(plan, c.slotOf(p, int(consumer)))
		}
	}
	return plan
}

func (c *Core) copied(e *Copied) {
	l := c.leaseOf(e.Session, e.Lease, KindCopied)
	if l == nil {
		return
	}
	bit := uint64(1) << e.Consumer
	if e.Consumer >= l.consumers || l.started&bit == 0 || l.ours&bit != 0 || e.Outcome > Mismatch {
		c.refuse(e.Session, KindCopied, uint64(e.Lease.Index), Invalid)
		return
	}
	if l.done&bit != 0 {
		c.refuse(e.Session, KindCopied, uint64(e.Lease.Index), Repeated)
		return
	}
	l.done |= bit
	if e.Outcome != Done {
		l.failed, l.closed = true, true // the others' copies are worth nothing now
	}
	if e.Outcome == Mismatch {
		c.corrupt(l, e.Bad)
	}
	c.settleLease(e.Lease.Index)
}

// corrupt drops the block in place bad of a consumer's plan.
func (c *Core) corrupt(l *lease, bad uint32) {
	if p, _ := c.inPlan(l, bad); p != dram.None && c.books.State(p) == dram.Visible {
		c.stats.Corrupt++
		c.drop(p, Corrupted)
	}
}

// inPlan is the block in a place of a consumer's plan, and which of its parts if the plan has all of them; None: the plan ends before.
func (c *Core) inPlan(l *lease, at uint32) (p dram.Page, part int) {
	left := int64(at)
	for _, p := range l.pages {
		n := int64(1)
		if l.consumers == 1 {
			n = int64(c.books.Parts(p))
		}
		if left < n {
			return p, int(left)
		}
		left -= n
	}
	return dram.None, 0
}

// Reading is the slot in a place of the plan that a consumer has started on, and has not said the end of. ok is false if there is none: not, or no longer.
func (c *Core) Reading(id SessionID, ref LeaseID, consumer, at uint32) (slot PlanSlot, ok bool) {
	s := c.sessions[id]
	if s == nil || uint64(ref.Index) >= uint64(len(c.leases)) {
		return PlanSlot{}, false
	}
	l := &c.leases[ref.Index]
	if l.sess != s || l.gen != ref.Gen || consumer >= l.consumers || (l.started&^l.done)>>consumer&1 == 0 {
		return PlanSlot{}, false
	}
	p, part := c.inPlan(l, at)
	if p == dram.None {
		return PlanSlot{}, false
	}
	if l.consumers > 1 {
		part = int(consumer)
	}
	return c.slotOf(p, part), true
}

func (c *Core) release(e *Release) {
	l := c.leaseOf(e.Session, e.Lease, KindRelease)
	if l == nil {
		return
	}
	l.closed = true
	c.settleLease(e.Lease.Index)
}

// settleLease ends a lease that nobody reads and that nobody will read any more.
func (c *Core) settleLease(at uint32) {
	l := &c.leases[at]
	all := uint64(1)<<l.consumers - 1
	if l.sess == nil || l.started&^l.done != 0 || !l.closed && l.done != all {
		return
	}
	for i := len(l.pages) - 1; i >= 0; i-- {
		c.unhold(l.pages[i])
	}
	c.charge(l.acct, -l.bytes)
	if l.query != nil {
		c.leave(l.query)
	}
	if l.started != 0 && l.sess.live {
		ok := l.done == all && !l.failed
		c.stats.Restores[okIndex(ok)]++
		if ok {
			c.stats.Loads[l.route].add(l.bytes, c.now-l.began)
		}
		c.do(Restored{l.sess.id, LeaseID{at, l.gen}, ok})
	}
	*l = lease{gen: l.gen}
	c.spareL = append(c.spareL, at)
}

func okIndex(ok bool) int {
	if ok {
		return 1
	}
	return 0
}
