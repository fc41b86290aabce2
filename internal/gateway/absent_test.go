package gateway_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
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

// TestReturnEndsTheCoolDown: an engine whose polls were refused gets a probe with its next good poll.
func TestReturnEndsTheCoolDown(t *testing.T) {
	s := newSick(t)
	g := startAt(t, oneEngine, []any{s.URL})
	c := newClient(t)
	ask := func() int {
		status, _, err := send(t, c, "POST", g.URL()+"/v1/completions", `{"model":"m","prompt":"hi","max_tokens":2}`)
		if err != nil {
			t.Fatal(err)
		}
		return status
	}
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
