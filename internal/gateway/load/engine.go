package load

import (
	"sync"
	"sync/atomic"
	"time"
)

// Engine is the load record of one engine. It belongs to an engine's id and not to one registration: a worker that leaves
// and returns under its id finds the guards that are still held on it. The zero value is ready, with [DefaultFreshness].
type Engine struct {
	brief  brief        // first, with what is read beside it: a pick that reads a thousand engines pays by the cache line
	active atomic.Int64 // guards held, all stages

	freshness time.Duration // 0: DefaultFreshness; immutable after NewEngine
	clock     *Clock        // of brief; nil: it is kept by a clock of the engine's own. Immutable after NewEngine.
	ownClock  Clock

	prefill atomic.Int64 // tokens of the guards held for plain and prefill stages
	decode  atomic.Int64 // guards held for decode stages
	report  atomic.Pointer[Report]

	mu struct {
		sync.Mutex // order: Tracker.mu, then Engine.mu; never held across a call out
		ranks      []rank
		expected   int
		held       guardList // by time of acquisition, oldest first
		inPrefill  prefillQueue
	}
}

// NewEngine returns a record whose reports count for the given time; zero means [DefaultFreshness]. The clock is that of the fleet that it belongs to;
// nil: it belongs to none.
func NewEngine(freshness time.Duration, c *Clock) *Engine {
	return &Engine{freshness: freshness, clock: c}
}

// Expect says how many ranks the engine has, 1 to [MaxRanks]; other numbers mean that it is not known. Reports count only
// when all expected ranks are there; while the number is not known, those that reported are all.
func (e *Engine) Expect(ranks int) {
	if ranks < 0 || ranks > MaxRanks {
		ranks = 0
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.expected = ranks
	if ranks > 0 && len(e.mu.ranks) > ranks {
		e.mu.ranks = e.mu.ranks[:ranks]
	}
	e.storeLocked(sum(e.mu.ranks, e.mu.expected))
}

// Observe takes in one rank's report. It tells whether it was used: a report older than the one before it, or of a rank
// outside the engine's, is not.
func (e *Engine) Observe(rankNo int, r RankReport) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if rankNo < 0 || rankNo >= MaxRanks || (e.mu.expected > 0 && rankNo >= e.mu.expected) {
		return false
	}
	for len(e.mu.ranks) <= rankNo {
		e.mu.ranks = append(e.mu.ranks, rank{})
	}
	if !e.mu.ranks[rankNo].observe(r) {
		return false
	}
	e.storeLocked(sum(e.mu.ranks, e.mu.expected))
	return true
}

// Forget drops all reports, as when the engine left or restarted. What is in flight stays counted.
func (e *Engine) Forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.ranks = nil
	e.storeLocked(nil)
}

func (e *Engine) storeLocked(r *Report) {
	e.report.Store(r)
	e.changed()
}

// Report returns the engine's report if it is fresh at now and complete, otherwise nil. The report is shared: do not change it.
func (e *Engine) Report(now time.Time) *Report {
	r := e.report.Load()
	if r == nil {
		return nil
	}
	if now.Sub(r.At) > e.fresh() {
		return nil
	}
	return r
}

func (e *Engine) fresh() time.Duration {
	if e.freshness == 0 {
		return DefaultFreshness
	}
	return e.freshness
}

// Capacity returns the size of one rank's KV pool, in tokens, as it was reported last, however long ago: it does not change while the engine's
// process lives.
func (e *Engine) Capacity(rankNo int) Count {
	e.mu.Lock()
	defer e.mu.Unlock()
	if rankNo < 0 || rankNo >= len(e.mu.ranks) {
		return Count{}
	}
	return e.mu.ranks[rankNo].last.Capacity
}

// Active returns how many guards this gateway holds on the engine. It is always known.
func (e *Engine) Active() int64 { return e.active.Load() }

// PrefillTokens returns the input tokens of the plain and prefill requests that this gateway has in flight on the engine.
func (e *Engine) PrefillTokens() int64 { return e.prefill.Load() }

// DecodeRequests returns the decode-stage requests that this gateway has in flight on the engine.
func (e *Engine) DecodeRequests() int64 { return e.decode.Load() }

// DispatchedSince returns how many of the guards held now were acquired at t or later: what a report of time t cannot
// have in its figures. It costs one step for each of them.
func (e *Engine) DispatchedSince(t time.Time) int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.dispatchedLocked(t)
}

func (e *Engine) dispatchedLocked(t time.Time) int64 {
	n := int64(0)
	for g := e.mu.held.last; g != nil && !g.at.Before(t); g = g.onEngine.prev {
		n++
	}
	return n
}
