package core

import "slices"

// copying is a copy that the shell makes between slots and offered memory. Once it is asked for it is owned by its end, and not by whoever
// wanted it: until InDone or OutDone its slots are not free, its pools are there, and its session is not fenced.
//
//	(asked) ──▶ under way ──InDone, OutDone──▶ (gone)
//	               └──CopyStop: nobody wants it──▶ under way, and may end early
type copying struct {
	id       CopyID
	sess     *session
	out      bool
	fetch    bool // of a Fetch, whose lease nobody else has
	lease    LeaseID
	consumer uint32
	total    uint32
	grants   []uint32 // in: each slot's; noGrant for one that was granted no more
	pieces   int
	regions  []region
	stopped  bool
}

const noGrant = ^uint32(0)

func (c *Core) publishFrom(e *PublishFrom) {
	s := c.sessionOf(e.Session, KindPublishFrom, 0)
	if s == nil {
		return
	}
	n := &copying{id: c.lastCopy + 1, sess: s, pieces: len(e.Pages.Pieces), grants: make([]uint32, len(e.Slots))}
	slots := make([]PlanSlot, len(e.Slots))
	for i, ref := range e.Slots {
		n.grants[i] = noGrant
		if at, ok := c.openGrant(s, ref); ok {
			g := &c.grants[at]
			g.copy, n.grants[i] = n.id, at
			slots[i] = PlanSlot{Slot: ref, Bytes: s.layout[c.books.Key(g.page).Group].PartBytes[g.part]}
		}
	}
	if class := c.mayCopy(n, &e.Pages, slots); class != NoClass {
		for _, at := range n.grants {
			if at != noGrant {
				c.grants[at].copy = 0
			}
		}
		c.refuse(s.id, KindPublishFrom, 0, class)
		return
	}
	c.beginCopy(n)
	c.do(CopyIn{n.id, s.id, slots, e.Pages})
}

// openGrant returns a grant of the session that nobody fills yet.
func (c *Core) openGrant(s *session, ref SlotRef) (at uint32, ok bool) {
	at, ok = c.grantAt(s, ref)
	return at, ok && c.grants[at].copy == 0
}

func (c *Core) restoreInto(e *RestoreInto) {
	l := c.startable(e.Session, e.Lease, e.Consumer, KindRestoreInto)
	if l == nil {
		return
	}
	slots := c.planOf(l, e.Consumer, nil)
	n := &copying{
		id: c.lastCopy + 1, sess: l.sess, out: true, lease: e.Lease, consumer: e.Consumer, total: uint32(len(slots)), pieces: len(e.Pages.Pieces),
	}
	if class := c.mayCopy(n, &e.Pages, slots); class != NoClass {
		c.refuse(e.Session, KindRestoreInto, uint64(e.Lease.Index), class)
		return
	}
	c.startOn(l, e.Consumer, ByManager)
	l.ours |= 1 << e.Consumer
	c.beginCopy(n)
	c.do(CopyOut{n.id, e.Session, e.Lease, e.Consumer, slots, e.Pages})
}

// mayCopy says why a copy may not begin, and works out the memory that it touches.
func (c *Core) mayCopy(n *copying, p *Pages, slots []PlanSlot) Class {
	s := n.sess
	switch {
	case len(slots) == 0 || len(slots) > c.lim.Blocks*MaxParts || !s.fit(p, slots):
		return Invalid
	case len(s.copies) >= c.lim.Copies || s.pieces+n.pieces > c.lim.Pieces || c.pieces+n.pieces > 4*c.lim.Pieces:
		return TooMany
	}
	all, twice := regionsOf(c.regions[:0], p.Pieces, int(p.Counts[0]))
	if cap(all) <= mostScratch {
		c.regions = all
	}
	if n.out && twice {
		return Overlap
	}
	for _, o := range s.copies {
		if (n.out || o.out) && meet(all, o.regions) {
			return Overlap
		}
	}
	n.regions = slices.Clone(all) // of pages that follow each other they are few
	return NoClass
}

func (c *Core) beginCopy(n *copying) {
	c.lastCopy = n.id
	c.copies[n.id] = n
	n.sess.copies = append(n.sess.copies, n)
	n.sess.pieces += n.pieces
	c.pieces += n.pieces
}

