//go:build linux

package demo

import (
	"strings"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/explain"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/trace"
)

// patience is how long a busy machine may take for anything.
const patience = time.Minute

// TestRunWithManager: the third run is like the second, with a Manager that takes what engines compute, and ends without a rest.
func TestRunWithManager(t *testing.T) {
	o := tiny()
	o.Policy, o.Manager, o.waitsForTesting = "cost", true, patience
	var runs []string
	o.Progress = func(p Progress) {
		if p.Runs != 3 {
			t.Errorf("%+v", p)
		}
		if len(runs) < p.Run {
			runs = append(runs, p.Name)
		}
	}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(runs, ", "); r.Requests != 72 || r.Errors != 0 || got != "round_robin, cost, cost + Manager" {
		t.Fatalf("%s: %+v", got, r)
	}
	for i := range r.Runs {
		x := &r.Runs[i]
		checkReplay(t, x, r.Conditions.InputTokens)
		if sum := x.DeviceTokens + x.ManagerTokens + x.ComputedTokens; sum != r.Conditions.InputTokens || x.DeviceTokens+x.ManagerTokens != mustCount(x.CachedTokens) {
			t.Errorf("%s: %d tokens cached, %d restored, %d computed of %d; usage says %v cached",
				x.Name, x.DeviceTokens, x.ManagerTokens, x.ComputedTokens, r.Conditions.InputTokens, x.CachedTokens)
		}
		if x.Manager != (i == 2) || x.WrongPages+x.FailedRestores != 0 {
			t.Errorf("%+v", x)
		}
	}
	if !strings.Contains(r.Config, "\nmanagers:\n") || r.Conditions.ManagerTokens <= r.Conditions.PoolTokens {
		t.Errorf("%+v\n%s", r.Conditions, r.Config)
	}
}

func mustCount(c load.Count) int64 {
	n, _ := c.Get() // checkReplay has seen that it is known
	return n
}

// long is a prompt of 100,096 tokens, so that two of them fill an engine's cache.
func long(prompt uint64) trace.Request {
	r := trace.Request{InputTokens: 782*blockTokens + 1, OutputTokens: 1}
	for i := range uint64(r.InputTokens+511) / 512 {
		r.Blocks = append(r.Blocks, prompt<<32+i)
	}
	return r
}

// TestManagerRestores: what an engine has evicted comes back from the Manager, every page of it is compared, and the gateway knows of it.
func TestManagerRestores(t *testing.T) {
	o := Options{Engines: 1, Speed: 1000, Requests: 1, Policy: "cost", Seed: 1, Manager: true, waitsForTesting: patience}
	v := variant{o.Policy, true}
	f, err := startFleet(t.Context(), &o, v, 10)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	play := func(prompt uint64) Replay {
		t.Helper()
		r, err := f.measure(t.Context(), &o, v, 1, []trace.Request{long(prompt)})
		if err != nil || int64(r.Errors)+r.FailedRestores+r.WrongPages != 0 {
			t.Fatalf("%+v, %v", r, err)
		}
		return r
	}
	for i := range uint64(3) {
		play(i)
		eventually(t, func() bool { return f.servers[0].Stats().CacheManager.Published == int64(i+1)*782 })
	}
	last := play(0)
	if last.RestoredPages == 0 || last.ManagerTokens != last.RestoredPages*blockTokens || last.CachedTokens != load.Known(last.DeviceTokens+last.ManagerTokens) {
		t.Errorf("%+v", last)
	}
	// A price comes with the first restores, and with it the gateway counts on the Manager: it expects that a token is computed.
	prompt := uint64(0)
	eventually(t, func() bool {
		prompt = (prompt + 1) % 3
		r := play(prompt)
		_, pick := lastPick(&f.gateway.Explain().Records(explain.Query{Limit: 1})[0])
		restored := r.RestoredPages > last.RestoredPages
		last = r
		return restored && pick.Considered[0].Uncached == load.Known(1)
	})
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("never")
		}
	}
}
