package api

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
)

// outcomes returns what became of the attempts of the newest request, each as the engine and the outcome's beginning.
func (r *rig) outcomes() []string {
	var out []string
	for _, a := range r.s.Explain.Records(noQuery)[0].Attempts {
		what, _, _ := strings.Cut(a.Outcome, ":")
		var engines []string
		for _, t := range a.Tries {
			engines = append(engines, t.Picked)
		}
		out = append(out, strings.Join(engines, ">")+" "+what)
	}
	return out
}

func (r *rig) wantOutcomes(want ...string) {
	r.t.Helper()
	if diff := cmpDiff(want, r.outcomes()); diff != "" {
		r.t.Errorf("the decision log (- want):\n%s", diff)
	}
}

// TestUnsendable: a request that cannot be written as HTTP is no engine's fault, and another engine would not help.
func TestUnsendable(t *testing.T) {
	for name, specs := range map[string][]fleet.Spec{
		"plain": plain(2, fleet.VLLM),
		"pair":  {{Kind: fleet.VLLM, Stage: fleet.Prefill}, {Kind: fleet.VLLM, Stage: fleet.Decode}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, rigOptions{Specs: specs}, func(t *testing.T, r *rig) {
				w, q := httptest.NewRecorder(), httptest.NewRequest("POST", chatPath, strings.NewReader(chatBody))
				q.Header["Traceparent"] = []string{"a\r\nb: c"} // net/http lets none in; a wrapper might
				r.s.Public().ServeHTTP(w, q)
				if w.Code != 500 || w.Header().Get(headerErrorCode) != "internal_error" {
					t.Errorf("got %d %s", w.Code, w.Body)
				}
				for _, e := range r.engines {
					if state, failures := r.reg.Breaker(e.worker); failures != 0 || len(e.calls()) != 0 {
						t.Errorf("%s: breaker %s after %d failures, %d calls", e.id, state, failures, len(e.calls()))
					}
				}
				if got := r.s.Explain.Records(noQuery)[0].Attempts; len(got) != 1 || !strings.Contains(got[0].Outcome, "the request cannot be sent") {
					t.Errorf("the decision log has %+v", got)
				}
			})
		})
	}
}

// TestOneRequestStrikesOnce: engines that hang up on the same request are struck once for it, those that are not there each.
func TestOneRequestStrikesOnce(t *testing.T) {
	for name, c := range map[string]struct {
		broken func(*engine)
		want   int
	}{
		"hang up": {func(e *engine) { e.raw = func(net.Conn, *seenCall) {} }, 1},
		"absent":  {func(e *engine) { e.refuse.Store(true) }, 3},
		"short":   {func(e *engine) { e.short.Store(true) }, 0}, // the gateway is, of descriptors
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, rigOptions{Specs: plain(4, fleet.VLLM)}, func(t *testing.T, r *rig) {
				for _, e := range r.engines {
					c.broken(e)
				}
				if a := r.post(chatPath, chatBody); a.status < 502 {
					t.Errorf("got %+v", a)
				}
				strikes := 0
				for _, e := range r.engines {
					_, failures := r.reg.Breaker(e.worker)
					strikes += failures
				}
				if strikes != c.want {
					t.Errorf("%d strikes, want %d", strikes, c.want)
				}
			})
		})
	}
}

