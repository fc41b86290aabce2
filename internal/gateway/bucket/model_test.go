package bucket_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/fleettest"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
	"github.com/perigee-llm/perigee/internal/script"
)

// TestSelectAgainstRules makes random fleets and buckets, lets time pass over them, and selects. Each selection must be what
// the rules in naive_test.go give, error and refusals included, and a second resolver of the same buckets that nobody
// traces must select the same for the same keys.
func TestSelectAgainstRules(t *testing.T) {
	rng := script.Rand(t)
	seen := map[string]int{}
	for range 300 {
		m := newMetropolis(rng)
		for range 40 {
			m.live(rng)
			m.selectBoth(t, rng, seen)
		}
	}
	for _, o := range []string{"plain", "pair", "exhausted: full", "exhausted: missing", "no bucket", "invalid signal", "second bucket"} {
		if seen[o] < 20 {
			t.Errorf("the random fleets led to %q %d times of %v: the test does not reach it", o, seen[o], seen)
		}
	}
}

// metropolis is a random fleet with the same buckets three times: traced, not traced, and as rules.
type metropolis struct {
	reg            *fleet.Registry
	tracker        load.Tracker
	guards         []*load.Guard
	now            time.Time
	rules          []*naiveBucket
	traced, silent *bucket.Resolver
	trace          *bucket.Trace
	ids            []string
}

func newMetropolis(rng *rand.Rand) *metropolis {
	m := &metropolis{
		reg: fleet.NewRegistry(fleet.BreakerConfig{Threshold: 1, CoolDown: 5 * time.Second}, 0), now: fleettest.Epoch, trace: bucket.NewTrace(64),
	}
	for i := range 1 + rng.IntN(14) {
		m.ids = append(m.ids, fmt.Sprintf("e%d", i))
		m.register(rng, m.ids[i])
	}
	for i := range 1 + rng.IntN(5) {
		m.rules = append(m.rules, m.newBucket(rng, i))
	}
	for _, r := range []**bucket.Resolver{&m.traced, &m.silent} {
		var bs []*bucket.Bucket
		for _, b := range m.rules {
			bs = append(bs, b.build())
		}
		var err error
		if *r, err = bucket.NewResolver(bs); err != nil {
			panic(err)
		}
	}
	return m
}

func (m *metropolis) register(rng *rand.Rand, id string) {
	m.reg.Put(fleet.Spec{
		ID: id, Stage: fleet.Stage(rng.IntN(3)), Models: [][]string{{"m"}, {"m"}, {"m", "n"}, {"n"}}[rng.IntN(4)], Ranks: 1 + rng.IntN(2),
	})
}

func (m *metropolis) newBucket(rng *rand.Rand, i int) *naiveBucket {
	b := &naiveBucket{id: fmt.Sprintf("b%d", (i*3)%5), rank: rng.Int64N(3)}
	if rng.IntN(3) > 0 {
		b.limit.MaxInput = 1 + rng.Int64N(4)*100
	}
	if rng.IntN(3) == 0 {
		b.limit.MaxContext = 1 + rng.Int64N(6)*100
	}
	if rng.IntN(4) == 0 {
		b.limit.MinInput = rng.Int64N(100)
	}
	if rng.IntN(2) == 0 {
		b.groups = []*naiveGroup{m.newGroup(rng, fleet.Plain)}
	} else {
		b.groups = []*naiveGroup{m.newGroup(rng, fleet.Prefill), m.newGroup(rng, fleet.Decode)}
	}
	return b
}

func (m *metropolis) newGroup(rng *rand.Rand, stage fleet.Stage) *naiveGroup {
	g := &naiveGroup{stage: stage, name: []string{"round_robin", "random", "power_of_two", "load_based"}[rng.IntN(4)]}
	switch rng.IntN(6) {
	case 0:
		g.members = []string{}
	case 1, 2, 3:
		g.members = []string{"never registered"}
		for _, id := range m.ids {
			if rng.IntN(2) == 0 {
				g.members = append(g.members, id)
			}
		}
	}
	limit := func() *int64 {
		if rng.IntN(3) > 0 {
			return nil
		}
		n := rng.Int64N(4)
		return &n
	}
	g.limits = policy.Limits{
		MaxRunningRequests: limit(), MaxWaitingRequests: limit(), MaxKVTokens: limit(), MaxPendingPrefillTokens: limit(), MaxInflightRequests: limit(),
	}
	if rng.IntN(2) == 0 {
		g.limits = policy.Limits{}
	}
	return g
}

