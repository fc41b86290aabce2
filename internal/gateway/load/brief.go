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

func (e *Engine) renewBrief() {
	e.mu.Lock()
	defer e.mu.Unlock()
	b := &e.brief
	b.stale.Store(false)
	r := e.report.Load()
	if !r.Basic() {
		b.until.Store(math.MinInt64)
		return
	}
	// Plus saturates: a report of absurd figures must not wrap round to the least load.
	n, _ := r.Waiting.Plus(r.Running).Plus(Known(e.dispatchedLocked(r.At))).Get()
	b.requests.Store(n)
	b.until.Store(Add(e.clockOf().Nanos(r.At), int64(e.fresh())))
}

func (e *Engine) clockOf() *Clock {
	if e.clock != nil {
		return e.clock
	}
	return &e.ownClock
}
