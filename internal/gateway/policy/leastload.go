package policy

import (
	"context"
	"sync/atomic"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/load"
)

// LeastLoad (load_based in the configuration) picks the candidate with the least load among those that admission lets in.
//
// An engine's load is its waiting and running requests plus what this gateway has dispatched to it since that report and
// still has in flight; but only if every candidate has a fresh report, otherwise it is what this gateway has in flight, for
// all. Equal loads are told apart by the requests in flight here, and what is still equal takes turns.
type LeastLoad struct {
	limits Limits
	turn   atomic.Uint64
}

// NewLeastLoad returns the policy.
func NewLeastLoad(l Limits) *LeastLoad { return &LeastLoad{limits: l} }

var _ Policy = (*LeastLoad)(nil)

// Name implements Policy.
func (p *LeastLoad) Name() string { return "load_based" }

// Pick implements Policy. It passes over the candidates twice and keeps a list only of those that admission refuses.
func (p *LeastLoad) Pick(_ context.Context, c *fleet.Set, r *Request) (Pick, error) {
	if c.Len() == 0 {
		return Pick{}, &PickError{Class: NoCandidates, Stage: r.Stage}
	}
	reported := true
	for w := range c.All() {
		reported = reported && w.Load.Report(r.Now).Basic()
	}
	var (
		best    leastSoFar
		refused []Rejection
	)
	for w := range c.All() {
		s := score(w, r, reported)
		r.Trace.consider(s.considered())
		if limit := p.limits.Check(w, s.report); limit != NoLimit {
			refused = append(refused, Rejection{Engine: w, Limit: limit})
			continue
		}
		best.add(s)
	}
	if best.ties == 0 {
		return Pick{}, &PickError{Class: NoAdmissibleEngine, Stage: r.Stage, Rejections: refused}
	}
	why := ReasonLeastLocally
	if reported {
		why = ReasonLeastLoad
	}
	least := best.least
	if best.ties > 1 {
		least = p.takeTurns(c, r, best, reported)
	}
	r.Trace.picked(least.considered())
	return Pick{Engine: least.engine, Rank: NoRank, Reason: why}, nil
}

// score reads an engine's load. A report can be withdrawn between two passes; what this gateway knows itself then stands in.
func score(w *fleet.Worker, r *Request, reported bool) scored {
	report := w.Load.Report(r.Now)
	s := scored{engine: w, report: report, inFlight: w.Load.Active()}
	s.load = s.inFlight
	if reported && report.Basic() {
		// Plus saturates: a report of absurd figures must not wrap round to the least load.
		n := report.Waiting.Plus(report.Running).Plus(load.Known(w.Load.DispatchedSince(report.At)))
		s.load, _ = n.Get()
	}
	return s
}

// takeTurns picks among the candidates that share the least load. They are counted again, so that the tie needs no list; if
// the load moved meanwhile the first least one stands.
func (p *LeastLoad) takeTurns(c *fleet.Set, r *Request, best leastSoFar, reported bool) scored {
	skip := int((p.turn.Add(1) - 1) % uint64(best.ties))
	for w := range c.All() {
		s := score(w, r, reported)
		if s.load != best.least.load || s.inFlight != best.least.inFlight || p.limits.Check(w, s.report) != NoLimit {
			continue
		}
		if skip == 0 {
			return s
		}
		skip--
	}
	return best.least
}

type scored struct {
	engine         *fleet.Worker
	report         *load.Report
	load, inFlight int64
}

func (s scored) considered() Considered {
	return Considered{Engine: s.engine, Report: s.report, InFlight: s.inFlight, Score: load.Known(s.load)}
}

// leastSoFar is the least of what was added, and how many share it.
type leastSoFar struct {
	least scored
	ties  int
}

func (l *leastSoFar) add(s scored) {
	switch {
	case l.ties == 0, s.load < l.least.load, s.load == l.least.load && s.inFlight < l.least.inFlight:
		l.least, l.ties = s, 1
	case s.load == l.least.load && s.inFlight == l.least.inFlight:
		l.ties++
	}
}
