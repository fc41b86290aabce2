//go:build !race

package policy_test

// The race detector makes sync.Pool drop what it is given at random, so the budgets hold without it only.

import (
	"context"
	"fmt"
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/fleettest"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// still answers with the same each time, and allocates nothing.
type still struct{ match prefix.Match }

func (*still) Name() string { return "still" }

func (s *still) Lookup(_ context.Context, _ *prefix.Query, into *prefix.Match) error {
	into.Held = append(into.Held, s.match.Held...)
	return nil
}

// prefixed returns both policies over n engines, of which each step-th holds some of the prompt.
func prefixed(n, step int) (*fleet.Set, []policy.Policy) {
	s, src := engines(n, fleet.Plain), &still{}
	others := load.NewAccount(0)
	for i := range n {
		w := s.At(i)
		others.Sent(load.Told{Engine: w.Load, Prompt: load.Prompt{ID: uint64(i), Uncached: int64(i % 5 * 100), At: fleettest.Epoch}})
		w.Load.Observe(0, load.RankReport{
			At: fleettest.Epoch, Running: load.Known(int64(i % 7)), Waiting: load.Known(int64(i % 3)), WaitingUncached: load.Known(int64(i * 37 % 1000)),
			Used: load.Known(1000), Capacity: load.Known(100_000),
		})
	}
	for no := 1; no <= n; no += step {
		d := int32(1024 + no%5*512)
		src.match.Held = append(src.match.Held, prefix.Held{Engine: uint32(no), Depth: prefix.Depth{d, d, d, d}})
	}
	guard := &policy.PressureGuard{AbsTokens: 1024, Rel: 1.5}
	return s, []policy.Policy{
		policy.NewCacheAware(1, policy.Limits{}, src, policy.CacheAwareConfig{
			MinMatched: 1024, MinWorkers: 8, MaxWorkers: 32, Ratio: 0.05, SwitchMargin: 1024, QueueLimit: 9, Choices: 2, Guard: guard,
		}),
		policy.NewCost(1, policy.Limits{}, policy.CostConfig{Source: src, Costs: &prefix.Costs{}}),
	}
}

func TestPrefixPoliciesAllocateNothing(t *testing.T) {
	for _, n := range []int{4, 64, 1000} {
		for _, step := range []int{1, 3, n + 1} {
			s, policies := prefixed(n, step)
			for _, p := range policies {
				memo, q := newMemo(true), prefix.Query{Tokens: []uint32{1}}
				trace := policy.Trace{Considered: make([]policy.Considered, 0, 8)}
				r := &policy.Request{Now: fleettest.Epoch, InputTokens: 4096, Prefix: memo, Trace: &trace}
				if allocs := testing.AllocsPerRun(200, func() {
					r.Key++
					trace.Considered = trace.Considered[:0]
					memo.Reset(q)
					mustPick(t, p, s, r)
				}); allocs != 0 {
					t.Errorf("%s, %d engines, each %d. a holder: %v allocations", p.Name(), n, step, allocs)
				}
			}
		}
	}
}

// BenchmarkPrefixPick is one pick, the look-up in a source that copies its answer included.
func BenchmarkPrefixPick(b *testing.B) {
	for _, n := range []int{4, 64, 1000} {
		for _, holders := range []int{1, n} {
			s, policies := prefixed(n, (n+holders-1)/holders)
			for _, p := range policies {
				b.Run(fmt.Sprintf("policy=%s/engines=%d/holders=%d", p.Name(), n, holders), func(b *testing.B) {
					memo, q := newMemo(true), prefix.Query{Tokens: []uint32{1}}
					r := &policy.Request{Now: fleettest.Epoch, InputTokens: 4096, Prefix: memo}
					b.ReportAllocs()
					for b.Loop() {
						r.Key++
						memo.Reset(q)
						if _, err := p.Pick(context.Background(), s, r); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}
