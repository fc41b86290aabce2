package bucket_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/fleettest"
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

// trip opens the breakers of the first n engines.
func trip(reg *fleet.Registry, n int, now time.Time) {
	for w := range reg.View().All() {
		if n == 0 {
			return
		}
		n--
		for s, _ := reg.Breaker(w); s != fleet.Open; s, _ = reg.Breaker(w) {
			t, _ := reg.Claim(w, now)
			reg.Done(t, fleet.Failure, now)
		}
	}
}

func plainBucket(policyName string) *bucket.Bucket {
	return bucket.NewPlain("b", 0, bucket.Range{}, bucket.NewGroup("m", fleet.Plain, nil, newPolicy(policyName, 1, policy.Limits{})))
}

// BenchmarkPick is one Bucket.Pick, the live filter included.
func BenchmarkPick(b *testing.B) {
	for _, c := range []struct {
		policy  string
		engines []int
		tripped int
		trace   *bucket.Trace
	}{
		{"power_of_two", []int{4, 64, 1000}, 0, nil},
		{"power_of_two", []int{4, 64, 1000}, 3, nil},
		{"power_of_two", []int{64, 1000}, 0, bucket.NewTrace(8)},
		{"round_robin", []int{64, 1000}, 0, nil},
		{"random", []int{64, 1000}, 0, nil},
		{"load_based", []int{64, 1000}, 0, nil},
	} {
		for _, n := range c.engines {
			b.Run(fmt.Sprintf("policy=%s/engines=%d/tripped=%d/traced=%v", c.policy, n, c.tripped, c.trace != nil), func(b *testing.B) {
				reg := fleetOf(n, fleettest.Epoch)
				trip(reg, c.tripped, fleettest.Epoch)
				bk := plainBucket(c.policy)
				r := &bucket.Request{Now: fleettest.Epoch, InputTokens: 1000, Trace: c.trace}
				b.ReportAllocs()
				for b.Loop() {
					r.Key++
					if c.trace != nil {
						c.trace.Reset()
					}
					if _, err := bk.Pick(context.Background(), reg.View(), r); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkNaivePick is power_of_two over a slice that each pick filters anew, to compare with.
func BenchmarkNaivePick(b *testing.B) {
	for _, n := range []int{4, 64, 1000} {
		b.Run(fmt.Sprintf("policy=power_of_two/engines=%d", n), func(b *testing.B) {
			reg := fleetOf(n, fleettest.Epoch)
			naive := naivePicker(b, reg)
			b.ReportAllocs()
			for b.Loop() {
				naive()
			}
		})
	}
}

// BenchmarkPickBesideNaive takes both by turns, so that whatever else the machine does meets both alike: the ratio is what can be
// compared between machines and days.
func BenchmarkPickBesideNaive(b *testing.B) {
	const turn = 100 // picks by the clock, so that reading it does not count
	for _, n := range []int{4, 64, 1000} {
		b.Run(fmt.Sprintf("policy=power_of_two/engines=%d", n), func(b *testing.B) {
			reg := fleetOf(n, fleettest.Epoch)
			pick, naive := picker(b, reg), naivePicker(b, reg)
			var picked, naively time.Duration
			for b.Loop() {
				start := time.Now()
				for range turn {
					pick()
				}
				middle := time.Now()
				for range turn {
					naive()
				}
				picked, naively = picked+middle.Sub(start), naively+time.Since(middle)
			}
			b.ReportMetric(0, "ns/op") // that of a turn of both says nothing, nor does what a turn allocates
			b.ReportMetric(float64(picked.Nanoseconds())/float64(b.N*turn), "pick-ns")
			b.ReportMetric(float64(naively.Nanoseconds())/float64(b.N*turn), "naive-ns")
			b.ReportMetric(float64(naively)/float64(picked), "naive/pick")
		})
	}
}

// picker returns a power_of_two pick from all engines of the fleet.
func picker(b *testing.B, reg *fleet.Registry) func() {
	bk, r := plainBucket("power_of_two"), &bucket.Request{Now: fleettest.Epoch, InputTokens: 1000}
	return func() {
		r.Key++
		if _, err := bk.Pick(context.Background(), reg.View(), r); err != nil {
			b.Fatal(err)
		}
	}
}

// naivePicker returns the same over a slice that each pick filters anew.
func naivePicker(b *testing.B, reg *fleet.Registry) func() {
	workers := slices.Collect(reg.View().All())
	g, r := &naiveGroup{stage: fleet.Plain, name: "power_of_two"}, &bucket.Request{Now: fleettest.Epoch}
	return func() {
		cs := g.candidates(reg, workers, r)
		i, j := rand.IntN(len(cs)), rand.IntN(len(cs)-1)
		if j >= i {
			j++
		}
		if _, err := g.powerOfTwo(cs, r.Now, []*fleet.Worker{cs[i], cs[j]}); err != nil {
			b.Fatal(err)
		}
	}
}
