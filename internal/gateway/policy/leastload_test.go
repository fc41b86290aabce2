package policy_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/fleettest"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
	"github.com/perigee-llm/perigee/internal/script"
)

// leastCity is a fleet of several blocks in which things happen.
type leastCity struct {
	rng     *rand.Rand
	reg     *fleet.Registry
	now     time.Time
	tracker load.Tracker
	guards  []*load.Guard
	ids     []string
	turn    int // of the naive policy
}

// TestLeastLoadLooksAnew: of fleets of several blocks, in which engines get and end requests, report, fall silent, come and go, load_based picks what a policy
// picks that looks at every engine each time, and has the same trace.
func TestLeastLoadLooksAnew(t *testing.T) {
	rng := script.Rand(t)
	for range 16 {
		c := &leastCity{rng: rng, reg: fleet.NewRegistry(fleet.BreakerConfig{}, 0), now: fleettest.Epoch}
		for i := range 1 + rng.IntN([]int{24, 300}[rng.IntN(2)]) {
			c.ids = append(c.ids, fmt.Sprintf("e%03d", i))
			c.report(c.reg.Put(fleet.Spec{ID: c.ids[i], Models: []string{"m"}}))
		}
		limits := policy.Limits{}
		if rng.IntN(2) == 0 {
			two, ten := int64(2), int64(10)
			limits = policy.Limits{MaxInflightRequests: &two, MaxWaitingRequests: &ten}
		}
		p := policy.NewLeastLoad(limits)
		var held *fleet.View // an older one
		for step := range 400 {
			c.live()
			if view := c.reg.View(); held == nil || rng.IntN(20) == 0 {
				held = view
			}
			view := c.reg.View()
			if rng.IntN(10) == 0 {
				view = held
			}
			var exclude []string
			if rng.IntN(5) == 0 {
				exclude = []string{c.ids[rng.IntN(len(c.ids))]}
			}
			var set fleet.Set
			even := rng.IntN(30) == 0
			set.Fill(view.Mask(func(w *fleet.Worker) bool { return !even || w.No%2 == 0 }), c.now, exclude)
			trace := &policy.Trace{Considered: make([]policy.Considered, 0, []int{0, 1, 3, 20}[rng.IntN(4)])}
			pick, err := p.Pick(context.Background(), &set, &policy.Request{Now: c.now, Trace: trace})
			want, why := c.naive(&set, limits)
			if pick.Engine != want || err == nil && pick.Reason != why {
				t.Fatalf("step %d of %d engines: %v (%s, %v), want %v (%s)", step, len(c.ids), pick.Engine, pick.Reason, err, want, why)
			}
			if refused := (*policy.PickError)(nil); want == nil && set.Len() > 0 && (!errors.As(err, &refused) || len(refused.Rejections) != set.Len()) {
				t.Fatalf("step %d: %v", step, err)
			}
			if n := len(trace.Considered) + trace.Omitted; n != set.Len() || want != nil && cap(trace.Considered) > 0 && !slices.ContainsFunc(trace.Considered, func(x policy.Considered) bool { return x.Engine == want }) {
				t.Fatalf("step %d: %d of %d are considered: %v", step, n, set.Len(), trace.Considered)
			}
			if pick.Engine != nil {
				c.wantTold(t, &set, trace, &pick)
			}
			if pick.Engine != nil && rng.IntN(3) > 0 {
				c.guards = append(c.guards, c.tracker.Acquire(pick.Engine.Load, c.now, load.Stage(rng.IntN(2)), 1, nil))
			}
		}
	}
}

// wantTold fails unless the trace has the first candidates, and in the last place the one that was picked if it is none of them, with what is so of them now.
func (c *leastCity) wantTold(t *testing.T, s *fleet.Set, trace *policy.Trace, pick *policy.Pick) {
	t.Helper()
	i := 0
	for w := range s.All() {
		if i == len(trace.Considered) {
			break
		}
		got := trace.Considered[i]
		if i == cap(trace.Considered)-1 && got.Engine == pick.Engine {
			w = pick.Engine
		}
		want := policy.Considered{Engine: w, Report: w.Load.Report(c.now), InFlight: w.Load.Active(), Score: load.Known(w.Load.Active())}
		if pick.Reason == policy.ReasonLeastLoad {
			n, _ := want.Report.Waiting.Plus(want.Report.Running).Get()
			want.Score = load.Known(n + w.Load.DispatchedSince(want.Report.At))
		}
		if got != want {
			t.Fatalf("in place %d of %d is %+v, want %+v", i, len(trace.Considered), got, want)
		}
		i++
	}
}

func (c *leastCity) report(w *fleet.Worker) {
	r := load.RankReport{At: c.now, Running: load.Known(c.rng.Int64N(3)), Waiting: load.Known(c.rng.Int64N(12))}
	if c.rng.IntN(200) == 0 {
		r.Running = load.Count{}
	}
	w.Load.Observe(0, r)
}

