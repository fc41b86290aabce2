package policy

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/script"
)

// costCity is a fleet of several blocks in which prompts come and go.
type costCity struct {
	rng     *rand.Rand
	reg     *fleet.Registry
	now     time.Time
	tracker load.Tracker
	guards  []*load.Guard
	others  *load.Account
	told    uint64
	ids     []string
	silent  bool // engines do not tell what waits
	quiet   bool // little waits that others sent
	speeds  int  // how many speeds engines have
}

// TestCostRemembers: of fleets of several blocks cost picks by what it remembers what it picks when it reckons with all, with the same trace.
func TestCostRemembers(t *testing.T) {
	rng := script.Rand(t)
	remembered, all := 0, 0
	for range 24 {
		c := &costCity{
			rng: rng, reg: fleet.NewRegistry(fleet.BreakerConfig{}, 0), now: time.Unix(1_000_000, 0), others: load.NewAccount(0),
			silent: rng.IntN(3) == 0, quiet: rng.IntN(3) > 0, speeds: 1 + rng.IntN(3),
		}
		for i := range 1 + rng.IntN(250) {
			c.ids = append(c.ids, fmt.Sprintf("e%03d", i))
			c.report(c.reg.Put(fleet.Spec{ID: c.ids[i], Models: []string{"m"}}))
		}
		limits := Limits{}
		if rng.IntN(2) == 0 {
			three, twelve := int64(3), int64(12)
			limits = Limits{MaxInflightRequests: &three, MaxRunningRequests: &twelve}
		}
		p := NewCost(rng.Uint64(), limits, CostConfig{Costs: &prefix.Costs{}})
		for step := range 250 {
			c.live()
			var exclude []string
			if rng.IntN(5) == 0 {
				exclude = []string{c.ids[rng.IntN(len(c.ids))]}
			}
			var set fleet.Set
			set.Fill(c.reg.View().Mask(func(*fleet.Worker) bool { return true }), c.now, exclude)
			if set.Len() == 0 {
				continue
			}
			match := c.match()
			room := []int{0, 1, 3, 20}[rng.IntN(4)]
			request := func() *Request {
				return &Request{Key: uint64(step), Now: c.now, InputTokens: 1 + int64(step*37%5000), Trace: &Trace{Considered: make([]Considered, 0, room)}}
			}
			r, q := request(), request()
			got, ok := p.memo.pick(&costPick{p: p, c: &set, r: r, m: match, known: true, now: set.Nanos(c.now)})
			want, err := p.lookAtAll(&set, q, match, true)
			all++
			if !ok {
				continue
			}
			remembered++
			if err != nil || got != want || !reflect.DeepEqual(r.Trace, q.Trace) {
				t.Fatalf("step %d of %d engines: %+v, want %+v %v; considered\n%+v, want\n%+v", step, len(c.ids), got, want, err, r.Trace, q.Trace)
			}
			if rng.IntN(3) > 0 {
				g := c.tracker.Acquire(got.Engine.Load, c.now, load.StagePrefill, r.InputTokens, nil)
				if n, known := got.Uncached.Get(); known && rng.IntN(2) == 0 {
					g.Computes(n, rng.IntN(2) == 0)
				}
				c.guards = append(c.guards, g)
			}
		}
	}
	if remembered < all/4 {
		t.Errorf("%d of %d picks were by what is remembered: the test shows too little", remembered, all)
	}
}

func (c *costCity) report(w *fleet.Worker) {
	count := func(n int64) load.Count {
		if c.rng.IntN(100) == 0 {
			return load.Count{}
		}
		return load.Known(c.rng.Int64N(n))
	}
	r := load.RankReport{At: c.now, Running: count(10), Waiting: count(5), WaitingUncached: load.Known(0)}
	if !c.quiet || c.rng.IntN(40) == 0 {
		r.WaitingUncached = count(3000)
	}
	if c.silent {
		r.WaitingUncached = load.Count{}
	}
	worked := c.now.Unix() - 999_990
	r.PrefillBusy, r.PrefillTokens = load.Known(worked*1e6), load.Known(worked*int64(2000+2500*(int(w.No)%c.speeds)))
	w.Load.Observe(0, r)
}

