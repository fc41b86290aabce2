//go:build !race

package compare

import (
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/replay"
)

// TestCostBeatsThePlainForm replays the whole trace with other random ties. What docs/policies.md says was measured with 20 seeds. The race detector learns nothing from it that shorter tests do
// not show.
func TestCostBeatsThePlainForm(t *testing.T) {
	const seeds = 4
	for name, o := range map[string]replay.Options{"8 engines": {}, "10 engines": {Engines: 10}} {
		cost, plain := 0.0, 0.0
		for seed := range seeds {
			o.Seed = uint64(seed + 1)
			r := mustRun(t, Job{Trace: requests(t, time.Hour), Options: o, Contenders: contenders(t, "cost", replay.PlainCost)})
			cost, plain = cost+*r.Runs[0].TTFT.Mean/seeds, plain+*r.Runs[1].TTFT.Mean/seeds
		}
		t.Logf("%s: mean TTFT %.3f s, %.3f of the plain form's %.3f s", name, cost, cost/plain, plain)
		if cost > 0.8*plain { // 0.63 and 0.70 over 20 seeds when this was written
			t.Errorf("%s: mean TTFT %.3f s, of the plain form %.3f s", name, cost, plain)
		}
	}
}
