package policy_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/fleettest"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/script"
)

// naiveCache is cache_aware written out step by step over lists, with everything anew at each step.
type naiveCache struct {
	c       policy.CacheAwareConfig
	limits  policy.Limits
	view    *fleet.View
	engines []naiveEngine // by id
	input   int64
	steps   map[string]int // how often each rule decided
}

type naiveEngine struct {
	w        *fleet.Worker
	r        *load.Report
	inFlight int64
	uncached int64
}

// decide returns "id reason", "class: id=limit …", or for a miss "miss: " and the pool.
func (n *naiveCache) decide(m *prefix.Match) string {
	hits := n.hits(m)
	var open, gated []naiveEngine
	for _, h := range hits {
		if n.gate(h) {
			open = append(open, h)
		} else {
			gated = append(gated, h)
		}
	}
	reason := "cache_candidate"
	if len(open) == 0 && len(gated) > 0 && n.c.QueueFloor == 0 && !slices.ContainsFunc(n.engines, n.gate) {
		open, gated, reason = gated, nil, "saturation_pin"
	}
	var admitted []naiveEngine
	var refused []string
	ask := func(e naiveEngine) bool {
		limit := n.limits.Check(e.w, e.r)
		if limit != policy.NoLimit {
			refused = append(refused, e.w.ID+"="+limit.String())
		}
		return limit == policy.NoLimit
	}
	for _, h := range open {
		if ask(h) {
			admitted = append(admitted, h)
		}
	}
	if len(admitted) > 0 {
		if reason == "saturation_pin" {
			n.steps["lifted"]++
		}
		return n.step(n.tournament(open, admitted).w.ID + " " + reason)
	}
	idle := slices.ContainsFunc(n.engines, func(e naiveEngine) bool {
		w, ok := waitingOf(e)
		return ok && w < n.c.QueueFloor
	})
	if n.c.QueueFloor > 0 && !idle && len(gated) > 0 {
		var pins []naiveEngine
		for _, h := range gated {
			if ask(h) {
				pins = append(pins, h)
			}
		}
		if len(pins) > 0 {
			slices.SortStableFunc(pins, n.byPressure(gated))
			n.steps["floor"]++
			if len(open) > 0 {
				n.steps["floor behind refused"]++
			}
			return n.step(pins[0].w.ID + " saturation_pin")
		}
	}
	if len(refused) > 0 {
		n.steps["refused"]++
		if reason == "saturation_pin" {
			n.steps["lifted and refused"]++
		}
		return n.step("no_admissible_engine: " + strings.Join(refused, " "))
	}
	pool := slices.DeleteFunc(slices.Clone(n.engines), func(e naiveEngine) bool { return !n.gate(e) })
	if len(pool) == 0 {
		pool = n.engines
	}
	return n.step(n.fallback(pool))
}

func (n *naiveCache) step(s string) string {
	n.steps[strings.TrimRight(strings.SplitAfterN(s, " ", 2)[len(strings.SplitAfterN(s, " ", 2))-1], "0123456789")]++
	return s
}

func waitingOf(e naiveEngine) (int64, bool) {
	if e.r == nil {
		return 0, false
	}
	return e.r.Waiting.Get()
}

func (n *naiveCache) gate(e naiveEngine) bool {
	w, ok := waitingOf(e)
	return n.c.QueueLimit == 0 || !ok || w < n.c.QueueLimit
}

func (n *naiveCache) hits(m *prefix.Match) []naiveEngine {
	var hits []naiveEngine
	for _, e := range n.engines {
		matched := min(int64(m.Of(e.w.No).Any()), n.input)
		if matched > 0 && matched >= n.c.MinMatched && float64(matched)/float64(n.input) >= n.c.MinRatio {
			e.uncached = n.input - matched
			hits = append(hits, e)
		}
	}
	pressure := n.byPressure(hits)
	slices.SortStableFunc(hits, func(a, b naiveEngine) int { return cmp.Or(cmp.Compare(a.uncached, b.uncached), pressure(a, b)) })
	limit := max(n.c.MinWorkers, int(math.Ceil(n.c.Ratio*float64(len(n.engines)))))
	return hits[:min(len(hits), limit, n.c.MaxWorkers)]
}

// byPressure compares by the figures that all of the list have, if all have native reports, then by what is in flight. Ids are the
// order of the list.
func (n *naiveCache) byPressure(list []naiveEngine) func(a, b naiveEngine) int {
	all := func(of func(*load.Report) load.Count) bool {
		return !slices.ContainsFunc(list, func(e naiveEngine) bool { return !of(e.r).IsKnown() })
	}
	var figures []func(*load.Report) load.Count
	if !slices.ContainsFunc(list, func(e naiveEngine) bool { return !e.r.Native() }) {
		for _, of := range []func(*load.Report) load.Count{
			func(r *load.Report) load.Count { return r.QueueMicros }, func(r *load.Report) load.Count { return r.WaitingUncached },
			func(r *load.Report) load.Count { return r.Waiting }, func(r *load.Report) load.Count { return r.Running },
		} {
			if all(of) {
				figures = append(figures, of)
			}
		}
	}
	return func(a, b naiveEngine) int {
		for _, of := range figures {
			x, _ := of(a.r).Get()
			y, _ := of(b.r).Get()
			if x != y {
				return cmp.Compare(x, y)
			}
		}
		return cmp.Or(cmp.Compare(a.inFlight, b.inFlight), strings.Compare(a.w.ID, b.w.ID))
	}
}

