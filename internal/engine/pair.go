package engine

import (
	"slices"
	"time"
)

// A separated pair computes a prompt on one engine and the answer on another. They meet in a room at the prefill engine, by a name that both
// requests carry. The driver brings what one engine says to the other.
//
// At the prefill engine, by a PrefillHalf and a Join, in either order:
//
//	meeting ──both are there──▶ waiting ─▶ prefill ──first token──▶ held ──Leave──▶ closed
//	   │  (with Pull it begins at once)        │                      │
//	   └──────────MeetFor──────────────────────┴──Abort, Leave────────┴──HoldFor──▶ closed
//
// At the decode engine:
//
//	waiting ──its blocks fit──▶ Fetch ──Fetched──▶ decode
//	                              └──NotFetched, FetchFor──▶ Ended
//
// A room that is closed gives its blocks back, is forgotten, and is told with Closed. What an engine holds for pairs is bounded by its blocks, by
// MaxWaiting and by MaxRunning.

// Pairing says how the engines of a pair work together.
type Pairing uint8

// The pairings.
const (
	// Pull is vLLM's with NIXL: the prefill engine computes, answers and holds the KV; the decode engine fetches what its own cache
	// lacks of it, and runs the prompt's last token itself, as a step of its decode.
	Pull Pairing = iota
	// Push is SGLang's: the engines meet first, when the decode engine has reserved its blocks; the prefill engine computes then, and hands over
	// the answer's first token too.
	Push
)

// Half says which half of a pair a request is.
type Half uint8

// The halves.
const (
	Whole       Half = iota // prompt and answer
	PrefillHalf             // the prompt and one token; the KV is held for the decode engine that joins Room
	DecodeHalf              // the answer, from KV that the driver brings
)

// Handover is what a prefill engine tells of a prompt that it holds.
type Handover struct {
	Prompt BlockHash // of adapter and prompt, as the answer is drawn from it: by this the decode engine sees that the KV is its own
	Length int       // tokens of the prompt
	Token  uint32    // the first of the answer
	Cached int       // tokens that the prefill engine's cache supplied
}

// room is where the halves of a pair meet.
type room struct {
	name   string
	s      *sequence // nil: only the decode engine is there
	joined bool      // the decode engine is there
	held   bool      // s has been computed
	cached int       // of its tokens, by the cache
	until  time.Duration
}

// Join says at time now that a decode engine has come to a room, its blocks reserved. What it waits for comes as Ready, or Closed.
//
// ErrNoRoom, with Pull, says that nobody here has computed anything under that name, or that it is gone; ErrRoomTaken that another decode engine
// came before; a LimitError that too many wait.
func (c *Core) Join(now time.Duration, name string) error {
	c.run(now, false)
	r := c.rooms[name]
	switch {
	case r != nil && r.joined:
		return ErrRoomTaken
	case r == nil && c.cfg.Pairing == Pull:
		return ErrNoRoom
	case r == nil:
		if n := c.newcomers(); n >= c.cfg.MaxWaiting {
			return &LimitError{ErrQueueFull, n, c.cfg.MaxWaiting}
		}
		r = &room{name: name, joined: true}
		c.rooms[name] = r
		c.meet(r)
		return nil
	}
	r.joined = true
	switch {
	case r.held:
		c.holding = slices.DeleteFunc(c.holding, func(x *room) bool { return x == r })
		c.hold(r)
	case c.cfg.Pairing == Push:
		c.leaveMeeting(r)
		c.waiting = append(c.waiting, r.s)
	}
	c.outer()
	return nil
}

// Leave says at time now that the decode engine has left a room that it had joined: with what it came for, or, where taken is false, without.
// It returns false if there is no such room.
func (c *Core) Leave(now time.Duration, name string, taken bool) bool {
	c.run(now, false)
	r := c.rooms[name]
	if r == nil || !r.joined {
		return false
	}
	why := ReasonLeft
	if taken && r.held {
		why = ReasonTaken
	}
	c.closeRoom(r, why)
	c.outer()
	return true
}

// Fetched ends a Fetch at time now: the KV is there, and is what h says. It returns false if there was no such Fetch. KV of another
// prompt ends the request with ReasonCorrupt.
func (c *Core) Fetched(now time.Duration, id ID, h Handover) bool {
	c.run(now, false)
	s := c.unfetch(id)
	if s == nil {
		return false
	}
	if h.Prompt != s.seed || h.Length != s.req.promptLen() {
		c.corrupt(s)
		c.outer()
		return true
	}
	c.count.fetchedTokens += int64(s.target - s.computed)
	s.computed = s.target
	c.store(s)
	if c.cfg.Pairing == Pull {
		c.admitted(s, 0)
		c.running = append(c.running, s)
	} else {
		s.admitted = true
		c.act(Action{Kind: Admitted, ID: s.req.ID, Cached: h.Cached})
		if c.give(s, h.Token) {
			c.retire(s)
		} else {
			c.running = append(c.running, s)
		}
	}
	c.outer()
	return true
}

