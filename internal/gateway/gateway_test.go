package gateway_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/engine/enginehttp"
	"github.com/perigee-llm/perigee/internal/gateway"
	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/explain"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// startEngines starts n simulated engines on loopback, fast ones.
func startEngines(t testing.TB, n int, flavor enginehttp.Flavor) []*enginehttp.Server {
	t.Helper()
	var engines []*enginehttp.Server
	for range n {
		e, err := enginehttp.Start(enginehttp.Options{Engine: engine.Config{Timing: engine.Timing{Speed: 200}}, Flavor: flavor, Models: []string{"m"}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		engines = append(engines, e)
	}
	return engines
}

// startGateway starts a gateway from YAML, in which %s stands for the engines' URLs in turn. It is shut down with the test.
func startGateway(t testing.TB, yaml string, engines []*enginehttp.Server) *gateway.Gateway {
	t.Helper()
	args := make([]any, len(engines))
	for i, e := range engines {
		args[i] = e.URL()
	}
	return startAt(t, yaml, args)
}

func startAt(t testing.TB, yaml string, args []any) *gateway.Gateway {
	t.Helper()
	cfg, faults := config.Parse("test.yaml", fmt.Appendf(nil, yaml, args...))
	if cfg == nil {
		t.Fatal(faults)
	}
	g, err := gateway.Start(t.Context(), gateway.Options{Config: cfg, Log: slog.New(slog.DiscardHandler), Access: io.Discard, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := g.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if n := g.Held(); n != 0 {
			t.Errorf("%d guards are held", n)
		}
		for w := range g.Registry().View().All() {
			if n := w.Load.Active(); n != 0 {
				t.Errorf("%s: %d in flight", w, n)
			}
		}
	})
	return g
}

func newClient(t testing.TB) *http.Client {
	c := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

func send(t testing.TB, c *http.Client, method, url, body string) (int, string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

const oneModel = `
models: [{id: m, policy: round_robin}]
server: {port: 0, host: 127.0.0.1, admin: {port: 0}}
discovery: {static: {workers: [{url: %s}, {url: %s}]}}
`

// ids returns a prompt of n token ids.
func ids(n int) string { return "[1" + strings.Repeat(",2", n-1) + "]" }

// TestServe: requests go to each engine in turn; what names engines is on the admin listener alone.
func TestServe(t *testing.T) {
	engines := startEngines(t, 2, enginehttp.SGLang)
	g := startGateway(t, oneModel, engines)
	c := newClient(t)
	for range 4 {
		if status, body, err := send(t, c, "POST", g.URL()+"/v1/completions", `{"model":"m","prompt":[1,2,3],"max_tokens":2}`); status != 200 || err != nil {
			t.Fatal(status, body, err)
		}
	}
	for i, e := range engines {
		if n := e.Stats().Completed; n != 2 {
			t.Errorf("engine %d completed %d", i, n)
		}
	}
	for _, path := range []string{"/metrics", "/debug/decisions", "/debug/workers"} {
		if status, _, _ := send(t, c, "GET", g.URL()+path, ""); status != 404 {
			t.Errorf("public %s: %d", path, status)
		}
		if status, _, _ := send(t, c, "GET", g.AdminURL()+path, ""); status != 200 {
			t.Errorf("admin %s: %d", path, status)
		}
	}
	if status, _, _ := send(t, c, "POST", g.URL()+"/flush_cache", ""); status != 404 {
		t.Errorf("public /flush_cache: %d", status)
	}
	if status, body, _ := send(t, c, "POST", g.AdminURL()+"/flush_cache", ""); status != 200 {
		t.Errorf("admin /flush_cache: %d %s", status, body)
	}
	if status, _, _ := send(t, c, "POST", g.AdminURL()+"/v1/completions", `{}`); status != 404 {
		t.Errorf("completions on the admin listener: %d", status)
	}
}

// TestPublicFlags: sgl-router's public paths come back with the settings that say so.
func TestPublicFlags(t *testing.T) {
	engines := startEngines(t, 1, enginehttp.SGLang)
	g := startGateway(t, `
models: [{id: m, policy: round_robin}]
server: {port: 0, host: 127.0.0.1, public_metrics: true, public_flush_cache: true}
discovery: {static: {workers: [{url: %s}]}}
`, engines)
	c := newClient(t)
	if g.AdminURL() != "" {
		t.Error("there is an admin listener")
	}
	if status, body, _ := send(t, c, "GET", g.URL()+"/metrics", ""); status != 200 || !strings.Contains(body, `perigee_workers{mode="plain"} 1`) {
		t.Errorf("/metrics: %d %s", status, body)
	}
	if status, body, _ := send(t, c, "POST", g.URL()+"/flush_cache", ""); status != 200 {
		t.Errorf("/flush_cache: %d %s", status, body)
	}
}

// TestBuckets: token ids are counted, and the length picks the bucket.
func TestBuckets(t *testing.T) {
	engines := startEngines(t, 2, enginehttp.VLLM)
	g := startGateway(t, `
models:
  - id: m
    policy: round_robin
    buckets:
      - {id: long, plain: {workers: [big]}, min_input_tokens: 9}
      - {id: short, max_input_tokens: 8, max_context_tokens: 16, plain: {workers: [small]}}
server: {port: 0, host: 127.0.0.1}
discovery: {static: {workers: [{url: %s, id: small}, {url: %s, id: big}]}}
`, engines)
	c := newClient(t)
	for _, x := range []struct {
		input, output int
		bucket        string // empty: none
	}{{1, 2, "short"}, {8, 8, "short"}, {8, 9, ""}, {9, 1, "long"}, {100, 2, "long"}} {
		status, body, err := send(t, c, "POST", g.URL()+"/v1/completions", fmt.Sprintf(`{"model":"m","prompt":%s,"max_tokens":%d}`, ids(x.input), x.output))
		if err != nil || (status == 200) != (x.bucket != "") {
			t.Errorf("%d+%d: %d %s %v", x.input, x.output, status, body, err)
		}
		rec := g.Explain().Records(explain.Query{Limit: 1})[0]
		if got := rec.Attempts[0].Bucket; got != x.bucket || !rec.InputExact || rec.InputTokens != int64(x.input) {
			t.Errorf("%d+%d: %+v", x.input, x.output, rec)
		}
	}
}

// startPair starts a plain, a prefill and a decode engine of a flavor, just clever enough for that.
func startPair(t *testing.T, flavor enginehttp.Flavor) (urls []any) {
	for _, role := range []string{"null", "prefill", "decode"} {
		mux := http.NewServeMux()
		mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"object":"list","data":[{"id":"m","object":"model","owned_by":"%s"}]}`, flavor)
		})
		if flavor == enginehttp.SGLang {
			mux.HandleFunc("GET /server_info", func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprintf(w, `{"model_path":"m","disaggregation_mode":"%s","disaggregation_bootstrap_port":8998}`, role)
			})
		}
		mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) {
			text, _ := io.ReadAll(r.Body)
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"role":%q,"saw":%q,"kv_transfer_params":{"from":%q}}`, role, text, role)
		})
		e := httptest.NewServer(mux)
		t.Cleanup(e.Close)
		urls = append(urls, e.URL)
	}
	return urls
}

