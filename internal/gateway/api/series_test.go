package api

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// TestCounters: what is kept is the vector's own, up to the bound, and asking for it again allocates nothing; what is beyond counts all the same.
func TestCounters(t *testing.T) {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "x"}, []string{"a", "b"})
	var kept counters
	for range 2 {
		for i := range 2 * countersKept {
			if kept.of(vec, "a", itoa(i)) != vec.WithLabelValues("a", itoa(i)) || kept.of(vec, itoa(i), "a") != vec.WithLabelValues(itoa(i), "a") {
				t.Fatal("another counter")
			}
		}
	}
	if n := len(*kept.list.Load()); n != countersKept {
		t.Errorf("%d are kept", n)
	}
	if n := testing.AllocsPerRun(100, func() { kept.of(vec, "a", "0") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	vec.Reset()
	if kept.of(vec, "a", "0") == vec.WithLabelValues("a", "0") {
		t.Error("it is looked up each time")
	}
}
