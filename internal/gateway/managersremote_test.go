package gateway

import (
	"fmt"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/explain"
	"github.com/perigee-llm/perigee/internal/gateway/indexd"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// newManagedIndex starts a rig whose gateway follows nobody: it asks a service that follows the engines and the Manager.
func newManagedIndex(t *testing.T, policy string) *managerRig {
	t.Helper()
	r := newManagedEngines(t)
	o := indexd.Options{
		Listen: "127.0.0.1:0", Managers: []config.Manager{{ID: "host-1", Events: r.m.Events, Replay: r.m.Replay, Snapshot: r.m.Snapshot}},
	}
	for _, e := range r.engines {
		o.Workers = append(o.Workers, config.Worker{URL: e.URL(), ID: e.URL()})
	}
	s, err := indexd.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(0) })
	r.serve(fmt.Sprintf("%s, prefix_provider: perigee_index, kv_indexer: {endpoint: %q, query_timeout: 10s}", policy, "http://"+s.Addr()), "")
	r.source = r.p.source(&r.g.cfg.Load().Models[0].Buckets[0].Plain.Policy, r.g.files)
	return r
}

// first writes what the explanation of the last request says of e1.
func (r *managerRig) first() string {
	r.t.Helper()
	for _, c := range r.g.Explain().Records(explain.Query{Limit: 1})[0].Attempts[0].Tries[0].Considered {
		if c.Engine == "e1" {
			matched, _ := c.Matched.Get()
			uncached, _ := c.Uncached.Get()
			score, _ := c.Score.Get()
			return fmt.Sprintf("%d held, %d to compute, %v", matched, uncached, (time.Duration(score) * time.Microsecond).Round(10*time.Millisecond))
		}
	}
	return "not considered"
}

// TestManagerThroughTheService: a gateway that follows nobody credits what a Manager can restore for as long as the service tells it the price.
func TestManagerThroughTheService(t *testing.T) {
	r := newManagedIndex(t, "cost, prefill_rate: 1000")
	r.run(0, 0, promptTokens)
	r.wantHeld("e1 512+0, e2 0+0")
	if n := len(r.p.managers.Status()); n > 0 {
		t.Errorf("the gateway follows %d Managers itself", n)
	}
	r.attach()
	r.store()
	r.prepare()
	r.wantHeld("e1 0+512, e2 256+0")
	r.pick("e2", "without a price")

	r.prepare()
	r.wantHeld("e1 0+512, e2 256+0")
	r.cost(0.1)
	r.pick("e1", "a cheap restore")
	if got, want := r.first(), "511 held, 1 to compute, 110ms"; got != want { // a tenth more, for its error
		t.Errorf("explained by %s, want %s", got, want)
	}

	r.prepare()
	r.wantHeld("e1 0+512, e2 256+0")
	e1 := r.registry.View().Get("e1").No
	old := r.p.costs.Of(e1)[prefix.Host]
	if age := time.Since(old.At); age < 0 || age > prefix.CostFreshness {
		t.Errorf("the price is of %v ago", age)
	}
	old.At = old.At.Add(-prefix.CostFreshness)
	r.p.costs.Forget(e1)
	r.p.costs.Set(r.p.costs.Source(), e1, prefix.Host, old)
	r.pick("e2", "an old price")

	r.prepare()
	r.p.costs.Forget(e1)
	r.cost(0.2)
	r.wantHeld("e1 0+512, e2 256+0")
	r.dies("e1 0+0, e2 256+0")
	r.pick("e2", "a dead Manager")
}
