package compare

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/replay"
)

func configured(t *testing.T, models, roles, model string) (replay.Contender, error) {
	t.Helper()
	text := "models: [" + models + "]\ndiscovery: {static: {workers: [{id: a, url: 'http://127.0.0.1:1'" + roles + "}, {id: b, url: 'http://127.0.0.1:2'}, {id: c, url: 'http://127.0.0.1:3'}]}}\n"
	cfg, faults := config.Parse("x.yaml", []byte(text))
	if cfg == nil {
		t.Fatalf("%v in\n%s", faults, text)
	}
	return Configured("folder/x.yaml", cfg, model)
}

func mustConfigure(t *testing.T, models string) replay.Contender {
	t.Helper()
	c, err := configured(t, models, "", "")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestConfiguredRefuses(t *testing.T) {
	if _, err := configured(t, "{id: m}, {id: n}", "", ""); !errors.Is(err, ErrNoModel) {
		t.Errorf("two models: %v", err)
	}
	if _, err := configured(t, "{id: m}, {id: n}", "", "o"); !errors.Is(err, ErrNoModel) {
		t.Errorf("another model: %v", err)
	}
	if c, err := configured(t, "{id: m}, {id: n}", "", "n"); err != nil || c.Model != "n" || c.Name != "x" || fmt.Sprint(c.Workers) != "[a b c]" {
		t.Errorf("%+v, error %v", c, err)
	}
	if _, err := configured(t, "{id: m}", ", role: prefill", ""); !errors.Is(err, replay.ErrPD) {
		t.Errorf("a prefill engine: %v", err)
	}
}

// TestConfiguredPolicies: each policy of a configuration is the one that its name says, with its admission and members.
func TestConfiguredPolicies(t *testing.T) {
	run := func(c replay.Contender, seed uint64) Row {
		c.Name = "x"
		r := mustRun(t, Job{Trace: synthetic(60), Contenders: []replay.Contender{c}, Options: replay.Options{Engines: 3, Seed: seed, Rate: 5}})
		return r.Runs[0]
	}
	text := func(r Row) string {
		for i := range r.PerEngine {
			r.PerEngine[i].ID = "" // a configuration has its own names
		}
		out, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	for _, name := range []string{"round_robin", "random", "power_of_two", "load_based"} {
		own := mustConfigure(t, "{id: m, policy: "+name+"}")
		a, b, other := text(run(own, 1)), text(run(contenders(t, name)[0], 1)), text(run(own, 2))
		if random := name == "random" || name == "power_of_two"; !random && a != b {
			t.Errorf("%s: the configured policy does other things:\n%s\n%s", name, a, b)
		} else if name == "random" && a == other {
			t.Errorf("%s: the seed changes nothing", name)
		}
	}
	capped := run(mustConfigure(t, "{id: m, policy: load_based, admission: {max_inflight_requests: 1}, buckets: [{id: x, plain: {workers: [a]}}, {id: y, max_input_tokens: 1, plain: {workers: [b, c]}}]}"), 1)
	if capped.Rejected.NoEngine == 0 || capped.PerEngine[0].Requests == 0 || capped.PerEngine[1].Requests != 0 || capped.EngineQueueMax > 1 {
		t.Errorf("one engine with one request at a time: %+v", capped)
	}
	short := run(mustConfigure(t, "{id: m, buckets: [{id: x, min_input_tokens: 1025, max_input_tokens: 2000, max_context_tokens: 4000, plain: {}}]}"), 1)
	// Lengths go round 1,024, 1,536, … 4,096: only the second of seven fits.
	if short.Rejected.NoBucket != 51 || short.Completed != 9 {
		t.Errorf("a bucket for one length: %+v", short)
	}
}
