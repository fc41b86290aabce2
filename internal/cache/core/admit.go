package core

import (
	"slices"

	"github.com/perigee-llm/perigee/internal/cache/planning"
	"github.com/perigee-llm/perigee/internal/cache/storage/dram"
)

// item is one block of a demand that is to be had: in memory, or only below it, and then page is None if it is not on its way yet.
type item struct {
	page  dram.Page
	want  int32 // its place in the demand: which Want,
	at    int32 // and which of its hashes
	route planning.Route
}

// find returns where blocks are: visible or on its way up from below, or None for one that is below or nowhere, and then has tells which. The slice is
// good until the next call, and so is has. With stop it ends before the first that is nowhere.
func (c *Core) find(s *session, w Want, stop bool) (pages []dram.Page, has func(i int) planning.Held) {
	// What is nowhere in memory may be below, if anything is.
	c.found = c.books.FindRun(c.found[:0], s.space, w.Group, w.Hashes, stop && len(c.backed) == 0)
	return c.found, func(i int) planning.Held {
		switch p := c.found[i]; {
		case p == dram.None:
			b, known := c.backed[dram.Key{Space: s.space, Group: w.Group, Hash: w.Hashes[i]}]
			if !known || len(b.checksums) != len(s.layout[w.Group].PartBytes) {
				return 0
			}
			return planning.OnDisk
		case c.books.State(p) == dram.Visible:
			return planning.InMemory
		case c.reads[p] != nil:
			return planning.OnDisk
		default: // it is being published
			return 0
		}
	}
}

// look works out what q would take, into c.items and q.ends, and how many bytes that is: the plan of each group, in which only routes are that the shell can
// carry out, and of it what the budgets can ever hold. take carries it out in the same step, so that no look is out of date.
func (c *Core) look(q *query) (bytes int64, why Why) {
	c.items, q.ends = c.items[:0], q.ends[:0]
	most := c.most(q.acct)
	for nth, w := range q.want {
		pages, has := c.find(q.sess, w, true)
		c.plan, _ = planning.ChooseOwn(c.plan[:0], c.cfg.Routes, len(pages), has)
		from := len(c.items)
	group:
		for _, r := range c.plan {
			for i := r.First; i < r.First+r.Pages; i++ {
				n := c.bytesOf(q.sess, w.Group, pages[i])
				if q.mode != Exact && len(c.items) > 0 && bytes+n > most {
					break group // a run may be cut to what its budgets can ever hold
				}
				bytes += n
				c.items = append(c.items, item{pages[i], int32(nth), int32(i), r.Route})
			}
		}
		if q.mode == Exact && len(c.items)-from < len(w.Hashes) {
			return 0, Missing
		}
		q.ends = append(q.ends, len(c.items))
	}
	if len(c.items) == 0 {
		return 0, Missing
	}
	return bytes, Found
}

// bytesOf is what a block takes of the pool; or will, if it is None and below.
func (c *Core) bytesOf(s *session, group uint32, p dram.Page) int64 {
	if p != dram.None {
		return c.books.Bytes(p)
	}
	g := &s.layout[group]
	_, size, _ := c.books.Arena(s.arenas[g.Arena].at)
	return int64(len(g.PartBytes)) * int64(size)
}

// take holds what look has found, and begins to read what is not in memory.
func (c *Core) take(q *query, n int64) {
	want := q.want
	q.want = nil // Step does not keep the event's slices
	q.bytes = n
	c.charge(q.acct, n)
	q.pages = make([]dram.Page, len(c.items))
	// First all that is there, so that no room is made at its expense.
	for i, it := range c.items {
		q.pages[i] = it.page
		switch {
		case it.page == dram.None:
		case it.route == planning.FromDisk: // somebody's read of it is under way
			c.books.Hold(it.page)
			c.join(c.reads[it.page], q, i)
		case q.mode == Warm: // speculation only peeks
			c.books.Hold(it.page)
		default:
			c.books.HoldUsed(it.page, c.now)
		}
	}
	for i, it := range c.items {
		if it.page != dram.None {
			continue
		}
		w := &want[it.want]
		if !c.bring(q, i, dram.Key{Space: q.sess.space, Group: w.Group, Hash: w.Hashes[it.at]}) {
			c.cut(q, i)
			break
		}
	}
	c.settleQuery(q)
}

// settleQuery ends a query whose blocks are all in memory.
func (c *Core) settleQuery(q *query) {
	if q.pending > 0 || q.sess.queries[q.ticket.Op] != q || q.lease != (LeaseID{}) {
		return
	}
	// What was flushed or found corrupt while others were read is not lent.
	if i := slices.IndexFunc(q.pages, func(p dram.Page) bool { return c.books.State(p) == dram.Doomed }); i >= 0 {
		c.cut(q, i)
		if len(q.pages) == 0 {
			return
		}
	}
	c.countQuery(q, Found)
	if q.mode != Warm {
		c.lend(q)
		c.do(c.readyOf(q))
		return
	}
	r := Ready{Session: q.sess.id, Ticket: q.ticket, Why: Found, Hits: []uint32{uint32(len(q.pages))}}
	c.letGo(q, 0)
	c.leave(q)
	c.do(r)
}

// cut takes block i and all behind it from a query, which gets what is left; an Exact one gets nothing.
func (c *Core) cut(q *query, i int) {
	if q.mode == Exact {
		i = 0
	}
	c.letGo(q, i)
	if i == 0 {
		c.nothing(q, Unreadable)
		return
	}
	q.ends[0] = i
}

// letGo gives back the blocks of a query from place i on, with the bytes that it was charged for them. A read that nobody waits for any
// more goes on, and the bytes stay charged until it ends: or a client could begin any number of reads by asking and cancelling.
func (c *Core) letGo(q *query, i int) {
	for j := len(q.pages) - 1; j >= i; j-- { // the tail first, as it goes first
		p := q.pages[j]
		if p == dram.None {
			continue
		}
		n := c.books.Bytes(p)
		if r := c.reads[p]; r != nil && c.unjoin(r, q, j) {
			q.pending--
			if len(r.waiters) == 0 {
				r.acct, r.bytes = q.acct, n
				q.bytes -= n
			}
		}
		c.unhold(p)
	}
	q.pages = q.pages[:i]
	left := int64(0)
	for _, p := range q.pages {
		if p != dram.None {
			left += c.books.Bytes(p)
		}
	}
	c.charge(q.acct, left-q.bytes)
	q.bytes = left
}

func (c *Core) unhold(p dram.Page) {
	if c.books.Unhold(p) {
		c.free(p)
	}
}
