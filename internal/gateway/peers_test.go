package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/engine/enginehttp"
	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/load"
)

// freePorts are two different ones that nobody listened at a moment ago: the first is held until the second is known.
func freePorts(t *testing.T) (ports [2]int) {
	t.Helper()
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports
}

// TestGatewaysHearEachOther: two gateways before one engine over TCP. What one has sent the other counts, and shows.
func TestGatewaysHearEachOther(t *testing.T) {
	e, err := enginehttp.Start(enginehttp.Options{Flavor: enginehttp.VLLM, Engine: engine.Config{BlockSize: 16, KVBlocks: 64}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	ports := freePorts(t)
	var gateways [2]*Gateway
	for i := range gateways {
		text := fmt.Sprintf(`
models: [{id: m, policy: cost}]
discovery: {static: {workers: [{id: "engine-at-%d", url: "%s"}]}}
peers: {listen: "tcp://127.0.0.1:%d", gateways: ["tcp://127.0.0.1:%d", "tcp://127.0.0.1:%d"]}
server: {port: 0, admin: {port: 0}}
`, i, e.URL(), ports[i], ports[0], ports[1])
		cfg, faults := config.Parse("test.yaml", []byte(text))
		if cfg == nil {
			t.Fatal(faults)
		}
		g, err := Start(t.Context(), Options{Config: cfg, Log: slog.New(slog.DiscardHandler), Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			_ = g.Shutdown(ctx) // its error is the context's
		})
		gateways[i] = g
	}
	a, b := gateways[0].registry.View().Get("engine-at-0").Load, gateways[1].registry.View().Get("engine-at-1").Load
	guard := gateways[0].tracker.Acquire(a, time.Now(), load.StagePrefill, 500, nil)
	guard.Computes(300, false)
	heard := func(want int64) {
		t.Helper()
		tick, over := time.NewTicker(5*time.Millisecond), time.After(20*time.Second)
		defer tick.Stop()
		for b.Prefill(time.Time{}).Tokens != want {
			select {
			case <-tick.C:
			case <-over:
				t.Fatalf("%+v, want %d; %+v", b.Prefill(time.Time{}), want, gateways[1].peers.Status())
			}
		}
	}
	heard(300)
	get := func(path string) string {
		t.Helper()
		c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		r, err := c.Get(gateways[1].AdminURL() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	var shown struct{ Peers []PeerStatus }
	if err := json.Unmarshal([]byte(get("/debug/prefixes")), &shown); err != nil || len(shown.Peers) != 2 || shown.Peers[0].Prompts != 1 || shown.Peers[0].Heard == nil {
		t.Errorf("error %v: %+v", err, shown)
	}
	want := fmt.Sprintf(`perigee_peer_prompts{gateway="tcp://127.0.0.1:%d"} 1`, ports[0])
	if text := get("/metrics"); !strings.Contains(text, want) {
		t.Errorf("the metrics have no %s", want)
	}
	guard.Prefilled(time.Now())
	heard(0)
	guard.Release()
}

// TestPeersThatCannotListen: the gateway does not start where it cannot be heard.
func TestPeersThatCannotListen(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cfg, faults := config.Parse("test.yaml", fmt.Appendf(nil, `
models: [{id: m}]
discovery: {static: {workers: ["http://127.0.0.1:1"]}}
peers: {listen: "tcp://%s"}
server: {port: 0}
`, l.Addr()))
	if cfg == nil {
		t.Fatal(faults)
	}
	if _, err := Start(t.Context(), Options{Config: cfg, Log: slog.New(slog.DiscardHandler)}); err == nil || !strings.Contains(err.Error(), "peers") {
		t.Errorf("error %v", err)
	}
}