// copyOf returns the copy that the shell speaks of, and takes it off the books; nil: there is none.
func (c *Core) copyOf(id CopyID, out bool, k EventKind) *copying {
	n := c.copies[id]
	if n == nil || n.out != out {
		c.refuse(SessionID{}, k, uint64(id), StaleRead)
		return nil
	}
	delete(c.copies, id)
	s := n.sess
	s.copies = slices.DeleteFunc(s.copies, func(o *copying) bool { return o == n })
	s.pieces -= n.pieces
	c.pieces -= n.pieces
	return n
}

func (c *Core) inDone(e *InDone) {
	n := c.copyOf(e.Copy, false, KindInDone)
	if n == nil {
		return
	}
	fates := make([]SlotFate, len(n.grants))
	if n.sess.live {
		c.do(CopiedIn{n.sess.id, n.id, fates}) // before the Published that may follow from it
	}
	for i, at := range n.grants {
		fates[i] = SlotStale
		if at == noGrant {
			continue
		}
		page := c.grants[at].page
		f := c.fillAt(page)
		switch {
		case f != nil && i < len(e.Pages) && e.Pages[i].OK:
			fates[i] = SlotFilled
			c.sealGrant(at, f, e.Pages[i].Checksum)
			continue
		case f != nil:
			fates[i] = SlotFailed
			c.giveUp(page)
		}
		c.endGrant(at)
	}
	c.leftCopy(n.sess)
}

func (c *Core) outDone(e *OutDone) {
	n := c.copyOf(e.Copy, true, KindOutDone)
	if n == nil {
		return
	}
	l := &c.leases[n.lease.Index]
	l.ours &^= 1 << n.consumer
	l.done |= 1 << n.consumer
	if e.Outcome != Done {
		l.failed, l.closed = true, true
	}
	if e.Outcome == Mismatch {
		c.corrupt(l, e.Good)
	}
	switch {
	case !n.sess.live:
	case n.fetch:
		c.do(Fetched{n.sess.id, n.id, Found, e.Outcome, n.total, min(e.Good, n.total)})
	default:
		c.do(CopiedOut{n.sess.id, n.id, n.lease, n.consumer, e.Outcome, min(e.Good, n.total), n.total})
	}
	c.settleLease(n.lease.Index)
	c.leftCopy(n.sess)
}

// leftCopy goes on with the end of a session that waited for a copy.
func (c *Core) leftCopy(s *session) {
	c.dropPools(s)
	if s.gone && len(s.copies) == 0 {
		c.fenced(s.id)
	}
}

// stopCopies says of a session's copies that nobody wants them any more: of all, or of those out of one lease.
func (c *Core) stopCopies(s *session, of LeaseID) {
	for _, n := range s.copies {
		if !n.stopped && (of == LeaseID{} || n.out && n.lease == of) {
			n.stopped = true
			c.do(CopyStop{n.id})
		}
	}
}

// copyUsage adds what copies and offered memory take.
func (c *Core) copyUsage(u *Usage) {
	u.Copies, u.Pools, u.Offered = len(c.copies), len(c.memories), int64(c.offeredBytes)
}

// checkCopies returns what is wrong with the books of copies, or "".
func (c *Core) checkCopies() string {
	all, pieces, pools, bytes := 0, 0, 0, uint64(0)
	for _, s := range c.sessions {
		own := 0
		for _, n := range s.copies {
			own += n.pieces
			if c.copies[n.id] != n || n.sess != s {
				return "a copy is not its session's"
			}
			if l := n.lease; n.out && (c.leases[l.Index].sess != s || c.leases[l.Index].gen != l.Gen || c.leases[l.Index].ours>>n.consumer&1 == 0) {
				return "a copy's lease has ended"
			}
			for _, at := range n.grants {
				if at != noGrant && (c.grants[at].sess != s || c.grants[at].copy != n.id) {
					return "a copy's grant has ended"
				}
			}
		}
		pieces += own
		if own != s.pieces || s.gone && len(s.copies) == 0 {
			return "a session's copies do not add up"
		}
		all += len(s.copies)
		for _, p := range s.pools {
			pools++
			bytes += p.bytes
		}
		if !s.live && len(s.copies) == 0 && len(s.pools) > 0 {
			return "a lost session has memory"
		}
	}
	if all != len(c.copies) || pieces != c.pieces || pools != len(c.memories) || bytes != c.offeredBytes {
		return "copies or offered memory do not add up"
	}
	return ""
}
