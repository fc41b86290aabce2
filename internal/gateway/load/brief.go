package load

import (
	"math"
	"sync/atomic"
	"time"
)

// Clock counts nanoseconds, so that times can be compared without their 24 bytes. Its zero is the first time that it is asked for. One serves a
// whole fleet, whose times all come from one place. The zero value is ready.
type Clock struct{ zero atomic.Pointer[time.Time] }

// Nanos returns t on the clock, saturating after 292 years.
func (c *Clock) Nanos(t time.Time) int64 {
	z := c.zero.Load()
	if z == nil {
		first := t
		if c.zero.CompareAndSwap(nil, &first) {
			return 0
		}
		z = c.zero.Load()
	}
	return int64(t.Sub(*z))
}

// brief is what a comparison of many engines reads of each, without its mutex and in one cache line. What changes an engine's report or its guards makes it
// stale, and the next reader puts it together anew: between two picks that is an engine or two.
type brief struct {
	stale atomic.Bool
	// requests are those of the report and those dispatched since, saturating; meaningful until until, on the clock, after which the report counts no
	// longer. Where there is no report with request counts until is before all times.
	requests, until atomic.Int64
	lapses          atomic.Int64          // when the report is no longer fresh, whatever it has
	watch           atomic.Pointer[Watch] // nil: nobody does
}

// Watch counts the changes of one engine: of its report, its guards and its prompts in prefill. Who has seen a count and sees the same again has seen no change in
// between. Those of a fleet lie side by side, so that who looks for what has changed reads a few cache lines and not one of each engine's record.
type Watch struct {
	Count atomic.Uint64
	// Block counts those of several engines together, each after Count has; it is set before the watch is handed to an engine.
	Block *atomic.Uint64
}

// WatchBy has the watch count the engine's changes from now on, each after it was made, in place of the watch before it.
func (e *Engine) WatchBy(w *Watch) { e.brief.watch.Store(w) }

// changed says that the report, the guards or the prompts in prefill have.
func (e *Engine) changed() {
	e.outdate()
	if w := e.brief.watch.Load(); w != nil {
		w.Count.Add(1)
		w.Block.Add(1)
	}
}

// outdate makes the brief stale. It is so most times, and to write it again would cost more than to look.
func (e *Engine) outdate() {
	if !e.brief.stale.Load() {
		e.brief.stale.Store(true)
	}
}

// Requests returns the engine's waiting and running requests by its report, and what was dispatched to it since that report and is in flight. ok is false where
// it has no report that is fresh at now, on the fleet's clock, and has them. It is the same as by [Engine.Report] and [Engine.DispatchedSince]; beside a change of the
// engine either of its two figures may be from before it.
func (e *Engine) Requests(now int64) (n int64, ok bool) {
	if e.brief.stale.Load() {
		e.renewBrief()
	}
	return e.brief.requests.Load(), now <= e.brief.until.Load()
}

// RequestsUntil is Requests, with the time, on the same clock, until which the report counts that is fresh now, whatever it has: after that, and after a change, ask
// again. It is the end of all times where there is none.
func (e *Engine) RequestsUntil(now int64) (n, until int64, ok bool) {
	n, ok = e.Requests(now)
	if until = e.brief.lapses.Load(); until < now {
		until = math.MaxInt64
	}
	return n, until, ok
}

func (e *Engine) renewBrief() {
	e.mu.Lock()
	defer e.mu.Unlock()
	b := &e.brief
	b.stale.Store(false)
	r := e.report.Load()
	lapses := int64(math.MinInt64)
	if r != nil {
		lapses = Add(e.clockOf().Nanos(r.At), int64(e.fresh()))
	}
	b.lapses.Store(lapses)
	if !r.Basic() {
		b.until.Store(math.MinInt64)
		return
	}
	// Plus saturates: a report of absurd figures must not wrap round to the least load.
	n, _ := r.Waiting.Plus(r.Running).Plus(Known(e.dispatchedLocked(r.At))).Get()
	b.requests.Store(n)
	b.until.Store(lapses)
}

func (e *Engine) clockOf() *Clock {
	if e.clock != nil {
		return e.clock
	}
	return &e.ownClock
}
