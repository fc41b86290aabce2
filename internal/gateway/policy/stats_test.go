package policy_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/fleettest"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
)

// The keys of these tests are fixed, so they pass always or never; the bounds say how odd a fair draw may look. They are the
// 99.9% points of the chi-square distribution, by degrees of freedom: a fair generator exceeds one in a thousand of them,
// and a bias of a few per cent goes far beyond.
var chiSquare999 = map[int]float64{3: 16.27, 5: 20.52, 15: 37.70, 29: 58.30}

// wantUniform compares counts of equally likely outcomes with their mean.
func wantUniform(t *testing.T, what string, counts []int) {
	t.Helper()
	total := 0
	for _, n := range counts {
		total += n
	}
	mean := float64(total) / float64(len(counts))
	chi := 0.0
	for _, n := range counts {
		chi += (float64(n) - mean) * (float64(n) - mean) / mean
	}
	bound, ok := chiSquare999[len(counts)-1]
	if !ok || mean < 100 {
		t.Fatalf("%s: no bound for %d outcomes with mean %v", what, len(counts), mean)
	}
	if chi > bound {
		t.Errorf("%s: chi-square %.1f of %v, at most %.1f", what, chi, counts, bound)
	}
}

// keys are ways in which a caller may number its requests; none may show in the choices.
var keys = map[string]func(i int) uint64{
	"in order":      func(i int) uint64 { return uint64(i) },
	"high bits":     func(i int) uint64 { return uint64(i) << 40 },
	"even":          func(i int) uint64 { return uint64(i) * 2 },
	"multiplicates": func(i int) uint64 { return uint64(i) * 0x9e3779b97f4a7c15 }, // the generator's own step
}

const draws = 12_000

// engines registers n engines of a stage, e0 to e(n-1), and returns those of them that are live.
func engines(n int, stage fleet.Stage) *fleet.Set {
	reg := fleet.NewRegistry(fleet.BreakerConfig{}, 0)
	for i := range n {
		reg.Put(fleet.Spec{ID: fmt.Sprintf("e%d", i), Models: []string{"m"}, Stage: stage})
	}
	s := new(fleet.Set)
	s.Fill(reg.View().Mask(func(*fleet.Worker) bool { return true }), fleettest.Epoch, nil)
	return s
}

func position(w *fleet.Worker) int {
	var n int
	fmt.Sscanf(w.ID, "e%d", &n)
	return n
}

func mustPick(t *testing.T, p policy.Policy, s *fleet.Set, r *policy.Request) *fleet.Worker {
	t.Helper()
	got, err := p.Pick(context.Background(), s, r)
	if err != nil {
		t.Fatal(err)
	}
	return got.Engine
}

// TestRandomIsUniform fills some engines up: the others must share all requests alike, the neighbours of full ones too.
func TestRandomIsUniform(t *testing.T) {
	one := int64(1)
	full := map[int]bool{2: true, 3: true, 7: true, 9: true}
	for name, key := range keys {
		for seed := range uint64(2) {
			s := engines(10, fleet.Plain)
			var tracker load.Tracker
			for i := range full {
				tracker.Acquire(s.At(i).Load, fleettest.Epoch, load.StagePrefill, 1, nil)
			}
			p := policy.NewRandom(seed, policy.Limits{MaxInflightRequests: &one})
			var counts [10]int
			for i := range draws {
				counts[position(mustPick(t, p, s, &policy.Request{Key: key(i), Now: fleettest.Epoch}))]++
			}
			var admitted []int
			for i, n := range counts {
				switch {
				case !full[i]:
					admitted = append(admitted, n)
				case n > 0:
					t.Errorf("%s, seed %d: engine %d is full and got %d", name, seed, i, n)
				}
			}
			wantUniform(t, fmt.Sprintf("%s, seed %d", name, seed), admitted)
		}
	}
}

