package gateway

import (
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/ask"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/keeper"
)

// absentees are the engines that a load poll or a request found nobody at. When one of them answers a poll again, its breaker need
// not sit out its cool-down: traffic returns within a poll interval of the engine's health, and still by one request first.
// An engine that takes connections is not among them, whether it breaks requests off or is slow to answer a poll: its cool-down stands.
type absentees struct {
	registry *fleet.Registry
	log      *slog.Logger

	mu   sync.Mutex
	gone map[string]time.Time // guarded by mu: when they were last missed
}

// missed takes down that nobody was there.
func (a *absentees) missed(id string, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gone[id] = now
	if v := a.registry.View(); len(a.gone) > v.Len() { // some have left for good
		maps.DeleteFunc(a.gone, func(id string, _ time.Time) bool { return v.Get(id) == nil })
	}
}

// polled takes in one poll.
func (a *absentees) polled(p keeper.PollInfo) {
	if errors.Is(p.Err, ask.ErrNoConnection) {
		a.missed(p.ID, p.At)
		a.registry.Missed(p.ID)
		return
	}
	a.mu.Lock()
	since, was := a.gone[p.ID]
	back := was && p.Err == nil && p.At.After(since) // an answer to a question from before says nothing
	if back {
		delete(a.gone, p.ID)
	}
	a.mu.Unlock()
	if back {
		a.log.Info("the engine answers again", "worker", p.ID)
		a.registry.Returned(p.ID, time.Now())
	}
}
