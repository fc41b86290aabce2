package replay

import (
	"context"
	"errors"
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// gateway is one gateway in virtual time: the real selection and accounting, without the HTTP around them.
type gateway struct {
	sim      *sim
	index    int
	resolver *bucket.Resolver
	registry *fleet.Registry
	tracker  *load.Tracker
	born     []int // which start of each engine the last report was of
	req      bucket.Request
	links    []link   // what it has heard of the engines' caches
	numbers  []uint32 // of the engines
	source   source
	memo     prefix.Memo
	peers    *peers // nil: nobody tells it anything
}

// someTokens stand for a prompt's: there must be some for a source to be asked, and ours does not read them.
var someTokens = []uint32{0}

func newGateway(s *sim, index int, c Contender, model string) (*gateway, error) {
	seed := keyed(s.o.Seed, forPolicy, uint64(index))
	g := &gateway{
		sim: s, index: index, registry: fleet.NewRegistry(s.o.Breaker, s.o.Freshness),
		tracker: &load.Tracker{}, born: make([]int, len(s.engines)), links: make([]link, len(s.engines)),
	}
	g.source.gateway = g
	if s.o.Peers {
		g.meet()
	}
	var err error
	if g.resolver, err = c.Build(model, seed, &Baselines{sim: s, gateway: g}); err != nil {
		return nil, err
	}
	for i := range s.res.Engines {
		id := s.res.Engines[i].ID
		w := g.registry.Put(fleet.Spec{ID: id, Kind: fleet.SGLang, Models: []string{model}, Ranks: 1})
		g.numbers = append(g.numbers, w.No)
		g.peers.knows(w.Load)
		g.links[i].holds = map[engine.BlockHash]struct{}{}
		if s.o.Reports != NoReports {
			// Each pair has its own phase, as in the gateway: engines are not asked all at once.
			phase := time.Duration(keyed(s.o.Seed, forPhase, uint64(index), uint64(i)) % uint64(s.o.ReportEvery))
			s.events.push(event{at: phase, kind: poll, gateway: int32(index), engine: int32(i)})
		}
	}
	return g, nil
}

// wall turns virtual time into the time that the gateway's core is told.
func wall(at time.Duration) time.Time { return time.Unix(0, int64(at)) }

// dispatch selects an engine for r and sends it there, as often as a request is tried.
func (g *gateway) dispatch(r *request) error {
	s := g.sim
	g.peers.expire(wall(s.now))
	g.memo.Reset(prefix.Query{Model: "model", Tokens: someTokens})
	for r.attempts < s.o.Attempts {
		g.req = bucket.Request{
			Key: r.number*uint64(DefaultAttempts) + uint64(r.attempts), Now: wall(s.now), InputTokens: int64(r.InputTokens),
			PeakTokens: load.Known(int64(r.InputTokens + r.OutputTokens)), Exclude: r.exclude, Prefix: &g.memo,
		}
		s.current = r
		sel, err := g.resolver.Select(context.Background(), g.registry.View(), &g.req)
		s.current = nil
		var broken *policy.PickError
		switch {
		case errors.As(err, &broken):
			return err // a fault of the policy or of its configuration
		case err != nil && r.attempts > 0:
			s.res.Lost++
			s.end(r, Lost, "no engine is left to try")
			return nil
		case err != nil:
			s.rejected(r, err)
			return nil
		case sel.PD():
			return ErrPD
		}
		if r.attempts++; r.attempts > 1 {
			s.res.Retries++
		}
		if done := g.send(r, &sel.Plain); done {
			return nil
		}
	}
	s.res.Lost++
	s.end(r, Lost, "every attempt failed")
	return nil
}

// send gives r to the engine that was picked. It returns false if the engine cannot be reached, so that another may be.
func (g *gateway) send(r *request, p *policy.Pick) (done bool) {
	s, w := g.sim, p.Engine
	e := s.engines[s.engineOf(w)]
	ticket, ok := g.registry.Claim(w, wall(s.now))
	if !ok && p.Floored {
		ticket, ok = g.registry.ClaimAnyway(w, wall(s.now)), true
	}
	if !ok {
		r.exclude = append(r.exclude, w.ID)
		return false
	}
	r.ticket = ticket
	r.guard = g.tracker.Acquire(w.Load, wall(s.now), load.StagePrefill, int64(r.InputTokens), nil)
	if n, ok := p.Uncached.Get(); ok {
		r.guard.Computes(n, false)
	}
	if e.core == nil {
		g.release(r, fleet.Absent)
		r.exclude = append(r.exclude, w.ID)
		return false
	}
	if err := e.submit(r); err != nil {
		outcome := fleet.Success // a refusal of a request that can never be served says nothing against the engine
		if errors.Is(err, engine.ErrQueueFull) {
			outcome = fleet.Neutral
		}
		g.release(r, outcome)
		s.rejected(r, err)
		return true
	}
	s.tell(r, Dispatched, 0, string(p.Reason))
	return true
}

// release takes r off the accounts of its engine.
func (g *gateway) release(r *request, o fleet.Outcome) {
	r.guard.Release()
	g.registry.Done(r.ticket, o, wall(g.sim.now))
}

// poll asks the engine for its load, and schedules the answer and the next poll.
func (g *gateway) poll(e *simEngine, n uint64) {
	s := g.sim
	s.events.push(event{at: s.now + s.o.ReportEvery, kind: poll, gateway: int32(g.index), engine: int32(e.index), stamp: n + 1})
	if e.core == nil {
		return
	}
	s.res.ReportsSent++
	if s.o.EventLoss > 0 && unit(keyed(s.o.Seed, forLoss, uint64(g.index), uint64(e.index), n)) < s.o.EventLoss {
		s.res.ReportsLost++
		return
	}
	delay := s.o.EventDelay + s.o.ReportDelay
	ev := event{at: s.now + delay, kind: answer, gateway: int32(g.index), engine: int32(e.index), report: e.report(s.now)}
	ev.stamp = uint64(e.born)
	if delay > 0 {
		s.events.push(ev)
		return
	}
	g.observe(e, &ev)
}

// observe takes an answer in. The first one of a new process makes the gateway forget what the old one said.
func (g *gateway) observe(e *simEngine, ev *event) {
	w := g.registry.View().Get(g.sim.res.Engines[e.index].ID)
	switch born := int(ev.stamp); {
	case born < g.born[e.index]:
		return // it was under way while the engine restarted
	case born > g.born[e.index]:
		g.born[e.index] = born
		w.Load.Forget()
	}
	w.Load.Observe(0, *ev.report)
}

// report is what the engine tells of its load.
func (e *simEngine) report(now time.Duration) *load.RankReport {
	l := e.core.Load()
	k := func(n int) load.Count { return load.Known(int64(n)) }
	r := &load.RankReport{
		At: wall(now), Running: k(l.Running), Waiting: k(l.Waiting), Used: k(l.UsedTokens), Capacity: k(l.CapacityTokens),
	}
	if e.sim.o.Reports == SGLangReports {
		r.WaitingUncached, r.Total, r.MaxRunning = k(l.WaitingUncachedTokens), k(l.TotalTokens), k(l.MaxRunning)
		r.PrefillTokens, r.PrefillBusy = load.Known(l.PrefillUncachedTokens), load.Known(l.PrefillBusy.Microseconds())
	}
	return r
}
