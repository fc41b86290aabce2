package events_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	sim "github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/engine/enginehttp"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
)

// noticed are claims that say when something changes.
type noticed struct {
	*local.Rank
	changed chan struct{}
}

func (n noticed) note() {
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

func (n noticed) Apply(e *prefix.Event) index.Outcome {
	defer n.note()
	return n.Rank.Apply(e)
}

func (n noticed) Mark(s index.State) {
	defer n.note()
	n.Rank.Mark(s)
}

// TestOverSockets follows simulated engines of both families over loopback, found by asking them, through losses, breaks and a restart.
func TestOverSockets(t *testing.T) {
	for _, c := range []struct {
		flavor enginehttp.Flavor
		kind   fleet.Kind
	}{{enginehttp.VLLM, fleet.VLLM}, {enginehttp.SGLang, fleet.SGLang}} {
		t.Run(string(c.flavor), func(t *testing.T) { overSockets(t, c.flavor, c.kind) })
	}
}

func overSockets(t *testing.T, flavor enginehttp.Flavor, kind fleet.Kind) {
	server, err := enginehttp.Start(enginehttp.Options{
		Engine: sim.Config{BlockSize: 4, Timing: sim.Timing{Speed: 1000}}, Flavor: flavor, KVEvents: &enginehttp.KVEvents{Topic: "kv"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}

	store := local.New(local.Options{})
	changed := make(chan struct{}, 1)
	f := events.Start(events.Options{Client: client})
	defer f.Close()
	reg := fleet.NewRegistry(fleet.BreakerConfig{}, 0)
	w := reg.Put(fleet.Spec{ID: "e", URL: server.URL(), Kind: kind, Models: server.Models()})
	model := server.Models()[0]
	generate := func(from int) {
		t.Helper()
		var ids []string
		for i := range 33 { // eight blocks and a token
			ids = append(ids, fmt.Sprint(from+i))
		}
		resp, err := client.Post(server.URL()+"/v1/completions", "application/json",
			strings.NewReader(`{"prompt":[`+strings.Join(ids, ",")+`],"max_tokens":1}`))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Fatalf("status %d", resp.StatusCode)
		}
	}
	fault := func(ft enginehttp.Fault) {
		t.Helper()
		if err := server.SetFault(ft); err != nil {
			t.Fatal(err)
		}
	}
	var m prefix.Match
	want := func(from int, depth int32, blind bool) {
		t.Helper()
		q := &prefix.Query{Model: model}
		for i := range 32 {
			q.Tokens = append(q.Tokens, uint32(from+i))
		}
		for {
			m.Reset()
			if err := store.Lookup(t.Context(), q, &m); err != nil {
				t.Fatal(err)
			}
			if m.Of(w.No)[prefix.Device] == depth && m.IsBlind(w.No) == blind {
				return
			}
			select {
			case <-changed:
			case <-time.After(20 * time.Second):
				t.Fatalf("depth %v, blind %v; want %d, %v\n%+v", m.Of(w.No), m.IsBlind(w.No), depth, blind, f.Status())
			}
		}
	}
	generate(1000) // before anybody follows it
	target := events.Target{Worker: w, Domain: model, Needs: events.Needs{Prefix: true, Load: kind == fleet.SGLang}, Open: func(rank int32) events.Claims {
		return noticed{store.Open(local.Engine{No: w.No, Base: model, Names: []string{model}}, rank), changed}
	}}
	if err := f.Follow(target); err != nil {
		t.Fatal(err)
	}
	want(1000, 32, false)
	generate(2000)
	want(2000, 32, false)

	fault(enginehttp.Fault{Kind: enginehttp.FaultLoseEvents, Count: 1})
	generate(3000)
	want(3000, 32, false) // nothing follows it: the question finds it
	fault(enginehttp.Fault{Kind: enginehttp.FaultCutEvents})
	generate(4000)
	want(4000, 32, false)
	want(1000, 32, false)

	fault(enginehttp.Fault{Kind: enginehttp.FaultLoseEvents, Count: 1, Forget: true})
	generate(5000)
	generate(6000)
	want(6000, 32, true)
	want(1000, 0, true)

	fault(enginehttp.Fault{Kind: enginehttp.FaultRestart})
	want(6000, 0, false) // it is back, and its empty replay proves that it holds nothing
	generate(7000)
	want(7000, 32, false)
	if kind == fleet.SGLang && f.Status()[0].Load.Reports == 0 {
		t.Errorf("%+v", f.Status()[0].Load)
	}
	f.Unfollow(w.No)
	want(7000, 0, false)
}