// TestRetry: a new attempt goes to another engine if nothing of an answer came, and only then.
func TestRetry(t *testing.T) {
	refuse := func(e *engine) { e.refuse.Store(true) }
	drop := func(e *engine) { e.raw = func(net.Conn, *seenCall) {} }
	short := func(e *engine) { e.short.Store(true) }
	garbage := func(e *engine) {
		e.raw = func(c net.Conn, _ *seenCall) { _, _ = io.WriteString(c, "nothing of HTTP\r\n") }
	}
	status := func(code int) func(*engine) {
		return func(e *engine) { e.handler = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) } }
	}
	hang := func(e *engine) { e.handler = func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() } }
	fine := func(*engine) {}
	for _, c := range []struct {
		name     string
		engines  []func(*engine) // round robin takes them in this order
		attempts int
		status   int
		code     string
		outcomes []string
	}{
		{"refused", []func(*engine){refuse, fine}, 3, 200, "", []string{"w0 no connection", "w1 answered"}},
		{"dropped on a new connection", []func(*engine){drop, fine}, 3, 200, "", []string{"w0 no connection", "w1 answered"}},
		{"two bad ones", []func(*engine){refuse, drop, fine}, 3, 200, "", []string{"w0 no connection", "w2 answered"}},
		{"three bad ones", []func(*engine){refuse, drop, refuse, fine}, 3, 502, "upstream_unreachable", []string{"w0 no connection", "w2 no connection", "w1 no connection"}},
		{"all bad", []func(*engine){refuse, drop}, 3, 502, "upstream_unreachable", []string{"w0 no connection", "w1 no connection", " not selected"}},
		{"no descriptor", []func(*engine){short, fine}, 3, 200, "", []string{"w0 no connection can be made here", "w1 answered"}},
		{"no descriptors at all", []func(*engine){short, short}, 3, 503, "gateway_overloaded", []string{"w0 no connection can be made here", "w1 no connection can be made here", " not selected"}},
		{"one attempt", []func(*engine){refuse, fine}, 1, 502, "upstream_unreachable", []string{"w0 no connection"}},
		{"garbage", []func(*engine){garbage, fine}, 3, 502, "upstream_invalid_answer", []string{"w0 unreadable answer"}},
		{"time-out", []func(*engine){hang, fine}, 3, 504, "upstream_timeout", []string{"w0 no answer in time"}},
		{"an error of its own", []func(*engine){status(500), fine}, 3, 500, "", []string{"w0 answered"}},
		{"busy", []func(*engine){status(503), fine}, 3, 503, "", []string{"w0 answered"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, rigOptions{Specs: plain(len(c.engines), fleet.VLLM), Settings: func(s *Settings) { s.MaxAttempts = c.attempts }}, func(t *testing.T, r *rig) {
				for i, f := range c.engines {
					f(r.engines[i])
				}
				a := r.post(chatPath, chatBody)
				if a.status != c.status || a.header.Get("X-Router-Error-Code") != c.code {
					t.Errorf("got %+v", a)
				}
				r.wantOutcomes(c.outcomes...)
				synctest.Wait()
				tried := int64(len(c.outcomes))
				if got := r.access.last(); got["attempts"] != tried {
					t.Errorf("the log has %v", got)
				}
				r.noURL(a)
				for _, e := range r.engines {
					if calls := e.calls(); len(calls) > 1 {
						t.Errorf("%s got the request %d times", e.id, len(calls))
					} else if len(calls) == 1 && calls[0].body != chatBody {
						t.Errorf("%s got %s", e.id, calls[0].body)
					}
				}
			})
		})
	}
}

// onceEach answers one request on each connection; the next one is read and dropped.
func onceEach(served *atomic.Int64) func(net.Conn) {
	return func(c net.Conn) {
		first := true
		_ = http.Serve(&oneConn{c: c}, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			_, _ = io.Copy(io.Discard, q.Body)
			if !first {
				panic(http.ErrAbortHandler)
			}
			first = false
			served.Add(1)
			_, _ = io.WriteString(w, okAnswer)
		}))
	}
}

// TestKeptConnectionsClosed: an engine that closed the connections that were kept to it, as one that was restarted, is not to blame,
// and gets the request over a new one.
func TestKeptConnectionsClosed(t *testing.T) {
	bubble(t, rigOptions{Specs: plain(1, fleet.VLLM)}, func(t *testing.T, r *rig) {
		var served atomic.Int64
		r.engines[0].bare = onceEach(&served)
		for i := range 4 {
			if a := r.post(chatPath, chatBody); a.status != 200 {
				t.Fatalf("request %d: %+v", i, a)
			}
			want := []string{"w0 answered"}
			if i > 0 {
				want = []string{"w0 a kept connection was closed", "w0 answered"}
			}
			r.wantOutcomes(want...)
		}
		if n := served.Load(); n != 4 {
			t.Errorf("%d served", n)
		}
	})
	bubble(t, rigOptions{Specs: plain(1, fleet.VLLM), Settings: func(s *Settings) { s.MaxAttempts = 1 }}, func(t *testing.T, r *rig) {
		var served atomic.Int64
		r.engines[0].bare = onceEach(&served)
		r.post(chatPath, chatBody)
		r.wantError(r.post(chatPath, chatBody), 502, "upstream_unreachable")
		if _, n := r.reg.Breaker(r.engines[0].worker); n != 0 {
			t.Errorf("%d strikes", n)
		}
	})
}

// oneConn is a listener that accepts one connection, and ends when that is closed.
type oneConn struct {
	c    net.Conn
	done chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	if l.done != nil {
		<-l.done
		return nil, net.ErrClosed
	}
	l.done = make(chan struct{})
	return &closing{Conn: l.c, done: l.done}, nil
}

func (l *oneConn) Close() error   { return nil }
func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{} }

type closing struct {
	net.Conn
	done   chan struct{}
	closed bool
}

func (c *closing) Close() error {
	if !c.closed {
		c.closed = true
		close(c.done)
	}
	return c.Conn.Close()
}

