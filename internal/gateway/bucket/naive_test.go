package bucket_test

import (
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
)

// The rules of selection once more, as plainly as we can: slices are filtered and sorted anew for each pick, nothing is
// remembered but cursors. Where a policy draws at random the model takes the draws from the trace, and checks that they
// were ones that the rules allow.

type naiveGroup struct {
	stage   fleet.Stage
	members []string // nil: all
	name    string   // of the policy
	limits  policy.Limits
	cursor  int // round_robin: picks; load_based: ties
}

type naiveBucket struct {
	id     string
	rank   int64
	limit  bucket.Range
	groups []*naiveGroup // one, or prefill and decode
}

// has tells whether a worker belongs to the group, live or not.
func (g *naiveGroup) has(w *fleet.Worker) bool {
	return w.Stage == g.stage && slices.Contains(w.Models, "m") && (g.members == nil || slices.Contains(g.members, w.ID))
}

// candidates filters a slice of workers as Group does: the way that Set and Mask replace.
func (g *naiveGroup) candidates(reg *fleet.Registry, workers []*fleet.Worker, r *bucket.Request) []*fleet.Worker {
	members, admitting := 0, 0
	member := g.has
	for _, w := range workers {
		if member(w) {
			members++
			if reg.Admits(w, r.Now) {
				admitting++
			}
		}
	}
	floored := 2*admitting < members
	var out []*fleet.Worker
	for _, w := range workers {
		if member(w) && !slices.Contains(r.Exclude, w.ID) && (reg.Admits(w, r.Now) || floored && w.Load.Report(r.Now) != nil) {
			out = append(out, w)
		}
	}
	return out
}

// naiveResult is one group's pick.
type naiveResult struct {
	engine  *fleet.Worker
	class   policy.Class // if engine is nil
	refused []policy.Rejection
}

// pick works the group's pick out. looked are the engines that the policy says it looked at, in order.
func (g *naiveGroup) pick(cs []*fleet.Worker, now time.Time, looked []*fleet.Worker) (naiveResult, error) {
	if len(cs) == 0 {
		return naiveResult{class: policy.NoCandidates}, nil
	}
	switch g.name {
	case "round_robin":
		start := g.cursor % len(cs)
		g.cursor++
		return g.firstAdmitted(append(slices.Clone(cs[start:]), cs[:start]...), now), nil
	case "random":
		seen := map[*fleet.Worker]bool{}
		for i, w := range looked {
			if seen[w] || !slices.Contains(cs, w) {
				return naiveResult{}, fmt.Errorf("draw %d is %s, again or no candidate", i, w)
			}
			seen[w] = true
		}
		r := g.firstAdmitted(looked, now)
		if r.engine == nil && len(looked) < len(cs) || r.engine != nil && r.engine != looked[len(looked)-1] {
			return r, fmt.Errorf("%d of %d candidates were drawn, ending with the wrong one", len(looked), len(cs))
		}
		return r, nil
	case "power_of_two":
		return g.powerOfTwo(cs, now, looked)
	}
	return g.leastLoad(cs, now), nil
}

func (g *naiveGroup) firstAdmitted(order []*fleet.Worker, now time.Time) naiveResult {
	r := naiveResult{class: policy.NoAdmissibleEngine}
	for _, w := range order {
		limit := violated(g.limits, w, now)
		if limit == policy.NoLimit {
			return naiveResult{engine: w}
		}
		r.refused = append(r.refused, policy.Rejection{Engine: w, Limit: limit})
	}
	return r
}

func (g *naiveGroup) powerOfTwo(cs []*fleet.Worker, now time.Time, looked []*fleet.Worker) (naiveResult, error) {
	best := cs[0]
	if len(cs) > 1 {
		if len(looked) != 2 || looked[0] == looked[1] || !slices.Contains(cs, looked[0]) || !slices.Contains(cs, looked[1]) {
			return naiveResult{}, fmt.Errorf("sampled %v of %v, want two different candidates", looked, cs)
		}
		best = looked[0]
		if lighter(g.stage, looked[1], looked[0], now) {
			best = looked[1]
		}
	}
	if limit := violated(g.limits, best, now); limit != policy.NoLimit {
		return naiveResult{class: policy.AdmissionRejected, refused: []policy.Rejection{{Engine: best, Limit: limit}}}, nil
	}
	return naiveResult{engine: best}, nil
}

