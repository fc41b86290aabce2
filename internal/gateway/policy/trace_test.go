package policy_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/fleettest"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
)

// TestPickedIsKept: however many candidates a policy looks at, the one that it picks is in its trace, once and with the signals that
// it was picked by; here it is the last by id, and in the bounded trace it takes the last place.
func TestPickedIsKept(t *testing.T) {
	for _, engines := range []int{1, 2, 16, 17, 100} {
		idle := int64(1)
		full := policy.Limits{MaxRunningRequests: &idle} // only the last is below it
		for _, p := range []policy.Policy{policy.NewLeastLoad(policy.Limits{}), policy.NewLeastLoad(full), policy.NewRoundRobin(full), policy.NewRandom(1, full)} {
			for _, room := range []int{0, 1, 16} {
				reg := fleet.NewRegistry(fleet.BreakerConfig{}, 0)
				var last *fleet.Worker
				for i := range engines {
					last = reg.Put(fleet.Spec{ID: fmt.Sprintf("e%03d", i), Models: []string{"m"}})
					last.Load.Observe(0, load.RankReport{At: fleettest.Epoch, Running: load.Known(int64(engines - 1 - i)), Waiting: load.Known(0)})
				}
				trace := &policy.Trace{Considered: make([]policy.Considered, 0, room)}
				var set fleet.Set
				set.Fill(reg.View().Mask(func(*fleet.Worker) bool { return true }), fleettest.Epoch, nil)
				pick, err := p.Pick(context.Background(), &set, &policy.Request{Now: fleettest.Epoch, Trace: trace})
				if err != nil || pick.Engine != last {
					t.Fatalf("%s of %d picked %+v: %v", p.Name(), engines, pick, err)
				}
				if room == 0 {
					if len(trace.Considered) != 0 {
						t.Errorf("%s: a trace without room kept %v", p.Name(), trace.Considered)
					}
					continue
				}
				found := 0
				for i, c := range trace.Considered {
					if c.Engine != last {
						continue
					}
					found++
					if n, ok := c.Report.Running.Get(); !ok || n != 0 || (trace.Omitted > 0 && p.Name() == "load_based" && i != room-1) {
						t.Errorf("%s of %d: in place %d, with %+v", p.Name(), engines, i, c.Report)
					}
				}
				if found != 1 || len(trace.Considered) > room {
					t.Errorf("%s of %d, room for %d: it is there %d times in %v", p.Name(), engines, room, found, trace.Considered)
				}
			}
		}
	}
}
