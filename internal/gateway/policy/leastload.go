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
	memo   leastMemo
}

// NewLeastLoad returns the policy.
func NewLeastLoad(l Limits) *LeastLoad { return &LeastLoad{limits: l} }

var _ Policy = (*LeastLoad)(nil)

// Name implements Policy.
func (p *LeastLoad) Name() string { return "load_based" }

// Pick implements Policy. It looks anew at those candidates only whose block has one that has changed; see leastMemo. Where that cannot be known, or nobody
// can be picked, it looks at all.
func (p *LeastLoad) Pick(_ context.Context, c *fleet.Set, r *Request) (Pick, error) {
	if c.Len() == 0 {
		return Pick{}, &PickError{Class: NoCandidates, Stage: r.Stage}
	}
	k := leastLoadPick{c: c, r: r, now: c.Nanos(r.Now), reported: true}
	if c.Watched() {
		if least, ok := p.memo.pick(p, &k); ok {
			return k.done(least), nil
		}
		k.reported = true
	}
	return p.lookAtAll(&k)
}

// lookAtAll passes over the candidates twice, by what their load records have in brief, and keeps a list only of those that admission
// refuses. Admission is asked of those alone that would be the least so far: what it says of the others changes nothing, unless it refuses all, and then none is
// passed over.
func (p *LeastLoad) lookAtAll(k *leastLoadPick) (Pick, error) {
	c, r := k.c, k.r
	for _, e := range c.Loads() {
		if _, ok := e.Requests(k.now); !ok {
			k.reported = false
			break
		}
	}
	k.trace()
	var (
		best    leastSoFar
		refused []Rejection
	)
	for i, e := range c.Loads() {
		s := k.score(i, e)
		if best.ties > 0 && best.least.less(s) {
			continue
		}
		if limit := p.check(c.Worker(i), r); limit != NoLimit {
			refused = append(refused, Rejection{Engine: c.Worker(i), Limit: limit})
			continue
		}
		best.add(s)
	}
	if best.ties == 0 {
		return Pick{}, &PickError{Class: NoAdmissibleEngine, Stage: r.Stage, Rejections: refused}
	}
	least := best.least
	if best.ties > 1 {
		least = p.takeTurns(k, best)
	}
	return k.done(least), nil
}

// done is the pick of the candidate.
func (k *leastLoadPick) done(least scored) Pick {
	why := ReasonLeastLocally
	if k.reported {
		why = ReasonLeastLoad
	}
	engine := k.c.Worker(least.at)
	if k.r.Trace != nil {
		k.r.Trace.picked(k.considered(engine, least))
	}
	return Pick{Engine: engine, Rank: NoRank, Reason: why}
}

// check asks admission of one engine.
func (p *LeastLoad) check(w *fleet.Worker, r *Request) Limit {
	if p.limits.None() {
		return NoLimit
	}
	return p.limits.Check(w, w.Load.Report(r.Now))
}

// takeTurns picks among the candidates that share the least load. They are counted again, so that the tie needs no list; if
// the load moved meanwhile the first least one stands.
func (p *LeastLoad) takeTurns(k *leastLoadPick, best leastSoFar) scored {
	skip := int((p.turn.Add(1) - 1) % uint64(best.ties))
	for i, e := range k.c.Loads() {
		s := k.score(i, e)
		if s.load != best.least.load || s.inFlight != best.least.inFlight || p.check(k.c.Worker(i), k.r) != NoLimit {
			continue
		}
		if skip == 0 {
			return s
		}
		skip--
	}
	return best.least
}

// leastLoadPick is one pick under way.
type leastLoadPick struct {
	c        *fleet.Set
	r        *Request
	now      int64 // on the clock of the load records
	reported bool  // every candidate has a fresh report
}

// score reads an engine's load. A report can be withdrawn between two passes; what this gateway knows itself then stands in.
func (k *leastLoadPick) score(i int, e *load.Engine) scored {
	s := scored{at: i, inFlight: e.Active()}
	s.load = s.inFlight
	if k.reported {
		if n, ok := e.Requests(k.now); ok {
			s.load = n
		}
	}
	return s
}

// trace takes down the first candidates, as many as there is room for.
func (k *leastLoadPick) trace() {
	t := k.r.Trace
	if t == nil {
		return
	}
	n := 0
	for i, e := range k.c.Loads() {
		if len(t.Considered) == cap(t.Considered) {
			break
		}
		t.consider(k.considered(k.c.Worker(i), k.score(i, e)))
		n++
	}
	t.Omitted += k.c.Len() - n
}

func (k *leastLoadPick) considered(w *fleet.Worker, s scored) Considered {
	return Considered{Engine: w, Report: w.Load.Report(k.r.Now), InFlight: s.inFlight, Score: load.Known(s.load)}
}

// scored is the load of the candidate that the set has at a place.
type scored struct {
	at             int
	load, inFlight int64
}

// less tells whether s is strictly under less load than o.
func (s scored) less(o scored) bool {
	return s.load < o.load || s.load == o.load && s.inFlight < o.inFlight
}

// leastSoFar is the least of what was added, and how many share it.
type leastSoFar struct {
	least scored
	ties  int
}

func (l *leastSoFar) add(s scored) {
	switch {
	case l.ties == 0, s.less(l.least):
		l.least, l.ties = s, 1
	case s.load == l.least.load && s.inFlight == l.least.inFlight:
		l.ties++
	}
}
