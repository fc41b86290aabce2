package engine

import (
	"slices"
	"time"
)

// What an outer cache, such as a Cache Manager's, can supply is the driver's to find out and to bring:
//
//	waiting ──Lookup──▶ waits for Found ──nothing──▶ waiting, as without an outer cache
//	                        └──some──▶ waiting ──Restore──▶ restoring ──Restored──▶ running
//
// A request is looked up as soon as it is among the first [maxLookups] that wait, so that the answer is there when its turn comes. When it
// is the first of the queue and its blocks fit, it leaves the queue with all of them, whether or not a step is in hand; others run, and
// are admitted, while it is being restored. What did not come is computed in the same blocks.

const (
	// maxLookups is how many requests may be looked up before their turn. What is found stays reserved in the outer cache until
	// then: 16 is more than one step admits of all but the shortest prompts, and with longer queues reservations would only pile up.
	maxLookups = 16
	// maxRestoring is how many requests may be restored at a time. Each holds the blocks of its whole prompt while it computes nothing,
	// and two or three are enough to keep a copying thread busy.
	maxRestoring = 4
)

// askState says what is known of a waiting request in the outer cache.
type askState uint8

const (
	unasked askState = iota
	asked
	answered
)

// Wanted is what a Lookup or a Restore is about. It shares no memory with the Core but Pages.
type Wanted struct {
	// First is the place in the prompt of the first of Hashes, in blocks; Parent is the hash before it, meaningful if First is above 0.
	First  int
	Parent BlockHash
	Hashes []BlockHash
	// Pages are where the bytes of Hashes go, with Restore and where pages carry bytes. They are the driver's to write, from any
	// goroutine, until it calls Restored; nobody reads them before, not even after an Abort.
	Pages [][]byte
}

// Found answers the Lookup of a request at time now: blocks is how many of its hashes, from the first on, can be restored. It returns
// false and does nothing if the request does not wait for this, since it has left or was preempted meanwhile.
func (c *Core) Found(now time.Duration, id ID, blocks int) bool {
	c.run(now, false)
	s, ok := c.live[id]
	if !ok || s.ask != asked {
		return false
	}
	s.ask, s.found = answered, min(max(blocks, 0), s.wanted)
	c.outer()
	return true
}

// Restored ends a Restore at time now: the pages of the first blocks of its hashes are in place. The driver calls it once for each
// Restore, for a request that was aborted as well, when it writes to the pages no more. It returns false if there was no such Restore.
func (c *Core) Restored(now time.Duration, id ID, blocks int) bool {
	c.run(now, false)
	if s, ok := c.orphans[id]; ok {
		delete(c.orphans, id)
		c.spareOf(s)
		c.outer()
		return true
	}
	i := slices.IndexFunc(c.restoring, func(s *sequence) bool { return s.req.ID == id })
	if i < 0 {
		return false
	}
	s := c.restoring[i]
	c.restoring = slices.Delete(c.restoring, i, i+1)
	n := min(max(blocks, 0), s.found)
	s.ask, s.found = answered, 0
	if c.takeIn(s, n) {
		c.running = append(c.running, s)
		c.admitted(s, n*c.cfg.BlockSize)
	}
	c.outer()
	return true
}

// takeIn puts n restored blocks of s into the prefix cache. It returns false if one holds other bytes than its chain says: s ends there.
func (c *Core) takeIn(s *sequence, n int) bool {
	for i := s.stored; i < s.stored+n; i++ {
		if !c.pool.matches(s.blocks[i], s.chain[i]) {
			c.corrupt(s)
			return false
		}
	}
	c.count.restoredTokens += int64(n * c.cfg.BlockSize)
	var ev *KVEvent
	for i := s.stored; i < s.stored+n; i++ {
		held, isNew := c.pool.commitFilled(s.blocks[i], s.chain[i])
		s.blocks[i] = held
		if isNew && c.cfg.KVEvents {
			ev = c.addStored(ev, s, i)
			ev.Restored = true
		}
	}
	s.stored += n
	s.computed = s.stored * c.cfg.BlockSize
	if ev != nil {
		c.act(Action{Kind: KV, ID: s.req.ID, Event: ev})
	}
	return true
}

