package load

import (
	"testing"
	"time"
)

func TestFiguresBelowZeroAreUnknown(t *testing.T) {
	var e Engine
	now := time.Unix(1_800_000_000, 0)
	e.Observe(0, RankReport{At: now, Running: Known(-1), Waiting: Known(2), Used: Known(-5), Capacity: Known(10)})
	r := e.Report(now)
	if r == nil || r.Running.IsKnown() || r.Used.IsKnown() || r.Waiting != Known(2) || r.Basic() || r.Native() {
		t.Errorf("%+v", r)
	}
}
