package load_test

import (
	"math/big"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/perigee-llm/perigee/internal/gateway/fleet/fleettest"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/script"
)

// entry is a guard in the naive accounting: a list that is searched from end to end.
type entry struct {
	guard   *load.Guard
	engine  int
	at      time.Time
	stage   load.Stage
	amount  int64
	held    bool
	expired int // how often the janitor said so
}

// TestAccountingAgainstAList does random acquisitions, releases and expiries, and counts everything anew after each.
func TestAccountingAgainstAList(t *testing.T) {
	rng := script.Rand(t)
	for range 30 {
		var (
			tracker load.Tracker
			engines [3]load.Engine
			list    []*entry
			now     = fleettest.Epoch
		)
		for step := range 200 {
			now = now.Add(time.Duration(rng.IntN(3)) * time.Second)
			switch rng.IntN(8) {
			case 0, 1, 2, 3:
				x := &entry{engine: rng.IntN(len(engines)), stage: load.Stage(rng.IntN(2)), amount: rng.Int64N(100), held: true}
				x.at = now.Add(-time.Duration(rng.IntN(4)) * time.Second) // goroutines overtake each other
				x.guard = tracker.Acquire(&engines[x.engine], x.at, x.stage, x.amount, func() { x.expired++ })
				if !x.guard.At().Equal(x.at) {
					t.Fatalf("step %d: At is %v, acquired at %v", step, x.guard.At(), x.at)
				}
				list = append(list, x)
			case 4, 5, 6:
				if len(list) > 0 {
					x := list[rng.IntN(len(list))] // often one that is released already
					x.guard.Release()
					x.held = false
				}
			case 7:
				expireBoth(t, &tracker, list, now, time.Duration(rng.IntN(60))*time.Second)
			}
			since := now.Add(-time.Duration(rng.IntN(20)) * time.Second)
			checkAccounts(t, step, &tracker, engines[:], list, since)
		}
		for _, x := range list {
			x.guard.Release()
			x.held = false
		}
		checkAccounts(t, -1, &tracker, engines[:], list, time.Time{})
	}
}

func expireBoth(t *testing.T, tracker *load.Tracker, list []*entry, now time.Time, age time.Duration) {
	want := 0
	before := make([]int, len(list))
	for i, x := range list {
		before[i] = x.expired
		if x.held && now.Sub(x.at) >= age {
			x.held = false
			before[i]++ // exactly once more
			want++
		}
	}
	if got := tracker.Expire(now, age); got != want {
		t.Fatalf("Expire(age %v) gave up %d guards, want %d", age, got, want)
	}
	for i, x := range list {
		if x.expired != before[i] {
			t.Fatalf("Expire called a guard's expired %d times in all, want %d", x.expired, before[i])
		}
	}
}

func checkAccounts(t *testing.T, step int, tracker *load.Tracker, engines []load.Engine, list []*entry, since time.Time) {
	t.Helper()
	type account struct {
		Active, Prefill, Decode, Since int64
	}
	want, got, held := make([]account, len(engines)), make([]account, len(engines)), 0
	for _, x := range list {
		if !x.held {
			continue
		}
		held++
		a := &want[x.engine]
		a.Active++
		if x.stage == load.StageDecode {
			a.Decode++
		} else {
			a.Prefill += x.amount
		}
		if !x.at.Before(since) {
			a.Since++
		}
	}
	for i := range engines {
		e := &engines[i]
		got[i] = account{e.Active(), e.PrefillTokens(), e.DecodeRequests(), e.DispatchedSince(since)}
	}
	if d := cmp.Diff(want, got); d != "" || tracker.Held() != held {
		t.Fatalf("step %d: held %d, want %d; accounts (- list, + tracker):\n%s", step, tracker.Held(), held, d)
	}
}

// naiveEngine keeps every report that was used and works a sum out when it is asked.
type naiveEngine struct {
	expected int
	reports  map[int][]load.RankReport
}

func (n *naiveEngine) observe(rank int, r load.RankReport) bool {
	if rank < 0 || rank >= load.MaxRanks || n.expected > 0 && rank >= n.expected {
		return false
	}
	if k := n.reports[rank]; len(k) > 0 && !r.At.After(k[len(k)-1].At) {
		return false
	}
	n.reports[rank] = append(n.reports[rank], r)
	return true
}

func (n *naiveEngine) expect(ranks int) {
	if ranks < 0 || ranks > load.MaxRanks {
		ranks = 0
	}
	n.expected = ranks
	for r := range n.reports {
		if ranks > 0 && r >= ranks {
			delete(n.reports, r)
		}
	}
}

// field adds one field up over the ranks in arbitrary precision, and says false if a rank lacks it.
func (n *naiveEngine) field(of func(load.RankReport) load.Count) load.Count {
	sum := new(big.Int)
	for _, k := range n.reports {
		v, ok := of(k[len(k)-1]).Get()
		if !ok {
			return load.Count{}
		}
		sum.Add(sum, big.NewInt(v))
	}
	return load.Known(sum.Int64())
}

