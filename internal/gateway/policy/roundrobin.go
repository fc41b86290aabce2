package policy

import (
	"context"
	"sync/atomic"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
)

// RoundRobin gives each candidate its turn, in the order of ids. The cursor belongs to this instance, hence to one role group.
// An engine that admission refuses passes its turn on; if all are refused the pick fails with NoAdmissibleEngine.
type RoundRobin struct {
	limits Limits
	cursor atomic.Uint64
}

// NewRoundRobin returns a rotation that starts at the first candidate.
func NewRoundRobin(l Limits) *RoundRobin { return &RoundRobin{limits: l} }

var _ Policy = (*RoundRobin)(nil)

// Name implements Policy.
func (p *RoundRobin) Name() string { return "round_robin" }

// Pick implements Policy.
func (p *RoundRobin) Pick(_ context.Context, c *fleet.Set, r *Request) (Pick, error) {
	if c.Len() == 0 {
		return Pick{}, &PickError{Class: NoCandidates, Stage: r.Stage}
	}
	start := int((p.cursor.Add(1) - 1) % uint64(c.Len()))
	return firstAdmitted(c, r, &p.limits, start, ReasonRotation)
}

// firstAdmitted goes round the candidates once from start and takes the first that admission lets in.
func firstAdmitted(c *fleet.Set, r *Request, l *Limits, start int, why Reason) (Pick, error) {
	var refused []Rejection
	for i := range c.Len() {
		w := c.At((start + i) % c.Len())
		o := observe(w, r)
		limit := l.Check(w, o.report)
		if limit == NoLimit {
			r.Trace.picked(o.considered())
			return Pick{Engine: w, Rank: NoRank, Reason: why}, nil
		}
		refused = append(refused, Rejection{Engine: w, Limit: limit})
	}
	return Pick{}, &PickError{Class: NoAdmissibleEngine, Stage: r.Stage, Rejections: refused}
}
