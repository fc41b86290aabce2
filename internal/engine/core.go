package engine

import (
	"slices"
	"time"
)

// Core is a simulated engine. The driver calls Submit and Abort when requests come and go, and Advance whenever the time that
// Next names has come; each takes the present time, which must not go backwards.
//
//	waiting ──admit──▶ prefill ──last prompt token──▶ decode ──last token──▶ ended
//	   ▲─────────────────┴───────────preempt────────────┘
//
// With Config.Restore a request may be restored between waiting and prefill; outer.go says how.
//
// Steps follow each other without a gap while there is work. A driver that comes late finds the steps where they belong in time:
// each begins when the one before ended, not when the driver looked.
type Core struct {
	cfg  Config // with its defaults
	pool *pool
	root BlockHash // of requests without LoRA and salt

	live    map[ID]*sequence
	waiting []*sequence // in the order of admission
	running []*sequence // in the order of age: the last is the first to be preempted

	restoring []*sequence      // hold their blocks, which the driver fills
	orphans   map[ID]*sequence // were aborted in that: the driver may still write

	rooms            map[string]*room
	meeting, holding []*room     // of them, each in the order of its deadlines
	fetching         []*sequence // hold their blocks, and wait for their KV; in the order of their deadlines

	clock   time.Duration // the latest time that the core has seen
	inStep  bool
	stepEnd time.Duration // when the step in hand ends
	stepLen time.Duration
	stepPre int // prompt tokens that it computes

	actions []Action
	spare   []*sequence // ended sequences, for their buffers
	count   counters
}

type counters struct {
	prefillTokens, queryTokens, hitTokens, promptTokens, outputTokens int64
	lookupTokens, restoredTokens, fetchedTokens                       int64
	unfetched, expired                                                int64
	steps, preemptions, corrupt                                       int64
	prefillBusy                                                       time.Duration
}

// sequence is one request inside the core.
type sequence struct {
	req    Request
	max    int
	out    []uint32
	seed   BlockHash   // of adapter and prompt, whatever the blocks and the salt: decides the answer
	chain  []BlockHash // of the full blocks among prompt and answer, as far as known
	blocks []int32     // held, in order; the first `stored` of them are cached

	stored    int
	computed  int // tokens whose KV is in blocks
	target    int // computed at which the prefill is complete
	scheduled int // tokens that the step in hand computes
	admitted  bool

	room   *room         // of a prefill half
	remote bool          // its KV comes from elsewhere, and has not come
	until  time.Duration // when it is waited for no longer

	// Of the outer cache: what was asked, for wanted blocks from askedAt on, and how many of them it has.
	ask                    askState
	askedAt, wanted, found int
}

// New returns an idle engine. The error is Config.Validate's.
func New(cfg Config) (*Core, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	return &Core{
		cfg: cfg, pool: newPool(cfg.KVBlocks, cfg.PageBytes), root: rootHash("", ""),
		live: make(map[ID]*sequence), orphans: make(map[ID]*sequence), rooms: make(map[string]*room),
	}, nil
}

// Config returns the configuration with its defaults filled in.
func (c *Core) Config() Config { return c.cfg }

// Timing returns the timing model with its defaults filled in.
func (c *Core) Timing() Timing { return c.cfg.Timing }

// Submit queues r at time now. A step that begins later than now can admit it; one that begins at now can too, if Advance has not
// begun it yet: so requests that arrive together are batched together. See the errors of this package.
func (c *Core) Submit(now time.Duration, r Request) error {
	c.run(now, false)
	if c.live[r.ID] != nil || c.orphans[r.ID] != nil {
		return ErrDuplicateID
	}
	n := r.promptLen()
	if n == 0 {
		return ErrEmptyPrompt
	}
	if r.Blocks != nil && (r.Prompt != nil || n < 0 || len(r.Blocks) != c.blocksFor(n)) {
		return ErrBlocks
	}
	if err := c.checkHalf(r); err != nil {
		return err
	}
	answer := r.MaxTokens
	if r.Half == PrefillHalf {
		answer = 1
	}
	if answer <= 0 {
		answer = max(1, min(DefaultMaxTokens, c.cfg.MaxModelLen-n))
	}
	if n+answer > c.cfg.MaxModelLen {
		return &LimitError{ErrTooLong, n + answer, c.cfg.MaxModelLen}
	}
	// The last token's own KV is never computed.
	if need := c.blocksFor(n + answer - 1); need > c.cfg.KVBlocks {
		return &LimitError{ErrNeverFits, need, c.cfg.KVBlocks}
	}
	if w := c.newcomers(); w >= c.cfg.MaxWaiting {
		return &LimitError{ErrQueueFull, w, c.cfg.MaxWaiting}
	}
	s := c.newSequence(r, answer)
	c.live[r.ID] = s
	if r.Half == PrefillHalf {
		c.enter(s)
	} else {
		c.waiting = append(c.waiting, s)
	}
	c.outer()
	return nil
}

