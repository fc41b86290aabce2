package fleet_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/fleettest"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/script"
)

var config = fleet.BreakerConfig{Threshold: 2, CoolDown: 10 * time.Second}

// naiveBreaker is the breaker as the reference tells it, with the outstanding probe as a pointer and no state that could be
// derived: openSince nil is closed, probing tells half-open from open.
type naiveBreaker struct {
	failures  int
	openSince *time.Time
	probing   bool
	probe     *naiveTicket
	probedAt  time.Time
	gone      bool
}

type naiveTicket struct {
	breaker *naiveBreaker
	real    fleet.Ticket
}

func (b *naiveBreaker) admits(now time.Time) bool {
	if b.openSince == nil {
		return true
	}
	if b.probing {
		return b.probe == nil || now.Sub(b.probedAt) >= config.CoolDown
	}
	return now.Sub(*b.openSince) >= config.CoolDown
}

func (b *naiveBreaker) state() fleet.BreakerState {
	switch {
	case b.openSince == nil:
		return fleet.Closed
	case b.probing:
		return fleet.HalfOpen
	}
	return fleet.Open
}

func (b *naiveBreaker) claim(now time.Time) *naiveTicket {
	if !b.admits(now) {
		return nil
	}
	t := &naiveTicket{breaker: b}
	if b.openSince != nil {
		b.probing, b.probe, b.probedAt = true, t, now
	}
	return t
}

func (b *naiveBreaker) done(t *naiveTicket, o fleet.Outcome, now time.Time) {
	if b.probe == t {
		b.probe = nil
	}
	switch {
	case o == fleet.Success, o == fleet.Neutral && b.state() == fleet.HalfOpen:
		*b = naiveBreaker{}
	case o == fleet.Failure || o == fleet.Absent:
		b.gone = o == fleet.Absent
		if b.state() == fleet.Open {
			return
		}
		b.failures++
		if b.failures >= config.Threshold {
			*b = naiveBreaker{failures: b.failures, openSince: &now, gone: b.gone}
		}
	}
}

// naiveFleet is a map and nothing else; whatever is asked is searched and sorted anew.
type naiveFleet struct {
	workers map[string]*naiveWorker
}

type naiveWorker struct {
	real    *fleet.Worker
	breaker *naiveBreaker
	returns []time.Time // that ended a cool-down
}

func (f *naiveFleet) ids() []string {
	var ids []string
	for id := range f.workers {
		ids = append(ids, id)
	}
	sort.Strings(ids)
	return ids
}

// live are the workers that keep is true for, that are not excluded and whose breakers admit.
//
// If that, before any is excluded, are fewer than half of those that keep is true for, the others that are up are among them too.
func (f *naiveFleet) live(keep func(*fleet.Worker) bool, now time.Time, exclude []string) (ws []*fleet.Worker, floored bool) {
	members, admitting := 0, 0
	for _, x := range f.workers {
		if keep(x.real) {
			members++
			if x.breaker.admits(now) {
				admitting++
			}
		}
	}
	for _, id := range f.ids() {
		x := f.workers[id]
		if !keep(x.real) {
			continue
		}
		up := x.real.Load.Report(now) != nil && !x.breaker.gone
		over := 2*admitting < members && up && !x.breaker.admits(now)
		floored = floored || over
		if (over || x.breaker.admits(now)) && !slices.Contains(exclude, id) {
			ws = append(ws, x.real)
		}
	}
	return ws, floored
}

// TestRegistryAgainstAMap does random registrations, departures, dispatches and outcomes. After each the view and a set of it
// must be what searching the map gives.
func TestRegistryAgainstAMap(t *testing.T) {
	rng := script.Rand(t)
	for _, size := range []int{1, 5, 64, 65, 130, 1100} {
		t.Run(fmt.Sprintf("size=%d", size), func(t *testing.T) {
			steps := 400
			if size > 1000 {
				steps = 40 // the naive search is slow, and the sizes' edges are what is new
			}
			f := &fleetPair{reg: fleet.NewRegistry(config, 0), naive: naiveFleet{workers: map[string]*naiveWorker{}}, size: size, now: fleettest.Epoch}
			for i := range size {
				f.put(t, rng, fmt.Sprintf("w%d", i))
			}
			for range steps {
				f.step(t, rng)
				f.check(t, rng)
			}
		})
	}
}

// fleetPair is the registry and its model, which live through the same.
type fleetPair struct {
	reg     *fleet.Registry
	naive   naiveFleet
	size    int
	now     time.Time
	tickets []*naiveTicket
	old     []*fleet.Worker // that were replaced or left
	set     fleet.Set       // used again and again, as a pool does
}

