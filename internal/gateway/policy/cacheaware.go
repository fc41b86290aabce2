package policy

import (
	"context"
	"math"
	"sync"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// CacheAwareConfig tunes [CacheAware]. The zero value makes every engine that holds a block a hit and considers one.
type CacheAwareConfig struct {
	// MinMatched tokens and MinRatio of the input are the shortest match that is a hit; 0: not checked.
	MinMatched int64
	MinRatio   float64
	// Ratio of the group's candidates are considered, at least MinWorkers and at most MaxWorkers.
	MinWorkers, MaxWorkers int
	Ratio                  float64
	// SwitchMargin is how many more uncached tokens than the deepest holder one may have and still be chosen.
	SwitchMargin int64
	// QueueLimit is the waiting requests at which an engine is gated, QueueFloor those below which one counts as idle; 0: off.
	QueueLimit, QueueFloor int64
	// Choices is how many engines are sampled on a miss; below 1 it is 1.
	Choices int
	// Guard keeps a deeper holder from winning against one under materially less pressure; nil: off.
	Guard *PressureGuard
}

// CacheAware prefers an engine that holds much of the prompt, as its source has it, and picks by load on a miss.
//
// Who holds. Matched tokens are those of whole blocks, on any tier and of the best rank, never more than the input; the rest is
// uncached. Of an engine that the source is blind of counts what it holds for certain; one of which nothing is certain is no hit, and is not
// taken to hold nothing either: it competes by load alone, and the evidence says that it is blind. A source that is unavailable makes the pick a miss.
//
// Who is considered. Hits are ranked by uncached tokens, prefill pressure, id, and the first of them kept, by the bound. The ranking is
// a total order: a figure of the engines' reports counts only if every hit has it, and none does unless every hit has a
// native report; what this gateway has in flight stands in.
//
// Who may have it. The queue gate lets in an engine whose waiting requests are below the limit or unknown. If all hits are gated, and
// every candidate of the group is known to be, and no floor is set, then the gate is lifted. Admission is asked of each hit
// that the gate lets in. Those with at most SwitchMargin more uncached tokens than the first of them go through a tournament in
// ranked order: the next replaces the winner only if the winner is worse, by the guard if all that were let in have native
// reports, else by uncached tokens, pressure of the two, id. The guard is no total order, so nothing is sorted by it.
//
// When nobody may. If a floor is set and no candidate of the group is known to be below it, the request is pinned to the gated hit
// under the least pressure that admission lets in: going elsewhere would only wait longer. An unknown queue passes the gate, but never counts as idle
// here. Otherwise a refusal by admission ends the group with NoAdmissibleEngine, though a cold engine may be idle: a cap on
// who holds the prefix is a cap on that traffic. Without one the pick is a miss.
//
// On a miss. Choices distinct candidates are sampled from those that the gate lets in, from all if it lets in none; the one under the least
// pressure wins, and admission is asked of it once: AdmissionRejected.
//
// It reads load after the look-up, once an engine, and a pick allocates nothing unless admission refuses somebody.
type CacheAware struct {
	config CacheAwareConfig
	limits Limits
	seed   uint64
	source prefix.Source
	none   prefix.Match // stays empty
	spare  sync.Pool    // *cacheScratch
}

// NewCacheAware returns the policy. Its random choices are fixed by the seed and each request's key.
func NewCacheAware(seed uint64, l Limits, s prefix.Source, c CacheAwareConfig) *CacheAware {
	p := &CacheAware{config: c, limits: l, seed: seed, source: s}
	p.spare.New = func() any { return new(cacheScratch) }
	return p
}

var _ Policy = (*CacheAware)(nil)

// Name implements Policy.
func (p *CacheAware) Name() string { return "cache_aware" }

// holder is an engine with what it holds of the prompt.
type holder struct {
	observed
	matched, uncached int64
	blind, known      bool
}

// says tells whether the match says something of the engine: of one that the source is blind of, what it holds for certain.
func (h *holder) says() bool { return h.known && (!h.blind || h.matched > 0) }

func (h *holder) considered() Considered {
	c := h.observed.considered()
	c.Blind = h.blind
	if h.says() {
		c.Matched, c.Uncached = load.Known(h.matched), load.Known(h.uncached)
	}
	return c
}

// cacheScratch is what a pick needs and what would otherwise be allocated.
type cacheScratch struct {
	hits    []holder // ranked, then those that the gate lets in before those that it does not
	pool    []*fleet.Worker
	refused []Rejection
}

// cachePick is one pick under way.
type cachePick struct {
	*CacheAware
	*cacheScratch
	candidates *fleet.Set
	r          *Request
	match      *prefix.Match
	known      bool // the source has answered
	open       int  // hits that the gate lets in
}

// Pick implements Policy.
func (p *CacheAware) Pick(ctx context.Context, c *fleet.Set, r *Request) (Pick, error) {
	if r.Stage == fleet.Decode {
		return Pick{}, &PickError{Class: InvalidConfiguration, Stage: r.Stage, Detail: "cache_aware cannot pick a decode engine: a prefix saves prefill work only"}
	}
	if c.Len() == 0 {
		return Pick{}, &PickError{Class: NoCandidates, Stage: r.Stage}
	}
	match, known, err := lookup(ctx, p.source, r, &p.none)
	if err != nil {
		return Pick{}, err
	}
	s := p.spare.Get().(*cacheScratch)
	k := cachePick{CacheAware: p, cacheScratch: s, candidates: c, r: r, match: match, known: known}
	pick, err := k.pick()
	s.reset()
	p.spare.Put(s)
	return pick, err
}

// reset lets go of the engines, and of the rejections, which an error may have.
func (s *cacheScratch) reset() {
	clear(s.hits)
	clear(s.pool)
	s.hits, s.pool, s.refused = s.hits[:0], s.pool[:0], nil
}

func (k *cachePick) pick() (Pick, error) {
	k.findHits()
	why := ReasonCache
	k.splitByGate()
	if k.open == 0 && len(k.hits) > 0 && k.config.QueueFloor == 0 && k.everybodyGated() {
		k.open, why = len(k.hits), ReasonSaturated
	}
	if h := k.tournament(); h != nil {
		return k.done(h, why), nil
	}
	if k.config.QueueFloor > 0 && len(k.hits) > k.open && k.nobodyIdle() {
		if h := k.pin(); h != nil {
			return k.done(h, ReasonSaturated), nil
		}
	}
	if len(k.refused) > 0 {
		return Pick{}, &PickError{Class: NoAdmissibleEngine, Stage: k.r.Stage, Rejections: k.refused}
	}
	return k.miss()
}

func (k *cachePick) done(h *holder, why Reason) Pick {
	k.r.Trace.picked(h.considered())
	p := Pick{Engine: h.engine, Rank: NoRank, Reason: why}
	if h.says() {
		p.Uncached = load.Known(h.uncached)
	}
	return p
}

// read observes an engine and what it holds.
func (k *cachePick) read(w *fleet.Worker) holder {
	h := holder{observed: observed{engine: w, report: w.Load.Report(k.r.Now), inFlight: w.Load.Active()}, known: k.known}
	h.blind = k.match.IsBlind(w.No)
	h.matched = min(int64(k.match.Of(w.No).Any()), k.r.InputTokens)
	h.uncached = k.r.InputTokens - h.matched
	return h
}

// isHit tells whether the match is long enough. The share is divided out: 0.28 times 25 is above 7, and 7 of 25 are 0.28.
func (k *cachePick) isHit(matched int64) bool {
	return matched > 0 && matched >= k.config.MinMatched && float64(matched)/float64(max(k.r.InputTokens, 1)) >= k.config.MinRatio
}

// findHits ranks the hits and keeps the first of them.
func (k *cachePick) findHits() {
	if len(k.match.Held) == 0 {
		return
	}
	last := uint32(0)
	for _, held := range k.match.Held { // the ranking is a total order: it does not matter in which they come
		if held.Engine == last {
			continue // another rank of it
		}
		last = held.Engine
		if i, ok := k.candidates.Numbered(held.Engine); ok {
			if h := k.read(k.candidates.Worker(i)); k.isHit(h.matched) {
				k.hits = append(k.hits, h)
			}
		}
	}
	scale := scaleOf(k.hits)
	limit, n := k.config.bound(k.candidates.Len()), 0
	for i := range k.hits { // each into its place among the best so far
		h, at := k.hits[i], n
		for at > 0 && scale.compareHits(&h, &k.hits[at-1]) < 0 {
			at--
		}
		if at == limit {
			continue
		}
		n = min(n+1, limit)
		copy(k.hits[at+1:n], k.hits[at:n-1])
		k.hits[at] = h
	}
	k.hits = k.hits[:n]
	for i := range k.hits {
		k.r.Trace.consider(k.hits[i].considered())
	}
}

// bound is how many hits of a group of n candidates are considered.
func (c *CacheAwareConfig) bound(n int) int {
	share := int(min(math.Ceil(c.Ratio*float64(n)), float64(n)))
	return max(min(n, c.MaxWorkers, max(c.MinWorkers, share)), 1)
}

// waiting returns the requests that wait in an engine, as far as it has said.
func waiting(r *load.Report) (int64, bool) {
	if r == nil {
		return 0, false
	}
	return r.Waiting.Get()
}

// gated tells whether the queue gate keeps the engine out. What is unknown passes.
func (c *CacheAwareConfig) gated(r *load.Report) bool {
	n, known := waiting(r)
	return c.QueueLimit > 0 && known && n >= c.QueueLimit
}

// splitByGate moves the hits that the gate lets in to the front, in their order.
func (k *cachePick) splitByGate() {
	for i := range k.hits {
		if k.config.gated(k.hits[i].report) {
			continue
		}
		h := k.hits[i]
		copy(k.hits[k.open+1:i+1], k.hits[k.open:i])
		k.hits[k.open] = h
		k.open++
	}
}

// everybodyGated tells whether each candidate of the group is known to be at the limit.
func (k *cachePick) everybodyGated() bool {
	for w := range k.candidates.All() {
		if !k.config.gated(w.Load.Report(k.r.Now)) {
			return false
		}
	}
	return true
}

// nobodyIdle tells whether no candidate of the group is known to be below the floor.
func (k *cachePick) nobodyIdle() bool {
	for w := range k.candidates.All() {
		if n, known := waiting(w.Load.Report(k.r.Now)); known && n < k.config.QueueFloor {
			return false
		}
	}
	return true
}

// admits asks admission, and notes a refusal.
func (k *cachePick) admits(h *holder) bool {
	limit := k.limits.Check(h.engine, h.report)
	if limit != NoLimit {
		k.refused = append(k.refused, Rejection{Engine: h.engine, Limit: limit})
	}
	return limit == NoLimit
}

// tournament returns the hit that wins among those that the gate and admission let in, or nil.
func (k *cachePick) tournament() *holder {
	guard := k.config.Guard
	for i := range k.hits[:k.open] {
		if !k.hits[i].report.Native() {
			guard = nil
		}
	}
	var winner *holder
	ceiling := int64(0)
	for i := range k.hits[:k.open] {
		h := &k.hits[i]
		switch {
		case !k.admits(h):
		case winner == nil:
			winner, ceiling = h, load.Add(h.uncached, k.config.SwitchMargin)
		case h.uncached <= ceiling && k.worse(guard, winner, h):
			winner = h
		}
	}
	return winner
}

// worse tells whether a is worse than b.
func (k *cachePick) worse(g *PressureGuard, a, b *holder) bool {
	if d := a.uncached - b.uncached; g != nil && d <= k.config.SwitchMargin && -d <= k.config.SwitchMargin {
		if c := g.compare(a.report, b.report); c != 0 {
			return c > 0
		}
	}
	if a.uncached != b.uncached {
		return a.uncached > b.uncached
	}
	if c, _ := comparePressure(fleet.Prefill, &a.observed, &b.observed); c != 0 {
		return c > 0
	}
	return a.engine.ID > b.engine.ID
}

// pin returns the gated hit under the least pressure that admission lets in, or nil.
func (k *cachePick) pin() *holder {
	gated := k.hits[k.open:]
	scale := scaleOf(gated)
	var best *holder
	for i := range gated {
		h := &gated[i]
		if k.admits(h) && (best == nil || scale.compareWithID(&h.observed, &best.observed) < 0) {
			best = h
		}
	}
	return best
}
