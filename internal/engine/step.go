package engine

import "slices"

// beginStep decides what the next step computes, and when it ends. Order: one token for each sequence in decode, then prompt
// chunks of admitted sequences, then new admissions, as long as the token budget lasts.
func (c *Core) beginStep() {
	decode, kv := c.scheduleDecode()
	budget := c.cfg.MaxBatchTokens - decode
	prefill := 0
	chunk := func(s *sequence) {
		s.scheduled = min(budget-prefill, s.target-s.computed)
		prefill += s.scheduled
	}
	for _, s := range c.running {
		if s.computed < s.target {
			chunk(s)
		}
	}
	// Right after a preemption nobody is admitted, without a word here: the victim stands first, and needs all the blocks
	// that it had, of which one is taken.
	for prefill < budget && len(c.waiting) > 0 && len(c.running)+len(c.restoring)+len(c.fetching) < c.cfg.MaxRunning {
		s := c.waiting[0]
		if !c.ready(s) || !c.admit(s) {
			break // first come, first served: nobody overtakes the one that does not fit, or waits to hear of the outer cache
		}
		if s.computed < 0 {
			continue // it ended with a corrupt page
		}
		chunk(s)
	}
	if decode+prefill == 0 {
		if c.canBegin() {
			panic("engine: there is work and none of it can be scheduled") // admission keeps out what cannot ever fit
		}
		return // what waited ended with a corrupt page, or waits for the driver
	}
	c.stepPre = prefill
	c.stepLen = c.cfg.Timing.Step(prefill, decode, kv)
	c.inStep, c.stepEnd = true, c.clock+c.stepLen
}

// scheduleDecode gives each sequence in decode its token, oldest first, preempting from the young end where blocks run out.
func (c *Core) scheduleDecode() (sequences, kv int) {
	for i := 0; i < len(c.running); i++ {
		s := c.running[i]
		s.scheduled = 0
		if s.computed < s.target {
			continue
		}
		if s.computed == len(s.blocks)*c.cfg.BlockSize && !c.grow(s) {
			break // s was the youngest, and has been preempted
		}
		s.scheduled = 1
		sequences++
		kv += s.computed
	}
	return sequences, kv
}

// grow gives s one more block, at the cost of younger sequences if need be. It returns false if s itself was the youngest and had
// to go. Older ones are never taken from, so the oldest always moves on.
func (c *Core) grow(s *sequence) bool {
	for {
		if b, ok := c.alloc(); ok {
			s.blocks = append(s.blocks, b)
			return true
		}
		victim := c.running[len(c.running)-1]
		c.preempt(victim)
		if victim == s {
			return false
		}
	}
}

// preempt takes all blocks from the youngest running sequence and puts it at the head of the queue. Its full blocks stay cached
// until they are evicted; the rest it computes again, its own answer so far included.
func (c *Core) preempt(s *sequence) {
	c.running = c.running[:len(c.running)-1]
	c.releaseBlocks(s)
	s.computed, s.scheduled, s.target = 0, 0, s.req.promptLen()+len(s.out)
	s.ask, s.found, s.remote = unasked, 0, false // what was fetched is computed here, if it is not cached
	c.waiting = slices.Insert(c.waiting, 0, s)
	c.count.preemptions++
	c.act(Action{Kind: Preempted, ID: s.req.ID})
}

// hits returns how many leading blocks of s the cache holds. The last token of a prompt is always computed, since its output is the
// first token of the answer.
func (c *Core) hits(s *sequence) int { return c.pool.match(s.chain[:c.reusable(s)]) }

// reusable returns how many leading blocks of s need not be computed if somebody has them.
func (c *Core) reusable(s *sequence) int {
	if c.cfg.NoReuse {
		return 0
	}
	if s.remote { // all that is fetched may be there already: the token that is computed lies behind it
		return min(len(s.chain), s.target/c.cfg.BlockSize)
	}
	return min(len(s.chain), (s.target-1)/c.cfg.BlockSize)
}