// TestPairs: a plain bucket and a P/D bucket of one model, with engines of each role.
func TestPairs(t *testing.T) {
	for _, flavor := range []enginehttp.Flavor{enginehttp.SGLang, enginehttp.VLLM} {
		t.Run(string(flavor), func(t *testing.T) {
			g := startAt(t, `
models:
  - id: m
    policy: round_robin
    buckets:
      - {id: short, max_input_tokens: 8, plain: {}}
      - {id: long, pd: {prefill: {}, decode: {}}}
server: {port: 0, host: 127.0.0.1}
discovery: {static: {workers: [{url: %s, role: plain}, {url: %s, role: prefill}, {url: %s, role: decode}]}}
`, startPair(t, flavor))
			c := newClient(t)
			how := `kv_transfer_params\":{\"from\":\"prefill\"}`
			if flavor == enginehttp.SGLang {
				how = `bootstrap_port\":8998`
			}
			for _, x := range []struct{ prompt, bucket, role, saw string }{{ids(4), "short", "null", "prompt"}, {ids(40), "long", "decode", how}} {
				status, body, err := send(t, c, "POST", g.URL()+"/v1/completions", `{"model":"m","prompt":`+x.prompt+`}`)
				rec := g.Explain().Records(explain.Query{Limit: 1})[0]
				if status != 200 || err != nil || rec.Attempts[0].Bucket != x.bucket || !strings.HasPrefix(body, `{"role":"`+x.role) || !strings.Contains(body, x.saw) {
					t.Errorf("%s: %d %s %v, %+v", x.bucket, status, body, err, rec.Attempts)
				}
			}
		})
	}
}