// NotFetched ends a Fetch at time now that brought nothing, and with it the request. It returns false if there was no such Fetch.
func (c *Core) NotFetched(now time.Duration, id ID) bool {
	c.run(now, false)
	s := c.unfetch(id)
	if s == nil {
		return false
	}
	c.unfetched(s)
	c.outer()
	return true
}

// unfetch takes a request out of those that are being fetched, nil if it is none of them.
func (c *Core) unfetch(id ID) *sequence {
	i := slices.IndexFunc(c.fetching, func(s *sequence) bool { return s.req.ID == id })
	if i < 0 {
		return nil
	}
	s := c.fetching[i]
	c.fetching = slices.Delete(c.fetching, i, i+1)
	return s
}

// unfetched ends s, which is in no list any more.
func (c *Core) unfetched(s *sequence) {
	c.count.unfetched++
	c.act(Action{Kind: Ended, Reason: ReasonUnfetched, ID: s.req.ID})
	c.retire(s)
}

// fetch begins what fetches can begin: the first of the queue leaves it with all blocks of its prompt, whether a step is in hand or not.
func (c *Core) fetch() {
	for len(c.waiting) > 0 && c.waiting[0].remote && len(c.running)+len(c.fetching) < c.cfg.MaxRunning {
		s := c.waiting[0]
		hit := s.chain[:c.hits(s)]
		if !c.fits(s, hit) {
			return
		}
		c.waiting = slices.Delete(c.waiting, 0, 1)
		if c.takeBlocks(s, hit) {
			s.until = c.clock + c.cfg.FetchFor
			c.fetching = append(c.fetching, s)
			c.act(Action{Kind: Fetch, ID: s.req.ID, Cached: s.computed, Missing: s.target - s.computed})
		}
	}
}

// enter puts a PrefillHalf into its room: it begins, or waits there for the decode engine.
func (c *Core) enter(s *sequence) {
	r := c.rooms[s.req.Room]
	if r == nil {
		r = &room{name: s.req.Room}
		c.rooms[r.name] = r
	} else {
		c.leaveMeeting(r)
	}
	r.s, s.room = s, r
	if r.joined || c.cfg.Pairing == Pull {
		c.waiting = append(c.waiting, s)
		return
	}
	c.meet(r)
}

func (c *Core) meet(r *room) {
	r.until = c.clock + c.cfg.MeetFor
	c.meeting = append(c.meeting, r)
}

func (c *Core) leaveMeeting(r *room) {
	c.meeting = slices.DeleteFunc(c.meeting, func(x *room) bool { return x == r })
}

// hold keeps the blocks of a room's prompt, which is computed, from now on for HoldFor.
func (c *Core) hold(r *room) {
	r.held, r.until = true, c.clock+c.cfg.HoldFor
	c.holding = append(c.holding, r)
	if r.joined {
		s := r.s
		c.act(Action{Kind: Ready, ID: s.req.ID, Room: r.name, Handover: &Handover{s.seed, s.req.promptLen(), s.out[0], r.cached}})
	}
}

// closeRoom ends a room and what is in it.
func (c *Core) closeRoom(r *room, why Reason) {
	delete(c.rooms, r.name)
	a := Action{Kind: Closed, Reason: why, Room: r.name}
	if r.held {
		c.holding = slices.DeleteFunc(c.holding, func(x *room) bool { return x == r })
	} else {
		c.leaveMeeting(r)
	}
	if why == ReasonExpired || why == ReasonUnmatched {
		c.count.expired++
	}
	if r.s != nil {
		a.ID, a.HasID = r.s.req.ID, true
		c.drop(r.s)
	}
	c.act(a)
}

// deadline returns when the first of the pairs' time-outs ends. Each list is in the order of its own.
func (c *Core) deadline() (at time.Duration, ok bool) {
	earlier := func(t time.Duration) {
		if !ok || t < at {
			at, ok = t, true
		}
	}
	if len(c.meeting) > 0 {
		earlier(c.meeting[0].until)
	}
	if len(c.holding) > 0 {
		earlier(c.holding[0].until)
	}
	if len(c.fetching) > 0 {
		earlier(c.fetching[0].until)
	}
	return at, ok
}

// expire ends what has waited too long.
func (c *Core) expire() {
	for len(c.meeting) > 0 && c.meeting[0].until <= c.clock {
		c.closeRoom(c.meeting[0], ReasonUnmatched)
	}
	for len(c.holding) > 0 && c.holding[0].until <= c.clock {
		c.closeRoom(c.holding[0], ReasonExpired)
	}
	for len(c.fetching) > 0 && c.fetching[0].until <= c.clock {
		c.unfetched(c.unfetch(c.fetching[0].req.ID))
	}
	c.outer()
}

// RoomBlocks returns the numbers of the blocks that a room's prompt holds, nil if it holds none. The slice is good until the next call on the Core.
func (c *Core) RoomBlocks(name string) []int32 {
	if r := c.rooms[name]; r != nil && r.held {
		return r.s.blocks
	}
	return nil
}
