package fleet

import "time"

// Returned says that an engine which had been gone answers again. What opened its breaker is over then, so the next dispatch
// may probe it at once instead of after the cool-down. It does nothing to a breaker that is not open, or an unknown id, and nothing that a breaker has not
// room for: an engine that comes and goes gets [maxReturns] probes in a minute by this, and no more.
// It tells whether it ended a cool-down.
func (r *Registry) Returned(id string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.mu.workers[id]
	if w == nil {
		return false
	}
	w.breaker.gone = false
	if w.breaker.admits(now, r.breakers) || w.breaker.get() != Open || !w.breaker.mayReturn(now) {
		return false
	}
	w.breaker.openedAt = now.Add(-r.breakers.CoolDown)
	return true
}

const (
	// maxReturns is how many cool-downs are ended early within returnWindow. A restart is one; three leave room for one that fails at first.
	maxReturns   = 3
	returnWindow = time.Minute
)

// mayReturn takes one of the returns that there are, and tells whether there was one.
func (b *breaker) mayReturn(now time.Time) bool {
	oldest := &b.returns[b.returned%maxReturns]
	if b.returned >= maxReturns && now.Sub(*oldest) < returnWindow {
		return false
	}
	*oldest = now
	b.returned++
	return true
}

// Missed says that a poll found nobody at the engine. Its last load report, though fresh, says nothing any more of whether it is up.
func (r *Registry) Missed(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.mu.workers[id]; w != nil {
		w.breaker.gone = true
	}
}
