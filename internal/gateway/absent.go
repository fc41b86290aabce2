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
// So are those to which the way was lost: a poll got no connection in its time, or a new one ended without an answer, as with a host that starts, or
// a proxy before one. Of these an answer counts only over a new connection, since an engine that is too busy to accept goes on answering over
// one that it has. One that takes connections and is slow to answer, or breaks requests off, is not among them: its cool-down stands.
type absentees struct {
	registry *fleet.Registry
	log      *slog.Logger

	mu   sync.Mutex
	gone map[string]absence // guarded by mu
}

// absence is how an engine was missed.
type absence struct {
	at   time.Time // last
	lost bool      // only in that the way to it was lost
}

// missed takes down that nobody was there.
func (a *absentees) missed(id string, now time.Time) { a.note(id, absence{at: now}) }

func (a *absentees) note(id string, how absence) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if before, was := a.gone[id]; was && !before.lost {
		how.lost = false
	}
	a.gone[id] = how
	if v := a.registry.View(); len(a.gone) > v.Len() { // some have left for good
		maps.DeleteFunc(a.gone, func(id string, _ absence) bool { return v.Get(id) == nil })
	}
}

// polled takes in one poll.
func (a *absentees) polled(p keeper.PollInfo) {
	if errors.Is(p.Err, ask.ErrNoConnection) {
		a.missed(p.ID, p.At)
		a.registry.Missed(p.ID)
		return
	}
	if p.Lost {
		a.note(p.ID, absence{at: p.At, lost: true})
		return
	}
	a.mu.Lock()
	how, was := a.gone[p.ID]
	back := was && p.Err == nil && p.At.After(how.at) && (p.Fresh || !how.lost) // an answer to a question from before says nothing
	if back {
		delete(a.gone, p.ID)
	}
	a.mu.Unlock()
	if back {
		a.log.Info("the engine answers again", "worker", p.ID)
		a.registry.Returned(p.ID, time.Now())
	}
}