func (b *naiveBucket) build() *bucket.Bucket {
	var gs []*bucket.Group
	for _, g := range b.groups {
		gs = append(gs, bucket.NewGroup("m", g.stage, g.members, newPolicy(g.name, 7, g.limits)))
	}
	if len(gs) == 1 {
		return bucket.NewPlain(b.id, b.rank, b.limit, gs[0])
	}
	return bucket.NewPD(b.id, b.rank, b.limit, gs[0], gs[1])
}

// live lets something happen in the fleet.
func (m *metropolis) live(rng *rand.Rand) {
	m.now = m.now.Add(time.Duration(rng.IntN(1200)) * time.Millisecond)
	for range 1 + rng.IntN(3) {
		id := m.ids[rng.IntN(len(m.ids))]
		w := m.reg.View().Get(id)
		if w == nil {
			m.register(rng, id)
			continue
		}
		switch rng.IntN(12) {
		case 0:
			m.register(rng, id)
		case 1:
			m.reg.Remove(id)
		case 2:
			if t, ok := m.reg.Claim(w, m.now); ok {
				m.reg.Done(t, []fleet.Outcome{fleet.Success, fleet.Failure, fleet.Neutral, fleet.Cancelled}[rng.IntN(4)], m.now)
			}
		case 3, 4:
			m.guards = append(m.guards, m.tracker.Acquire(w.Load, m.now, load.StagePrefill, 1, nil))
		case 5, 6:
			if len(m.guards) > 0 {
				m.guards[rng.IntN(len(m.guards))].Release()
			}
		default:
			for rank := range w.Ranks {
				w.Load.Observe(rank, randomReport(rng, m.now))
			}
		}
	}
}

func randomReport(rng *rand.Rand, now time.Time) load.RankReport {
	count := func() load.Count {
		if rng.IntN(15) == 0 {
			return load.Count{}
		}
		return load.Known(rng.Int64N(4))
	}
	return load.RankReport{
		At: now, Running: count(), Waiting: count(), WaitingUncached: count(), Used: count(), Total: count(), Capacity: count(),
		MaxRunning: count(), PrefillTokens: load.Known(now.Sub(fleettest.Epoch).Milliseconds()), PrefillBusy: count(),
	}
}

func (m *metropolis) selectBoth(t *testing.T, rng *rand.Rand, seen map[string]int) {
	t.Helper()
	r := bucket.Request{Key: rng.Uint64(), Now: m.now, InputTokens: 1 + rng.Int64N(400)}
	if rng.IntN(2) == 0 {
		r.PeakTokens = load.Known(r.InputTokens - 5 + rng.Int64N(300))
	}
	for range rng.IntN(3) {
		r.Exclude = append(r.Exclude, m.ids[rng.IntN(len(m.ids))])
	}
	v := m.reg.View()
	silent, silentErr := m.silent.Select(context.Background(), v, &r)
	m.trace.Reset()
	r.Trace = m.trace
	got, err := m.traced.Select(context.Background(), v, &r)
	if !sameSelection(&got, &silent) || fmt.Sprint(err) != fmt.Sprint(silentErr) {
		t.Fatalf("traced: %s\nnot traced: %s", outcome(&got, err), outcome(&silent, silentErr))
	}
	want := m.follow(t, v, &r)
	wantSelection(t, want, &got, err)
	for _, f := range want.reached {
		seen[f]++
	}
}

// followed is what the rules lead to.
type followed struct {
	bucket  string
	engines []*fleet.Worker
	refused []policy.Rejection
	missing fleet.Stage
	reached []string
}

// follow applies the rules, with the trace of the real selection for the random draws. Every try of the trace is one of the
// rules', in the same order.
func (m *metropolis) follow(t *testing.T, v *fleet.View, r *bucket.Request) followed {
	t.Helper()
	if r.PeakTokens.IsKnown() && number(r.PeakTokens) < r.InputTokens {
		return followed{reached: []string{"invalid signal"}}
	}
	fit, tries := fitting(m.rules, r.InputTokens, r.PeakTokens), m.trace.Tries()
	if len(fit) == 0 {
		return followed{reached: []string{"no bucket"}}
	}
	var f followed
	var missing []lacking
	workers := slices.Collect(v.All())
	for i, b := range fit {
		f.engines = nil
		for _, g := range b.groups {
			if len(tries) == 0 || tries[0].Bucket != b.id || tries[0].Stage != g.stage || tries[0].Policy != g.name {
				t.Fatalf("the rules try %s of %s next; the selection has %+v", g.stage, b.id, tries)
			}
			cs := g.candidates(m.reg, workers, r)
			if tries[0].Candidates != len(cs) {
				t.Fatalf("%s of %s had %d candidates, want %v", g.stage, b.id, tries[0].Candidates, cs)
			}
			p, err := g.pick(cs, r.Now, lookedAt(&tries[0]))
			if err != nil {
				t.Fatalf("%s of %s, %s: %v", g.stage, b.id, g.name, err)
			}
			tries = tries[1:]
			f.refused = append(f.refused, p.refused...)
			if p.engine == nil {
				if p.class == policy.NoCandidates {
					missing = append(missing, lacking{b, g.stage})
				}
				break
			}
			f.engines = append(f.engines, p.engine)
		}
		if len(f.engines) == len(b.groups) {
			f.bucket, f.reached = b.id, []string{[]string{"plain", "pair"}[len(b.groups)-1]}
			if i > 0 {
				f.reached = append(f.reached, "second bucket")
			}
			break
		}
	}
	if len(tries) > 0 {
		t.Fatalf("the selection went on after the rules were done: %+v", tries)
	}
	if f.bucket == "" && len(f.refused) > 0 {
		f.reached = []string{"exhausted: full"}
	} else if f.bucket == "" {
		f.reached = []string{"exhausted: missing"}
	}
	f.missing = mostTelling(missing, workers)
	return f
}