func (f *fleetPair) id(rng *rand.Rand) string { return fmt.Sprintf("w%d", rng.IntN(f.size*5/4+1)) }

func (f *fleetPair) put(t *testing.T, rng *rand.Rand, id string) {
	spec := fleet.Spec{
		ID: id, Stage: fleet.Stage(rng.IntN(3)), Models: []string{"m", "n", "o"}[:rng.IntN(4)], Ranks: rng.IntN(2),
	}
	w := f.reg.Put(spec)
	old := f.naive.workers[spec.ID]
	switch {
	case old == nil:
		f.naive.workers[spec.ID] = &naiveWorker{real: w, breaker: &naiveBreaker{}}
	case old.real == w:
		if !cmp.Equal(old.real.Spec, spec, cmp.Comparer(func(a, b fleet.Spec) bool { return a.Equal(b) })) {
			t.Fatalf("Put(%+v) kept the worker of %+v", spec, old.real.Spec)
		}
	default:
		if old.real.Equal(spec) {
			t.Fatalf("Put of the same facts replaced worker %s", spec.ID)
		}
		if old.real.Load != w.Load {
			t.Fatalf("worker %s lost its load record", spec.ID)
		}
		f.old = append(f.old, old.real)
		f.naive.workers[spec.ID] = &naiveWorker{real: w, breaker: old.breaker}
	}
}

func (f *fleetPair) step(t *testing.T, rng *rand.Rand) {
	f.now = f.now.Add(time.Duration(rng.IntN(4)) * time.Second)
	id := f.id(rng)
	x := f.naive.workers[id]
	switch rng.IntN(14) {
	case 10, 11, 12:
		if x != nil {
			x.real.Load.Observe(0, load.RankReport{At: f.now, Running: load.Known(1)})
		}
	case 13:
		if x == nil {
			return
		}
		x.breaker.gone = rng.IntN(2) == 0
		if x.breaker.gone {
			f.reg.Missed(id)
			return
		}
		f.reg.Returned(id, f.now)
		if x.breaker.state() == fleet.Open && !x.breaker.admits(f.now) {
			x.returns = slices.DeleteFunc(x.returns, func(at time.Time) bool { return f.now.Sub(at) >= time.Minute })
			if len(x.returns) < 3 {
				since := f.now.Add(-config.CoolDown)
				x.breaker.openSince, x.returns = &since, append(x.returns, f.now)
			}
		}
	case 0:
		f.put(t, rng, id)
	case 1:
		if got := f.reg.Remove(id); got != (x != nil) {
			t.Fatalf("Remove(%s) is %v, want %v", id, got, x != nil)
		}
		if x != nil {
			f.old = append(f.old, x.real)
			delete(f.naive.workers, id)
		}
	case 2, 3, 4, 5:
		if x == nil {
			return
		}
		want := x.breaker.claim(f.now)
		ticket, ok := f.reg.Claim(x.real, f.now)
		if ok != (want != nil) {
			t.Fatalf("Claim(%s) is %v, want %v", id, ok, want != nil)
		}
		if ok {
			want.real = ticket
			f.tickets = append(f.tickets, want)
		}
	default:
		if len(f.tickets) == 0 {
			return
		}
		i := rng.IntN(len(f.tickets))
		ticket := f.tickets[i]
		if rng.IntN(4) == 0 { // its answer begins
			if ticket.breaker.probe == ticket {
				*ticket.breaker = naiveBreaker{failures: ticket.breaker.failures}
			}
			f.reg.Answers(ticket.real)
			return
		}
		f.tickets = slices.Delete(f.tickets, i, i+1)
		o := []fleet.Outcome{fleet.Failure, fleet.Failure, fleet.Failure, fleet.Absent, fleet.Success, fleet.Neutral, fleet.Cancelled}[rng.IntN(7)]
		ticket.breaker.done(ticket, o, f.now)
		f.reg.Done(ticket.real, o, f.now)
	}
}

