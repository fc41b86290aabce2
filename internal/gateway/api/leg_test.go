package api

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// TestUsualEnds: the counters of a few models are kept side by side, those of more are looked up each time, and neither makes anything anew; another
// configuration begins anew, and one before it keeps nothing.
func TestUsualEnds(t *testing.T) {
	var kept *usualEnds
	stores := 0
	count := func(config uint64, model, mode string) prometheus.Counter {
		c := kept.of(config, model, mode)
		if c == nil {
			c = prometheus.NewCounter(prometheus.CounterOpts{Name: "x"})
			if next := kept.with(config, usualEnd{model, mode, c}); next != nil {
				kept = next
				stores++
			}
		}
		return c
	}
	a, b, other := count(1, "a", "plain"), count(1, "b", "plain"), count(1, "a", "prefill")
	if a == b || a == other || stores != 3 {
		t.Errorf("%d stores", stores)
	}
	for range 10 {
		if count(1, "a", "plain") != a || count(1, "b", "plain") != b || count(1, "a", "prefill") != other || stores != 3 {
			t.Fatalf("they are not kept: %d stores", stores)
		}
	}
	for range 10 {
		for i := range 100 {
			count(1, itoa(i), "plain")
		}
	}
	if stores != endsKept || count(1, "a", "plain") != a {
		t.Errorf("%d stores", stores)
	}
	if n := testing.AllocsPerRun(100, func() { kept.with(1, usualEnd{"z", "plain", a}) }); n != 0 {
		t.Errorf("%v allocations for one that is not kept", n)
	}
	if count(2, "a", "plain") == a || kept.n != 1 {
		t.Errorf("another configuration has %d", kept.n)
	}
	if count(1, "a", "plain") == a || kept.config != 2 {
		t.Error("a configuration that is over has taken the place")
	}
}