// outer asks for what waits, and begins what fetches and restores can begin.
func (c *Core) outer() {
	c.fetch()
	if !c.cfg.Restore {
		return
	}
	for i := 0; i < len(c.waiting) && i < maxLookups; i++ {
		if s := c.waiting[i]; s.ask == unasked {
			c.lookUp(s)
		}
	}
	for len(c.waiting) > 0 && len(c.restoring) < maxRestoring && len(c.running)+len(c.restoring) < c.cfg.MaxRunning {
		s := c.waiting[0]
		if s.ask != answered {
			return
		}
		hit := c.hits(s)
		if hit < s.askedAt {
			c.lookUp(s) // the cache has lost what lies before; each time it is less, so that this ends at the prompt's beginning
			return
		}
		if !c.wants(s, hit) || !c.fits(s, s.chain[:hit]) {
			return
		}
		c.waiting = slices.Delete(c.waiting, 0, 1)
		if c.takeBlocks(s, s.chain[:hit]) {
			c.restore(s, hit)
		}
	}
}

// supplied is how many blocks of a waiting request need not be computed, as far as is known.
func (c *Core) supplied(s *sequence) int {
	hit := c.hits(s)
	if s.ask == answered && hit >= s.askedAt {
		return max(hit, s.askedAt+s.found)
	}
	return hit
}

// wants says whether a restore would bring s more than the hit blocks that the cache has.
func (c *Core) wants(s *sequence, hit int) bool { return s.found > 0 && s.askedAt+s.found > hit }

// lookUp asks the driver for what the cache lacks of s.
func (c *Core) lookUp(s *sequence) {
	most, hit := c.reusable(s), c.hits(s)
	s.ask, s.askedAt, s.found, s.wanted = answered, hit, 0, most-hit
	if s.wanted == 0 {
		return
	}
	s.ask = asked
	c.count.lookupTokens += int64(s.wanted * c.cfg.BlockSize)
	c.act(Action{Kind: Lookup, ID: s.req.ID, Wanted: c.wantedOf(s, hit, most)})
}

// restore hands the blocks of s that were found to the driver. s holds all of its blocks.
func (c *Core) restore(s *sequence, hit int) {
	w := c.wantedOf(s, hit, s.askedAt+s.found)
	if c.cfg.PageBytes > 0 {
		for i := range w.Hashes {
			w.Pages = append(w.Pages, c.pool.page(s.blocks[hit+i]))
		}
	}
	s.found = len(w.Hashes)
	c.restoring = append(c.restoring, s)
	c.act(Action{Kind: Restore, ID: s.req.ID, Wanted: w})
}

func (c *Core) wantedOf(s *sequence, from, to int) *Wanted {
	w := &Wanted{First: from, Hashes: slices.Clone(s.chain[from:to])}
	if from > 0 {
		w.Parent = s.chain[from-1]
	}
	return w
}

// canBegin says whether a step would have anything to compute: not where the first of the queue waits for the driver, or for blocks that are
// held for others.
func (c *Core) canBegin() bool {
	if len(c.running) > 0 {
		return true
	}
	return len(c.waiting) > 0 && len(c.restoring)+len(c.fetching) < c.cfg.MaxRunning && c.ready(c.waiting[0]) && c.fits(c.waiting[0], c.waiting[0].chain[:c.hits(c.waiting[0])])
}

// ready says whether the first of the queue waits for no answer, for no restore and for no fetch.
func (c *Core) ready(s *sequence) bool {
	if !c.cfg.Restore {
		return !s.remote
	}
	hit := c.hits(s)
	return s.ask == answered && hit >= s.askedAt && !c.wants(s, hit)
}