func (f *fleetPair) check(t *testing.T, rng *rand.Rand) {
	t.Helper()
	v := f.reg.View()
	var ids []string
	for w := range v.All() {
		ids = append(ids, w.ID)
		x := f.naive.workers[w.ID]
		if x == nil || x.real != w || v.Get(w.ID) != w {
			t.Fatalf("the view has another worker under %s than the map, or two", w.ID)
		}
		state, streak := f.reg.Breaker(w)
		if state != x.breaker.state() || streak != x.breaker.failures || f.reg.Admits(w, f.now) != x.breaker.admits(f.now) {
			t.Fatalf("breaker of %s is %v, %d in a row; want %v, %d", w.ID, state, streak, x.breaker.state(), x.breaker.failures)
		}
	}
	if !slices.Equal(ids, f.naive.ids()) || v.Len() != len(ids) {
		t.Fatalf("view is %v, want %v", ids, f.naive.ids())
	}
	stage, model := fleet.Stage(rng.IntN(3)), []string{"m", "n", "o", "p"}[rng.IntN(4)]
	keep := func(w *fleet.Worker) bool { return w.Stage == stage && slices.Contains(w.Models, model) }
	if rng.IntN(3) == 0 {
		keep = func(*fleet.Worker) bool { return true }
	}
	var exclude []string
	for range rng.IntN(4) {
		exclude = append(exclude, f.id(rng))
	}
	f.set.Fill(v.Mask(keep), f.now, exclude)
	want, floored := f.naive.live(keep, f.now, exclude)
	if f.set.Floored() != floored {
		t.Fatalf("floored is %v, want %v", f.set.Floored(), floored)
	}
	sameSet(t, &f.set, want)
	for _, w := range f.old {
		if f.set.Has(w) || f.set.Remove(w) {
			t.Fatalf("the set has worker %s of before", w.ID)
		}
	}
	for len(want) > 0 && rng.IntN(3) > 0 {
		i := rng.IntN(len(want))
		if !f.set.Remove(want[i]) || f.set.Remove(want[i]) {
			t.Fatalf("Remove(%s) did not take it out once", want[i].ID)
		}
		want = slices.Delete(want, i, i+1)
		sameSet(t, &f.set, want)
	}
	if rng.IntN(4) == 0 {
		f.set.Reset()
		sameSet(t, &f.set, nil)
	}
}

func sameSet(t *testing.T, s *fleet.Set, want []*fleet.Worker) {
	t.Helper()
	if got := slices.Collect(s.All()); !slices.Equal(got, want) {
		t.Fatalf("the set is %v, want %v", names(got), names(want))
	}
	if s.Len() != len(want) {
		t.Fatalf("Len is %d, want %d", s.Len(), len(want))
	}
	for i, w := range want {
		if s.At(i) != w || !s.Has(w) {
			t.Fatalf("At(%d) is %s, want %s", i, s.At(i), w)
		}
	}
}

func names(ws []*fleet.Worker) string {
	var ids []string
	for _, w := range ws {
		ids = append(ids, w.ID)
	}
	return strings.Join(ids, " ")
}

// TestThresholds holds that a breaker opens at its threshold: the default, one, and the largest that a flag can set, which
// must not wrap round to "always".
func TestThresholds(t *testing.T) {
	for _, c := range []struct{ threshold, failures, want int }{
		{0, 2, 0}, {0, 3, 1}, {-1, 2, 0}, {1, 1, 1}, {1<<32 - 1, 100, 0}, {1 << 31, 100, 0},
	} {
		reg := fleet.NewRegistry(fleet.BreakerConfig{Threshold: c.threshold}, 0)
		w := reg.Put(fleet.Spec{ID: "a"})
		for range c.failures {
			ticket, _ := reg.Claim(w, fleettest.Epoch)
			reg.Done(ticket, fleet.Failure, fleettest.Epoch)
		}
		if s, _ := reg.Breaker(w); s != fleet.BreakerState(c.want) {
			t.Errorf("threshold %d: %v after %d failures, want %v", c.threshold, s, c.failures, fleet.BreakerState(c.want))
		}
	}
	reg := fleet.NewRegistry(fleet.BreakerConfig{Threshold: 1}, 0)
	w := reg.Put(fleet.Spec{ID: "a"})
	ticket, _ := reg.Claim(w, fleettest.Epoch)
	reg.Done(ticket, fleet.Failure, fleettest.Epoch)
	if reg.Admits(w, fleettest.Epoch.Add(30*time.Second-1)) || !reg.Admits(w, fleettest.Epoch.Add(30*time.Second)) {
		t.Error("the default cool-down is not 30 s")
	}
}

