package policy

import (
	"context"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// Policy picks one of a group's candidates.
type Policy interface {
	// Name returns the policy's name in configuration and metrics.
	Name() string
	// Pick returns one of the candidates, which it does not keep, or a *PickError. The context bounds what a policy may
	// have to wait for (a remote look-up); those that only read memory ignore it.
	Pick(ctx context.Context, candidates *fleet.Set, r *Request) (Pick, error)
}

// Request is what a policy may know of a request: facts, no services. It is not kept.
type Request struct {
	// Model is the base model, Bucket the bucket that asks, Stage the group's role.
	Model, Bucket string
	Stage         fleet.Stage
	// Key identifies the request and its attempt; with the policy's seed and the stage it fixes every random choice.
	Key uint64
	// Now is the time of the pick.
	Now time.Time
	// InputTokens is the length of the longest prompt in tokens, at least 1.
	InputTokens int64
	// PeakTokens is input plus requested output; unknown where the request sets no bound.
	PeakTokens load.Count
	// Prefix remembers what prefix sources said of the request, through all buckets and attempts; nil: there are no token facts,
	// and every look-up is a miss.
	Prefix *prefix.Memo
	// Trace takes down what the policy looked at; nil: nobody wants to know.
	Trace *Trace
}

// NoRank stands where a pick leaves the data-parallel rank to the engine.
const NoRank = -1

// Pick is a policy's answer.
type Pick struct {
	// Floored says that breakers did not count, since too few candidates would have been left: the dispatch is claimed anyway. The group
	// sets it, not the policy.
	Floored bool
	Engine  *fleet.Worker
	// Rank is the data-parallel rank, or NoRank.
	Rank int
	// Reason says why this engine, for metrics and the decision log.
	Reason Reason
	// Uncached is how much of the prompt the policy expects the engine to compute, in tokens; unknown where it did not look.
	Uncached load.Count
}

// Reason says which rule of a policy decided. The set is small: it labels a metric.
type Reason string

// The reasons of the policies of this package.
const (
	ReasonRotation     Reason = "rotation"       // round_robin: its turn
	ReasonUniform      Reason = "uniform"        // random
	ReasonOnly         Reason = "only_candidate" // there was no choice
	ReasonPressure     Reason = "lower_pressure" // the engines' own reports decided
	ReasonInflight     Reason = "fewer_in_flight"
	ReasonTie          Reason = "tie" // nothing told the candidates apart
	ReasonLeastLoad    Reason = "least_load"
	ReasonLeastLocally Reason = "least_in_flight" // load_based without everybody's report

	ReasonCache     Reason = "cache_candidate"    // cache_aware: it holds enough of the prompt
	ReasonSaturated Reason = "saturation_pin"     // cache_aware: it holds enough, and nobody is free
	ReasonNoHolder  Reason = "no_cache_candidate" // cache_aware: a miss
	ReasonLeastCost Reason = "least_cost"         // cost
)

// Trace takes down a pick for the decision log: the first candidates that the policy looked at and the one that it picked,
// with the signals it saw, within a bound that the owner sets. It belongs to one request.
type Trace struct {
	// Considered are in the order in which the policy looked; its capacity is the bound. The one that was picked is among
	// them: in the last place, if it came beyond the bound.
	Considered []Considered
	// Omitted counts those that are not kept.
	Omitted int
	// Source is the prefix source that the policy asked; empty: none. SourceErr is why it did not answer; nil: it did.
	Source    string
	SourceErr error
}

// Considered is one candidate as a policy saw it.
type Considered struct {
	Engine *fleet.Worker
	// Report is what the engine last said of itself; nil: nothing that is fresh and complete.
	Report *load.Report
	// InFlight is what this gateway had in flight there.
	InFlight int64
	// Score is the figure that was compared, where the policy has a single one.
	Score load.Count
	// Matched is how much of the prompt the engine holds on any tier, and Uncached what it would have to compute, in tokens; unknown
	// where the policy does not ask, or where its source does not know.
	Matched, Uncached load.Count
	// Blind tells that the engine may hold more than that: the source cannot say.
	Blind bool
}

// consider adds a candidate if somebody wants to know and there is room.
func (t *Trace) consider(c Considered) {
	if t == nil {
		return
	}
	if len(t.Considered) == cap(t.Considered) {
		t.Omitted++
		return
	}
	t.Considered = append(t.Considered, c)
}

// picked sees to it that the candidate which was picked is kept, as the policy saw it when it decided. It is considered already.
func (t *Trace) picked(c Considered) {
	if t == nil || t.Omitted == 0 || len(t.Considered) == 0 {
		return
	}
	for i := range t.Considered {
		if t.Considered[i].Engine == c.Engine {
			return
		}
	}
	t.Considered[len(t.Considered)-1] = c
}
