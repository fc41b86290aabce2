package core

import (
	"slices"

	"github.com/perigee-llm/perigee/internal/cache/planning"
)

// Fetch is a Prefix query and RestoreInto in one, for a single consumer: the leading run of Hashes that is in memory is leased and copied into the
// pieces by the shell, and let go of when the copy has ended. It waits for nothing: where the query would have to, for bytes of a budget or
// for blocks from below memory, the answer is Busy. It has no ticket, since nothing of it can be asked for again; its end is the copy's.
//
// Answers: CopyOut for the shell, and Fetched for the client when OutDone has come; or at once Fetched with nothing, Busy, or Refused as the query or
// RestoreInto is. The Pages' slices go into the action.
type Fetch struct {
	Session SessionID
	// Scope is charged; 0 is the session's own.
	Scope  Scope
	Group  uint32
	Hashes []Hash
	// All wants all of the blocks, or nothing to be copied.
	All bool
	// Pages are those of all blocks, all parts of a block one after the other.
	Pages Pages
}

// Fetched answers Fetch: the pieces are the client's own again. The first Good pages are what was sealed. Found pages were to be copied: in the
// pieces of those between the two there may be anything, and those behind them were not touched. Why is NoLease's reason if Found is 0.
type Fetched struct {
	Session SessionID
	// Copy is the CopyOut that has ended; 0: there was none.
	Copy        CopyID
	Why         Why
	Outcome     Outcome
	Found, Good uint32
}

func (*Fetch) event()   {}
func (Fetched) action() {}

func (c *Core) fetch(e *Fetch) {
	s := c.sessionOf(e.Session, KindFetch, 0)
	if s == nil {
		return
	}
	want := []Want{{e.Group, e.Hashes}}
	acct, class := c.mayQuery(s, &Query{Ticket: Ticket{1, 1}, Mode: Prefix, Scope: e.Scope, Demand: want, Consumers: 1})
	if class != NoClass {
		c.refuse(s.id, KindFetch, 0, class)
		return
	}
	// All pieces count, also those of blocks that are not there: what is refused does not depend on what others have published.
	n := &copying{id: c.lastCopy + 1, sess: s, out: true, fetch: true, pieces: len(e.Pages.Pieces)}
	class = Invalid
	if parts := s.layout[e.Group].PartBytes; len(e.Pages.Counts) == len(parts)*len(e.Hashes) {
		shape := shapeOf(c.shape[:0], parts, len(e.Hashes))
		if class = c.mayCopy(n, &e.Pages, shape); cap(shape) <= mostScratch {
			c.shape = shape
		}
	}
	if class != NoClass {
		c.refuse(s.id, KindFetch, 0, class)
		return
	}
	q := &query{sess: s, mode: Prefix, acct: acct, want: want, consume: 1, asked: len(e.Hashes)}
	bytes, why := c.look(q)
	if why == Found && e.All && len(c.items) < len(e.Hashes) {
		why = Missing
	}
	if why == Found && bytes > c.most(acct) {
		why = TooLarge
	}
	switch {
	case why != Found:
		c.stats.Nothing[why]++
		c.countQuery(q, why)
		c.do(Fetched{Session: s.id, Why: why})
	case c.full(acct, bytes) != fits || c.mustQueue(q) != fits || c.mustRead():
		c.stats.Busy++
		c.do(Busy{Session: s.id})
	default:
		c.take(q, bytes)
		c.pour(q, n, e.Pages)
	}
}

// mostScratch is how many records of an unusually long message are kept for the next one's.
const mostScratch = 2048

// mustRead says that a block which look has found is not in memory.
func (c *Core) mustRead() bool {
	for _, it := range c.items {
		if it.route != planning.FromMemory {
			return true
		}
	}
	return false
}

// pour lends what a fetch holds to the shell, which copies it.
func (c *Core) pour(q *query, n *copying, p Pages) {
	c.countQuery(q, Found)
	c.lend(q)
	l := &c.leases[q.lease.Index]
	l.query = nil // there is none that could be asked for
	slots := c.planOf(l, 0, nil)
	n.lease, n.total = q.lease, uint32(len(slots))
	c.startOn(l, 0, ByManager)
	l.ours = 1
	c.beginCopy(n)
	c.do(CopyOut{n.id, q.sess.id, n.lease, 0, slots, p.first(len(slots))})
}

// shapeOf appends the bytes of so many blocks' pages, all parts of a block one after the other.
func shapeOf(out []PlanSlot, parts []uint32, blocks int) []PlanSlot {
	out = slices.Grow(out, len(parts)*blocks)
	for range blocks {
		for _, n := range parts {
			out = append(out, PlanSlot{Bytes: n})
		}
	}
	return out
}