// lighter tells whether a is under strictly less pressure than b.
func lighter(stage fleet.Stage, a, b *fleet.Worker, now time.Time) bool {
	r, s := a.Load.Report(now), b.Load.Report(now)
	if r.Native() && s.Native() {
		pairs := [][2]load.Count{{r.QueueMicros, s.QueueMicros}, {r.WaitingUncached, s.WaitingUncached}, {r.Waiting, s.Waiting}, {r.Running, s.Running}}
		if stage == fleet.Decode {
			// The figures of these fleets are small: the products are exact.
			use := [2]load.Count{load.Known(number(r.Used) * number(s.Capacity)), load.Known(number(s.Used) * number(r.Capacity))}
			pairs = [][2]load.Count{{r.Waiting, s.Waiting}, {r.Running, s.Running}, use, {r.Used, s.Used}}
		}
		for _, p := range pairs {
			if p[0].IsKnown() && p[1].IsKnown() && p[0] != p[1] {
				return number(p[0]) < number(p[1])
			}
		}
	}
	return a.Load.Active() < b.Load.Active()
}

func (g *naiveGroup) leastLoad(cs []*fleet.Worker, now time.Time) naiveResult {
	all := true
	for _, w := range cs {
		all = all && w.Load.Report(now).Basic()
	}
	figure := func(w *fleet.Worker) [2]int64 {
		n := w.Load.Active()
		if r := w.Load.Report(now); all {
			n = number(r.Running) + number(r.Waiting) + w.Load.DispatchedSince(r.At)
		}
		return [2]int64{n, w.Load.Active()}
	}
	var admitted []*fleet.Worker
	r := naiveResult{class: policy.NoAdmissibleEngine}
	for _, w := range cs {
		if limit := violated(g.limits, w, now); limit != policy.NoLimit {
			r.refused = append(r.refused, policy.Rejection{Engine: w, Limit: limit})
		} else {
			admitted = append(admitted, w)
		}
	}
	if len(admitted) == 0 {
		return r
	}
	sort.SliceStable(admitted, func(i, j int) bool {
		a, b := figure(admitted[i]), figure(admitted[j])
		return a[0] < b[0] || a[0] == b[0] && a[1] < b[1]
	})
	ties := 1
	for ties < len(admitted) && figure(admitted[ties]) == figure(admitted[0]) {
		ties++
	}
	if ties == 1 {
		return naiveResult{engine: admitted[0]}
	}
	g.cursor++
	return naiveResult{engine: admitted[(g.cursor-1)%ties]}
}

func violated(l policy.Limits, w *fleet.Worker, now time.Time) policy.Limit {
	r := w.Load.Report(now)
	if r == nil {
		r = &load.Report{}
	}
	for _, c := range []struct {
		metric load.Count
		limit  *int64
		name   policy.Limit
	}{
		{r.Running, l.MaxRunningRequests, policy.MaxRunningRequests}, {r.Waiting, l.MaxWaitingRequests, policy.MaxWaitingRequests},
		{r.Total, l.MaxKVTokens, policy.MaxKVTokens}, {r.WaitingUncached, l.MaxPendingPrefillTokens, policy.MaxPendingPrefillTokens},
		{load.Known(w.Load.Active()), l.MaxInflightRequests, policy.MaxInflightRequests},
	} {
		if c.limit != nil && c.metric.IsKnown() && number(c.metric) >= *c.limit {
			return c.name
		}
	}
	return policy.NoLimit
}

func number(c load.Count) int64 {
	n, _ := c.Get()
	return n
}

// fitting are the buckets that take the lengths, in the order in which they are tried.
func fitting(bs []*naiveBucket, input int64, peak load.Count) []*naiveBucket {
	const unbounded = 1<<63 - 1
	or := func(n int64) int64 {
		if n == 0 {
			return unbounded
		}
		return n
	}
	var fit []*naiveBucket
	for _, b := range bs {
		need := input
		if peak.IsKnown() {
			need = number(peak)
		}
		if b.limit.MinInput <= input && input <= or(b.limit.MaxInput) && need <= or(b.limit.MaxContext) {
			fit = append(fit, b)
		}
	}
	sort.Slice(fit, func(i, j int) bool {
		a, b := fit[i], fit[j]
		ca, cb := min(or(a.limit.MaxInput), or(a.limit.MaxContext)), min(or(b.limit.MaxInput), or(b.limit.MaxContext))
		switch {
		case ca != cb:
			return ca < cb
		case a.rank != b.rank:
			return a.rank < b.rank
		}
		return a.id < b.id
	})
	return fit
}
