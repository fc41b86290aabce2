package policy_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/fleettest"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
)

// BenchmarkPickAmongChanges is a pick as requests make it: the engine that is picked gets the request, the one of 16 picks ago ends its own, and after each twentieth
// an engine reports.
func BenchmarkPickAmongChanges(b *testing.B) {
	for _, n := range []int{4, 64, 1000} {
		for _, p := range []policy.Policy{policy.NewPowerOfTwo(1, policy.Limits{}), policy.NewLeastLoad(policy.Limits{}), policy.NewCost(1, policy.Limits{}, policy.CostConfig{}), policy.NewCacheAware(1, policy.Limits{}, nil, policy.CacheAwareConfig{Choices: 2})} {
			b.Run(fmt.Sprintf("%s/%d", p.Name(), n), func(b *testing.B) {
				reg, now := fleet.NewRegistry(fleet.BreakerConfig{}, 0), fleettest.Epoch
				var workers []*fleet.Worker
				report := load.RankReport{At: now, Running: load.Known(0), Waiting: load.Known(0)}
				for i := range n {
					w := reg.Put(fleet.Spec{ID: fmt.Sprintf("e%04d", i), Models: []string{"m"}})
					w.Load.Observe(0, report)
					workers = append(workers, w)
				}
				mask := reg.View().Mask(func(*fleet.Worker) bool { return true })
				var tracker load.Tracker
				var guards [16]*load.Guard
				var set fleet.Set
				trace := policy.Trace{Considered: make([]policy.Considered, 0, 16)}
				i := uint64(0)
				for b.Loop() {
					i++
					trace = policy.Trace{Considered: trace.Considered[:0]}
					set.Fill(mask, now, nil)
					pick, err := p.Pick(context.Background(), &set, &policy.Request{Key: i, Now: now, InputTokens: 100, Trace: &trace})
					if err != nil {
						b.Fatal(err)
					}
					if g := guards[i%16]; g != nil {
						g.Release()
					}
					guards[i%16] = tracker.Acquire(pick.Engine.Load, now, load.StagePrefill, 100, nil)
					if i%20 == 0 {
						workers[i/20*7%uint64(n)].Load.Observe(0, report)
					}
				}
			})
		}
	}
}
