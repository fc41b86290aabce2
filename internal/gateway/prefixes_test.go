package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/engine/enginehttp"
	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/indexd"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/followed"
	"github.com/perigee-llm/perigee/internal/telemetry"
)

// prefixRig is simulated engines that publish, and what a gateway knows of them.
type prefixRig struct {
	t        *testing.T
	engines  []*enginehttp.Server
	registry *fleet.Registry
	p        *prefixes
	metrics  *telemetry.Metrics
}

const rigModel = enginehttp.DefaultModel

func newPrefixRig(t *testing.T, flavors ...enginehttp.Flavor) *prefixRig {
	t.Helper()
	r := &prefixRig{t: t, registry: fleet.NewRegistry(fleet.BreakerConfig{}, 0), metrics: telemetry.New()}
	cfg := &config.Config{Models: []config.Model{{ID: rigModel, Buckets: []config.Bucket{{Plain: &config.Group{
		Policy: config.Policy{Name: config.CacheAware, CacheAware: &config.CacheAwareSettings{PrefixProvider: config.RadixTree}},
	}}}}}}
	client := &http.Client{Transport: &http.Transport{}}
	r.p = startPrefixes(r.registry, func() *config.Config { return cfg }, client, r.metrics, slog.New(slog.DiscardHandler))
	t.Cleanup(client.CloseIdleConnections)
	t.Cleanup(r.p.close)
	for i, f := range flavors {
		e, err := enginehttp.Start(enginehttp.Options{
			Flavor: f, Engine: engine.Config{BlockSize: 16, KVBlocks: 64, Timing: engine.Timing{Speed: 1000}}, KVEvents: &enginehttp.KVEvents{},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		r.engines = append(r.engines, e)
		kind := fleet.VLLM
		if f == enginehttp.SGLang {
			kind = fleet.SGLang
		}
		r.registry.Put(fleet.Spec{ID: fmt.Sprint("e", i+1), URL: e.URL(), Kind: kind, Models: []string{rigModel}})
	}
	r.p.change()
	return r
}

// run has an engine compute the tokens from to to, and two more.
func (r *prefixRig) run(i, from, to int) {
	r.t.Helper()
	ids := make([]int, 0, to-from)
	for ; from < to; from++ {
		ids = append(ids, from)
	}
	prompt, _ := json.Marshal(ids)
	resp, err := http.Post(r.engines[i].URL()+"/v1/completions", "application/json", bytes.NewReader(fmt.Appendf(nil, `{"prompt":%s,"max_tokens":1}`, prompt)))
	if err != nil || resp.StatusCode != http.StatusOK {
		r.t.Fatalf("engine %d: %v %v", i, resp, err)
	}
	_ = resp.Body.Close()
}

// look writes who holds how much of the tokens from to to.
func (r *prefixRig) look(from, to int) string {
	q := prefix.Query{Model: rigModel}
	for ; from < to; from++ {
		q.Tokens = append(q.Tokens, uint32(from))
	}
	var m prefix.Match
	if err := r.p.own.Lookup(r.t.Context(), &q, &m); err != nil {
		r.t.Fatal(err)
	}
	var out []string
	for _, h := range m.Held {
		out = append(out, fmt.Sprintf("e%d:%d", h.Engine, h.Depth[prefix.Device]))
	}
	for _, b := range m.Blind {
		out = append(out, fmt.Sprintf("e%d blind", b))
	}
	return strings.Join(out, " ")
}

// want waits until a look-up says so: events travel over sockets.
func (r *prefixRig) want(from, to int, want string) {
	r.t.Helper()
	r.until(fmt.Sprintf("look %d-%d: %s", from, to, want), func() string { return r.look(from, to) }, want)
}

func (r *prefixRig) until(what string, got func() string, want string) {
	r.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for got() != want {
		select {
		case <-tick.C:
		case <-deadline:
			r.t.Fatalf("%s: after 20 s it is %q", what, got())
		}
	}
}

// TestPrefixesFollow holds that the indexes follow what engines of both families store, evict, forget and lose, and that an engine which
// leaves is gone.
func TestPrefixesFollow(t *testing.T) {
	r := newPrefixRig(t, enginehttp.VLLM, enginehttp.SGLang)
	r.want(0, 64, "") // both are known to hold nothing
	r.run(0, 0, 64)
	r.run(1, 0, 40)
	r.want(0, 64, "e1:64 e2:32")
	r.want(0, 40, "e1:32 e2:32")
	r.want(1000, 1064, "")

	// In a pool of 64 blocks a prompt of 62 evicts two of the four, which the engine takes from the end of their chain.
	r.run(0, 5000, 5000+62*16)
	r.want(5000, 5000+62*16, "e1:992")
	r.want(0, 64, "e1:32 e2:32")

	// Batches that get lost on their way are replayed.
	if err := r.engines[1].SetFault(enginehttp.Fault{Kind: enginehttp.FaultLoseEvents, Count: 1}); err != nil {
		t.Fatal(err)
	}
	r.run(1, 100, 164) // lost
	r.run(1, 200, 264) // shows it
	r.want(200, 264, "e2:64")
	r.want(100, 164, "e2:64")

	// What cannot be replayed is not believed any more; what comes then is.
	if err := r.engines[1].SetFault(enginehttp.Fault{Kind: enginehttp.FaultLoseEvents, Count: 1, Forget: true}); err != nil {
		t.Fatal(err)
	}
	r.run(1, 300, 364)
	r.run(1, 400, 464)
	r.want(400, 464, "e2:64 e2 blind")
	r.want(300, 364, "e2 blind")

	// A restart begins with nothing, and whole.
	for i := range r.engines {
		if err := r.engines[i].SetFault(enginehttp.Fault{Kind: enginehttp.FaultRestart}); err != nil {
			t.Fatal(err)
		}
	}
	r.want(400, 464, "")
	r.run(1, 400, 464)
	r.want(400, 464, "e2:64")

	r.registry.Remove("e2")
	r.p.change()
	r.want(400, 464, "")
}

// TestPrefixesAreShown holds what people and Prometheus see of it.
func TestPrefixesAreShown(t *testing.T) {
	r := newPrefixRig(t, enginehttp.VLLM)
	r.registry.Put(fleet.Spec{ID: "mute", URL: "http://127.0.0.1:1", Kind: fleet.VLLM, Models: []string{rigModel}})
	r.p.change()
	r.run(0, 0, 64)
	r.want(0, 64, "e1:64 e2 blind")
	show := func() string {
		w := httptest.NewRecorder()
		r.p.serveStatus(w, httptest.NewRequest(http.MethodGet, "/debug/prefixes", nil))
		var a struct{ Streams []followed.Stream }
		if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, s := range a.Streams {
			out = append(out, fmt.Sprintf("%s %s %d blocks of %d, fault %v", s.Worker, s.State, s.Blocks, s.BlockSize, s.Fault != ""))
		}
		return strings.Join(out, "; ")
	}
	r.until("the status", show, "e1 exact 4 blocks of 16, fault false; mute blind 0 blocks of 0, fault true")

	families, err := r.metrics.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			key := f.GetName()
			for _, l := range m.Label {
				key += " " + l.GetValue()
			}
			got[key] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	for key, want := range map[string]float64{
		"perigee_kv_events_stream_state 0 exact e1": 1, "perigee_kv_events_stream_state 0 blind e1": 0,
		"perigee_kv_events_stream_state 0 blind mute": 1, "perigee_kv_events_blocks_total 0 e1": 4,
		"perigee_prefix_index_blocks 16 " + rigModel: 4,
	} {
		if v, there := got[key]; !there || v != want {
			t.Errorf("%s is %v (there: %v), want %v", key, v, there, want)
		}
	}
}

// TestRoutingByPrefix is the whole way: requests through a gateway of which the engines' own counters tell that each went to where its
// prefix was.
func TestRoutingByPrefix(t *testing.T) {
	for _, c := range []struct{ policy, provider string }{{"cache_aware", "radix_tree"}, {"cost", "radix_tree"}, {"cache_aware", "perigee_index"}, {"cost", "perigee_index"}} {
		t.Run(c.policy+" by "+c.provider, func(t *testing.T) {
			var workers []string
			for i, f := range []enginehttp.Flavor{enginehttp.VLLM, enginehttp.SGLang, enginehttp.VLLM} {
				e, err := enginehttp.Start(enginehttp.Options{
					// At a tenth of the usual times a prompt of 2,048 tokens takes 26 ms to compute: cost takes less than 5 for nothing.
					Flavor: f, Engine: engine.Config{BlockSize: 16 << (i % 2), Timing: engine.Timing{Speed: 10}}, KVEvents: &enginehttp.KVEvents{},
				})
				if err != nil {
					t.Fatal(err)
				}
				defer e.Close()
				workers = append(workers, e.URL())
			}
			indexer := ""
			if c.provider == "perigee_index" {
				o := indexd.Options{Listen: "127.0.0.1:0"}
				for _, w := range workers {
					o.Workers = append(o.Workers, config.Worker{URL: w, ID: w})
				}
				s, err := indexd.Start(o)
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close(0)
				indexer = fmt.Sprintf(", kv_indexer: {endpoint: %q, query_timeout: 10s}", "http://"+s.Addr())
			}
			text := fmt.Sprintf("models: [{id: %s, policy: {name: %s, prefix_provider: %s%s}}]\ndiscovery: {static: {workers: [%s]}}\nserver: {port: 0, admin: {port: 0}}\n",
				rigModel, c.policy, c.provider, indexer, strings.Join(workers, ", "))
			cfg, faults := config.Parse("test.yaml", []byte(text))
			if err := faults.Err(); err != nil {
				t.Fatal(err)
			}
			g, err := Start(t.Context(), Options{Config: cfg, Log: slog.New(slog.DiscardHandler), Seed: 1})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = g.Shutdown(t.Context()) }()
			defer http.DefaultClient.CloseIdleConnections()
			ask := func(family, n int) (prompt, cached int) {
				ids := make([]int, n)
				for i := range ids {
					ids[i] = family<<16 + i
				}
				list, _ := json.Marshal(ids)
				resp, err := http.Post(g.URL()+"/v1/completions", "application/json", bytes.NewReader(fmt.Appendf(nil, `{"model":%q,"prompt":%s,"max_tokens":1}`, rigModel, list)))
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				var a struct {
					Usage struct {
						Prompt  int `json:"prompt_tokens"`
						Details struct {
							Cached int `json:"cached_tokens"`
						} `json:"prompt_tokens_details"`
					}
				}
				if err := json.NewDecoder(resp.Body).Decode(&a); err != nil || resp.StatusCode != http.StatusOK {
					t.Fatalf("status %d: %v", resp.StatusCode, err)
				}
				return a.Usage.Prompt, a.Usage.Details.Cached
			}
			known := func(family int) string {
				q := prefix.Query{Model: rigModel}
				for i := range 2048 {
					q.Tokens = append(q.Tokens, uint32(family<<16+i))
				}
				var m prefix.Match
				if err := g.prefixes.source(&cfg.Models[0].Buckets[0].Plain.Policy, g.files).Lookup(t.Context(), &q, &m); err != nil {
					return err.Error()
				}
				return fmt.Sprint(len(m.Held), " held")
			}
			r := &prefixRig{t: t}
			const families = 8
			for f := range families {
				if _, cached := ask(f, 2048); cached != 0 {
					t.Errorf("family %d: %d tokens cached at first", f, cached)
				}
				r.until("the index", func() string { return known(f) }, "1 held")
			}
			for f := range families {
				// The last token is computed always, and with it its block.
				if prompt, cached := ask(f, 2048); cached < prompt-32 || cached > prompt-16 {
					t.Errorf("family %d: %d of %d tokens cached", f, cached, prompt)
				}
			}
		})
	}
}

// TestLagIsOfLiveBatches: what a gateway that comes late is replayed is old, which is no lag.
func TestLagIsOfLiveBatches(t *testing.T) {
	r := newPrefixRig(t, enginehttp.VLLM)
	r.want(0, 64, "")
	e, err := enginehttp.Start(enginehttp.Options{Engine: engine.Config{Timing: engine.Timing{Speed: 1000}}, KVEvents: &enginehttp.KVEvents{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	r.engines = append(r.engines, e)
	r.run(1, 0, 64)
	e.Stats() // by when the batches of that answer are out, before anybody follows it
	r.registry.Put(fleet.Spec{ID: "late", URL: e.URL(), Kind: fleet.VLLM, Models: []string{rigModel}})
	r.p.change()
	r.want(0, 64, "e2:64")
	lag := func() time.Duration {
		for _, s := range r.p.follower.Status() {
			if s.ID == "late" {
				return s.Lag
			}
		}
		return -1
	}
	if got := lag(); got != 0 {
		t.Errorf("a lag of %v after a replay", got)
	}
	from := 1000
	r.until("a batch came live", func() string { // one or the other may come by a replay first
		r.run(1, from, from+64)
		r.want(from, from+64, "e2:64")
		from += 64
		return fmt.Sprint(lag() != 0)
	}, "true")
	if got := lag(); got <= 0 || got > time.Minute {
		t.Errorf("a lag of %v after a live batch", got)
	}
}

// TestOnlyWhatPoliciesLookAtIsFollowed: no KV events of decode engines, nor of a bucket whose policy does not look at prefixes.
func TestOnlyWhatPoliciesLookAtIsFollowed(t *testing.T) {
	cached := config.Policy{Name: config.CacheAware, CacheAware: &config.CacheAwareSettings{PrefixProvider: config.RadixTree}}
	cfg := &config.Config{Models: []config.Model{{ID: rigModel, Buckets: []config.Bucket{
		{Plain: &config.Group{Policy: cached, Workers: []string{"cached"}}},
		{Plain: &config.Group{Policy: config.Policy{Name: config.RoundRobin}, Workers: []string{"turns"}}},
		{PD: &config.PD{Prefill: config.Group{Policy: cached}, Decode: config.Group{Policy: config.Policy{Name: config.PowerOfTwo}}}},
	}}}}
	registry, client := fleet.NewRegistry(fleet.BreakerConfig{}, 0), &http.Client{Transport: &http.Transport{}}
	p := startPrefixes(registry, func() *config.Config { return cfg }, client, telemetry.New(), slog.New(slog.DiscardHandler))
	t.Cleanup(client.CloseIdleConnections)
	t.Cleanup(p.close)
	for id, stage := range map[string]fleet.Stage{"cached": fleet.Plain, "turns": fleet.Plain, "prefill": fleet.Prefill, "decode": fleet.Decode} {
		registry.Put(fleet.Spec{ID: id, URL: "http://127.0.0.1:1/" + id, Models: []string{rigModel}, Stage: stage})
	}
	p.change()
	r := &prefixRig{t: t}
	r.until("what is followed", func() (out string) {
		for _, s := range p.follower.Status() {
			out += fmt.Sprintf("%s prefix=%v ", s.ID, s.Prefix)
		}
		return out
	}, "cached prefix=true decode prefix=false prefill prefix=true ")
}
