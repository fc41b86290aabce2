package indexd

import (
	"strings"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/engine/enginehttp"
	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/remote"
	"github.com/perigee-llm/perigee/internal/managerwire"
	"github.com/perigee-llm/perigee/internal/managerwire/managertest"
)

// TestManagers: what a Cache Manager can restore to an engine is in the answers of a service that follows it, with its price, and is gone with it.
func TestManagers(t *testing.T) {
	workers := engines(t, enginehttp.VLLM, enginehttp.SGLang)
	m := managertest.Start(t, 7, managertest.Loopback)
	defer m.Stop()
	s, err := Start(Options{
		Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Workers: workers,
		Managers: []config.Manager{{ID: "host-1", Events: m.Events, Replay: m.Replay, Snapshot: m.Snapshot}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(time.Second)
	var costs prefix.Costs
	numbers := map[string]uint32{workers[0].URL: 7, workers[1].URL: 8}
	x, err := remote.NewIndex(remote.Options{
		Endpoints: []string{"http://" + s.Addr()}, Engines: func(string) map[string]uint32 { return numbers }, Costs: &costs, Timeout: 10 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	ids, text := prompt(64)
	q := &prefix.Query{Model: "m", Tokens: ids}
	of := func(tier prefix.Tier, engine uint32, want int32) func(*prefix.Match) bool {
		return func(m *prefix.Match) bool { return m.Of(engine)[tier] == want && len(m.Blind) == 0 }
	}

	ns := managerwire.Namespace{1}
	for i, w := range workers {
		m.Say(managerwire.Event{Kind: managerwire.Attached, Engine: w.URL + "/", Rank: managerwire.AllRanks, Namespace: ns, Instance: uint64(i + 1), Media: 1<<managerwire.CPU | 1<<managerwire.Disk})
	}
	names := chain.Root{Model: "m", BlockSize: 16}.Key().Append(nil, ids, 16)
	m.Say(managerwire.Event{Kind: managerwire.BlockStored, Namespace: ns, Model: "m", BlockSize: 16, Medium: managerwire.CPU, Chain: names[:2]})
	m.Say(managerwire.Event{Kind: managerwire.BlockStored, Namespace: ns, Model: "m", BlockSize: 16, Medium: managerwire.Disk, Chain: names[2:], Parent: names[1]})
	until(t, x, q, of(prefix.Host, 7, 32))
	until(t, x, q, of(prefix.Disk, 8, 64))
	complete(t, workers[1].URL, text)
	until(t, x, q, func(m *prefix.Match) bool {
		return m.Of(8)[prefix.Device] == 64 && m.Of(7)[prefix.Device] == 0 && m.Of(7).Any() == 64
	})

	m.Say(managerwire.Event{Kind: managerwire.Cost, Engine: workers[0].URL, Instance: 1, Medium: managerwire.Disk, Fixed: 0.25, PerToken: 1e-6, Samples: 3, Error: 0.5})
	until(t, x, q, func(*prefix.Match) bool {
		r := costs.Of(7)[prefix.Disk]
		return r.Fixed == 0.25 && r.PerToken == 1e-6 && r.Samples == 3 && r.Error == 0.5 && time.Since(r.At) < prefix.CostFreshness
	})
	if costs.Of(8) != ([prefix.Tiers]prefix.CostRecord{}) {
		t.Error("an engine without a price has one")
	}
	page := get(t, "http://"+s.AdminAddr()+"/metrics")
	for _, want := range []string{`perigee_manager_claims{manager="host-1"} 4`, `perigee_manager_stream_state{manager="host-1",state="exact"} 1`, `perigee_manager_attachments{manager="host-1"} 2`} {
		if !strings.Contains(page, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}

	m.Say(managerwire.Event{Kind: managerwire.Detached, Engine: workers[0].URL, Instance: 1})
	until(t, x, q, func(m *prefix.Match) bool {
		return m.Of(7).Any() == 0 && costs.Of(7) == [prefix.Tiers]prefix.CostRecord{}
	})
	m.Say(managerwire.Event{Kind: managerwire.Attached, Engine: workers[0].URL, Rank: managerwire.AllRanks, Namespace: ns, Instance: 3, Media: 1 << managerwire.CPU})
	until(t, x, q, of(prefix.External, 7, 32))
	m.Stop()
	until(t, x, q, of(prefix.External, 7, 0))
}
