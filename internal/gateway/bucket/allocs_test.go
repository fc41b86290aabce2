//go:build !race

package bucket_test

// The race detector makes sync.Pool drop what it is given at random, so the budgets hold without it only.

import (
	"context"
	"fmt"
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/fleettest"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
)

// TestPickAllocatesNothing holds the budget of the request path: none, for every policy, traced or not, breakers tripped and
// engines excluded, and beyond the fleet size that a Set holds inline.
func TestPickAllocatesNothing(t *testing.T) {
	for _, engines := range []int{64, 1000, 2000} {
		reg := fleetOf(engines, fleettest.Epoch)
		trip(reg, 3, fleettest.Epoch)
		for _, name := range []string{"power_of_two", "round_robin", "load_based", "random"} {
			for _, trace := range []*bucket.Trace{nil, bucket.NewTrace(8)} {
				t.Run(fmt.Sprintf("%s/engines=%d/traced=%v", name, engines, trace != nil), func(t *testing.T) {
					b := plainBucket(name)
					resolver, err := bucket.NewResolver([]*bucket.Bucket{b})
					if err != nil {
						t.Fatal(err)
					}
					r := &bucket.Request{Now: fleettest.Epoch, InputTokens: 1000, Trace: trace, Exclude: []string{"http://10.0.0.7:8000"}}
					budget(t, "Bucket.Pick", r, func() error { _, err := b.Pick(context.Background(), reg.View(), r); return err })
					budget(t, "Resolver.Select", r, func() error { _, err := resolver.Select(context.Background(), reg.View(), r); return err })
				})
			}
		}
	}
}

func budget(t *testing.T, what string, r *bucket.Request, pick func() error) {
	t.Helper()
	n := testing.AllocsPerRun(200, func() {
		r.Key++
		if r.Trace != nil {
			r.Trace.Reset()
		}
		if err := pick(); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%s: %v allocations, want 0", what, n)
	}
}

// TestPairAllocatesNothing is the same for a pair.
func TestPairAllocatesNothing(t *testing.T) {
	reg := fleet.NewRegistry(fleet.BreakerConfig{}, 0)
	for i := range 64 {
		reg.Put(fleet.Spec{ID: fmt.Sprint(i), Models: []string{"m"}, Stage: fleet.Stage(1 + i%2)})
	}
	b := bucket.NewPD("b", 0, bucket.Range{},
		bucket.NewGroup("m", fleet.Prefill, nil, policy.NewPowerOfTwo(1, policy.Limits{})),
		bucket.NewGroup("m", fleet.Decode, nil, policy.NewPowerOfTwo(1, policy.Limits{})))
	r := &bucket.Request{Now: fleettest.Epoch, InputTokens: 1000}
	budget(t, "Bucket.Pick", r, func() error { _, err := b.Pick(context.Background(), reg.View(), r); return err })
}
