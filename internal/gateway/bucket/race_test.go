package bucket_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/fleettest"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
)

// TestSelectWhileTheFleetChanges selects, dispatches and ends requests while engines register, leave, report and fail. Each
// selection must hold in the view that it was made on, and when all have ended nothing is counted anywhere.
func TestSelectWhileTheFleetChanges(t *testing.T) {
	const engines, rounds, clients = 12, 300, 4
	var (
		reg      = fleet.NewRegistry(fleet.BreakerConfig{Threshold: 2, CoolDown: 10}, 0)
		tracker  load.Tracker
		records  sync.Map // every load record that was ever picked
		selected atomic.Int64
		wg       sync.WaitGroup
	)
	id := func(i int) string { return fmt.Sprintf("e%d", i%engines) }
	spec := func(i, version int) fleet.Spec {
		return fleet.Spec{ID: id(i), Stage: fleet.Stage(i % engines % 3), Models: []string{"m"}, Ranks: 1, Version: fmt.Sprint(version)}
	}
	for i := range engines {
		reg.Put(spec(i, 0))
	}
	resolver := busyBuckets(t)
	wg.Go(func() {
		for i := range rounds {
			reg.Remove(id(i * 5))
			reg.Put(spec(i*5, 0))
			reg.Put(spec(i*7, i))
		}
	})
	wg.Go(func() {
		for i := range rounds {
			for w := range reg.View().All() {
				w.Load.Observe(0, load.RankReport{
					At: fleettest.Epoch.Add(time.Duration(i)), Running: load.Known(int64(i % 5)), Waiting: load.Known(int64(i % 3)),
					Used: load.Known(1), Capacity: load.Known(10),
				})
			}
		}
	})
	for k := range clients {
		wg.Go(func() {
			for i := range rounds {
				now, v := fleettest.Epoch.Add(time.Duration(i)), reg.View()
				r := bucket.Request{Key: uint64(i*clients + k), Now: now, InputTokens: int64(i % 400), Exclude: []string{id(i)}}
				if i%2 == 0 {
					r.Trace = bucket.NewTrace(4)
				}
				s, err := resolver.Select(context.Background(), v, &r)
				var exhausted *bucket.ExhaustedError
				if err != nil {
					if !errors.As(err, &exhausted) {
						t.Errorf("selection failed: %v", err)
					}
					continue
				}
				selected.Add(1)
				for stage, p := range map[fleet.Stage]policy.Pick{fleet.Plain: s.Plain, fleet.Prefill: s.Prefill, fleet.Decode: s.Decode} {
					w := p.Engine
					if w == nil {
						continue
					}
					if w.Stage != stage || v.Get(w.ID) != w || w.ID == id(i) {
						t.Errorf("%s is no candidate for %s in this view", w, stage)
					}
					records.Store(w.Load, true)
					ticket, ok := reg.Claim(w, now)
					if !ok {
						continue // it opened since, or another has the probe
					}
					g := tracker.Acquire(w.Load, now, load.Stage(stage/2), 10, nil)
					if i%5 == 0 {
						tracker.Expire(now, 3)
					}
					reg.Done(ticket, fleet.Outcome((i+k)%4), now)
					g.Release()
				}
			}
		})
	}
	wg.Wait()
	if selected.Load() < rounds {
		t.Errorf("only %d selections succeeded: the test reaches too little", selected.Load())
	}
	records.Range(func(e, _ any) bool {
		if r := e.(*load.Engine); r.Active() != 0 || r.PrefillTokens() != 0 || r.DecodeRequests() != 0 {
			t.Errorf("at rest: active %d, prefill %d, decode %d", r.Active(), r.PrefillTokens(), r.DecodeRequests())
		}
		return true
	})
	if tracker.Held() != 0 {
		t.Errorf("at rest: %d guards held", tracker.Held())
	}
}

// busyBuckets has every policy in a plain and in a P/D bucket.
func busyBuckets(t *testing.T) *bucket.Resolver {
	var bs []*bucket.Bucket
	for i, name := range []string{"round_robin", "random", "power_of_two", "load_based"} {
		group := func(s fleet.Stage) *bucket.Group {
			return bucket.NewGroup("m", s, nil, newPolicy(name, 1, policy.Limits{}))
		}
		limit := bucket.Range{MaxInput: int64(i+1) * 100}
		if i%2 == 0 {
			bs = append(bs, bucket.NewPlain("plain-"+name, 0, limit, group(fleet.Plain)))
		}
		bs = append(bs, bucket.NewPD("pd-"+name, 1, limit, group(fleet.Prefill), group(fleet.Decode)))
	}
	r, err := bucket.NewResolver(bs)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestHalfAPairIsNotReturned asks a bucket itself, without a resolver that would drop what comes with an error.
func TestHalfAPairIsNotReturned(t *testing.T) {
	reg := fleet.NewRegistry(fleet.BreakerConfig{}, 0)
	reg.Put(fleet.Spec{ID: "p", Stage: fleet.Prefill, Models: []string{"m"}})
	b := bucket.NewPD("b", 0, bucket.Range{},
		bucket.NewGroup("m", fleet.Prefill, nil, newPolicy("random", 1, policy.Limits{})),
		bucket.NewGroup("m", fleet.Decode, nil, newPolicy("random", 1, policy.Limits{})))
	s, err := b.Pick(context.Background(), reg.View(), &bucket.Request{Now: fleettest.Epoch, InputTokens: 1})
	var pe *policy.PickError
	if s != (bucket.Selection{}) || !errors.As(err, &pe) || pe.Class != policy.NoCandidates || pe.Stage != fleet.Decode {
		t.Errorf("half a pair: %s", outcome(&s, err))
	}
}

// TestTraceReuse holds that a trace which is used again shows the new selection only, and that an earlier copy of its tries
// is not needed for it: what it kept of the first does not come back.
func TestTraceReuse(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	reg := fleetOf(6, now)
	group := bucket.NewGroup("m", fleet.Plain, nil, policy.NewLeastLoad(policy.Limits{}))
	b := bucket.NewPlain("b", 0, bucket.Range{}, group)
	trace := bucket.NewTrace(4)
	for i := range 5 {
		r := &bucket.Request{Now: now, InputTokens: 1, Trace: trace}
		for w := range reg.View().All() { // all but the last i
			if len(r.Exclude) < i {
				r.Exclude = append(r.Exclude, w.ID)
			}
		}
		trace.Reset()
		if n := len(trace.Tries()); n != 0 {
			t.Fatalf("%d tries after Reset", n)
		}
		if _, err := b.Pick(context.Background(), reg.View(), r); err != nil {
			t.Fatal(err)
		}
		y := trace.Tries()
		if len(y) != 1 || len(y[0].Looked.Considered) != min(4, 6-i) || y[0].Looked.Omitted != max(0, 2-i) || y[0].Err != nil {
			t.Fatalf("excluding %d of 6, the trace is %+v", i, y)
		}
		for _, c := range y[0].Looked.Considered {
			if c.Engine.ID == fmt.Sprintf("http://10.0.0.%d:8000", i-1) {
				t.Fatalf("the trace of a pick without %s shows it", c.Engine)
			}
		}
	}
	(*bucket.Trace)(nil).Reset()
	if bucket.NewTrace(0).Tries() != nil || (*bucket.Trace)(nil).Tries() != nil {
		t.Error("an unused trace has tries")
	}
}