func (n *naiveEngine) report(now time.Time, fresh time.Duration) *load.Report {
	if len(n.reports) == 0 || n.expected > 0 && len(n.reports) < n.expected {
		return nil
	}
	out := &load.Report{
		Running:         n.field(func(r load.RankReport) load.Count { return r.Running }),
		Waiting:         n.field(func(r load.RankReport) load.Count { return r.Waiting }),
		WaitingUncached: n.field(func(r load.RankReport) load.Count { return r.WaitingUncached }),
		Used:            n.field(func(r load.RankReport) load.Count { return r.Used }),
		Total:           n.field(func(r load.RankReport) load.Count { return r.Total }),
		Capacity:        n.field(func(r load.RankReport) load.Count { return r.Capacity }),
		MaxRunning:      n.field(func(r load.RankReport) load.Count { return r.MaxRunning }),
		Ranks:           len(n.reports),
	}
	for _, k := range n.reports {
		if at := k[len(k)-1].At; out.At.IsZero() || at.Before(out.At) {
			out.At = at
		}
	}
	if now.Sub(out.At) > fresh {
		return nil
	}
	out.QueueMicros = n.queue(out.WaitingUncached)
	out.PrefillRate = n.rate()
	return out
}

// rate goes through all that the ranks ever reported: what b seconds of work say now, later ones say less.
func (n *naiveEngine) rate() load.Count {
	sum := 0.0
	for _, k := range n.reports {
		tokens, rates := 0.0, 0.0
		for i := 1; i < len(k); i++ {
			t0, ok0 := k[i-1].PrefillTokens.Get()
			t1, ok1 := k[i].PrefillTokens.Get()
			b0, ok2 := k[i-1].PrefillBusy.Get()
			b1, ok3 := k[i].PrefillBusy.Get()
			if ok0 && ok1 && ok2 && ok3 && t1 > t0 && b1 > b0 {
				b := float64(b1-b0) / 1e6
				old, n := 20/(20+b), float64(t1-t0)
				tokens, rates = tokens*old+n, rates*old+n*(n/b)
			}
		}
		if tokens == 0 {
			return load.Count{}
		}
		sum += rates / tokens
	}
	if sum < 1 || sum >= 1e12 {
		return load.Count{}
	}
	return load.Known(int64(sum))
}

// queue is waiting / Σ(Δtokens / Δbusy), in exact fractions.
func (n *naiveEngine) queue(waiting load.Count) load.Count {
	w, ok := waiting.Get()
	rate := new(big.Rat)
	for _, k := range n.reports {
		if len(k) < 2 {
			return load.Count{}
		}
		a, b := k[len(k)-2], k[len(k)-1]
		t0, ok0 := a.PrefillTokens.Get()
		t1, ok1 := b.PrefillTokens.Get()
		b0, ok2 := a.PrefillBusy.Get()
		b1, ok3 := b.PrefillBusy.Get()
		if !ok0 || !ok1 || !ok2 || !ok3 || t1 <= t0 || b1 <= b0 {
			return load.Count{}
		}
		rate.Add(rate, big.NewRat(t1-t0, b1-b0))
	}
	if !ok {
		return load.Count{}
	}
	q := new(big.Rat).Quo(new(big.Rat).SetInt64(w), rate)
	return load.Known(new(big.Int).Quo(q.Num(), q.Denom()).Int64())
}

func TestReportsAgainstANaiveEngine(t *testing.T) {
	rng := script.Rand(t)
	for range 200 {
		fresh := time.Duration(1+rng.IntN(6)) * time.Second
		e, n, now := load.NewEngine(fresh, nil), &naiveEngine{reports: map[int][]load.RankReport{}}, fleettest.Epoch
		for step := range 60 {
			now = now.Add(time.Duration(rng.IntN(1500)) * time.Millisecond)
			switch rng.IntN(20) {
			case 0:
				ranks := rng.IntN(5) - 1
				e.Expect(ranks)
				n.expect(ranks)
			case 1:
				e.Forget()
				clear(n.reports)
			default:
				rank, r := rng.IntN(4), randomReport(rng, now)
				if got, want := e.Observe(rank, r), n.observe(rank, r); got != want {
					t.Fatalf("step %d: Observe(%d) is %v, want %v", step, rank, got, want)
				}
			}
			got, want := e.Report(now), n.report(now, fresh)
			if d := cmp.Diff(want, got, cmp.Comparer(sameCount)); d != "" {
				t.Fatalf("step %d (- naive, + engine):\n%s", step, d)
			}
		}
	}
}

// sameCount allows the last microsecond to round either way: one side divides in floating point.
func sameCount(a, b load.Count) bool {
	x, ok1 := a.Get()
	y, ok2 := b.Get()
	return ok1 == ok2 && x-y <= 1 && y-x <= 1
}