// TestShutdown: the requests under way end, no new ones are taken, both listeners are closed.
func TestShutdown(t *testing.T) {
	engines := startEngines(t, 2, enginehttp.VLLM)
	g := startGateway(t, oneModel, engines)
	for _, e := range engines {
		if err := e.SetFault(enginehttp.Fault{Kind: enginehttp.FaultHangBeforeHeaders}); err != nil {
			t.Fatal(err)
		}
	}
	c := newClient(t)
	type result struct {
		status int
		err    error
	}
	answered := make(chan result, 1)
	go func() {
		status, _, err := send(t, c, "POST", g.URL()+"/v1/completions", `{"model":"m","prompt":"hi","max_tokens":2}`)
		answered <- result{status, err}
	}()
	await(t, func() bool { return g.Held() == 1 })
	g.Drain()
	if status, _, _ := send(t, c, "GET", g.URL()+"/readyz", ""); status != 503 {
		t.Errorf("/readyz while draining: %d", status)
	}
	ended := make(chan error, 1)
	go func() { ended <- g.Shutdown(context.Background()) }()
	addr := strings.TrimPrefix(g.URL(), "http://")
	await(t, func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
	select {
	case err := <-ended:
		t.Fatalf("it did not wait for the request: %v", err)
	default:
	}
	for _, e := range engines {
		if err := e.SetFault(enginehttp.Fault{Kind: enginehttp.FaultNone}); err != nil {
			t.Fatal(err)
		}
	}
	if r := <-answered; r.status != 200 || r.err != nil {
		t.Errorf("the request under way ended with %+v", r)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", strings.TrimPrefix(g.AdminURL(), "http://")); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the admin listener: %v", err)
	}
}

// TestForcedShutdown: when its time is over, what is left is cut off, and everything is given back all the same.
func TestForcedShutdown(t *testing.T) {
	engines := startEngines(t, 2, enginehttp.SGLang)
	g := startGateway(t, oneModel, engines)
	for _, e := range engines {
		if err := e.SetFault(enginehttp.Fault{Kind: enginehttp.FaultHangMidStream, AfterChunks: 1}); err != nil {
			t.Fatal(err)
		}
	}
	c := newClient(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, body, err := send(t, c, "POST", g.URL()+"/v1/completions", `{"model":"m","prompt":"hi","max_tokens":8,"stream":true}`); err == nil {
				t.Errorf("a clean end of %s", body)
			}
		})
	}
	await(t, func() bool { return g.Held() == 8 })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := g.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if n := g.Held(); n != 0 {
		t.Errorf("%d guards are held when it returns", n)
	}
	wg.Wait()
}

// TestStartFails: a port that is taken, on either listener, is told, and leaves nothing behind.
func TestStartFails(t *testing.T) {
	engines := startEngines(t, 1, enginehttp.VLLM)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	port := taken.Addr().(*net.TCPAddr).Port
	for _, server := range []string{fmt.Sprintf("{port: %d, host: 127.0.0.1}", port), fmt.Sprintf("{port: 0, host: 127.0.0.1, admin: {port: %d}}", port)} {
		cfg, faults := config.Parse("x", fmt.Appendf(nil, "models: [{id: m, policy: random}]\nserver: %s\ndiscovery: {static: {workers: [{url: %s}]}}\n", server, engines[0].URL()))
		if cfg == nil {
			t.Fatal(faults)
		}
		if _, err := gateway.Start(t.Context(), gateway.Options{Config: cfg, Log: slog.New(slog.DiscardHandler)}); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("%s: %v", server, err)
		}
	}
}

