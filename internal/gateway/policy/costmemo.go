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
		loads  []estimate // by places too; what depends on the request is of the last pick that reckoned with the candidate
		blocks []costBlock
		words  []costWord
		busy   []costAt // of the pick under way
	}
}

// costAt is what the engine at a place costs.
type costAt struct {
	at   int
	cost float64
}

// costSeen is what a look at a block needs of one engine. It lies apart from what else was read of it, which is four times as much.
type costSeen struct {
	known, refused bool
	rests          bool // it has nothing to prefill
	changes        uint64
	until          int64   // on the clock of the load records
	rate, foreign  float64 // as in estimate, and so are requests
	requests       int64
}

// costBlock is a block of candidates.
type costBlock struct {
	known            bool
	unsure           bool // of one that rests it is not known what others have there
	members, changes uint64
	until            int64
	rate, foreign    mean
	slowest, fastest float64 // of those that rest and have a rate
}

// costWord is 64 candidates of several blocks, as bits.
type costWord struct {
	members, rests, admitted uint64
	reckoned, equal          uint64 // of the pick under way
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
	resting        Considered // what is told of one that costs the same as others at rest, but for the engine; set if somebody wants to know
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
	unsure, slowest, fastest := false, math.Inf(1), 0.0
	for i := range m.mu.blocks {
		b := &m.mu.blocks[i]
		if members, changes := k.c.Block(i); !b.known || b.members != members || b.changes != changes || k.now > b.until {
			b.members, b.changes = members, changes
			m.look(k, i)
		}
		rate, foreign, unsure = rate.plus(b.rate), foreign.plus(b.foreign), unsure || b.unsure
		slowest, fastest = min(slowest, b.slowest), max(fastest, b.fastest)
	}
	k.usual, k.foreign = rate.or(k.p.config.PrefillRate), foreign.or(0)
	if unsure && k.foreign > 0 {
		return Pick{}, false
	}
	m.sort(k, slowest, fastest)
	if m.reckoned() > mostReckoned {
		return Pick{}, false
	}
	least := m.reckon(k)
	if math.IsInf(least, 1) {
		return Pick{}, false
	}
	m.trace(k)
	return m.take(k, m.amongEqual(k, least+max(tieShare*least, tieSeconds))), true
}

// forget begins anew with another view.
func (m *costMemo) forget(c *fleet.Set) {
	m.mu.view = c.View()
	m.mu.blocks = append(m.mu.blocks[:0], make([]costBlock, c.Blocks())...)
	m.mu.words = append(m.mu.words[:0], make([]costWord, (m.mu.view.Len()+63)/64)...)
	m.mu.seen = append(m.mu.seen[:0], make([]costSeen, m.mu.view.Len())...)
	m.mu.loads = append(m.mu.loads[:0], make([]estimate, m.mu.view.Len())...)
}

// look takes in what has changed in a block.
func (m *costMemo) look(k *costPick, i int) {
	b, first := &m.mu.blocks[i], i*fleet.BlockSize
	*b = costBlock{known: true, members: b.members, changes: b.changes, until: math.MaxInt64, slowest: math.Inf(1)}
	var rests, admitted uint64
	for w := b.members; w != 0; w &= w - 1 {
		bit := bits.TrailingZeros64(w)
		s := &m.mu.seen[first+bit]
		if changes := k.c.Changes(first + bit); !s.known || s.changes != changes || k.now > s.until {
			s.changes = changes
			m.read(k, first+bit)
		}
		b.until = min(b.until, s.until)
		if s.rate > 0 {
			b.rate.add(s.rate)
		}
		if s.foreign >= 0 {
			b.foreign.add(s.foreign)
		}
		if !s.refused {
			admitted |= 1 << bit
		}
		if s.rests {
			rests |= 1 << bit
			b.unsure = b.unsure || s.foreign < 0
			if s.rate > 0 {
				b.slowest, b.fastest = min(b.slowest, s.rate), max(b.fastest, s.rate)
			}
		}
	}
	w, shift := &m.mu.words[first/64], first%64
	others := ^(uint64(1<<fleet.BlockSize-1) << shift)
	w.members, w.rests, w.admitted = w.members&others|b.members<<shift, w.rests&others|rests<<shift, w.admitted&others|admitted<<shift
}

// read reads one engine anew.
func (m *costMemo) read(k *costPick, at int) {
	s, x := &m.mu.seen[at], &m.mu.loads[at]
	w := k.c.Worker(at)
	s.until = k.p.read(x, w, &k.p.none, false, k.r)
	s.known, s.rate, s.foreign, s.requests = true, x.rate, x.foreign, x.requests
	s.rests = x.prefill.Tokens == 0 && x.prefill.OthersSince == 0 && x.foreign <= 0
	s.refused = k.p.limits.Check(w, x.report) != NoLimit
}

// atRest is what an engine costs that has nothing to prefill and holds nothing of the prompt.
func (k *costPick) atRest() float64 { return ownWeight * float64(k.r.InputTokens) / k.usual }

// sort marks those that do not cost the same as others at rest: whose rate is another than is usual, who has something to prefill, and who holds something of the
// prompt.
func (m *costMemo) sort(k *costPick, slowest, fastest float64) {
	for i := range m.mu.words {
		w := &m.mu.words[i]
		w.reckoned = w.members &^ w.rests
	}
	if k.unusual(slowest, fastest) {
		for i := range m.mu.blocks {
			if b := &m.mu.blocks[i]; k.unusual(b.slowest, b.fastest) {
				m.mu.words[i*fleet.BlockSize/64].reckoned |= b.members << (i * fleet.BlockSize % 64)
			}
		}
	}
	for _, h := range k.m.Held {
		if at, ok := k.c.Numbered(h.Engine); ok {
			m.mu.words[at/64].reckoned |= 1 << (at % 64)
		}
	}
}

