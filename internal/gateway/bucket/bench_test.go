package bucket_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
)

// fleetOf registers n plain engines with fresh native reports.
func fleetOf(n int, now time.Time) *fleet.Registry {
	reg := fleet.NewRegistry(fleet.BreakerConfig{}, 0)
	for i := range n {
		w := reg.Put(fleet.Spec{ID: fmt.Sprintf("http://10.0.%d.%d:8000", i/250, i%250), Kind: fleet.SGLang, Models: []string{"m"}, Ranks: 1})
		w.Load.Observe(0, load.RankReport{
			At: now, Running: load.Known(int64(i % 7)), Waiting: load.Known(int64(i % 3)), WaitingUncached: load.Known(int64(i * 37 % 1000)),
			Used: load.Known(1000), Total: load.Known(2000), Capacity: load.Known(100_000), MaxRunning: load.Known(64),
		})
	}
	return reg
}

// BenchmarkPick is one Bucket.Pick with power_of_two, the live filter included.
func BenchmarkPick(b *testing.B) {
	for _, n := range []int{4, 64, 1000} {
		for _, tripped := range []int{0, 3} {
			b.Run(fmt.Sprintf("engines=%d/tripped=%d", n, tripped), func(b *testing.B) {
				now := time.Unix(1_800_000_000, 0)
				reg := fleetOf(n, now)
				for w := range reg.View().All() {
					if tripped == 0 {
						break
					}
					tripped--
					for range 3 {
						t, _ := reg.Claim(w, now)
						reg.Done(t, fleet.Failure, now)
					}
				}
				g := bucket.NewGroup("m", fleet.Plain, nil, policy.NewPowerOfTwo(1, policy.Limits{}))
				bk := bucket.NewPlain("b", 0, bucket.Range{}, g)
				r := &bucket.Request{Now: now, InputTokens: 1000}
				b.ReportAllocs()
				for b.Loop() {
					r.Key++
					if _, err := bk.Pick(context.Background(), reg.View(), r); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