// admit moves the head of the queue into the batch, with all the blocks that its prefill needs. It returns false and changes
// nothing if those are not to be had. A sequence that meets a corrupt page ends here, with computed negative.
func (c *Core) admit(s *sequence) bool {
	hit := s.chain[:c.hits(s)]
	if !c.fits(s, hit) {
		return false
	}
	c.waiting = slices.Delete(c.waiting, 0, 1)
	if c.takeBlocks(s, hit) {
		c.running = append(c.running, s)
		c.admitted(s, 0)
	}
	return true
}

// fits says whether the blocks of s are to be had, of which the cache holds hit.
func (c *Core) fits(s *sequence, hit []BlockHash) bool {
	return c.blocksFor(s.target)-len(hit) <= c.pool.free-c.pool.idle(hit)
}

// takeBlocks gives s all the blocks that its prefill needs, which must fit. It returns false if s met a corrupt page and has ended, with
// computed negative.
func (c *Core) takeBlocks(s *sequence, hit []BlockHash) bool {
	for _, h := range hit {
		s.blocks = append(s.blocks, c.pool.acquire(h))
	}
	s.stored, s.computed = len(hit), len(hit)*c.cfg.BlockSize
	for _, b := range s.blocks {
		if !c.pool.intact(b) {
			c.corrupt(s)
			return false
		}
	}
	for range c.blocksFor(s.target) - len(hit) {
		b, _ := c.alloc()
		s.blocks = append(s.blocks, b)
	}
	c.count.queryTokens += int64(s.target)
	c.count.hitTokens += int64(s.computed)
	return true
}

// corrupt ends s, which is in no list any more, for a page that does not hold what it should.
func (c *Core) corrupt(s *sequence) {
	c.count.corrupt++
	c.act(Action{Kind: Ended, Reason: ReasonCorrupt, ID: s.req.ID})
	if r := s.room; r != nil {
		r.s = nil
		c.closeRoom(r, ReasonCorrupt)
	}
	c.retire(s)
	s.computed = -1
}

// admitted tells that s has entered the batch, with so many tokens that were restored.
func (c *Core) admitted(s *sequence, restored int) {
	s.admitted = true
	if s.room != nil {
		s.room.cached = s.computed
	}
	c.act(Action{Kind: Admitted, ID: s.req.ID, Cached: s.computed, Restored: restored})
}

// alloc takes a block from the pool and reports what was evicted for it.
func (c *Core) alloc() (int32, bool) {
	b, evicted, wasCached, ok := c.pool.alloc()
	if wasCached && c.cfg.KVEvents {
		c.act(Action{Kind: KV, Event: &KVEvent{Kind: BlockRemoved, Hashes: []BlockHash{evicted}}})
	}
	return b, ok
}

// finishStep applies what the step has computed: full blocks enter the cache, sequences get their tokens, and those that have
// their last one leave.
func (c *Core) finishStep() {
	c.count.steps++
	if c.stepPre > 0 {
		c.count.prefillTokens += int64(c.stepPre)
		c.count.prefillBusy += c.stepLen
	}
	keep := c.running[:0]
	for _, s := range c.running {
		if s.scheduled > 0 {
			s.computed += s.scheduled
			s.scheduled = 0
			c.store(s)
			if s.computed >= s.target && c.emit(s) {
				if s.room != nil {
					c.hold(s.room)
				} else {
					c.retire(s)
				}
				continue
			}
		}
		keep = append(keep, s)
	}
	clear(c.running[len(keep):])
	c.running = keep
}

// emit gives s its next token, and says whether it was the last.
func (c *Core) emit(s *sequence) (last bool) {
	return c.give(s, outputToken(c.cfg.Seed, s.seed, len(s.out)))
}

