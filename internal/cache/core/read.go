package core

import (
	"slices"

	"github.com/perigee-llm/perigee/internal/cache/storage/dram"
)

// read is one block on its way up from below, for everybody who wants it. It belongs to whoever does the reading: cancelling a
// query ends its interest, and the slots are free or visible only when the read has ended.
type read struct {
	id      ReadID
	page    dram.Page
	parent  Hash
	sums    []uint64
	arena   int
	slots   []uint32
	waiters []waiter
	demand  bool // somebody wants it who is not speculating

	// acct is charged with bytes while nobody waits.
	acct  account
	bytes int64
}

// waiter is a query that has the read's block in place i.
type waiter struct {
	q *query
	i int
}

func (c *Core) join(r *read, q *query, i int) {
	if r.bytes > 0 { // whoever waits is charged himself
		c.charge(r.acct, -r.bytes)
		r.bytes = 0
	}
	if len(r.waiters) > 0 {
		c.stats.SharedReads++
	}
	r.waiters = append(r.waiters, waiter{q, i})
	r.demand = r.demand || q.mode != Warm
	q.low = append(q.low, i)
	q.pending++
}

// unjoin takes a waiter from a read, and says whether it was there.
func (c *Core) unjoin(r *read, q *query, i int) bool {
	at := slices.Index(r.waiters, waiter{q, i})
	if at < 0 {
		return false
	}
	r.waiters = slices.Delete(r.waiters, at, at+1)
	return true
}

// bring puts a block that is below memory in place i of q, by beginning a read or joining one. It returns false if there is no room.
func (c *Core) bring(q *query, i int, k dram.Key) bool {
	if p, ok := c.books.Find(k); ok { // the same block twice in one demand
		q.pages[i] = p
		c.books.Hold(p)
		c.join(c.reads[p], q, i)
		return true
	}
	b, g := c.backed[k], &q.sess.layout[k.Group]
	n := &dram.Newcomer{
		Key: k, Parent: b.parent, Chain: b.chain, Arena: q.sess.arenas[g.Arena].at, Scope: q.acct.scope, Parts: len(g.PartBytes),
	}
	if !c.room(n) {
		return false
	}
	p := c.books.Begin(n)
	c.lastRead++
	r := &read{id: c.lastRead, page: p, parent: b.parent, sums: b.checksums, arena: n.Arena}
	plan := c.slotsOf(nil, p)
	for part := range plan {
		c.books.Grant(p, part, readWord)
		plan[part].Checksum = b.checksums[part]
		r.slots = append(r.slots, plan[part].Slot.Index)
	}
	c.reads[p], c.readByID[r.id] = r, r
	q.pages[i] = p
	c.books.Hold(p)
	c.join(r, q, i)
	c.do(Read{r.id, b.extent, plan})
	return true
}

func (c *Core) readDone(e *ReadDone) {
	r := c.readByID[e.Read]
	if r == nil {
		c.refuse(SessionID{}, KindReadDone, uint64(e.Read), StaleRead)
		return
	}
	delete(c.readByID, r.id)
	delete(c.reads, r.page)
	if r.bytes > 0 {
		c.charge(r.acct, -r.bytes)
	}
	gone := c.books.State(r.page) == dram.Doomed // flushed meanwhile: its waiters are gone, too
	if e.Outcome == Done && !gone {
		c.brought(r)
		return
	}
	c.stats.FailedReads++
	if e.Outcome == Mismatch {
		delete(c.backed, c.books.Key(r.page))
	}
	c.endRead(r, gone)
}

// brought makes the block visible and goes on with the queries that waited for it.
func (c *Core) brought(r *read) {
	for i, slot := range r.slots {
		c.books.Seal(r.arena, slot, r.sums[i])
	}
	how := dram.Reclaimable
	if r.demand {
		how = dram.Retained
	}
	c.show(r.page, how, r.parent, nil)
	for _, w := range r.waiters {
		w.q.pending--
	}
	for _, w := range r.waiters {
		c.settleQuery(w.q)
	}
}

// endRead ends a read that brought nothing.
func (c *Core) endRead(r *read, gone bool) {
	for _, w := range r.waiters {
		w.q.pending--
	}
	for _, w := range r.waiters {
		if w.q.sess.queries[w.q.ticket.Op] == w.q && w.i < len(w.q.pages) {
			c.cut(w.q, w.i)
			c.settleQuery(w.q)
		}
	}
	for _, slot := range r.slots {
		c.books.Ungrant(r.arena, slot)
	}
	if !gone {
		c.books.Doom(r.page)
	}
	c.free(r.page)
}

// dropRead takes the block of a read out of sight, and its waiters with it. The slots stay until the read has ended.
func (c *Core) dropRead(r *read) {
	delete(c.reads, r.page)
	for _, w := range r.waiters {
		w.q.pending--
	}
	for _, w := range r.waiters {
		if w.q.sess.queries[w.q.ticket.Op] == w.q && w.i < len(w.q.pages) {
			c.cut(w.q, w.i)
			c.settleQuery(w.q)
		}
	}
	r.waiters = nil
	c.books.Doom(r.page)
}

func (c *Core) setBacked(e *Backed) {
	sp, ok := c.spaceOf(e.Namespace)
	if !ok || e.Extent.Length == 0 || e.Group > maxGroups {
		c.refuse(SessionID{}, KindBacked, e.Extent.Offset, Invalid)
		return
	}
	c.backed[dram.Key{Space: sp, Group: e.Group, Hash: e.Hash}] = backing{
		chain: e.Chain, parent: e.Parent, scope: e.Scope, extent: e.Extent, checksums: slices.Clone(e.Checksums),
	}
}

func (c *Core) unbacked(e *Unbacked) {
	sp, ok := c.spaces[e.Namespace]
	k := dram.Key{Space: sp, Group: e.Group, Hash: e.Hash}
	if b, known := c.backed[k]; ok && known && b.extent == e.Extent {
		delete(c.backed, k)
	}
}