// match is what a source might say of the fleet.
func (c *costCity) match() *prefix.Match {
	m := new(prefix.Match)
	for w := range c.reg.View().All() {
		if c.rng.IntN(30) == 0 {
			d := int32(16 * (1 + c.rng.IntN(200)))
			m.Held = append(m.Held, prefix.Held{Engine: w.No, Depth: prefix.Depth{d / 2, d, d}})
		}
		if c.rng.IntN(60) == 0 {
			m.Blind = append(m.Blind, w.No)
		}
	}
	slices.SortFunc(m.Held, func(a, b prefix.Held) int { return int(a.Engine) - int(b.Engine) })
	slices.Sort(m.Blind)
	return m
}

func (c *costCity) live() {
	c.now = c.now.Add(time.Duration(c.rng.IntN(200)) * time.Millisecond)
	if c.rng.IntN(60) == 0 {
		c.now = c.now.Add(6 * time.Second)
	}
	if c.rng.IntN(15) == 0 {
		for w := range c.reg.View().All() {
			c.report(w)
		}
	}
	for range c.rng.IntN(5) {
		id := c.ids[c.rng.IntN(len(c.ids))]
		w := c.reg.View().Get(id)
		switch x := c.rng.IntN(40); {
		case w == nil:
			c.report(c.reg.Put(fleet.Spec{ID: id, Models: []string{"m"}}))
		case x == 0:
			c.reg.Remove(id)
		case x == 1:
			w.Load.Forget()
		case x < 6:
			c.report(w)
		case x < 9:
			c.told++
			c.others.Sent(load.Told{Engine: w.Load, Prompt: load.Prompt{ID: c.told, At: c.now, Uncached: c.rng.Int64N(2000)}})
		case x < 14:
			c.others.Gone(1+c.rng.Uint64N(c.told+1), c.now)
		case x < 26 && len(c.guards) > 0:
			c.guards[c.rng.IntN(len(c.guards))].Prefilled(c.now)
		case len(c.guards) > 0:
			i := c.rng.IntN(len(c.guards))
			c.guards[i].Release()
			c.guards = slices.Delete(c.guards, i, i+1)
		}
	}
}

// TestCostRemembersBesideChanges: picks beside requests that begin, get their first token and end, and beside reports; afterwards the choice is that of all.
func TestCostRemembersBesideChanges(t *testing.T) {
	c := &costCity{rng: script.Rand(t), reg: fleet.NewRegistry(fleet.BreakerConfig{}, 0), now: time.Unix(1_000_000, 0), others: load.NewAccount(0), quiet: true, speeds: 1}
	for i := range 150 {
		c.ids = append(c.ids, fmt.Sprintf("e%03d", i))
		c.report(c.reg.Put(fleet.Spec{ID: c.ids[i], Models: []string{"m"}}))
	}
	p := NewCost(1, Limits{}, CostConfig{})
	fill := func() *fleet.Set {
		s := new(fleet.Set)
		s.Fill(c.reg.View().Mask(func(*fleet.Worker) bool { return true }), c.now, nil)
		return s
	}
	for round := range 10 {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for i := range 40 {
					pick, err := p.Pick(t.Context(), fill(), &Request{Key: uint64(i), Now: c.now, InputTokens: 1000})
					if err != nil {
						t.Error(err)
						return
					}
					g := c.tracker.Acquire(pick.Engine.Load, c.now, load.StagePrefill, 1000, nil)
					defer g.Release()
					if i%2 == 0 {
						g.Prefilled(c.now)
					}
				}
			})
		}
		wg.Go(func() {
			for i := range 100 {
				w := c.reg.View().Get(c.ids[i])
				w.Load.Observe(0, load.RankReport{At: c.now.Add(time.Duration(round*100+i) * time.Microsecond), Running: load.Known(1), Waiting: load.Known(0), WaitingUncached: load.Known(int64(i))})
			}
		})
		wg.Wait()
		c.now = c.now.Add(time.Second)
		set, r := fill(), &Request{Key: uint64(round), Now: c.now, InputTokens: 1000}
		got, err := p.Pick(t.Context(), set, r)
		if want, other := p.lookAtAll(set, r, &p.none, false); err != nil || other != nil || got != want {
			t.Fatalf("%+v %v, want %+v %v", got, err, want, other)
		}
	}
}