// TestBreaker: three failures in a row open it, one request at a time probes it after the cool-down, what is nobody's fault leaves it.
func TestBreaker(t *testing.T) {
	bubble(t, rigOptions{Specs: plain(1, fleet.VLLM)}, func(t *testing.T, r *rig) {
		e := r.engines[0]
		status := 500
		e.handler = func(w http.ResponseWriter, q *http.Request) {
			if status == 0 {
				<-q.Context().Done()
				return
			}
			w.WriteHeader(status)
		}
		step := func(want int) {
			t.Helper()
			if a := r.post(chatPath, chatBody); a.status != want {
				t.Fatalf("got %+v, want %d", a, want)
			}
		}
		state := func(want fleet.BreakerState, streak int) {
			t.Helper()
			if s, n := r.reg.Breaker(e.worker); s != want || n != streak {
				t.Fatalf("%v with %d, want %v with %d", s, n, want, streak)
			}
		}
		step(500)
		step(500)
		status = 503
		step(503) // neutral
		state(fleet.Closed, 2)
		status = 404
		step(404) // the engine works
		state(fleet.Closed, 0)
		status = 500
		step(500)
		step(500)
		step(500)
		state(fleet.Open, 3)
		r.wantError(r.post(chatPath, chatBody), 503, "no_healthy_workers")
		if a := r.do("GET", "/readyz", ""); a.status != 503 {
			t.Errorf("ready: %+v", a)
		}
		r.pass(30 * time.Second)
		status = 0
		probe := make(chan answer)
		r.wg.Go(func() { probe <- r.post(chatPath, chatBody) })
		synctest.Wait()
		state(fleet.HalfOpen, 3)
		r.wantError(r.post(chatPath, chatBody), 503, "no_healthy_workers") // the probe is out
		r.wantError(<-probe, 504, "upstream_timeout")
		state(fleet.Open, 4)
		r.pass(30 * time.Second)
		leaves := r.request(t.Context(), "POST", chatPath, chatBody)
		client := *r.client
		client.Timeout = time.Second
		if resp, err := client.Do(leaves); err == nil {
			_ = resp.Body.Close()
			t.Fatal("an answer")
		}
		r.pass(time.Second)
		state(fleet.HalfOpen, 4) // nothing was learned, and the probe is there for the next
		status = 200
		step(200)
		state(fleet.Closed, 0)
	})
}

// TestBreakerOpensMeanwhile: an engine whose breaker closed the door between pick and dispatch is passed over.
func TestBreakerOpensMeanwhile(t *testing.T) {
	bubble(t, rigOptions{Specs: plain(1, fleet.VLLM)}, func(t *testing.T, r *rig) {
		w := r.engines[0].worker
		for range 3 {
			ticket, _ := r.reg.Claim(w, time.Now())
			r.reg.Done(ticket, fleet.Failure, time.Now())
		}
		c := &call{s: r.s, model: &Model{ID: "m"}}
		if _, f := c.begin(t.Context(), &policy.Pick{Engine: w}, fleet.Plain, 1); f == nil || f.answer != errBreakerOpen || !f.again || f.exclude != "w0" {
			t.Errorf("got %+v", f)
		}
		if got := r.metric(`worker_requests_total{mode="plain",model="m",outcome="error",worker="w0"}`); got != "1" {
			t.Errorf("the metric has %q errors of the worker", got)
		}
	})
}

// panicky panics for the request's turn-th dispatch.
type panicky struct {
	http.RoundTripper
	turn int
}

func (p *panicky) RoundTrip(r *http.Request) (*http.Response, error) {
	if p.turn--; p.turn == 0 {
		panic("oh")
	}
	return p.RoundTripper.RoundTrip(r)
}

// TestPanic: a fault of ours is an answer, a line in the log, and holds nothing.
func TestPanic(t *testing.T) {
	for _, c := range []struct {
		name  string
		specs []fleet.Spec
		turn  int
	}{
		{"plain", plain(1, fleet.SGLang), 1}, {"prefill", pair(fleet.VLLM), 1}, {"decode", pair(fleet.VLLM), 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, rigOptions{Specs: c.specs}, func(t *testing.T, r *rig) {
				r.engines[0].handler = func(w http.ResponseWriter, _ *http.Request) {
					_, _ = io.WriteString(w, `{"kv_transfer_params":{"a":1}}`)
				}
				r.s.Engines = &panicky{r.s.Engines, c.turn}
				r.wantError(r.post(chatPath, chatBody), 500, "internal_error")
				synctest.Wait()
				r.atRest()
				if got := r.s.Explain.Records(noQuery)[0]; !got.Done || got.Attempts[0].Outcome != "the gateway failed" {
					t.Errorf("the decision log has %+v", got)
				}
				if got := r.logs.last(); got["panic"] != "oh" || !strings.Contains(got["stack"].(string), "panicky") {
					t.Errorf("the log has %v", got)
				}
				if a := r.post(chatPath, chatBody); a.status != 200 {
					t.Errorf("the next request: %+v", a)
				}
			})
		})
	}
}
