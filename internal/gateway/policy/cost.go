package policy

import (
	"context"
	"math"
	"sync"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// CostConfig tunes [Cost]. The zero value has no source: it compares queues alone.
type CostConfig struct {
	// Source knows who holds which prefix; nil: nobody does.
	Source prefix.Source
	// Costs is what restores from lower tiers take; nil: not known, and what lies there is worth nothing.
	Costs *prefix.Costs
	// PrefillRate, in tokens a second, is taken for all engines while none has a rate; 0: [NominalRate].
	PrefillRate float64
}

// Cost picks the candidate where the request costs least, in seconds:
//
//	queue + 1.2 · uncached prefill + restore from lower tiers
//
// Queue is what the engine has to prefill before, at its own rate. What this gateway has sent itself is taken from its own accounts,
// which know of each prompt whether it has its first token and so never lag behind a report; to it comes what others sent, as the
// last report has it: the waiting uncached tokens beyond ours, less what the engine has had time to compute since.
//
// Uncached prefill is the input less what the engine holds, and the last token is always computed. It weighs a little more than the queue,
// since it is time that the requests behind will wait too.
//
// Restore is the [prefix.Costs] of what the engine holds below its device, tier by tier from the prompt's beginning; at the first
// tier without a record that counts the credit ends.
//
// What is not known is never zero, and no reason to be chosen or shunned. An engine whose prefill rate is not known has the mean of those
// that are, and so has one whose rate is not half of it or twice as much: rates of equal machines differ by what they happened to compute, and the one
// that looks fastest would get everything. One whose queue is not reported has the mean of the others' foreign queues. One of which the source is
// blind has to compute what it is not known to hold for certain. Where the source is away, or the request has no token facts, queues decide alone.
//
// Costs within a twentieth of the least, or 5 ms, are equal. Of the engines that are, two are drawn and the one with fewer requests
// is taken: in a burst the fewest requests of all would be the same engine for every gateway until the next report.
//
// Admission is asked of every candidate, and those that it refuses are left out; NoAdmissibleEngine if that is all of them.
type Cost struct {
	config CostConfig
	limits Limits
	seed   uint64
	none   prefix.Match // stays empty
	spare  sync.Pool    // *[]estimate
	memo   costMemo
}

// NewCost returns the policy. Its random choices are fixed by the seed and each request's key.
func NewCost(seed uint64, l Limits, c CostConfig) *Cost {
	if c.PrefillRate <= 0 {
		c.PrefillRate = NominalRate
	}
	p := &Cost{config: c, limits: l, seed: seed}
	p.spare.New = func() any { return new([]estimate) }
	return p
}

var _ Policy = (*Cost)(nil)

// Name implements Policy.
func (p *Cost) Name() string { return "cost" }

const (
	// NominalRate stands in while no engine's prefill rate is known, in tokens a second: that of a model of 70 billion parameters on
	// eight A100. While all engines have it queues and prompts compare as they do in tokens; it matters against restores only.
	NominalRate = 8000
	// ownWeight is what the request's own prefill weighs. From 1.2 to 2 it makes no difference in replay beyond a hundredth, at 1 and from 3
	// on it is a hundredth or two worse.
	ownWeight = 1.2
	// tieShare and tieSeconds say which costs are equal: what a step of an engine takes is not known any better.
	tieShare, tieSeconds = 0.05, 0.005
	// alike is the factor within which prefill rates are one. A step's fixed cost makes an engine that serves from its cache look half as
	// fast as its twin. In replay 1.1 costs a quarter with eight gateways, which all run after the one that looks fastest.
	alike = 2
	// worthRemembering is the candidates up to which reckoning with all is no more work than remembering some.
	worthRemembering = 16
)

// Pick implements Policy.
func (p *Cost) Pick(ctx context.Context, c *fleet.Set, r *Request) (Pick, error) {
	if r.Stage == fleet.Decode {
		return Pick{}, &PickError{Class: InvalidConfiguration, Stage: r.Stage, Detail: "cost cannot pick a decode engine: it reckons with prefill alone"}
	}
	if c.Len() == 0 {
		return Pick{}, &PickError{Class: NoCandidates, Stage: r.Stage}
	}
	m, known, err := lookup(ctx, p.config.Source, r, &p.none)
	if err != nil {
		return Pick{}, err
	}
	if c.Len() > worthRemembering && c.Watched() {
		if pick, ok := p.memo.pick(&costPick{p: p, c: c, r: r, m: m, known: known, now: c.Nanos(r.Now)}); ok {
			return pick, nil
		}
	}
	return p.lookAtAll(c, r, m, known)
}

// lookAtAll reckons what every candidate costs.
func (p *Cost) lookAtAll(c *fleet.Set, r *Request, m *prefix.Match, known bool) (Pick, error) {
	room := p.spare.Get().(*[]estimate)
	list := (*room)[:0]
	for w := range c.All() {
		list = append(list, estimate{})
		p.read(&list[len(list)-1], w, m, known, r)
	}
	p.weigh(list)
	pick, err := p.choose(list, r)
	clear(list)
	*room = list
	p.spare.Put(room)
	return pick, err
}

// choose takes the least cost that admission lets in.
func (p *Cost) choose(list []estimate, r *Request) (Pick, error) {
	var refused []Rejection
	least := math.Inf(1)
	for i := range list {
		e := &list[i]
		r.Trace.consider(e.considered())
		if limit := p.limits.Check(e.engine, e.report); limit != NoLimit {
			refused = append(refused, Rejection{Engine: e.engine, Limit: limit})
			e.cost = math.Inf(1)
		}
		least = min(least, e.cost)
	}
	if len(refused) == len(list) {
		return Pick{}, &PickError{Class: NoAdmissibleEngine, Stage: r.Stage, Rejections: refused}
	}
	return p.amongEqual(list, least+max(tieShare*least, tieSeconds), r).pick(r), nil
}

func (e *estimate) pick(r *Request) Pick {
	if r.Trace != nil {
		r.Trace.picked(e.considered())
	}
	return picks(e.engine, e.uncached)
}

func picks(w *fleet.Worker, uncached int64) Pick {
	return Pick{Engine: w, Rank: NoRank, Reason: ReasonLeastCost, Uncached: load.Known(uncached)}
}

// amongEqual draws two of those that cost no more than most, and takes the one with fewer requests.
func (p *Cost) amongEqual(list []estimate, most float64, r *Request) *estimate {
	n := 0
	for i := range list {
		if list[i].cost <= most {
			list[n], list[i] = list[i], list[n]
			n++
		}
	}
	d := newDraw(p.seed, r.Key, r.Stage)
	best := &list[d.intN(n)]
	if other := &list[d.intN(n)]; other.requests < best.requests {
		best = other
	}
	return best
}
