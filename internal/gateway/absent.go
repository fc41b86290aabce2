package gateway

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/ask"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/keeper"
)

// absentees are the engines whose last load poll found nobody. When one of them answers again, its breaker need not sit out its
// cool-down: traffic returns within a poll interval of the engine's health, and still by one request first.
type absentees struct {
	registry *fleet.Registry
	log      *slog.Logger
	mu       struct {
		sync.Mutex
		gone map[string]bool
	}
}

// polled takes in one poll. An answer of any kind shows that somebody is there.
func (a *absentees) polled(p keeper.PollInfo) {
	a.mu.Lock()
	was := a.mu.gone[p.ID]
	switch {
	case !errors.Is(p.Err, ask.ErrUnreachable):
		delete(a.mu.gone, p.ID)
	case a.mu.gone == nil:
		a.mu.gone = map[string]bool{p.ID: true}
	default:
		a.mu.gone[p.ID] = true
	}
	a.mu.Unlock()
	if was && p.Err == nil {
		a.log.Info("the engine answers again", "worker", p.ID)
		a.registry.Returned(p.ID, time.Now())
	}
}