func randomReport(rng *rand.Rand, now time.Time) load.RankReport {
	count := func(n int64) load.Count {
		if rng.IntN(12) == 0 {
			return load.Count{}
		}
		return load.Known(rng.Int64N(n))
	}
	r := load.RankReport{
		At:      now.Add(-time.Duration(rng.IntN(2500)) * time.Millisecond),
		Running: count(100), Waiting: count(100), WaitingUncached: count(10_000), Used: count(1000), Total: count(1000),
		Capacity: count(1000), MaxRunning: count(100), PrefillTokens: count(4), PrefillBusy: count(4),
	}
	if rng.IntN(2) == 0 { // counters that grow, as they do under load
		r.PrefillTokens = load.Known(now.Sub(fleettest.Epoch).Milliseconds())
		r.PrefillBusy = load.Known(now.Sub(fleettest.Epoch).Microseconds())
	}
	return r
}

// TestGuardsFromManyGoroutines lets owners and the janitor race for the same guards. At the end nothing is counted, and each
// guard was ended by one of them.
func TestGuardsFromManyGoroutines(t *testing.T) {
	var (
		tracker load.Tracker
		engines [4]load.Engine
		stale   atomic.Int64
		wg      sync.WaitGroup
		done    = make(chan struct{})
		janitor sync.WaitGroup
	)
	const owners, each = 8, 400
	gaveUp := int64(0)
	janitor.Go(func() {
		for {
			gaveUp += int64(tracker.Expire(fleettest.Epoch.Add(each*time.Second), each/2*time.Second))
			select {
			case <-done:
				return
			default:
			}
		}
	})
	for k := range owners {
		wg.Go(func() {
			var late []*load.Guard
			for i := range each {
				e := &engines[(i+k)%len(engines)]
				g := tracker.Acquire(e, fleettest.Epoch.Add(time.Duration(i)*time.Second), load.Stage(i%2), 10, func() { stale.Add(1) })
				e.DispatchedSince(fleettest.Epoch)
				switch {
				case i%4 == 0: // forgotten by its owner: the janitor's alone
				case i%4 == 1:
					late = append(late, g)
				default:
					g.Release()
				}
			}
			for _, g := range late {
				g.Release()
				g.Release()
			}
		})
	}
	wg.Wait()
	close(done)
	janitor.Wait()
	gaveUp += int64(tracker.Expire(fleettest.Epoch.Add(each*time.Second), 0))
	for i := range engines {
		e := &engines[i]
		if e.Active() != 0 || e.PrefillTokens() != 0 || e.DecodeRequests() != 0 || e.DispatchedSince(time.Time{}) != 0 {
			t.Errorf("engine %d at rest: active %d, prefill %d, decode %d", i, e.Active(), e.PrefillTokens(), e.DecodeRequests())
		}
	}
	if tracker.Held() != 0 {
		t.Errorf("%d guards held at rest", tracker.Held())
	}
	if stale.Load() != gaveUp {
		t.Errorf("the janitor gave up %d guards and said so of %d", gaveUp, stale.Load())
	}
	if gaveUp < owners*each/4 {
		t.Errorf("the janitor gave up %d guards, of %d that only it could end", gaveUp, owners*each/4)
	}
}

// TestExpiredMayRelease holds that the janitor calls out without a lock held, as a handler that ends its request needs.
func TestExpiredMayRelease(t *testing.T) {
	var (
		tracker load.Tracker
		engine  load.Engine
		g       *load.Guard
	)
	g = tracker.Acquire(&engine, fleettest.Epoch, load.StagePrefill, 1, func() {
		g.Release()
		if n := engine.Active(); n != 0 {
			t.Errorf("%d active when the owner learned of it, want 0", n)
		}
		tracker.Acquire(&engine, fleettest.Epoch.Add(time.Hour), load.StagePrefill, 1, nil)
	})
	if n := tracker.Expire(fleettest.Epoch.Add(time.Minute), time.Minute); n != 1 || engine.Active() != 1 {
		t.Errorf("Expire gave up %d guards and left %d, want 1 and the new one", n, engine.Active())
	}
}

func TestCountJSON(t *testing.T) {
	for _, c := range []struct {
		count load.Count
		json  string
		text  string
	}{
		{load.Count{}, "null", "unknown"}, {load.Known(0), "0", "0"}, {load.Known(-7), "-7", "-7"}, {load.Known(1<<63 - 1), "9223372036854775807", "9223372036854775807"},
	} {
		b, err := c.count.MarshalJSON()
		if err != nil || string(b) != c.json || c.count.String() != c.text {
			t.Errorf("%v is %s in JSON (%v), want %s", c.count, b, err, c.json)
		}
		back := load.Known(99)
		if err := back.UnmarshalJSON(b); err != nil || back != c.count {
			t.Errorf("%s is read as %v (%v), want %v", b, back, err, c.count)
		}
	}
	for _, bad := range []string{"", "1.5", "9223372036854775808", `"1"`, "true"} {
		var c load.Count
		if err := c.UnmarshalJSON([]byte(bad)); err == nil {
			t.Errorf("%q is read as %v, want an error", bad, c)
		}
	}
}
