package keeper_test

import (
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/engine/enginehttp"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/introspect"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/keeper"
	"github.com/perigee-llm/perigee/internal/gateway/load"
)

// TestSimulatedEngines: engines of both families register and report over real HTTP, and are followed through a restart.
func TestSimulatedEngines(t *testing.T) {
	n := func(v int) *int { return &v }
	usage := 0.25
	lies := &enginehttp.LoadLies{Running: n(7), Waiting: n(2), UsedTokens: n(400), CapacityTokens: n(1600), Usage: &usage}
	for _, c := range []struct {
		flavor enginehttp.Flavor
		kind   fleet.Kind
	}{{enginehttp.VLLM, fleet.VLLM}, {enginehttp.SGLang, fleet.SGLang}} {
		t.Run(string(c.flavor), func(t *testing.T) {
			e, err := enginehttp.Start(enginehttp.Options{
				Flavor: c.flavor, Models: []string{"m", "alias"}, Engine: engine.Config{KVBlocks: 100, BlockSize: 16, MaxModelLen: 512},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			if err := e.SetFault(enginehttp.Fault{Kind: enginehttp.FaultLieLoad, Load: lies}); err != nil {
				t.Fatal(err)
			}
			r := fleet.NewRegistry(fleet.BreakerConfig{}, 0)
			polls := make(chan keeper.PollInfo)
			stop := make(chan struct{})
			k, err := keeper.Start(keeper.Options{
				Registry: r, Targets: []introspect.Target{{ID: "e", URL: e.URL()}}, PollInterval: 10 * time.Millisecond, RetryInterval: time.Second,
				Events: keeper.Events{Polled: func(p keeper.PollInfo) {
					select {
					case polls <- p:
					case <-stop:
					}
				}},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer k.Close()
			defer close(stop)
			// until waits for a poll with the outcome.
			until := func(ok bool) {
				for p := range polls {
					if (p.Err == nil) == ok {
						return
					}
				}
			}

			<-k.Registered()
			until(true)
			w := r.View().Get("e")
			if w.Kind != c.kind || w.Stage != fleet.Plain || !w.Serves("m") || !w.Serves("alias") || w.Ranks != 1 || w.MaxContext != load.Known(512) || w.Version == "" {
				t.Errorf("registered as %+v", w.Spec)
			}
			got := w.Load.Report(time.Now())
			if got == nil {
				t.Fatal("no report")
			}
			if !got.Native() || got.Running != load.Known(7) || got.Waiting != load.Known(2) || got.Used != load.Known(400) || got.Capacity != load.Known(1600) {
				t.Errorf("reported %+v", got)
			}

			if err := e.SetFault(enginehttp.Fault{Kind: enginehttp.FaultRefuse}); err != nil {
				t.Fatal(err)
			}
			until(false)
			if err := e.SetFault(enginehttp.Fault{Kind: enginehttp.FaultNone}); err != nil {
				t.Fatal(err)
			}
			until(true)
			until(true) // the one before may have been under way when the lie ended
			if got := r.View().Get("e").Load.Report(time.Now()); got == nil || got.Ranks != 1 {
				t.Errorf("after it came back: %+v", got)
			}
		})
	}
}
