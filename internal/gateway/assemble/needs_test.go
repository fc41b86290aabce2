package assemble

import (
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
)

// TestWants: of an engine is needed what the groups want that it belongs to, by their lists and its stage.
func TestWants(t *testing.T) {
	cfg, faults := config.Parse("test.yaml", []byte(`
models:
  - id: m
    buckets:
      - {id: short, max_input_tokens: 100, plain: {policy: round_robin, workers: [plain-a, both]}}
      - {id: long, min_input_tokens: 101, plain: {policy: cache_aware, workers: [plain-b, both]}}
      - {id: split, min_input_tokens: 101, pd: {prefill: {policy: cost, workers: [prefill]}, decode: {policy: power_of_two, workers: [decode]}}}
      - {id: other, min_input_tokens: 101, pd: {prefill: {policy: random, workers: [prefill-2]}, decode: {policy: round_robin, workers: [decode-2]}}}
      - {id: asked, min_input_tokens: 101, plain: {policy: {name: cost, kv_indexer: {endpoint: "unix:/x"}}, workers: [asks]}}
      - {id: bound, min_input_tokens: 101, plain: {policy: round_robin, admission: {max_waiting_requests: 3}, workers: [bounded]}}
  - {id: n, policy: round_robin}
discovery: {static: {workers: [{id: plain-a, url: "http://a"}, {id: plain-b, url: "http://b"}, {id: both, url: "http://c"}, {id: asks, url: "http://d"},
  {id: bounded, url: "http://i"}, {id: prefill, url: "http://e", role: prefill}, {id: prefill-2, url: "http://f", role: prefill},
  {id: decode, url: "http://g", role: decode}, {id: decode-2, url: "http://h", role: decode}]}}`))
	if cfg == nil {
		t.Fatal(faults)
	}
	reg := fleet.NewRegistry(fleet.BreakerConfig{}, 0)
	wants := WantsOf(cfg)
	if !wants.Prefix() {
		t.Error("nobody looks prefixes up")
	}
	nothing, load, both := Needs{}, Needs{Load: true}, Needs{Prefix: true, Load: true}
	for _, c := range []struct {
		id    string
		stage fleet.Stage
		want  Needs
	}{
		{"plain-a", fleet.Plain, nothing}, {"plain-b", fleet.Plain, both}, {"both", fleet.Plain, both}, {"asks", fleet.Plain, load},
		{"bounded", fleet.Plain, load}, {"prefill", fleet.Prefill, both}, {"prefill-2", fleet.Prefill, nothing},
		{"decode", fleet.Decode, load}, {"decode-2", fleet.Decode, nothing},
		{"prefill", fleet.Plain, nothing}, // not of the stage that its group has
	} {
		reg.Put(fleet.Spec{ID: c.id, URL: "http://x", Models: []string{"m"}, Stage: c.stage})
		if got := wants.Of(reg.View().Get(c.id)); got != c.want {
			t.Errorf("%s as %v: %+v, want %+v", c.id, c.stage, got, c.want)
		}
	}
	reg.Put(fleet.Spec{ID: "plain-b", URL: "http://x", Models: []string{"n"}})
	if got := wants.Of(reg.View().Get("plain-b")); got != nothing {
		t.Errorf("of another model's: %+v", got)
	}
	for text, want := range map[string]bool{"cost": true, "random": false, `{name: cost, prefix_provider: perigee_index, kv_indexer: {endpoint: "unix:/x"}}`: false} {
		cfg, faults := config.Parse("test.yaml", []byte("models: [{id: m, policy: "+text+"}]\ndiscovery: {static: {workers: [http://a]}}"))
		if cfg == nil {
			t.Fatal(faults)
		}
		if w := WantsOf(cfg); w.Prefix() != want {
			t.Errorf("%s: prefixes are looked up here: %v", text, !want)
		}
	}
}
