package replay

import (
	"context"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// plainCost takes the engine with the least sum of queued and own uncached work, as its last report has the queue and the prefix source
// the prompt; equal ones by lot. It is the form that routers publish, with what the gateway's cost policy adds left out:
// nothing corrects the report for what was sent since, or for the time that has passed, and no report is an empty queue.
type plainCost struct {
	source prefix.Source
	seed   uint64
}

func (*plainCost) Name() string { return PlainCost }

func (p *plainCost) Pick(ctx context.Context, c *fleet.Set, r *policy.Request) (policy.Pick, error) {
	if c.Len() == 0 {
		return policy.Pick{}, &policy.PickError{Class: policy.NoCandidates, Stage: r.Stage}
	}
	m, _, err := r.Prefix.Lookup(ctx, p.source)
	if err != nil {
		return policy.Pick{}, err
	}
	var best *fleet.Worker
	var least, lot uint64
	for w := range c.All() {
		tokens := r.InputTokens - int64(m.Of(w.No).Any())
		if report := w.Load.Report(r.Now); report != nil {
			queued, _ := report.WaitingUncached.Get()
			tokens += queued
		}
		// The engines of a replay are alike, so tokens compare as seconds do.
		n, h := uint64(max(tokens, 0)), keyed(p.seed, forChoice, r.Key, uint64(w.No))
		if best == nil || n < least || (n == least && h < lot) {
			best, least, lot = w, n, h
		}
	}
	return policy.Pick{Engine: best, Rank: policy.NoRank, Reason: "least_work"}, nil
}
