package gateway_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway"
)

// oneEngine is a gateway of one engine, whose breaker opens at the first failure and for longer than a test lasts.
const oneEngine = `
models: [{id: m, policy: round_robin}]
server: {port: 0, host: 127.0.0.1, admin: {port: 0}, max_attempts: 1}
breaker: {threshold: 1, cool_down: 1h, floor: 0}
load: {poll_interval: 100ms}
discovery: {static: {workers: [{url: %s}]}}
`

// sick is an SGLang engine as far as the gateway asks it, that answers every request with 500. Its polls can be made to hang.
type sick struct {
	*httptest.Server
	requests      atomic.Int64
	hang          atomic.Bool
	missed, polls atomic.Int64 // polls that were given up, and that were answered
}

func newSick(t *testing.T) *sick {
	s := &sick{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/server_info":
			_, _ = w.Write([]byte(`{"version":"0.5.23","dp_size":1,"disaggregation_mode":"null","served_model_name":"m"}`))
		case "/v1/models":
			_, _ = w.Write([]byte(`{"object":"list","data":[{"id":"m","object":"model","owned_by":"sglang"}]}`))
		case "/v1/loads":
			if s.hang.Load() {
				<-r.Context().Done()
				s.missed.Add(1)
				return
			}
			_, _ = w.Write([]byte(`{"loads":[{"dp_rank":0,"num_running_reqs":0,"num_waiting_reqs":0}]}`))
			s.polls.Add(1)
		default:
			s.requests.Add(1)
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// TestSlowPollIsNoReturn: an engine that fails requests sits out its cool-down, also when a poll of it was too slow in between.
func TestSlowPollIsNoReturn(t *testing.T) {
	s := newSick(t)
	g := startAt(t, oneEngine, []any{s.URL})
	c := newClient(t)
	ask := func() (int, string) {
		status, text, err := send(t, c, "POST", g.URL()+"/v1/completions", `{"model":"m","prompt":"hi","max_tokens":2}`)
		if err != nil {
			t.Fatal(err)
		}
		return status, text
	}
	if status, text := ask(); status != 500 {
		t.Fatalf("the engine's answer was to pass: %d %s", status, text)
	}
	s.hang.Store(true)
	await(t, func() bool { return s.missed.Load() > 0 })
	s.hang.Store(false)
	after := s.polls.Load() + 2 // the first may have been under way, the second was asked after the slow one was told
	await(t, func() bool { return s.polls.Load() > after })
	if status, text := ask(); status != 503 || s.requests.Load() != 1 {
		t.Errorf("%d requests came to the engine: %d %s", s.requests.Load(), status, text)
	}
}

// asker asks the gateway for a short completion, and returns the status.
func asker(t *testing.T, c *http.Client, g *gateway.Gateway) func() int {
	return func() int {
		status, _, err := send(t, c, "POST", g.URL()+"/v1/completions", `{"model":"m","prompt":"hi","max_tokens":2}`)
		if err != nil {
			t.Fatal(err)
		}
		return status
	}
}

// TestReturnEndsTheCoolDown: an engine whose polls were refused gets a probe with its next good poll.
func TestReturnEndsTheCoolDown(t *testing.T) {
	s := newSick(t)
	g := startAt(t, oneEngine, []any{s.URL})
	c := newClient(t)
	ask := asker(t, c, g)
	if status := ask(); status != 500 {
		t.Fatalf("status %d", status)
	}
	address := s.Listener.Addr().String()
	s.Close()
	await(t, func() bool { // until a poll has found nobody
		_, text, _ := send(t, c, "GET", g.AdminURL()+"/metrics", "")
		return strings.Contains(text, `perigee_load_polls_total{outcome="failed"`)
	})
	var l net.Listener
	await(t, func() bool { // in case that somebody else has the port for a moment
		var err error
		l, err = net.Listen("tcp", address)
		return err == nil
	})
	back := &httptest.Server{Listener: l, Config: &http.Server{Handler: s.Config.Handler, ReadHeaderTimeout: time.Second}}
	back.Start()
	defer back.Close()
	await(t, func() bool { return ask() == 500 }) // the probe
	if n := s.requests.Load(); n != 2 {
		t.Errorf("%d requests came to the engine", n)
	}
}

// well is an engine that answers requests with 500 until it is restarted.
type well struct {
	*httptest.Server
	fit             atomic.Bool
	born            atomic.Int64 // when its process began, in seconds; 0: it does not say
	down            atomic.Bool  // a proxy before it says that nobody is there
	requests, polls atomic.Int64
}

func newWell(t *testing.T) *well {
	e := &well{}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if e.down.Load() {
			w.WriteHeader(http.StatusBadGateway)
			e.polls.Add(1)
			return
		}
		switch r.URL.Path {
		case "/v1/models":
			_, _ = w.Write([]byte(`{"object":"list","data":[{"id":"m","object":"model","owned_by":"vllm"}]}`))
		case "/version":
			_, _ = w.Write([]byte(`{"version":"0.32.0"}`))
		case "/metrics":
			if n := e.born.Load(); n != 0 {
				_, _ = fmt.Fprintf(w, "process_start_time_seconds %d\n", n)
			}
			_, _ = io.WriteString(w, "vllm:num_requests_running{engine=\"0\"} 0\nvllm:num_requests_waiting{engine=\"0\"} 0\nvllm:kv_cache_usage_perc{engine=\"0\"} 0\n")
			e.polls.Add(1)
		case "/v1/completions":
			e.requests.Add(1)
			if !e.fit.Load() {
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{}`)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(e.Close)
	return e
}

// TestRestartEndsTheCoolDown: a restart in place, before anybody missed the engine, gets it a probe: by what the new process says of itself, by the end of the
// connection that the old one had kept, and by the proxy that stood before nobody.
func TestRestartEndsTheCoolDown(t *testing.T) {
	for name, restart := range map[string]func(*well){
		"another process":  func(e *well) { e.born.Store(2000) },
		"kept connections": func(e *well) { e.CloseClientConnections() },
		"proxy":            func(e *well) { e.down.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			e := newWell(t)
			if name == "another process" {
				e.born.Store(1000)
			}
			g := startAt(t, oneEngine, []any{e.URL})
			c := newClient(t)
			ask := asker(t, c, g)
			more := func(polls int64) {
				until := e.polls.Load() + polls
				await(t, func() bool { return e.polls.Load() >= until })
			}
			if ask() != 500 {
				t.Fatal("the failure was to pass")
			}
			more(3)
			if status := ask(); status != 503 || e.requests.Load() != 1 {
				t.Fatalf("%d, and %d requests came before the restart", status, e.requests.Load())
			}
			e.fit.Store(true)
			restart(e)
			more(2)
			e.down.Store(false)
			await(t, func() bool { return ask() == 200 })
		})
	}
}

// TestPlainModelNamesPlainEngines: who runs no engines in pairs is not told of prefill engines when all are out.
func TestPlainModelNamesPlainEngines(t *testing.T) {
	s := newSick(t)
	g := startAt(t, oneEngine, []any{s.URL})
	c := newClient(t)
	for range 2 {
		_, text, err := send(t, c, "POST", g.URL()+"/v1/completions", `{"model":"m","prompt":"hi"}`)
		if err != nil {
			t.Fatal(err)
		}
		if s.requests.Load() == 1 && text != "" && !strings.Contains(text, "no_healthy_workers") {
			t.Error(text)
		}
	}
}
