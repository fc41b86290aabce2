package gateway

import (
	"errors"
	"log/slog"
	"maps"
	"net/http"
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
// one that it has. So are those before which a proxy stood that said so, with a 502, 503 or 504. One that takes connections and is slow to answer, or breaks requests off, is
// not among them: its cool-down stands.
//
// A restart may be over before anybody is missed. It is seen in that another process answers, by what that says of itself or by the end of the connection that the
// one before had kept, and is a return, too. How many returns count in a minute is the registry's to bound.
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
	switch {
	case errors.Is(p.Err, ask.ErrNoConnection), saysAbsent(p.Err):
		a.missed(p.ID, p.At)
		a.registry.Missed(p.ID)
	case p.Lost:
		a.note(p.ID, absence{at: p.At, lost: true})
	case p.Err != nil && p.Renewed: // it begins
		a.missed(p.ID, p.At)
	case p.Err == nil:
		a.answered(p)
	}
}

// answered takes in a poll that was answered.
func (a *absentees) answered(p keeper.PollInfo) {
	a.mu.Lock()
	how, was := a.gone[p.ID]
	back := was && p.At.After(how.at) && (p.Fresh || !how.lost) // an answer to a question from before says nothing
	if back {
		delete(a.gone, p.ID)
	}
	a.mu.Unlock()
	if back || p.Renewed {
		a.returned(p.ID)
	}
}

// returned takes down that an engine is there again.
func (a *absentees) returned(id string) {
	if a.registry.Returned(id, time.Now()) {
		a.log.Info("the engine answers again, and is probed", "worker", id)
	}
}

// saysAbsent tells whether err is the answer of a proxy at whose back nobody is.
func saysAbsent(err error) bool {
	status, ok := errors.AsType[*ask.StatusError](err)
	return ok && status.Code >= http.StatusBadGateway && status.Code <= http.StatusGatewayTimeout
}
