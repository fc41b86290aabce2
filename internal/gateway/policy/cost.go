package policy

import (
	"context"
	"math"
	"sync"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// Cost picks the candidate where the request costs least, in seconds.
type Cost struct {
	limits Limits
	seed   uint64
	source prefix.Source
	costs  *prefix.Costs
	pool   sync.Pool // *[]estimate
}

// NewCost returns the policy.
func NewCost(seed uint64, l Limits, s prefix.Source, costs *prefix.Costs) *Cost {
	p := &Cost{limits: l, seed: seed, source: s, costs: costs}
	p.pool.New = func() any { return new([]estimate) }
	return p
}

var _ Policy = (*Cost)(nil)

// Name implements Policy.
func (p *Cost) Name() string { return "cost" }

// nominalRate stands in where no candidate has a prefill rate.
const nominalRate = 8000

// ownWeight is how much the request's own work counts.
var ownWeight = 1.2

// estimate is what the policy reckons of one candidate.
type estimate struct {
	engine   *fleet.Worker
	report   *load.Report
	inFlight int64
	matched  int64
	uncached int64
	blind    bool
	rate     float64 // tokens a second; 0: unknown
	prefill  load.Prefill
	queue    float64 // tokens; negative: unknown
	restore  float64 // seconds
	cost     float64
}

// Pick implements Policy.
func (p *Cost) Pick(ctx context.Context, c *fleet.Set, r *Request) (Pick, error) {
	if r.Stage == fleet.Decode {
		return Pick{}, &PickError{Class: InvalidConfiguration, Stage: r.Stage, Detail: "a prefix saves prefill work only"}
	}
	if c.Len() == 0 {
		return Pick{}, &PickError{Class: NoCandidates, Stage: r.Stage}
	}
	m, known, err := lookup(ctx, p.source, r)
	if err != nil {
		return Pick{}, err
	}
	room := p.pool.Get().(*[]estimate)
	defer p.pool.Put(room)
	list := (*room)[:0]
	for w := range c.All() {
		list = append(list, p.read(w, m, r))
	}
	*room = list
	weigh(list, r)
	_ = known
	d := newDraw(p.seed, r.Key, r.Stage)
	var best *estimate
	var refused []Rejection
	ties := 0
	for i := range list {
		e := &list[i]
		r.Trace.consider(e.considered())
		if limit := p.limits.Check(e.engine, e.report); limit != NoLimit {
			refused = append(refused, Rejection{Engine: e.engine, Limit: limit})
			continue
		}
		switch {
		case best == nil || e.cost < best.cost:
			best, ties = e, 1
		case e.cost == best.cost:
			if ties++; d.intN(ties) == 0 {
				best = e
			}
		}
	}
	if best == nil {
		return Pick{}, &PickError{Class: NoAdmissibleEngine, Stage: r.Stage, Rejections: refused}
	}
	r.Trace.picked(best.considered())
	return Pick{Engine: best.engine, Rank: NoRank, Reason: "least_cost", Uncached: load.Known(best.uncached)}, nil
}

func (p *Cost) read(w *fleet.Worker, m *prefix.Match, r *Request) estimate {
	e := estimate{engine: w, report: w.Load.Report(r.Now), inFlight: w.Load.Active(), blind: m.IsBlind(w.No), queue: -1}
	if e.report != nil {
		e.prefill = w.Load.Prefill(e.report.At)
		if n, ok := e.report.PrefillRate.Get(); ok && n > 0 {
			e.rate = float64(n)
		}
	} else {
		e.prefill = w.Load.Prefill(r.Now)
	}
	e.hold(m.Of(w.No), p.costs, r)
	return e
}

func (e *estimate) hold(d prefix.Depth, costs *prefix.Costs, r *Request) {
	most := max(r.InputTokens-1, 0) // the last token is always computed
	e.matched = min(int64(d.Any()), most)
	have := min(int64(d[prefix.Device]), most)
	if have < e.matched {
		records := costs.Of(e.engine.No)
		for t := prefix.Host; t < prefix.Tiers; t++ {
			deep := min(int64(d[t]), most)
			if deep <= have {
				continue
			}
			seconds, ok := records[t].Restore(deep-have, r.Now)
			if !ok {
				break
			}
			e.restore += seconds
			have = deep
		}
	}
	e.uncached = r.InputTokens - have
}

func weigh(list []estimate, r *Request) {
	rates, rated := 0.0, 0
	for i := range list {
		if list[i].rate > 0 {
			rates += list[i].rate
			rated++
		}
	}
	prior := float64(nominalRate)
	if rated > 0 {
		prior = rates / float64(rated)
	}
	for i := range list {
		e := &list[i]
		if e.rate == 0 {
			e.rate = prior
		}
		q := e.wait(r)
		e.cost = q/e.rate + e.restore + ownWeight*float64(e.uncached)/e.rate
	}
}

// wait is the tokens before this one.
func (e *estimate) wait(r *Request) float64 {
	own := float64(e.prefill.Left(r.Now, e.rate))
	if e.report == nil {
		return own
	}
	w, ok := e.report.WaitingUncached.Get()
	if !ok {
		return own
	}
	mine := float64(e.prefill.Tokens - e.prefill.Since) // sent before the report
	if !e.prefill.HeadAt.After(e.report.At) {
		mine -= float64(e.prefill.Head)
	}
	others := max(float64(w)-max(mine, 0)-e.rate*r.Now.Sub(e.report.At).Seconds(), 0)
	return own + others
}

func (e *estimate) considered() Considered {
	us := e.cost * 1e6
	c := Considered{Engine: e.engine, Report: e.report, InFlight: e.inFlight, Blind: e.blind, Score: load.Known(int64(math.Min(us, math.MaxInt64/2)))}
	c.Matched, c.Uncached = load.Known(e.matched), load.Known(e.uncached)
	return c
}