func (n *naiveCache) tournament(open, admitted []naiveEngine) naiveEngine {
	guard := n.c.Guard != nil && !slices.ContainsFunc(open, func(e naiveEngine) bool { return !e.r.Native() })
	winner := admitted[0]
	for _, c := range admitted[1:] {
		if c.uncached > admitted[0].uncached+n.c.SwitchMargin {
			continue
		}
		if guard && c.uncached-winner.uncached <= n.c.SwitchMargin && winner.uncached-c.uncached <= n.c.SwitchMargin {
			if n.materially(winner, c) {
				n.steps["guard"]++
				winner = c
				continue
			}
			if n.materially(c, winner) {
				continue
			}
		}
		if d := cmp.Or(cmp.Compare(winner.uncached, c.uncached), pairwise(winner, c), strings.Compare(winner.w.ID, c.w.ID)); d > 0 {
			n.steps["pairwise"]++
			winner = c
		}
	}
	return winner
}

// materially tells whether x is under materially more pressure than y.
func (n *naiveCache) materially(x, y naiveEngine) bool {
	g := n.c.Guard
	more := func(a, b load.Count, abs int64) bool {
		p, ok1 := a.Get()
		q, ok2 := b.Get()
		return ok1 && ok2 && p-q > abs && float64(p) > float64(q)*g.Rel
	}
	if g.AbsMicros != nil && x.r.QueueMicros.IsKnown() && y.r.QueueMicros.IsKnown() {
		return more(x.r.QueueMicros, y.r.QueueMicros, *g.AbsMicros)
	}
	if g.AbsMicros != nil {
		n.steps["guard by tokens for want of times"]++
	}
	return more(x.r.WaitingUncached, y.r.WaitingUncached, g.AbsTokens)
}

func pairwise(a, b naiveEngine) int {
	if a.r.Native() && b.r.Native() {
		for _, f := range [][2]load.Count{
			{a.r.QueueMicros, b.r.QueueMicros}, {a.r.WaitingUncached, b.r.WaitingUncached}, {a.r.Waiting, b.r.Waiting}, {a.r.Running, b.r.Running},
		} {
			x, ok1 := f[0].Get()
			y, ok2 := f[1].Get()
			if ok1 && ok2 && x != y {
				return cmp.Compare(x, y)
			}
		}
	}
	return cmp.Compare(a.inFlight, b.inFlight)
}

// fallback lists who may be picked on a miss.
func (n *naiveCache) fallback(pool []naiveEngine) string {
	var ids []string
	less := n.byPressure(pool)
	for _, e := range pool {
		better := func(o naiveEngine) bool {
			a, b := e, o
			a.w, b.w = &fleet.Worker{}, &fleet.Worker{} // ids decide nothing here
			return less(b, a) < 0
		}
		if n.c.Choices < len(pool) || !slices.ContainsFunc(pool, better) {
			ids = append(ids, e.w.ID)
		}
	}
	return "miss: " + strings.Join(ids, " ")
}

func TestCacheAwareAgainstAList(t *testing.T) {
	rng := script.Rand(t)
	steps := map[string]int{}
	for range 20_000 {
		n := randomCacheFleet(rng)
		n.steps = steps
		src := &source{held: map[uint32]prefix.Depth{}, blind: map[uint32]bool{}}
		for _, e := range n.engines {
			d := int32(rng.IntN(4) * rng.IntN(8) * 4)
			src.held[e.w.No] = prefix.Depth{d / 8 * 4, d, d, d}
			src.blind[e.w.No] = rng.IntN(10) == 0
		}
		src.held[1000] = prefix.Depth{8, 8, 8, 8} // somebody who is no candidate
		var m prefix.Match
		_ = src.Lookup(context.Background(), nil, &m)
		want := n.decide(&m)
		got, key := n.pick(policy.NewCacheAware(rng.Uint64(), n.limits, src, n.c), rng.Uint64())
		if !agrees(n, got, want) {
			t.Fatalf("key %d: got %q, want %q\n%s", key, got, want, n)
		}
	}
	for s, least := range map[string]int{
		"cache_candidate": 1000, "lifted": 50, "floor": 50, "guard": 50, "pairwise": 50, "refused": 50, "guard by tokens for want of times": 50, "lifted and refused": 10, "floor behind refused": 5,
	} {
		if steps[s] < least {
			t.Errorf("%s decided %d times: the test does not reach it (%v)", s, steps[s], steps)
		}
	}
}