// TestStartTakesDown: a start that fails before there are engines leaves nothing behind either; the leak check of this package holds that.
func TestStartTakesDown(t *testing.T) {
	for name, spoil := range map[string]func(*config.Config){
		"two models of one name": func(c *config.Config) { c.Models = append(c.Models, c.Models[0]) },
		"two engines of one id": func(c *config.Config) {
			c.Discovery.Static.Workers = append(c.Discovery.Static.Workers, c.Discovery.Static.Workers[0])
		},
	} {
		cfg, faults := config.Parse("x", []byte("models: [{id: m}]\nserver: {port: 0}\ndiscovery: {static: {workers: [http://127.0.0.1:1]}}\n"))
		if cfg == nil {
			t.Fatal(faults)
		}
		spoil(cfg)
		if _, err := gateway.Start(t.Context(), gateway.Options{Config: cfg, Log: slog.New(slog.DiscardHandler)}); err == nil {
			t.Errorf("%s: it started", name)
		}
	}
}

// TestOldClient: HTTP/1.0 has no other way to tell a broken answer from a whole one than a reset.
func TestOldClient(t *testing.T) {
	engines := startEngines(t, 2, enginehttp.VLLM)
	g := startGateway(t, oneModel, engines)
	read := func() (string, error) {
		conn, err := net.Dial("tcp", strings.TrimPrefix(g.URL(), "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		body := `{"model":"m","prompt":"hi","max_tokens":8,"stream":true}`
		fmt.Fprintf(conn, "POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		text, err := io.ReadAll(bufio.NewReader(conn))
		return string(text), err
	}
	if text, err := read(); err != nil || !strings.HasSuffix(text, "data: [DONE]\n\n") {
		t.Errorf("whole: %q, %v", text, err)
	}
	for _, e := range engines {
		if err := e.SetFault(enginehttp.Fault{Kind: enginehttp.FaultResetMidStream, AfterChunks: 2}); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := read(); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("broken: %q, %v", text, err)
	}
}

// TestAllDownAndBack: with all engines gone the gateway says so, and traffic returns by itself soon after they do.
func TestAllDownAndBack(t *testing.T) {
	engines := startEngines(t, 2, enginehttp.VLLM)
	g := startGateway(t, oneModel, engines)
	c := newClient(t)
	ask := func() (int, string) {
		status, body, err := send(t, c, "POST", g.URL()+"/v1/completions", `{"model":"m","prompt":"hi","max_tokens":2}`)
		if err != nil {
			t.Fatal(err)
		}
		return status, body
	}
	ask()
	for _, e := range engines {
		if err := e.SetFault(enginehttp.Fault{Kind: enginehttp.FaultRefuse}); err != nil {
			t.Fatal(err)
		}
	}
	await(t, func() bool { status, _ := ask(); return status == 503 })
	await(t, func() bool { // until the polls have noticed, too
		_, text, _ := send(t, c, "GET", g.AdminURL()+"/metrics", "")
		return strings.Count(text, `perigee_load_polls_total{outcome="failed"`) == len(engines)
	})
	for _, e := range engines {
		if err := e.SetFault(enginehttp.Fault{Kind: enginehttp.FaultNone}); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	await(t, func() bool { status, _ := ask(); return status == 200 })
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("traffic returned after %v", took)
	}
}

// TestQuickRestart: an outage that no load poll has seen does not keep traffic away for a cool-down either.
func TestQuickRestart(t *testing.T) {
	engines := startEngines(t, 2, enginehttp.SGLang)
	g := startGateway(t, oneModel, engines)
	c := newClient(t)
	ask := func() int {
		status, _, err := send(t, c, "POST", g.URL()+"/v1/completions", `{"model":"m","prompt":"hi","max_tokens":2}`)
		if err != nil {
			t.Fatal(err)
		}
		return status
	}
	// An outage of a tenth of a second, which a load poll of once a second hardly sees; a longer one where a busy machine has slept through it.
	outage := 100 * time.Millisecond
	var until time.Time
	await(t, func() bool {
		if time.Now().After(until) {
			for _, e := range engines {
				if err := e.SetFault(enginehttp.Fault{Kind: enginehttp.FaultRestart, DelayMS: int(outage.Milliseconds())}); err != nil {
					t.Fatal(err)
				}
			}
			until = time.Now().Add(outage + 50*time.Millisecond)
			outage *= 2
		}
		return ask() == 503 // both breakers are open
	})
	began := time.Now()
	await(t, func() bool { return ask() == 200 })
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("traffic returned after %v", took)
	}
}

// await polls a condition, for at most 20 s.
func await(t testing.TB, met func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	over := time.After(20 * time.Second)
	for !met() {
		select {
		case <-tick.C:
		case <-over:
			t.Fatal("it did not happen within 20 s")
		}
	}
}
