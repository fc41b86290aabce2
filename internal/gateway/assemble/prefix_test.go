package assemble

import (
	"context"
	"errors"
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/fleettest"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// holder says that engine 2 holds 60 tokens.
type holder struct{ name string }

func (h *holder) Name() string { return h.name }

func (*holder) Lookup(_ context.Context, _ *prefix.Query, into *prefix.Match) error {
	into.Held = append(into.Held, prefix.Held{Engine: 2, Depth: prefix.Depth{60, 60, 60, 60}})
	return nil
}

// TestPrefixPolicies holds that the settings and the source arrive, by a pick that they decide.
func TestPrefixPolicies(t *testing.T) {
	reg := fleet.NewRegistry(fleet.BreakerConfig{}, 0)
	for _, id := range []string{"a", "b", "c"} {
		reg.Put(fleet.Spec{ID: id, Models: []string{"m"}})
	}
	for text, want := range map[string]policy.Reason{
		"cost":                          policy.ReasonLeastCost,
		"{name: cost, prefill_rate: 9}": policy.ReasonLeastCost,
		"cache_aware":                   policy.ReasonNoHolder, // 60 tokens are fewer than 1024
		"{name: cache_aware, min_matched_tokens: 60}":                        policy.ReasonCache,
		"{name: cache_aware, min_matched_tokens: 61}":                        policy.ReasonNoHolder,
		"{name: cache_aware, min_matched_tokens: 60, min_match_ratio: 0.61}": policy.ReasonNoHolder,
	} {
		var asked []string
		source := &holder{"index"}
		u := Builder{Seed: 1, Source: func(model string, p *config.Policy) prefix.Source {
			provider, _ := p.Prefixes()
			asked = append(asked, model+" "+string(provider))
			return source
		}}
		m := parse(t, text)
		m.Buckets[1].Plain.Admission = config.Admission{}
		r, err := u.Resolver("m", m, func(b *config.Bucket) bool { return b.ID == "long" })
		if err != nil {
			t.Fatal(err)
		}
		var memo prefix.Memo
		memo.Reset(prefix.Query{Tokens: []uint32{1}})
		s, err := r.Select(t.Context(), reg.View(), &bucket.Request{Now: fleettest.Epoch, InputTokens: 100, Prefix: &memo})
		if err != nil || s.Plain.Reason != want || (want != policy.ReasonNoHolder && s.Plain.Engine.ID != "b") {
			t.Errorf("%s: %v %s %v", text, s.Plain.Engine, s.Plain.Reason, err)
		}
		if len(asked) != 1 || asked[0] != "m radix_tree" {
			t.Errorf("%s: asked for %q", text, asked)
		}
		// The same source keeps the instance, another one does not.
		for kept, next := range map[bool]*holder{true: source, false: {"other"}} {
			after := Builder{Seed: 1, Kept: u.Groups(), Source: func(string, *config.Policy) prefix.Source { return next }}
			r2, err := after.Resolver("m", m, func(b *config.Bucket) bool { return b.ID == "long" })
			if err != nil || (r2.Buckets()[0].Groups()[0].Policy() == r.Buckets()[0].Groups()[0].Policy()) != kept {
				t.Errorf("%s: kept %v: %v", text, !kept, err)
			}
		}
	}
}

func TestNoSource(t *testing.T) {
	for _, u := range []Builder{{}, {Source: func(string, *config.Policy) prefix.Source { return nil }}} {
		for _, name := range []string{"cost", "cache_aware"} {
			if _, err := u.Resolver("m", parse(t, name), nil); !errors.Is(err, ErrNoSource) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestCacheAwareSettings(t *testing.T) {
	m := parse(t, "{name: cache_aware, min_matched_tokens: 1, min_match_ratio: 0.2, candidates: {min_workers: 3, ratio: 0.4, max_workers: 5}, switch_margin_tokens: 6, worker_queue_limit: 8, saturation_queue_floor: 7, min_load_choices: 9, pressure_guard: {abs_threshold_tokens: 10, abs_threshold: 11ms, rel_threshold: 1.2}}")
	got := cacheAware(m.Buckets[1].Plain.Policy.CacheAware)
	guard, us := got.Guard, int64(11_000)
	got.Guard = nil
	if got != (policy.CacheAwareConfig{
		MinMatched: 1, MinRatio: 0.2, MinWorkers: 3, Ratio: 0.4, MaxWorkers: 5, SwitchMargin: 6, QueueLimit: 8, QueueFloor: 7, Choices: 9,
	}) {
		t.Errorf("%+v", got)
	}
	if guard == nil || guard.AbsTokens != 10 || *guard.AbsMicros != us || guard.Rel != 1.2 {
		t.Errorf("%+v", guard)
	}
	m = parse(t, "{name: cache_aware, pressure_guard: {enabled: false}}")
	if got := cacheAware(m.Buckets[1].Plain.Policy.CacheAware); got.Guard != nil || got.MinMatched != 1024 || got.Choices != 2 {
		t.Errorf("%+v", got)
	}
}