// lacking is a bucket that had no candidates for a stage.
type lacking struct {
	bucket *naiveBucket
	stage  fleet.Stage
}

// mostTelling is the stage of the last bucket that has engines, else of the last plain one, else of the last.
func mostTelling(list []lacking, workers []*fleet.Worker) fleet.Stage {
	for _, counts := range []func(lacking) bool{
		func(l lacking) bool {
			return slices.ContainsFunc(workers, func(w *fleet.Worker) bool {
				return slices.ContainsFunc(l.bucket.groups, func(g *naiveGroup) bool { return g.has(w) })
			})
		},
		func(l lacking) bool { return len(l.bucket.groups) == 1 },
		func(lacking) bool { return true },
	} {
		for _, l := range slices.Backward(list) {
			if counts(l) {
				return l.stage
			}
		}
	}
	return fleet.Plain
}

func lookedAt(y *bucket.Try) (ws []*fleet.Worker) {
	for _, c := range y.Looked.Considered {
		ws = append(ws, c.Engine)
	}
	return ws
}

func wantSelection(t *testing.T, want followed, got *bucket.Selection, err error) {
	t.Helper()
	if want.bucket != "" {
		var engines []*fleet.Worker
		for _, p := range []policy.Pick{got.Plain, got.Prefill, got.Decode} {
			if p.Engine != nil {
				engines = append(engines, p.Engine)
			}
		}
		if err != nil || got.Bucket.ID() != want.bucket || !slices.Equal(engines, want.engines) || got.PD() != (len(engines) == 2) {
			t.Fatalf("selected %s, want %s: %v", outcome(got, err), want.bucket, want.engines)
		}
		return
	}
	if *got != (bucket.Selection{}) {
		t.Fatalf("an error and a selection: %s", outcome(got, err))
	}
	var (
		pick      *policy.PickError
		exhausted *bucket.ExhaustedError
	)
	switch {
	case slices.Contains(want.reached, "no bucket") && errors.Is(err, bucket.ErrNoMatchingBucket):
	case slices.Contains(want.reached, "invalid signal") && errors.As(err, &pick) && pick.Class == policy.InvalidSignal:
	case errors.As(err, &exhausted) && exhausted.Missing == want.missing && slices.Equal(exhausted.Rejections, want.refused):
		wantCounts(t, exhausted)
	default:
		t.Fatalf("error %v; want %+v", err, want)
	}
}

// wantCounts holds ByLimit against counting in a map.
func wantCounts(t *testing.T, e *bucket.ExhaustedError) {
	t.Helper()
	engines := map[policy.Limit]map[string]bool{}
	for _, r := range e.Rejections {
		if engines[r.Limit] == nil {
			engines[r.Limit] = map[string]bool{}
		}
		engines[r.Limit][r.Engine.ID] = true
	}
	var want []bucket.LimitCount
	for l := policy.NoLimit; l <= policy.MaxInflightRequests; l++ {
		if len(engines[l]) > 0 {
			want = append(want, bucket.LimitCount{Limit: l, Engines: len(engines[l])})
		}
	}
	if d := cmp.Diff(want, e.ByLimit()); d != "" {
		t.Fatalf("ByLimit (- want, + got):\n%s", d)
	}
}

// sameSelection compares selections of two resolvers, whose buckets are twins.
func sameSelection(a, b *bucket.Selection) bool {
	if (a.Bucket == nil) != (b.Bucket == nil) || a.Bucket != nil && a.Bucket.ID() != b.Bucket.ID() {
		return false
	}
	return a.Plain == b.Plain && a.Prefill == b.Prefill && a.Decode == b.Decode
}
