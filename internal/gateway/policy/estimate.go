package policy

import (
	"math"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// estimate is what cost reckons of one candidate.
type estimate struct {
	observed
	now               time.Time
	requests          int64 // that it has, as far as is known
	matched, uncached int64 // tokens
	known, blind      bool
	rate              float64 // tokens a second; 0: not known
	prefill           load.Prefill
	foreign           float64 // tokens of others that waited at the time of the report; negative: not known
	restore           float64 // seconds
	cost              float64 // seconds
}

// read reads one candidate's load, and what it holds.
func (p *Cost) read(e *estimate, w *fleet.Worker, m *prefix.Match, known bool, r *Request) (lapses int64) {
	l := w.Load.Look(r.Now)
	*e = estimate{observed: observed{engine: w, report: l.Report, inFlight: l.Active}, requests: l.Active, prefill: l.Prefill}
	if l.Report != nil {
		if n, ok := l.Report.PrefillRate.Get(); ok {
			e.rate = float64(n)
		}
		if n, ok := l.Report.Waiting.Plus(l.Report.Running).Get(); ok {
			e.requests = load.Add(n, l.Dispatched)
		}
	}
	e.requests = load.Add(e.requests, e.prefill.OthersSince)
	e.foreign = e.waitingOfOthers()
	e.ask(m, known, p.config.Costs, r)
	return l.Lapses
}

// ask adds what depends on the request: when it is, and what of it the candidate holds.
func (e *estimate) ask(m *prefix.Match, known bool, costs *prefix.Costs, r *Request) {
	e.now, e.known, e.blind, e.restore = r.Now, known, m.IsBlind(e.engine.No), 0
	e.hold(m.Of(e.engine.No), costs, r)
}

// waitingOfOthers is the waiting uncached tokens of the report less those that this gateway, and those that tell it what they send, had waiting
// there then: what they have in prefill still, but for what they sent since and for the prompt that the engine had begun.
func (e *estimate) waitingOfOthers() float64 {
	if e.report == nil {
		return -1
	}
	all, ok := e.report.WaitingUncached.Get()
	if !ok {
		return -1
	}
	mine := e.prefill.Tokens - e.prefill.Since
	if !e.prefill.HeadAt.After(e.report.At) {
		mine -= e.prefill.Head
	}
	return float64(max(all-max(mine, 0), 0))
}

// hold works out what is left to compute, and what the rest takes to restore.
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

// weigh turns what was read into costs. What one candidate lacks it gets from the others.
func (p *Cost) weigh(list []estimate) {
	var rate, foreign mean
	for i := range list {
		if e := &list[i]; e.rate > 0 {
			rate.add(e.rate)
		}
		if e := &list[i]; e.foreign >= 0 {
			foreign.add(e.foreign)
		}
	}
	usual := rate.or(p.config.PrefillRate)
	for i := range list {
		list[i].weigh(usual, foreign.or(0))
	}
}

// weigh turns what was read of one into its cost, with the others' means.
func (e *estimate) weigh(usual, foreign float64) {
	rate := e.rate
	if rate <= 0 || (rate < usual*alike && rate > usual/alike) {
		rate = usual
	}
	if e.foreign >= 0 {
		foreign = e.foreign
	}
	e.cost = (e.queue(rate, foreign)+ownWeight*float64(e.uncached))/rate + e.restore
}

// queue is the tokens that the engine has to compute before, by its rate and by what others had there at the time of the report.
func (e *estimate) queue(rate, others float64) float64 {
	if e.report != nil && others > 0 {
		others = max(others-rate*max(e.now.Sub(e.report.At).Seconds(), 0), 0)
	}
	return float64(e.prefill.Left(e.now, rate)) + others
}

func (e *estimate) considered() Considered {
	c := e.observed.considered()
	c.Blind, c.Uncached = e.blind, load.Known(e.uncached)
	if e.known && (!e.blind || e.matched > 0) {
		c.Matched = load.Known(e.matched)
	}
	if us := e.cost * 1e6; us < math.MaxInt64/2 {
		c.Score = load.Known(int64(math.Round(us)))
	}
	return c
}

// mean is the mean of what is known.
type mean struct{ sum, n float64 }

func (m *mean) add(v float64) { m.sum, m.n = m.sum+v, m.n+1 }

func (m *mean) or(v float64) float64 {
	if m.n == 0 {
		return v
	}
	return m.sum / m.n
}
