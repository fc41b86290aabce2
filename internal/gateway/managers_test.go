package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/engine/enginehttp"
	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/explain"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/followed"
	"github.com/perigee-llm/perigee/internal/managerwire"
	"github.com/perigee-llm/perigee/internal/managerwire/managertest"
)

// managerRig is a whole gateway before two simulated engines, e1 and e2, and a Cache Manager that the first is attached to.
type managerRig struct {
	*prefixRig
	g      *Gateway
	source prefix.Source // that policies ask
	m      *managertest.Manager
	client *http.Client
	filler int
}

const managerYAML = `
models:
  - id: %s
    policy: {name: %s}
discovery:
  static:
    workers:
      - {id: e1, url: "%s"}
      - {id: e2, url: "%s"}
%sserver: {port: 0, admin: {port: 0}}
`

// newManagerRig starts one that follows the Manager itself.
func newManagerRig(t *testing.T, policy string) *managerRig {
	t.Helper()
	r := newManagedEngines(t)
	r.serve(policy, fmt.Sprintf("managers: [{id: host-1, events: %q, replay: %q, snapshot: %q}]\n", r.m.Events, r.m.Replay, r.m.Snapshot))
	r.source = r.p.store
	return r
}

// newManagedEngines starts the engines and the Manager.
func newManagedEngines(t *testing.T) *managerRig {
	t.Helper()
	r := &managerRig{prefixRig: &prefixRig{t: t}, client: &http.Client{Transport: &http.Transport{}}, filler: 1 << 16}
	t.Cleanup(r.client.CloseIdleConnections)
	for range 2 {
		e, err := enginehttp.Start(enginehttp.Options{
			Flavor: enginehttp.VLLM, Engine: engine.Config{BlockSize: 16, KVBlocks: 64, Timing: engine.Timing{Speed: 1000}}, KVEvents: &enginehttp.KVEvents{},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		r.engines = append(r.engines, e)
	}
	r.m = managertest.Start(t, 7, managertest.Loopback)
	t.Cleanup(r.m.Stop)
	return r
}

// serve starts the gateway, with more lines of configuration.
func (r *managerRig) serve(policy, more string) {
	r.t.Helper()
	cfg, faults := config.Parse("test.yaml", fmt.Appendf(nil, managerYAML, rigModel, policy, r.engines[0].URL(), r.engines[1].URL(), more))
	if cfg == nil {
		r.t.Fatal(faults)
	}
	var err error
	if r.g, err = Start(r.t.Context(), Options{Config: cfg, Log: slog.New(slog.DiscardHandler), Seed: 1}); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = r.g.Shutdown(ctx) // its error is the context's
	})
	r.p, r.registry = r.g.prefixes, r.g.registry
}

const promptTokens = 512

func prompt() (ids []int) {
	for i := range promptTokens {
		ids = append(ids, i)
	}
	return ids
}

// held writes the device's and the host's depth of the prompt, engine by engine.
func (r *managerRig) held() string {
	q := prefix.Query{Model: rigModel}
	for _, id := range prompt() {
		q.Tokens = append(q.Tokens, uint32(id))
	}
	var m prefix.Match
	if err := r.source.Lookup(r.t.Context(), &q, &m); err != nil {
		return err.Error() // a service that has not asked each engine
	}
	var out []string
	for _, id := range []string{"e1", "e2"} {
		d := m.Of(r.registry.View().Get(id).No)
		out = append(out, fmt.Sprintf("%s %d+%d", id, d[prefix.Device], d[prefix.Host]-d[prefix.Device]))
	}
	return strings.Join(out, ", ")
}

func (r *managerRig) wantHeld(want string) {
	r.t.Helper()
	r.until("held", r.held, want)
}

// dies ends the Manager: what is held then is so soon.
func (r *managerRig) dies(then string) {
	r.t.Helper()
	r.m.Stop()
	died := time.Now()
	r.wantHeld(then)
	if took := time.Since(died); took > 3*time.Second { // a second, on a machine that has one
		r.t.Errorf("a dead Manager's claims are gone after %v", took)
	} else {
		r.t.Logf("a dead Manager's claims are gone after %v", took)
	}
}

// evict has engines compute other prompts, whose blocks take all of their pools.
func (r *managerRig) evict(engines ...int) {
	r.t.Helper()
	for _, e := range engines {
		r.filler += 4096
		r.run(e, r.filler, r.filler+63*16-2)
		r.filler += 4096
		r.run(e, r.filler, r.filler+63*16-2)
	}
}

// attach has the Manager say that e1 can restore from it, and store that it has the prompt.
func (r *managerRig) attach() {
	r.m.Say(managerwire.Event{
		Kind: managerwire.Attached, Engine: r.engines[0].URL() + "/", Rank: managerwire.AllRanks, Namespace: managerwire.Namespace{1}, Instance: 5,
		Media: 1 << managerwire.CPU,
	})
}

func (r *managerRig) store() {
	var tokens []uint32
	for _, id := range prompt() {
		tokens = append(tokens, uint32(id))
	}
	r.m.Say(managerwire.Event{
		Kind: managerwire.BlockStored, Namespace: managerwire.Namespace{1}, Model: rigModel, BlockSize: 16, Medium: managerwire.CPU,
		Chain: chain.Root{Model: rigModel, BlockSize: 16}.Key().Append(nil, tokens, 16),
	})
}

