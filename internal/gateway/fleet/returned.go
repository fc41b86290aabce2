package fleet

import "time"

// Returned says that an engine which had been gone answers again. What opened its breaker is over then, so the next dispatch
// may probe it at once instead of after the cool-down. It does nothing to a breaker that is not open, or an unknown id.
func (r *Registry) Returned(id string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.mu.workers[id]
	if w == nil {
		return
	}
	w.breaker.gone = false
	if w.breaker.get() == Open {
		w.breaker.openedAt = now.Add(-r.breakers.CoolDown)
	}
}

// Missed says that a poll found nobody at the engine. Its last load report, though fresh, says nothing any more of whether it is up.
func (r *Registry) Missed(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.mu.workers[id]; w != nil {
		w.breaker.gone = true
	}
}