// checkHalf returns what speaks against r as half of a pair.
func (c *Core) checkHalf(r Request) error {
	switch x := c.rooms[r.Room]; {
	case r.Half == PrefillHalf && r.Room == "", r.Half == DecodeHalf && c.cfg.Restore:
		return ErrRoom
	case r.Half == PrefillHalf && x != nil && x.s != nil:
		return ErrRoomTaken
	}
	return nil
}

// newcomers counts the waiting requests that were never admitted, and the rooms in which one half waits. Preempted ones stand before them and
// are no more than MaxRunning.
func (c *Core) newcomers() int {
	n := len(c.waiting) + len(c.meeting)
	for _, s := range c.waiting {
		if !s.admitted {
			break
		}
		n--
	}
	return n
}

func (c *Core) newSequence(r Request, answer int) *sequence {
	s := &sequence{}
	if n := len(c.spare); n > 0 {
		s, c.spare = c.spare[n-1], c.spare[:n-1]
	}
	*s = sequence{req: r, max: answer, target: r.promptLen(), out: s.out[:0], chain: s.chain[:0], blocks: s.blocks[:0]}
	if r.Half == DecodeHalf {
		s.remote = true
		if c.cfg.Pairing == Pull {
			s.target-- // the last token is its own to run
		}
	}
	s.chain = c.Chain(r, s.chain)
	s.seed = rootHash(r.LoRA, "").next(r.Prompt)
	if r.Blocks != nil {
		s.seed = s.seed.Link(r.Blocks[len(r.Blocks)-1]).mix(uint64(r.Length))
	}
	return s
}

// Chain appends the hashes of r's full prompt blocks to dst.
func (c *Core) Chain(r Request, dst []BlockHash) []BlockHash {
	if r.Blocks != nil {
		return append(dst, r.Blocks[:r.Length/c.cfg.BlockSize]...)
	}
	h, rest := c.rootOf(r), r.Prompt
	for len(rest) >= c.cfg.BlockSize {
		h = h.next(rest[:c.cfg.BlockSize])
		dst = append(dst, h)
		rest = rest[c.cfg.BlockSize:]
	}
	return dst
}

func (c *Core) rootOf(r Request) BlockHash {
	if r.LoRA == "" && r.Salt == "" {
		return c.root
	}
	return rootHash(r.LoRA, r.Salt)
}

// Abort ends a request at once and frees its blocks; what it has cached stays cached. The blocks of a request that is being restored are
// free when the driver says Restored. It returns false if there is no such request. The step in hand takes its time all the same. Actions that are due but were not yet fetched may still name the request.
func (c *Core) Abort(now time.Duration, id ID) bool {
	c.run(now, false)
	s, ok := c.live[id]
	if !ok {
		return false
	}
	if s.room != nil {
		c.closeRoom(s.room, ReasonLeft)
	} else {
		c.drop(s)
	}
	c.outer()
	return true
}

// drop ends s, wherever it is.
func (c *Core) drop(s *sequence) {
	if i := slices.Index(c.restoring, s); i >= 0 {
		c.restoring = slices.Delete(c.restoring, i, i+1)
		delete(c.live, s.req.ID)
		c.orphans[s.req.ID] = s
		return
	}
	for _, list := range []*[]*sequence{&c.running, &c.waiting, &c.fetching} { // in none of them: it is in its room only
		if i := slices.Index(*list, s); i >= 0 {
			*list = slices.Delete(*list, i, i+1)
			break
		}
	}
	c.retire(s)
}

// Next returns when Advance should be called: when the step in hand ends or a time-out of a pair, or at once if work waits for a step to begin or if
// another call found that steps had ended, or made actions, which wait to be fetched. ok is false when there is nothing to wait for but the
// driver's own answers.
func (c *Core) Next() (at time.Duration, ok bool) {
	if len(c.actions) > 0 {
		return c.clock, true
	}
	due, pending := c.deadline()
	switch {
	case c.inStep && pending:
		return min(c.stepEnd, due), true
	case c.inStep:
		return c.stepEnd, true
	case c.canBegin():
		return c.clock, true
	}
	return due, pending
}

