//go:build !race

package compare

import (
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/replay"
)

// TestCostBeatsThePlainForm replays the whole trace twenty times with other random ties. The race detector learns nothing from it that shorter tests do
// not show.
func TestCostBeatsThePlainForm(t *testing.T) {
	for name, o := range map[string]replay.Options{"8 engines": {}, "10 engines": {Engines: 10}} {
		cost, plain := 0.0, 0.0
		for seed := range 20 {
			o.Seed = uint64(seed + 1)
			r := mustRun(t, Job{Trace: requests(t, time.Hour), Options: o, Contenders: contenders(t, "cost", replay.PlainCost)})
			cost, plain = cost+*r.Runs[0].TTFT.Mean/20, plain+*r.Runs[1].TTFT.Mean/20
		}
		t.Logf("%s: mean TTFT %.3f s, %.3f of the plain form's %.3f s", name, cost, cost/plain, plain)
		if cost > 0.8*plain { // 0.62 and 0.70 when this was written
			t.Errorf("%s: mean TTFT %.3f s, of the plain form %.3f s", name, cost, plain)
		}
	}
}