// unusual tells whether one of several rates, the least and the most of which are given, is not taken for the usual one.
func (k *costPick) unusual(slowest, fastest float64) bool {
	return slowest <= k.usual/alike || fastest >= k.usual*alike
}

// reckoned is how many of those that are marked are admitted.
func (m *costMemo) reckoned() (n int) {
	for i := range m.mu.words {
		n += bits.OnesCount64(m.mu.words[i].reckoned & m.mu.words[i].admitted)
	}
	return n
}

// reckon reckons with them, and returns the least cost of all that are admitted.
func (m *costMemo) reckon(k *costPick) (least float64) {
	least = math.Inf(1)
	m.mu.busy = m.mu.busy[:0]
	for i := range m.mu.words {
		word := &m.mu.words[i]
		word.equal = 0
		if word.admitted&^word.reckoned != 0 {
			least = min(least, k.atRest())
		}
		for w := word.reckoned & word.admitted; w != 0; w &= w - 1 {
			at := i*64 + bits.TrailingZeros64(w)
			e := m.estimate(k, at)
			m.mu.busy = append(m.mu.busy, costAt{at, e.cost})
			least = min(least, e.cost)
		}
	}
	return least
}

// estimate reckons with one candidate. Its load is what was read last, which this pick has found unchanged: to read it again is seven or eight lines of memory that
// with a thousand engines nobody has used for long, and two mutexes.
func (m *costMemo) estimate(k *costPick, at int) *estimate {
	e := &m.mu.loads[at]
	if e.report == nil && !m.mu.seen[at].rests {
		k.p.read(e, e.engine, &k.p.none, false, k.r) // what others have sent counts from now on, where there is no report
	}
	e.ask(k.m, k.known, k.p.config.Costs, k.r)
	e.weigh(k.usual, k.foreign)
	return e
}

// amongEqual draws two of those that cost no more than most, and returns the place of the one with fewer requests.
func (m *costMemo) amongEqual(k *costPick, most float64) int {
	for _, b := range m.mu.busy {
		if b.cost <= most {
			m.mu.words[b.at/64].equal |= 1 << (b.at % 64)
		}
	}
	rest, n := k.atRest() <= most, 0
	for i := range m.mu.words {
		w := &m.mu.words[i]
		if rest {
			w.equal |= w.admitted &^ w.reckoned
		}
		n += bits.OnesCount64(w.equal)
	}
	d := newDraw(k.p.seed, k.r.Key, k.r.Stage)
	best := m.nth(d.intN(n))
	if other := m.nth(d.intN(n)); m.requests(k, other) < m.requests(k, best) {
		best = other
	}
	return best
}

// requests are those that the candidate at a place has.
func (m *costMemo) requests(k *costPick, at int) int64 {
	if m.isReckoned(at) {
		return m.estimate(k, at).requests
	}
	return m.mu.seen[at].requests
}

// isReckoned tells whether the candidate does not cost what others at rest do.
func (m *costMemo) isReckoned(at int) bool { return m.mu.words[at/64].reckoned&(1<<(at%64)) != 0 }

// take picks the candidate at a place.
func (m *costMemo) take(k *costPick, at int) Pick {
	if m.isReckoned(at) {
		return m.estimate(k, at).pick(k.r)
	}
	if k.r.Trace != nil {
		k.r.Trace.picked(m.considered(k, at))
	}
	return picks(k.c.Worker(at), k.r.InputTokens)
}

// nth returns the place of number n of those that are equal.
func (m *costMemo) nth(n int) int {
	for i := range m.mu.words {
		w := m.mu.words[i].equal
		if c := bits.OnesCount64(w); n >= c {
			n -= c
			continue
		}
		for ; n > 0; n-- {
			w &= w - 1
		}
		return i*64 + bits.TrailingZeros64(w)
	}
	panic("policy: fewer are equal than were counted")
}

// trace takes down the first candidates, as many as there is room for.
func (m *costMemo) trace(k *costPick) {
	t := k.r.Trace
	if t == nil {
		return
	}
	rests := estimate{known: k.known, uncached: k.r.InputTokens, cost: k.atRest()}
	k.resting = rests.considered()
	n := 0
	for i := range k.c.Loads() {
		if len(t.Considered) == cap(t.Considered) {
			break
		}
		t.consider(m.considered(k, i))
		n++
	}
	t.Omitted += k.c.Len() - n
}

// considered is what is told of the candidate at a place.
func (m *costMemo) considered(k *costPick, at int) Considered {
	if m.isReckoned(at) {
		return m.estimate(k, at).considered()
	}
	c, e := k.resting, &m.mu.loads[at].observed
	c.Engine, c.Report, c.InFlight = e.engine, e.report, e.inFlight
	if len(k.m.Blind) > 0 && k.m.IsBlind(e.engine.No) {
		c.Blind, c.Matched = true, load.Count{} // it is not known to hold nothing
	}
	return c
}

func (m mean) plus(o mean) mean { return mean{m.sum + o.sum, m.n + o.n} }