// cost has the Manager say what a restore takes, and waits until it is known.
func (r *managerRig) cost(fixed float64) {
	r.t.Helper()
	r.m.Say(managerwire.Event{
		Kind: managerwire.Cost, Engine: r.engines[0].URL(), Instance: 5, Medium: managerwire.CPU, Fixed: fixed, PerToken: 1e-7, Samples: 50, Error: 0.1, Age: 0.2,
	})
	no := r.registry.View().Get("e1").No
	r.until("the price", func() string {
		r.held() // with which a service's come
		return fmt.Sprint(r.p.costs.Of(no)[prefix.Host].Fixed)
	}, fmt.Sprint(fixed))
}

// served sends the prompt to the gateway and returns the engine that was picked.
func (r *managerRig) served() string {
	r.t.Helper()
	ids, _ := json.Marshal(prompt())
	resp, err := r.client.Post(r.g.URL()+"/v1/completions", "application/json", bytes.NewReader(fmt.Appendf(nil, `{"model":%q,"prompt":%s,"max_tokens":1}`, rigModel, ids)))
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		r.t.Fatalf("%d %s %v", resp.StatusCode, body, err)
	}
	return r.g.Explain().Records(explain.Query{Limit: 1})[0].Attempts[0].Tries[0].Picked
}

// prepare makes e2 hold the first half of the prompt on its device, and e1 nothing.
func (r *managerRig) prepare() {
	r.t.Helper()
	r.evict(0, 1)
	r.run(1, 0, promptTokens/2)
}

// TestManagerSteersCost: what was evicted from an engine is in a Manager's memory. The cost policy picks that engine while a restore is cheap,
// and another one that holds half of the prompt when it is dear, when nobody knows what it takes, or when the Manager is gone.
func TestManagerSteersCost(t *testing.T) {
	r := newManagerRig(t, "cost, prefill_rate: 1000")
	r.run(0, 0, promptTokens)
	r.wantHeld("e1 512+0, e2 0+0")
	r.attach()
	r.store()
	r.prepare()
	r.wantHeld("e1 0+512, e2 256+0")

	r.pick("e2", "without a price")
	r.prepare()
	r.wantHeld("e1 0+512, e2 256+0")
	r.cost(0.001)
	r.pick("e1", "a cheap restore")
	r.prepare()
	r.wantHeld("e1 0+512, e2 256+0")
	r.cost(100)
	r.pick("e2", "a dear restore")

	r.prepare()
	r.wantHeld("e1 0+512, e2 256+0")
	r.cost(0.001)
	e1 := r.registry.View().Get("e1").No
	old := r.p.costs.Of(e1)[prefix.Host]
	old.At = old.At.Add(-prefix.CostFreshness)
	r.p.costs.Forget(e1)
	r.p.costs.Set(r.p.costs.Source(), e1, prefix.Host, old)
	r.pick("e2", "an old price")

	r.prepare()
	r.cost(0.001)
	r.wantHeld("e1 0+512, e2 256+0")
	r.dies("e1 0+0, e2 256+0")
	r.pick("e2", "a dead Manager")
}

func (r *managerRig) pick(want, why string) {
	r.t.Helper()
	if got := r.served(); got != want {
		r.t.Errorf("%s: %s was picked, want %s", why, got, want)
	}
}

// TestManagerIsShown holds what people and Prometheus see of a Manager, and that it is not followed where no policy looks prefixes up.
func TestManagerIsShown(t *testing.T) {
	r := newManagerRig(t, "cost")
	r.attach()
	r.store()
	show := func() string {
		w := httptest.NewRecorder()
		r.p.serveStatus(w, httptest.NewRequest(http.MethodGet, "/debug/prefixes", nil))
		var a struct{ Managers []followed.Manager }
		if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
			t.Fatal(err)
		}
		out := ""
		for _, m := range a.Managers {
			m.Since, m.Applied, m.Snapshots = nil, 0, 0 // a batch is in the snapshot, or comes behind it
			out += m.Text(time.Now()) + fmt.Sprint(m.Epoch, m.Says)
		}
		return out
	}
	r.until("the status", show, "Cache Manager host-1: exact; can restore 32 blocks of 1 namespaces, 1 attachments; 0 batches, 0 gaps, 0 snapshots, 0 losses, 0 restarts\n7test")
	families, err := r.g.metrics.Registry().Gather()
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
		"perigee_manager_stream_state host-1 exact": 1, "perigee_manager_claims host-1": 32, "perigee_manager_cut_off host-1": 0,
		"perigee_manager_attachments host-1": 1,
	} {
		if v, there := got[key]; !there || v != want {
			t.Errorf("%s is %v (there: %v), want %v", key, v, there, want)
		}
	}

	idle := newManagerRig(t, "power_of_two")
	if all := idle.p.managers.Status(); len(all) != 0 {
		t.Errorf("followed for nobody: %+v", all)
	}
}