// Advance does everything that is due at or before now, and appends to dst what happened since the last Advance, in order. The
// actions' Events stay the caller's.
func (c *Core) Advance(now time.Duration, dst []Action) []Action {
	c.run(now, true)
	dst = append(dst, c.actions...)
	clear(c.actions)
	c.actions = c.actions[:0]
	return dst
}

// run ends the steps and the time-outs that are due. It begins the steps that must have begun before now, and with begin set also one at now.
func (c *Core) run(now time.Duration, begin bool) {
	for {
		due, pending := c.deadline()
		switch {
		case c.inStep && c.stepEnd <= now && (!pending || c.stepEnd <= due):
			c.clock, c.inStep = c.stepEnd, false
			c.finishStep()
			c.outer()
		case !c.inStep && (c.clock < now || (c.clock == now && begin)) && (!pending || c.clock < due) && c.canBegin():
			c.beginStep()
			c.outer()
		case pending && due <= now:
			c.clock = max(c.clock, due)
			c.expire()
		default:
			c.clock = max(c.clock, now)
			return
		}
	}
}

// ResetPrefixCache forgets every cached block at time now. Like the engines it does nothing and returns false while a request runs.
func (c *Core) ResetPrefixCache(now time.Duration) bool {
	c.run(now, false)
	if len(c.running) > 0 || !c.pool.reset() {
		return false
	}
	if c.cfg.KVEvents {
		c.act(Action{Kind: KV, Event: &KVEvent{Kind: AllBlocksCleared}})
	}
	return true
}

// Page returns the live bytes of the cached block h, or nil if it is not cached or pages carry no bytes. What is written to it is
// what later requests find. The slice is good until the next call on the Core.
func (c *Core) Page(h BlockHash) []byte {
	b, ok := c.pool.index[h]
	if !ok || c.cfg.PageBytes == 0 {
		return nil
	}
	return c.pool.page(b)
}

// Cached returns how many leading blocks of chain the prefix cache holds now. It changes nothing, not even their recency.
func (c *Core) Cached(chain []BlockHash) int { return c.pool.match(chain) }

// Backlog returns how many prompt tokens of admitted requests are left for the steps behind the one in hand, and when that
// step ends: the latest time that the core has seen if there is none.
func (c *Core) Backlog() (tokens int, free time.Duration) {
	for _, s := range c.running {
		if s.computed < s.target {
			tokens += s.target - s.computed - s.scheduled
		}
	}
	if !c.inStep {
		return tokens, c.clock
	}
	return tokens, c.stepEnd
}

// Load reports the engine's state as of the latest time that the core has seen.
func (c *Core) Load() Load {
	bs := c.cfg.BlockSize
	l := Load{
		Running: len(c.running), Waiting: len(c.waiting) + len(c.restoring) + len(c.fetching), Restoring: len(c.restoring), MaxRunning: c.cfg.MaxRunning,
		Fetching: len(c.fetching), Held: len(c.holding),
		UsedTokens: (len(c.pool.blocks) - c.pool.free) * bs, CapacityTokens: len(c.pool.blocks) * bs,
		CachedBlocks:          len(c.pool.index),
		PrefillUncachedTokens: c.count.prefillTokens, PrefillBusy: c.count.prefillBusy,
		CacheQueryTokens: c.count.queryTokens, CacheHitTokens: c.count.hitTokens,
		LookupTokens: c.count.lookupTokens, RestoredTokens: c.count.restoredTokens,
		FetchedTokens: c.count.fetchedTokens, Unfetched: c.count.unfetched, RoomsExpired: c.count.expired,
		PromptTokens: c.count.promptTokens, OutputTokens: c.count.outputTokens,
		Steps: c.count.steps, Preemptions: c.count.preemptions, CorruptPages: c.count.corrupt,
	}
	l.TotalTokens = l.UsedTokens
	for _, s := range c.waiting {
		l.TotalTokens += s.target
		if !s.remote {
			l.WaitingUncachedTokens += s.target - c.supplied(s)*bs
		}
	}
	for _, r := range c.meeting {
		if r.s == nil {
			l.Joined++
			continue
		}
		l.Meeting++
		l.Waiting++
		l.TotalTokens += r.s.target
	}
	for _, r := range c.holding {
		l.HeldTokens += len(r.s.blocks) * bs
	}
	for _, s := range c.restoring {
		l.WaitingUncachedTokens += s.target - (s.stored+s.found)*bs
	}
	return l
}

func (c *Core) blocksFor(tokens int) int { return (tokens + c.cfg.BlockSize - 1) / c.cfg.BlockSize }

func (c *Core) act(a Action) {
	a.At = c.clock
	c.actions = append(c.actions, a)
}