// give appends a token to the answer of s, and says whether it was the last.
func (c *Core) give(s *sequence, token uint32) (last bool) {
	index := len(s.out)
	if index == 0 {
		c.count.promptTokens += int64(s.req.promptLen())
	}
	c.count.outputTokens++
	s.out = append(s.out, token)
	last = len(s.out) >= s.max
	reason := Unfinished
	if last {
		reason = ReasonLength
	}
	c.act(Action{Kind: Token, Reason: reason, ID: s.req.ID, Index: index, Token: token})
	return last
}

// store puts the blocks of s that are now full into the prefix cache.
func (c *Core) store(s *sequence) {
	bs := c.cfg.BlockSize
	full := s.computed / bs
	if full == s.stored || c.cfg.NoReuse {
		return
	}
	var ev *KVEvent
	for i := s.stored; i < full; i++ {
		if i == len(s.chain) {
			s.chain = append(s.chain, c.extend(s, i))
		}
		held, isNew := c.pool.commit(s.blocks[i], s.chain[i])
		s.blocks[i] = held
		if isNew && c.cfg.KVEvents {
			ev = c.addStored(ev, s, i)
		}
	}
	s.stored = full
	if ev != nil {
		c.act(Action{Kind: KV, ID: s.req.ID, Event: ev})
	}
}

// extend returns the hash of block i of s, which reaches into the answer.
func (c *Core) extend(s *sequence, i int) BlockHash {
	parent := c.rootOf(s.req)
	if i > 0 {
		parent = s.chain[i-1]
	}
	if at := i * c.cfg.BlockSize; s.req.Blocks != nil && at < s.req.Length {
		parent = parent.Link(s.req.Blocks[i]) // for the prompt's tokens in this block, which nobody knows
	}
	buf := make([]uint32, 0, c.cfg.BlockSize)
	return parent.next(appendRange(buf, s, i*c.cfg.BlockSize, (i+1)*c.cfg.BlockSize))
}

// addStored adds block i of s to ev, or to a new event. The new blocks of one step are a run: what another sequence stored
// meanwhile is a prefix of them.
func (c *Core) addStored(ev *KVEvent, s *sequence, i int) *KVEvent {
	if ev == nil {
		ev = &KVEvent{Kind: BlockStored, First: i, BlockSize: c.cfg.BlockSize, LoRA: s.req.LoRA}
		if i > 0 {
			ev.Parent, ev.HasParent = s.chain[i-1], true
		} else {
			ev.Salt = s.req.Salt
		}
	}
	ev.Hashes = append(ev.Hashes, s.chain[i])
	if s.req.Blocks != nil {
		return ev
	}
	ev.Tokens = appendRange(ev.Tokens, s, i*c.cfg.BlockSize, (i+1)*c.cfg.BlockSize)
	return ev
}

// appendRange appends tokens from to to of the prompt and the answer. Where the prompt's tokens are not known it has none
// of them.
func appendRange(dst []uint32, s *sequence, from, to int) []uint32 {
	n := s.req.promptLen()
	if from < n && s.req.Blocks == nil {
		dst = append(dst, s.req.Prompt[from:min(to, n)]...)
	}
	if to > n {
		dst = append(dst, s.out[max(from-n, 0):to-n]...)
	}
	return dst
}

// releaseBlocks gives back the blocks of s, last first, so that eviction takes a chain's tail before its head.
func (c *Core) releaseBlocks(s *sequence) {
	for i := len(s.blocks) - 1; i >= 0; i-- {
		c.pool.release(s.blocks[i])
	}
	s.blocks, s.stored = s.blocks[:0], 0
}

// spareSequences bounds what is kept of ended sequences: enough for a batch, a few megabytes at long prompts.
const spareSequences = 64

// retire forgets s, which is in no list any more.
func (c *Core) retire(s *sequence) {
	delete(c.live, s.req.ID)
	s.room = nil
	c.spareOf(s)
}

// spareOf gives the blocks of s back, and keeps the rest of it for a request to come.
func (c *Core) spareOf(s *sequence) {
	c.releaseBlocks(s)
	s.req = Request{}
	if len(c.spare) < spareSequences {
		c.spare = append(c.spare, s)
	}
}