// TestPowerOfTwoSamplesPairsUniformly counts ordered pairs: each engine is as often first, which keeps a tie, as second.
func TestPowerOfTwoSamplesPairsUniformly(t *testing.T) {
	const n = 6
	for name, key := range keys {
		for seed := range uint64(2) {
			s := engines(n, fleet.Plain)
			p := policy.NewPowerOfTwo(seed, policy.Limits{})
			var pairs [n * n]int
			trace := policy.Trace{Considered: make([]policy.Considered, 0, 2)}
			for i := range draws {
				trace.Considered = trace.Considered[:0]
				w := mustPick(t, p, s, &policy.Request{Key: key(i), Now: fleettest.Epoch, Trace: &trace})
				a, b := trace.Considered[0].Engine, trace.Considered[1].Engine
				if w != a {
					t.Fatalf("a tie went to %s, sampled after %s", w, a)
				}
				pairs[position(a)*n+position(b)]++
			}
			var different []int
			for i, c := range pairs {
				switch {
				case i/n != i%n:
					different = append(different, c)
				case c > 0:
					t.Errorf("%s, seed %d: engine %d was sampled twice in one pick", name, seed, i/n)
				}
			}
			wantUniform(t, fmt.Sprintf("%s, seed %d", name, seed), different)
		}
	}
}

// TestStagesAndSeedsDrawApart holds that the choices of one request in two groups, or under two seeds, do not follow each
// other: all combinations are equally likely.
func TestStagesAndSeedsDrawApart(t *testing.T) {
	prefill, decode := engines(4, fleet.Prefill), engines(4, fleet.Decode)
	one, two := policy.NewRandom(1, policy.Limits{}), policy.NewRandom(2, policy.Limits{})
	for name, key := range keys {
		var stages, seeds [16]int
		for i := range draws {
			p := position(mustPick(t, one, prefill, &policy.Request{Key: key(i), Stage: fleet.Prefill, Now: fleettest.Epoch}))
			d := position(mustPick(t, one, decode, &policy.Request{Key: key(i), Stage: fleet.Decode, Now: fleettest.Epoch}))
			o := position(mustPick(t, two, prefill, &policy.Request{Key: key(i), Stage: fleet.Prefill, Now: fleettest.Epoch}))
			stages[p*4+d]++
			seeds[p*4+o]++
		}
		wantUniform(t, name+", two stages", stages[:])
		wantUniform(t, name+", two seeds", seeds[:])
	}
}

// TestTurnsFromManyGoroutines counts what concurrent picks get: taking turns is exact, not on average.
func TestTurnsFromManyGoroutines(t *testing.T) {
	const n, goroutines, each = 5, 8, 100 * 5
	for _, p := range []policy.Policy{policy.NewRoundRobin(policy.Limits{}), policy.NewLeastLoad(policy.Limits{})} {
		s := engines(n, fleet.Plain)
		var (
			mu     sync.Mutex
			counts [n]int
			wg     sync.WaitGroup
		)
		for range goroutines {
			wg.Go(func() {
				var mine [n]int
				for range each {
					got, err := p.Pick(context.Background(), s, &policy.Request{Now: fleettest.Epoch})
					if err != nil {
						t.Error(err)
						return
					}
					mine[position(got.Engine)]++
				}
				mu.Lock()
				defer mu.Unlock()
				for i := range mine {
					counts[i] += mine[i]
				}
			})
		}
		wg.Wait()
		if slices.Min(counts[:]) != slices.Max(counts[:]) {
			t.Errorf("%s: turns were %v", p.Name(), counts)
		}
	}
}

func TestClasses(t *testing.T) {
	for c, want := range map[policy.Class]struct {
		name string
		next bool
	}{
		policy.NoCandidates: {"no_candidates", true}, policy.NoAdmissibleEngine: {"no_admissible_engine", true},
		policy.AdmissionRejected: {"admission_rejected", true}, policy.InvalidSignal: {"invalid_signal", false},
		policy.InvalidConfiguration: {"invalid_configuration", false}, policy.OutsideCandidates: {"outside_candidates", false},
		policy.Class(99): {"invalid_class", false},
	} {
		if c.String() != want.name || c.NextBucket() != want.next {
			t.Errorf("class %d is %s, next bucket %v; want %s, %v", c, c, c.NextBucket(), want.name, want.next)
		}
	}
	if policy.NoLimit.String() != "none" {
		t.Errorf("NoLimit is called %s", policy.NoLimit)
	}
	zero, none := int64(0), policy.Limits{}
	if !none.None() || (&policy.Limits{MaxKVTokens: &zero}).None() {
		t.Error("None is wrong: a limit of zero is a limit")
	}
}
