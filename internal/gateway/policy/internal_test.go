package policy

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/script"
)

// TestDrawIsSplitMix64 compares with the published numbers of the generator started from 1234567 (Vigna's splitmix64.c, as
// Rosetta Code lists them), so that a replay of a decision log years from now draws the same.
func TestDrawIsSplitMix64(t *testing.T) {
	d := draw{state: 1234567}
	for i, want := range []uint64{6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821} {
		if got := d.next(); got != want {
			t.Errorf("number %d is %d, want %d", i, got, want)
		}
	}
}

// TestIntNRejects draws below three eighths of all numbers: eight of them fall on every three results, and unless two are
// rejected each third result comes less often.
func TestIntNRejects(t *testing.T) {
	d := newDraw(1, 2, fleet.Plain)
	const n, times = 3 << 61, 30_000
	var residues [3]int
	for range times {
		residues[d.intN(n)%3]++
	}
	for i, c := range residues {
		if c < times/3-times/50 || c > times/3+times/50 {
			t.Errorf("residue %d was drawn %d times of %d: %v", i, c, times, residues)
		}
	}
	for range 10 {
		if i := d.intN(1); i != 0 {
			t.Fatalf("intN(1) is %d", i)
		}
	}
}

// TestComparisonAgainstRules compares two random engines by the rules written out plainly, in big numbers, and holds that
// the order is turned round when the two are.
func TestComparisonAgainstRules(t *testing.T) {
	rng := script.Rand(t)
	decided := map[string]int{}
	for range 30_000 {
		a, b := randomObserved(rng), randomObserved(rng)
		for _, stage := range []fleet.Stage{fleet.Plain, fleet.Prefill, fleet.Decode} {
			want, by := rules(stage, &a, &b)
			decided[by]++
			got, native := comparePressure(stage, &a, &b)
			back, _ := comparePressure(stage, &b, &a)
			if got != want || back != -want || native != (by != "in flight" && by != "nothing") {
				t.Fatalf("%s: %d, backwards %d, native %v; want %d by %s\na %+v %+v\nb %+v %+v", stage, got, back, native, want, by, a, a.report, b, b.report)
			}
		}
	}
	for _, by := range []string{"queue", "uncached", "waiting", "running", "fraction", "used", "in flight", "nothing"} {
		if decided[by] < 20 {
			t.Errorf("only %d comparisons were decided by %s: the test does not reach it", decided[by], by)
		}
	}
}

func rules(stage fleet.Stage, a, b *observed) (order int, by string) {
	if r, s := a.report, b.report; r.Native() && s.Native() {
		type field struct {
			name string
			x, y *big.Rat
		}
		requests := []field{{"waiting", rat(r.Waiting), rat(s.Waiting)}, {"running", rat(r.Running), rat(s.Running)}}
		fields := append([]field{
			{"queue", rat(r.QueueMicros), rat(s.QueueMicros)}, {"uncached", rat(r.WaitingUncached), rat(s.WaitingUncached)},
		}, requests...)
		if stage == fleet.Decode {
			x, y := new(big.Rat).Quo(rat(r.Used), rat(r.Capacity)), new(big.Rat).Quo(rat(s.Used), rat(s.Capacity))
			fields = append(requests, field{"fraction", x, y}, field{"used", rat(r.Used), rat(s.Used)})
		}
		for _, f := range fields {
			if f.x != nil && f.y != nil && f.x.Cmp(f.y) != 0 {
				return f.x.Cmp(f.y), f.name
			}
		}
	}
	switch {
	case a.inFlight < b.inFlight:
		return -1, "in flight"
	case a.inFlight > b.inFlight:
		return 1, "in flight"
	}
	return 0, "nothing"
}

func rat(c load.Count) *big.Rat {
	n, ok := c.Get()
	if !ok {
		return nil
	}
	return new(big.Rat).SetInt64(n)
}

// randomObserved has few different values, so that ties go deep, and now and then enormous ones.
func randomObserved(rng *rand.Rand) observed {
	count := func() load.Count {
		switch rng.IntN(20) {
		case 0:
			return load.Count{}
		case 1:
			return load.Known(1<<63 - 1 - rng.Int64N(2))
		}
		return load.Known(rng.Int64N(2))
	}
	o := observed{inFlight: rng.Int64N(2)}
	if rng.IntN(10) > 0 {
		o.report = &load.Report{
			Running: count(), Waiting: count(), WaitingUncached: count(), Used: count(), Total: count(), Capacity: count(),
			MaxRunning: count(), QueueMicros: count(),
		}
		if rng.IntN(2) == 0 {
			o.report.Used, o.report.Capacity = load.Known(rng.Int64N(3)), load.Known(1+rng.Int64N(3))
		}
	}
	return o
}

// TestBoundOfHolders holds how many holders are considered of fleets of several sizes: with the defaults, and where the bounds meet.
func TestBoundOfHolders(t *testing.T) {
	defaults := CacheAwareConfig{MinWorkers: 8, MaxWorkers: 32, Ratio: 0.05}
	for n, want := range map[int]int{1: 1, 4: 4, 8: 8, 160: 8, 161: 9, 200: 10, 639: 32, 640: 32, 10_000: 32} {
		if got := defaults.bound(n); got != want {
			t.Errorf("of %d engines %d are considered, want %d", n, got, want)
		}
	}
	if few := (&CacheAwareConfig{MinWorkers: 8, MaxWorkers: 2, Ratio: 1}); few.bound(100) != 2 {
		t.Errorf("%d are considered, want the maximum of 2", few.bound(100))
	}
}

// TestSampleWithoutList: what a miss draws without a list of all candidates is what the shuffle of one draws, in the same order.
func TestSampleWithoutList(t *testing.T) {
	rng := script.Rand(t)
	for range 300 {
		reg := fleet.NewRegistry(fleet.BreakerConfig{}, 0)
		for i := range 1 + rng.IntN(40) {
			reg.Put(fleet.Spec{ID: fmt.Sprintf("e%02d", i)})
		}
		var set fleet.Set
		set.Fill(reg.View().Mask(func(*fleet.Worker) bool { return rng.IntN(4) > 0 }), time.Unix(1, 0), nil)
		if set.Len() == 0 {
			continue
		}
		p := NewCacheAware(rng.Uint64(), Limits{}, nil, CacheAwareConfig{Choices: rng.IntN(fewChoices + 1)})
		draw := func(sample func(*cachePick) []holder) (ids []string) {
			k := cachePick{CacheAware: p, cacheScratch: new(cacheScratch), candidates: &set, r: &Request{Key: 7}, match: &p.none}
			for _, h := range sample(&k) {
				ids = append(ids, h.engine.ID)
			}
			return ids
		}
		want := draw(func(k *cachePick) []holder {
			k.pool = slices.Collect(set.All())
			return k.sample()
		})
		if got := draw((*cachePick).sampleOfAll); !slices.Equal(got, want) {
			t.Fatalf("%d of %d: %v, want %v", p.config.Choices, set.Len(), got, want)
		}
	}
}