func (c *leastCity) live() {
	c.now = c.now.Add(time.Duration(c.rng.IntN(100)) * time.Millisecond)
	if c.rng.IntN(50) == 0 {
		c.now = c.now.Add(5 * time.Second) // all reports lapse
	}
	if c.rng.IntN(12) == 0 { // everybody reports
		for w := range c.reg.View().All() {
			c.report(w)
		}
	}
	for range c.rng.IntN(4) {
		id := c.ids[c.rng.IntN(len(c.ids))]
		w := c.reg.View().Get(id)
		switch x := c.rng.IntN(40); {
		case w == nil:
			c.report(c.reg.Put(fleet.Spec{ID: id, Models: []string{"m"}}))
		case x == 0:
			c.reg.Remove(id)
		case x == 1:
			w.Load.Forget()
		case x < 10:
			c.report(w)
		case len(c.guards) > 0:
			i := c.rng.IntN(len(c.guards))
			c.guards[i].Release()
			c.guards = slices.Delete(c.guards, i, i+1)
		}
	}
}

// naive is load_based as one would write it: all candidates, each time.
func (c *leastCity) naive(s *fleet.Set, l policy.Limits) (*fleet.Worker, policy.Reason) {
	reported, why := true, policy.ReasonLeastLoad
	for w := range s.All() {
		reported = reported && w.Load.Report(c.now).Basic()
	}
	if !reported {
		why = policy.ReasonLeastLocally
	}
	var least []*fleet.Worker
	var best [2]int64
	for w := range s.All() {
		r := w.Load.Report(c.now)
		if l.Check(w, r) != policy.NoLimit {
			continue
		}
		score := [2]int64{w.Load.Active(), w.Load.Active()}
		if reported {
			n, _ := r.Waiting.Plus(r.Running).Get()
			score[0] = n + w.Load.DispatchedSince(r.At)
		}
		switch less := score[0] < best[0] || score[0] == best[0] && score[1] < best[1]; {
		case len(least) == 0 || less:
			least, best = []*fleet.Worker{w}, score
		case score == best:
			least = append(least, w)
		}
	}
	if len(least) == 0 {
		return nil, ""
	}
	if len(least) == 1 {
		return least[0], why
	}
	c.turn++
	return least[(c.turn-1)%len(least)], why
}

// TestLeastLoadBesideChanges: picks beside requests that begin and end, reports, and engines that come and go; afterwards, at rest, the choice is the naive one.
func TestLeastLoadBesideChanges(t *testing.T) {
	c := &leastCity{rng: script.Rand(t), reg: fleet.NewRegistry(fleet.BreakerConfig{}, 0), now: fleettest.Epoch}
	for i := range 200 {
		c.ids = append(c.ids, fmt.Sprintf("e%03d", i))
		c.report(c.reg.Put(fleet.Spec{ID: c.ids[i], Models: []string{"m"}}))
	}
	p := policy.NewLeastLoad(policy.Limits{})
	fill := func() *fleet.Set {
		s := new(fleet.Set)
		s.Fill(c.reg.View().Mask(func(*fleet.Worker) bool { return true }), c.now, nil)
		return s
	}
	for range 20 {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 50 {
					pick, err := p.Pick(context.Background(), fill(), &policy.Request{Now: c.now})
					if err != nil {
						t.Error(err)
						return
					}
					g := c.tracker.Acquire(pick.Engine.Load, c.now, load.StagePrefill, 1, nil)
					defer g.Release()
				}
			})
		}
		wg.Go(func() {
			for i := range 100 {
				if w := c.reg.View().Get(c.ids[i]); w != nil && i%10 == 0 {
					c.reg.Remove(w.ID)
				} else if w != nil {
					w.Load.Observe(0, load.RankReport{At: c.now.Add(time.Duration(i)), Running: load.Known(int64(i % 3)), Waiting: load.Known(0)})
				}
			}
			for i := range 100 {
				w := c.reg.Put(fleet.Spec{ID: c.ids[i], Models: []string{"m"}})
				w.Load.Observe(0, load.RankReport{At: c.now, Running: load.Known(1), Waiting: load.Known(0)})
			}
		})
		wg.Wait()
		odd := c.reg.View().Get(c.ids[150])
		for w := range c.reg.View().All() { // one is less loaded than all others
			n := int64(1)
			if w == odd {
				n = 0
			}
			w.Load.Forget()
			w.Load.Observe(0, load.RankReport{At: c.now, Running: load.Known(n), Waiting: load.Known(0)})
		}
		if pick, err := p.Pick(context.Background(), fill(), &policy.Request{Now: c.now}); err != nil || pick.Engine != odd {
			t.Fatalf("%v %v, want %v", pick.Engine, err, odd)
		}
	}
}