// TestFleetFromManyGoroutines registers, removes, trips and selects at once. The race detector watches; at the end no probe
// is lost, every view's set agrees with the breakers, and one probe at a time was out.
func TestFleetFromManyGoroutines(t *testing.T) {
	reg := fleet.NewRegistry(fleet.BreakerConfig{Threshold: 1, CoolDown: 1}, 0)
	const engines, rounds = 8, 500
	id := func(i int) string { return fmt.Sprintf("w%d", i%engines) }
	for i := range engines {
		reg.Put(fleet.Spec{ID: id(i), Models: []string{"m"}})
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range rounds {
			reg.Put(fleet.Spec{ID: id(i), Models: []string{"m"}, Version: fmt.Sprint(i)})
			if i%3 == 0 {
				reg.Remove(id(i + 1))
			}
		}
		for i := range engines {
			reg.Put(fleet.Spec{ID: id(i), Models: []string{"m"}})
		}
	})
	for k := range 4 {
		wg.Go(func() {
			var s fleet.Set
			for i := range rounds {
				now := fleettest.Epoch.Add(time.Duration(i))
				v := reg.View()
				s.Fill(v.Mask(func(w *fleet.Worker) bool { return w.Serves("m") }), now, []string{id(i)})
				for w := range s.All() {
					if w.ID == id(i) || v.Get(w.ID) != w {
						t.Errorf("the set has %s, which is excluded or not its view's", w.ID)
					}
				}
				if s.Len() == 0 {
					continue
				}
				w := s.At((i + k) % s.Len())
				if ticket, ok := reg.Claim(w, now); ok {
					reg.Done(ticket, fleet.Outcome((i+k)%4), now)
				}
			}
		})
	}
	wg.Wait()
	later := fleettest.Epoch.Add(time.Hour)
	var s fleet.Set
	s.Fill(reg.View().Mask(func(*fleet.Worker) bool { return true }), later, nil)
	if s.Len() != engines {
		t.Errorf("%d of %d workers are live past every cool-down: a probe was lost", s.Len(), engines)
	}
	for w := range s.All() {
		ticket, ok := reg.Claim(w, later)
		if !ok {
			t.Errorf("the breaker of %s refuses although its set admits", w.ID)
			continue
		}
		reg.Done(ticket, fleet.Failure, later)
	}
	s.Fill(reg.View().Mask(func(*fleet.Worker) bool { return true }), later, nil)
	if s.Len() != 0 {
		t.Errorf("%d workers are live after every breaker opened: the view was not marked", s.Len())
	}
}

// TestOneProbe lets many dispatches claim at once: one gets the probe.
func TestOneProbe(t *testing.T) {
	reg := fleet.NewRegistry(config, 0)
	w := reg.Put(fleet.Spec{ID: "a"})
	for range config.Threshold {
		ticket, _ := reg.Claim(w, fleettest.Epoch)
		reg.Done(ticket, fleet.Failure, fleettest.Epoch)
	}
	now := fleettest.Epoch.Add(config.CoolDown)
	claimed := make([]bool, 16)
	var wg sync.WaitGroup
	for i := range claimed {
		wg.Go(func() { _, claimed[i] = reg.Claim(w, now) })
	}
	wg.Wait()
	n := 0
	for _, ok := range claimed {
		if ok {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d dispatches claimed a probe, want 1", n)
	}
}

func TestNames(t *testing.T) {
	for _, c := range []struct {
		got  fmt.Stringer
		want string
	}{
		{fleet.Plain, "plain"}, {fleet.Prefill, "prefill"}, {fleet.Decode, "decode"}, {fleet.Stage(9), "invalid"},
		{fleet.UnknownKind, "unknown"}, {fleet.VLLM, "vllm"}, {fleet.SGLang, "sglang"},
		{fleet.Closed, "closed"}, {fleet.Open, "open"}, {fleet.HalfOpen, "half_open"},
	} {
		if c.got.String() != c.want {
			t.Errorf("%d is called %q, want %q", c.got, c.got, c.want)
		}
	}
}

// TestNumbers holds that an engine keeps its number while it is registered and that no other ever gets it.
func TestNumbers(t *testing.T) {
	r := fleet.NewRegistry(fleet.BreakerConfig{}, 0)
	a, b := r.Put(fleet.Spec{ID: "a"}), r.Put(fleet.Spec{ID: "b"})
	again := r.Put(fleet.Spec{ID: "a", Models: []string{"m"}})
	r.Remove("b")
	c := r.Put(fleet.Spec{ID: "c"})
	back := r.Put(fleet.Spec{ID: "b"})
	if a.No != 1 || b.No != 2 || again.No != 1 || c.No != 3 || back.No != 4 {
		t.Errorf("numbers %d %d %d %d %d, want 1 2 1 3 4", a.No, b.No, again.No, c.No, back.No)
	}
}
