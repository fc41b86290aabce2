package bucket

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
)

// Group is the engines of one role in one bucket, with their policy. Make one with [NewGroup].
type Group struct {
	model   string
	stage   fleet.Stage
	members []string // sorted ids; nil: every engine of the model and role
	policy  policy.Policy

	mask atomic.Pointer[fleet.Mask] // of the last view seen; membership is worked out once a view
	pool sync.Pool                  // *scratch
}

// scratch is what a pick needs and what would otherwise be allocated for each.
type scratch struct {
	set fleet.Set
	req policy.Request
}

// NewGroup returns the group of the model's engines that have the role and, unless members is nil, one of these ids. An
// empty list that is not nil means no engines. The policy belongs to this group alone.
func NewGroup(model string, stage fleet.Stage, members []string, p policy.Policy) *Group {
	g := &Group{model: model, stage: stage, policy: p}
	if members != nil {
		g.members = append([]string{}, members...) // never nil: an empty list is not a missing one
		slices.Sort(g.members)
	}
	g.pool.New = func() any { return new(scratch) }
	return g
}

// Policy returns the group's policy.
func (g *Group) Policy() policy.Policy { return g.policy }

// Stage returns the group's role.
func (g *Group) Stage() fleet.Stage { return g.stage }

// Accepts tells whether the worker belongs to the group, live or not.
func (g *Group) Accepts(w *fleet.Worker) bool {
	if w.Stage != g.stage || !w.Serves(g.model) {
		return false
	}
	if g.members == nil {
		return true
	}
	_, found := slices.BinarySearch(g.members, w.ID)
	return found
}

// Members returns how many workers of the view belong to the group, live or not.
func (g *Group) Members(v *fleet.View) int { return g.maskOf(v).Len() }

// Live returns how many of the group's workers may be used at the request's time.
func (g *Group) Live(v *fleet.View, r *Request) int {
	s := g.pool.Get().(*scratch)
	defer g.put(s)
	s.set.Fill(*g.maskOf(v), r.Now, r.Exclude)
	return s.set.Len()
}

// Pick has the policy pick one of the group's live workers, less those that the request excludes. The error is a *policy.PickError,
// or what else a policy returns: the error of a context that ended while it waited.
func (g *Group) Pick(ctx context.Context, v *fleet.View, bucket string, r *Request) (policy.Pick, error) {
	s := g.pool.Get().(*scratch)
	defer g.put(s)
	s.set.Fill(*g.maskOf(v), r.Now, r.Exclude)
	t := r.Trace.begin(bucket, g.stage, g.policy.Name(), s.set.Len())
	if s.set.Len() == 0 {
		return policy.Pick{}, t.failed(&policy.PickError{Class: policy.NoCandidates, Stage: g.stage})
	}
	s.req = policy.Request{
		Model: g.model, Bucket: bucket, Stage: g.stage, Key: r.Key, Now: r.Now,
		InputTokens: r.InputTokens, PeakTokens: r.PeakTokens, Prefix: r.Prefix, Trace: t.policyTrace(),
	}
	p, err := g.policy.Pick(ctx, &s.set, &s.req)
	if err != nil {
		return policy.Pick{}, t.failed(err)
	}
	if !s.set.Has(p.Engine) {
		return policy.Pick{}, t.failed(&policy.PickError{
			Class: policy.OutsideCandidates, Stage: g.stage,
			Detail: g.policy.Name() + " returned an engine that was not among its candidates",
		})
	}
	p.Floored = s.set.Floored()
	t.picked(p)
	return p, nil
}

func (g *Group) maskOf(v *fleet.View) *fleet.Mask {
	if m := g.mask.Load(); m != nil && m.View() == v {
		return m
	}
	m := v.Mask(g.Accepts)
	g.mask.Store(&m)
	return &m
}

func (g *Group) put(s *scratch) {
	s.set.Reset()
	s.req = policy.Request{}
	g.pool.Put(s)
}