// agrees compares, where a miss leaves a choice.
func agrees(n *naiveCache, got, want string) bool {
	pool, miss := strings.CutPrefix(want, "miss: ")
	if !miss {
		return got == want
	}
	for id := range strings.SplitSeq(pool, " ") {
		i := slices.IndexFunc(n.engines, func(e naiveEngine) bool { return e.w.ID == id })
		limit := n.limits.Check(n.engines[i].w, n.engines[i].r)
		if (limit == policy.NoLimit && got == id+" no_cache_candidate") || (limit != policy.NoLimit && got == "admission_rejected: "+id+"="+limit.String()) {
			return true
		}
	}
	return false
}

func (n *naiveCache) pick(p policy.Policy, key uint64) (string, uint64) {
	var s fleet.Set
	s.Fill(n.view.Mask(func(*fleet.Worker) bool { return true }), fleettest.Epoch, nil)
	got, err := p.Pick(context.Background(), &s, &policy.Request{Key: key, Now: fleettest.Epoch, InputTokens: n.input, Prefix: newMemo(true)})
	var pe *policy.PickError
	if errors.As(err, &pe) {
		var refused []string
		for _, r := range pe.Rejections {
			refused = append(refused, r.Engine.ID+"="+r.Limit.String())
		}
		return pe.Class.String() + ": " + strings.Join(refused, " "), key
	}
	if err != nil {
		return err.Error(), key
	}
	if u, ok := got.Uncached.Get(); ok && (u < 0 || u > n.input) {
		return fmt.Sprint("uncached ", u), key
	}
	return got.Engine.ID + " " + string(got.Reason), key
}

func (n *naiveCache) String() string {
	s := fmt.Sprintf("%+v input %d\n", n.c, n.input)
	for _, e := range n.engines {
		s += fmt.Sprintf("%s in flight %d %+v\n", e.w.ID, e.inFlight, e.r)
	}
	return s
}

func randomCacheFleet(rng *rand.Rand) *naiveCache {
	maybe := func(n int64) *int64 {
		if rng.IntN(4) > 0 {
			return nil
		}
		v := rng.Int64N(n)
		return &v
	}
	n := &naiveCache{
		c: policy.CacheAwareConfig{
			MinMatched: rng.Int64N(12), MinRatio: float64(max(0, rng.IntN(160)-80)) / 100, MinWorkers: 1 + rng.IntN(4), MaxWorkers: 4 + rng.IntN(4), Ratio: float64(rng.IntN(10)) / 10,
			SwitchMargin: rng.Int64N(20), Choices: 1 + rng.IntN(12),
		},
		limits: policy.Limits{MaxWaitingRequests: maybe(5), MaxInflightRequests: maybe(4)},
		input:  1 + rng.Int64N(100),
	}
	if rng.IntN(2) == 0 {
		n.c.QueueLimit = 1 + rng.Int64N(4)
		n.c.QueueFloor = rng.Int64N(n.c.QueueLimit + 1)
	}
	if rng.IntN(3) > 0 {
		n.c.Guard = &policy.PressureGuard{AbsTokens: rng.Int64N(5), Rel: 1.5, AbsMicros: maybe(3e6)}
	}
	reg := fleet.NewRegistry(fleet.BreakerConfig{}, 0)
	silent, poor := rng.IntN(4), rng.IntN(3) // of ten: engines that do not report, or not much
	var tracker load.Tracker
	for i := range 1 + rng.IntN(11) {
		w := reg.Put(fleet.Spec{ID: fmt.Sprintf("e%02d", i), Models: []string{"m"}})
		for range rng.IntN(4) {
			tracker.Acquire(w.Load, fleettest.Epoch, load.StagePrefill, 10, nil)
		}
		if rng.IntN(10) >= silent {
			reportTwice(rng, w, rng.IntN(10) < poor)
		}
		n.engines = append(n.engines, naiveEngine{w: w, r: w.Load.Report(fleettest.Epoch), inFlight: w.Load.Active()})
	}
	n.view = reg.View()
	return n
}

// reportTwice gives the engine a queue time, unless its report is poor.
func reportTwice(rng *rand.Rand, w *fleet.Worker, poor bool) {
	r := load.RankReport{
		At: fleettest.Epoch.Add(-time.Second), Running: load.Known(rng.Int64N(3)), Waiting: load.Known(rng.Int64N(6)),
		WaitingUncached: load.Known(rng.Int64N(20)), Used: load.Known(1), Capacity: load.Known(rng.Int64N(9)),
		PrefillTokens: load.Known(1), PrefillBusy: load.Known(1),
	}
	w.Load.Observe(0, r)
	r.At, r.PrefillTokens, r.PrefillBusy = fleettest.Epoch, load.Known(1+rng.Int64N(4)), load.Known(1+rng.Int64N(2_000_000))
	if poor {
		r.WaitingUncached = load.Count{}
	}
	w.Load.Observe(0, r)
}
