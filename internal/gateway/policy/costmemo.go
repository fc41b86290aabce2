package policy

import (
	"math"
	"math/bits"
	"sync"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// costMemo remembers of each candidate what cost takes from its load record, until that changes or its report lapses. Those that have nothing to prefill, as far as is
// known, and hold nothing of the prompt all cost the same, so that they need no reckoning: a pick reckons with those that have a queue and with those that hold
// something, and counts the others, in blocks. Means are of whole numbers below 2^53, so it does not matter in which order they are added up.
//
// Where most engines have a queue there is nothing to be saved.
type costMemo struct {
	mu struct {
		sync.Mutex
		view   *fleet.View
		seen   []costSeen // by places
		blocks []costBlock
		busy   []costAt // of the pick under way
	}
}

// costAt is what the engine at a place costs.
type costAt struct {
	at   int
	cost float64
}

// costSeen is what was read of one engine.
type costSeen struct {
	known         bool
	changes       uint64
	until         int64   // on the clock of the load records
	rate, foreign float64 // as in estimate
	rests         bool    // it has nothing to prefill
	refused       bool
	load          estimate // all that does not depend on the request
}

// costBlock is a block of candidates.
type costBlock struct {
	known            bool
	members, changes uint64
	until            int64
	rests, admitted  uint64
	unsure           bool // of one that rests it is not known what others have there
	rate, foreign    mean
	slowest, fastest float64 // of those that rest and have a rate

	reckoned, equal uint64 // of the pick under way
}

// costPick is one pick under way.
type costPick struct {
	p     *Cost
	c     *fleet.Set
	r     *Request
	m     *prefix.Match
	known bool
	now   int64

	usual, foreign float64
}

// mostReckoned bounds the engines that a pick reckons with while it holds the mutex. With more of them it looks at all, beside other picks.
const mostReckoned = 64

// pick picks by what is remembered. It returns false where all candidates have to be looked at: admission refuses all, too many have a queue, or what others have
// on engines that do not tell is reckoned by the mean of those that do.
func (m *costMemo) pick(k *costPick) (Pick, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.view != k.c.View() {
		m.forget(k.c)
	}
	var rate, foreign mean
	unsure := false
	for i := range m.mu.blocks {
		b := &m.mu.blocks[i]
		if members, changes := k.c.Block(i); !b.known || b.members != members || b.changes != changes || k.now > b.until {
			b.members, b.changes = members, changes
			m.look(k, i)
		}
		rate, foreign, unsure = rate.plus(b.rate), foreign.plus(b.foreign), unsure || b.unsure
	}
	k.usual, k.foreign = rate.or(k.p.config.PrefillRate), foreign.or(0)
	if unsure && k.foreign > 0 {
		return Pick{}, false
	}
	if m.sort(k) > mostReckoned {
		return Pick{}, false
	}
	least := m.reckon(k)
	if math.IsInf(least, 1) {
		return Pick{}, false
	}
	m.trace(k)
	best := m.amongEqual(k, least+max(tieShare*least, tieSeconds))
	return best.pick(k.r), true
}

// forget begins anew with another view.
func (m *costMemo) forget(c *fleet.Set) {
	m.mu.view = c.View()
	m.mu.blocks = append(m.mu.blocks[:0], make([]costBlock, c.Blocks())...)
	m.mu.seen = append(m.mu.seen[:0], make([]costSeen, m.mu.view.Len())...)
}

// look takes in what has changed in a block.
func (m *costMemo) look(k *costPick, i int) {
	b := &m.mu.blocks[i]
	*b = costBlock{known: true, members: b.members, changes: b.changes, until: math.MaxInt64, slowest: math.Inf(1)}
	for w := b.members; w != 0; w &= w - 1 {
		bit := bits.TrailingZeros64(w)
		s, e := &m.mu.seen[i*fleet.BlockSize+bit], k.c.Load(i*fleet.BlockSize+bit)
		if changes := e.Changes(); !s.known || s.changes != changes || k.now > s.until {
			s.changes = changes
			k.read(s, e, k.c.Worker(i*fleet.BlockSize+bit))
		}
		b.until = min(b.until, s.until)
		if s.rate > 0 {
			b.rate.add(s.rate)
		}
		if s.foreign >= 0 {
			b.foreign.add(s.foreign)
		}
		if !s.refused {
			b.admitted |= 1 << bit
		}
		if s.rests {
			b.rests |= 1 << bit
			b.unsure = b.unsure || s.foreign < 0
			if s.rate > 0 {
				b.slowest, b.fastest = min(b.slowest, s.rate), max(b.fastest, s.rate)
			}
		}
	}
}

// read reads one engine anew.
func (k *costPick) read(s *costSeen, e *load.Engine, w *fleet.Worker) {
	x := k.p.read(w, &k.p.none, false, k.r)
	s.known, s.until, s.rate, s.foreign, s.load = true, e.Lapses(k.now), x.rate, x.foreign, x
	s.rests = x.prefill.Tokens == 0 && x.prefill.OthersSince == 0 && x.foreign <= 0
	s.refused = k.p.limits.Check(w, x.report) != NoLimit
}

// atRest is what an engine costs that has nothing to prefill and holds nothing of the prompt.
func (k *costPick) atRest() float64 { return ownWeight * float64(k.r.InputTokens) / k.usual }

// sort marks those that do not cost the same as others at rest, and returns how many of them are admitted.
func (m *costMemo) sort(k *costPick) (n int) {
	for i := range m.mu.blocks {
		b := &m.mu.blocks[i]
		b.reckoned = b.members &^ b.rests
		if b.slowest <= k.usual/alike || b.fastest >= k.usual*alike {
			b.reckoned = b.members
		}
	}
	for _, h := range k.m.Held {
		if at, ok := k.c.Numbered(h.Engine); ok {
			m.mu.blocks[at/fleet.BlockSize].reckoned |= 1 << (at % fleet.BlockSize)
		}
	}
	for i := range m.mu.blocks {
		n += bits.OnesCount64(m.mu.blocks[i].reckoned & m.mu.blocks[i].admitted)
	}
	return n
}

// reckon reckons with them, and returns the least cost of all that are admitted.
func (m *costMemo) reckon(k *costPick) (least float64) {
	least = math.Inf(1)
	m.mu.busy = m.mu.busy[:0]
	for i := range m.mu.blocks {
		b := &m.mu.blocks[i]
		b.equal = 0
		if b.admitted&^b.reckoned != 0 {
			least = min(least, k.atRest())
		}
		for w := b.reckoned & b.admitted; w != 0; w &= w - 1 {
			at := i*fleet.BlockSize + bits.TrailingZeros64(w)
			e := m.estimate(k, at)
			m.mu.busy = append(m.mu.busy, costAt{at, e.cost})
			least = min(least, e.cost)
		}
	}
	return least
}

// estimate reckons with one candidate. Its load is what was read last, which this pick has found unchanged: to read it again is seven or eight lines of memory that
// with a thousand engines nobody has used for long, and two mutexes.
func (m *costMemo) estimate(k *costPick, at int) estimate {
	s := &m.mu.seen[at]
	if s.load.report == nil && !s.rests {
		s.load = k.p.read(s.load.engine, &k.p.none, false, k.r) // what others have sent counts from now on, where there is no report
	}
	e := s.load
	e.ask(k.m, k.known, k.p.config.Costs, k.r)
	e.weigh(k.usual, k.foreign)
	return e
}

// amongEqual draws two of those that cost no more than most, and takes the one with fewer requests.
func (m *costMemo) amongEqual(k *costPick, most float64) estimate {
	rest := k.atRest() <= most
	n := 0
	for _, b := range m.mu.busy {
		if b.cost <= most {
			m.mu.blocks[b.at/fleet.BlockSize].equal |= 1 << (b.at % fleet.BlockSize)
		}
	}
	for i := range m.mu.blocks {
		b := &m.mu.blocks[i]
		if rest {
			b.equal |= b.admitted &^ b.reckoned
		}
		n += bits.OnesCount64(b.equal)
	}
	d := newDraw(k.p.seed, k.r.Key, k.r.Stage)
	best := m.estimate(k, m.nth(d.intN(n)))
	if other := m.estimate(k, m.nth(d.intN(n))); other.requests < best.requests {
		best = other
	}
	return best
}

// nth returns the place of number n of those that are equal.
func (m *costMemo) nth(n int) int {
	for i := range m.mu.blocks {
		w := m.mu.blocks[i].equal
		if c := bits.OnesCount64(w); n >= c {
			n -= c
			continue
		}
		for ; n > 0; n-- {
			w &= w - 1
		}
		return i*fleet.BlockSize + bits.TrailingZeros64(w)
	}
	panic("policy: fewer are equal than were counted")
}

// trace takes down the first candidates, as many as there is room for.
func (m *costMemo) trace(k *costPick) {
	t := k.r.Trace
	if t == nil {
		return
	}
	n := 0
	for i := range k.c.Loads() {
		if len(t.Considered) == cap(t.Considered) {
			break
		}
		e := m.estimate(k, i)
		t.consider(e.considered())
		n++
	}
	t.Omitted += k.c.Len() - n
}

func (m mean) plus(o mean) mean { return mean{m.sum + o.sum, m.n + o.n} }
