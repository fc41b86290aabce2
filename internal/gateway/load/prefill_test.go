package load_test

import (
	"sync"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet/fleettest"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/script"
)

// prompt is a guard in the naive accounting.
type prompt struct {
	guard    *load.Guard
	at       time.Time
	decode   bool
	uncached int64
	unseen   bool
	done     bool // it had its first token, or was given up
}

// TestPrefillAgainstAList does random acquisitions, first tokens and releases on one engine, and works everything out anew after each.
func TestPrefillAgainstAList(t *testing.T) {
	rng := script.Rand(t)
	for range 200 {
		var (
			tracker load.Tracker
			engine  load.Engine
			list    []*prompt // by time; later ones of one time behind
			freed   time.Time
			now     = fleettest.Epoch
		)
		first := func() *prompt {
			for _, p := range list {
				if !p.done && !p.decode {
					return p
				}
			}
			return nil
		}
		for step := range 150 {
			now = now.Add(time.Duration(rng.IntN(3)) * time.Second)
			switch p := (*prompt)(nil); rng.IntN(8) {
			case 0, 1, 2:
				p = &prompt{at: now, uncached: rng.Int64N(100), decode: rng.IntN(4) == 0}
				stage := load.StagePrefill
				if p.decode {
					stage = load.StageDecode
				}
				p.guard = tracker.Acquire(&engine, now, stage, p.uncached, nil)
				list = append(list, p)
			case 3:
				if len(list) > 0 {
					p = list[rng.IntN(len(list))]
					n, unseen := rng.Int64N(60)-5, rng.IntN(2) == 0
					p.guard.Computes(n, unseen)
					if !p.done {
						p.uncached, p.unseen = max(n, 0), unseen
					}
				}
			case 4, 5:
				if len(list) == 0 {
					continue
				}
				i := rng.IntN(len(list))
				p = list[i]
				p.guard.Prefilled(now)
				if p.done || p.decode {
					continue
				}
				for _, o := range append(append([]*prompt{}, list[:i]...), p) {
					if !o.done && !o.decode && (o.unseen || o == p) {
						if first() == o {
							freed = now
						}
						o.done = true
					}
				}
			default:
				if len(list) > 0 {
					p = list[rng.IntN(len(list))]
					p.guard.Release()
					p.done = true
				}
			}
			since := now.Add(-time.Duration(rng.IntN(10)) * time.Second)
			want := load.Prefill{}
			for _, p := range list {
				if p.done || p.decode {
					continue
				}
				want.Tokens += p.uncached
				if !p.at.Before(since) {
					want.Since += p.uncached
				}
			}
			if p := first(); p != nil {
				want.Head, want.HeadAt, want.HeadUnseen = p.uncached, p.at, p.unseen
				if freed.After(p.at) {
					want.HeadAt = freed
				}
			}
			if got := engine.Prefill(since); got != want {
				t.Fatalf("step %d: %+v, want %+v", step, got, want)
			}
		}
	}
}

func TestLeft(t *testing.T) {
	at := fleettest.Epoch
	seen := load.Prefill{Tokens: 100, Head: 30, HeadAt: at}
	unseen := seen
	unseen.HeadUnseen = true
	for _, c := range []struct {
		p     load.Prefill
		after time.Duration
		want  int64
	}{
		{load.Prefill{}, time.Hour, 0},
		{seen, -time.Second, 100}, // the clock was set
		{seen, time.Second, 90},
		{seen, time.Minute, 70}, // the first is not done until its token was seen
		{unseen, time.Second, 90},
		{unseen, 5 * time.Second, 50},
		{unseen, time.Minute, 0},
	} {
		if got := c.p.Left(at.Add(c.after), 10); got != c.want {
			t.Errorf("%+v after %v: %d, want %d", c.p, c.after, got, c.want)
		}
	}
}

// TestPrefillFromManyGoroutines: at the end nothing is in prefill, whoever was first.
func TestPrefillFromManyGoroutines(t *testing.T) {
	var tracker load.Tracker
	var engine load.Engine
	var wg sync.WaitGroup
	for k := range 8 {
		wg.Go(func() {
			for i := range 300 {
				at := fleettest.Epoch.Add(time.Duration(i) * time.Millisecond)
				g := tracker.Acquire(&engine, at, load.StagePrefill, 10, nil)
				g.Computes(int64(i), k%2 == 0)
				engine.Prefill(at).Left(at, 100)
				if i%3 > 0 {
					g.Prefilled(at)
				}
				g.Release()
				g.Prefilled(at)
			}
		})
	}
	wg.Wait()
	if p := engine.Prefill(time.Time{}); p != (load.Prefill{}) {
		t.Errorf("left: %+v", p)
	}
}
