package tracing_test

import (
	"bytes"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/perigee-llm/perigee/internal/gateway/explain"
	"github.com/perigee-llm/perigee/internal/gateway/tracing"
	"github.com/perigee-llm/perigee/internal/gateway/tracing/tracingtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a tracer, what it counted and what it logged.
type rig struct {
	*tracing.Tracer
	t   *testing.T
	mu  sync.Mutex
	n   map[string]int
	log bytes.Buffer
}

func newRig(t *testing.T, s *tracing.Settings) *rig {
	t.Helper()
	if os.Getenv("OTEL_BSP_SCHEDULE_DELAY") == "" {
		t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "5")
	}
	r := &rig{t: t, n: map[string]int{}}
	r.Tracer = tracing.New(tracing.Options{Log: slog.New(slog.NewTextHandler(r, nil)), Count: func(outcome string, n int) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.n[outcome] += n
	}})
	r.use(s)
	return r
}

func (r *rig) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.Write(p)
}

func (r *rig) use(s *tracing.Settings) {
	r.t.Helper()
	p, err := r.Prepare(s)
	if err != nil {
		r.t.Fatal(err)
	}
	p.Use()
}

// said returns the log and what was counted.
func (r *rig) said() (log, counts string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []string
	for _, k := range slices.Sorted(maps.Keys(r.n)) {
		list = append(list, fmt.Sprint(k, "=", r.n[k]))
	}
	return r.log.String(), strings.Join(list, " ")
}

// done returns how many spans have come to an end.
func (r *rig) done() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range r.n {
		n += k
	}
	return n
}

// want checks what was counted, how many lines the log has (-1: any number), and what is in it.
func (r *rig) want(counts string, lines int, texts ...string) {
	r.t.Helper()
	log, got := r.said()
	if got != counts {
		r.t.Errorf("counted %q, want %q", got, counts)
	}
	if lines >= 0 && strings.Count(log, "\n") != lines {
		r.t.Errorf("%d lines, want %d: %s", strings.Count(log, "\n"), lines, log)
	}
	for _, text := range texts {
		if !strings.Contains(log, text) {
			r.t.Errorf("%q is not in %s", text, log)
		}
	}
}

// asking is a request with some headers.
func asking(h http.Header) *http.Request {
	return &http.Request{Method: "POST", Header: h, ProtoMajor: 1, ProtoMinor: 1}
}

// request makes the spans of a request: two.
func (r *rig) request(h http.Header) (sent http.Header) {
	q := r.Begin(asking(h), "/v1/completions", time.Now())
	l := q.Leg("w", "http://engine:1", "plain", 1)
	sent = l.Send("POST", "/v1/completions", http.Header{"A": {"b"}, "Traceparent": h["Traceparent"], "Tracestate": h["Tracestate"]}, time.Now())
	l.End(200, "success", time.Now())
	q.End(&tracing.End{Status: 200, Outcome: "success"}, time.Now())
	return sent
}

// TestOff: nothing is done and nothing is allocated, with no tracer and with one that is off.
func TestOff(t *testing.T) {
	off := newRig(t, nil)
	defer off.Close()
	for _, tr := range []*tracing.Tracer{nil, off.Tracer} {
		h := http.Header{"Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}
		now, r := time.Now(), asking(h)
		n := testing.AllocsPerRun(100, func() {
			q := tr.Begin(r, "/", now)
			q.Step("read").Read(1, "x")
			q.Step("measure").Measured(1, true, "x")
			q.NewAttempt(2, "a", "b")
			if q.Records() || q.TraceID() != "" {
				t.Error("it is on")
			}
			l := q.Leg("a", "b", "c", 1)
			if got := l.Send("POST", "/", h, now); len(got) != 1 {
				t.Error(got)
			}
			l.FirstByte(now)
			l.Blame("a", "b")
			l.End(200, "success", now)
			q.End(nil, now)
		})
		if n != 0 {
			t.Errorf("%.0f allocations", n)
		}
		var try explain.Try
		tr.Begin(r, "/", now).Pick(1, &try, now, now)
	}
	(*tracing.Tracer)(nil).Close()
}

// TestContext: what comes in of a context is continued if it is well-formed, and else as if it were not there; what goes on names our span.
func TestContext(t *testing.T) {
	const id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	good := "00-" + id + "-" + parent + "-01"
	c := tracingtest.Start(t, nil)
	r := newRig(t, &tracing.Settings{Endpoint: c.URL})
	many := strings.Repeat("k=v,", 40)
	for _, x := range []struct {
		name           string
		header         http.Header
		continued      bool
		sampled        string // the flags that go on
		state, baggage string
	}{
		{"none", nil, false, "01", "", ""},
		{"plain", http.Header{"Traceparent": {good}}, true, "01", "", ""},
		{"not sampled", http.Header{"Traceparent": {good[:53] + "00"}}, true, "00", "", ""},
		{"a later version", http.Header{"Traceparent": {"cc" + good[2:] + "-more"}}, true, "01", "", ""},
		{"state", http.Header{"Traceparent": {good}, "Tracestate": {"a=1", "b=2"}}, true, "01", "a=1,b=2", ""},
		{"malformed state", http.Header{"Traceparent": {good}, "Tracestate": {"a=1,,=;;"}}, true, "01", "", ""},
		{"too much state", http.Header{"Traceparent": {good}, "Tracestate": {many}}, true, "01", "", ""},
		{"state alone", http.Header{"Tracestate": {"a=1"}}, false, "01", "", ""},
		{"baggage", http.Header{"Traceparent": {good}, "Baggage": {"user=a%20b;p=1, x=2"}}, true, "01", "", "user=a%20b;p=1, x=2"},
		{"baggage alone", http.Header{"Baggage": {"x=2"}}, false, "01", "", "x=2"},
		{"malformed baggage", http.Header{"Traceparent": {good}, "Baggage": {"no"}}, true, "01", "", ""},
		{"half malformed baggage", http.Header{"Traceparent": {good}, "Baggage": {"x=2", "\x00=1"}}, true, "01", "", ""},
		{"long baggage", http.Header{"Traceparent": {good}, "Baggage": {"x=" + strings.Repeat("a", 8191)}}, true, "01", "", ""},
		{"two", http.Header{"Traceparent": {good, good}}, false, "01", "", ""},
		{"upper case", http.Header{"Traceparent": {strings.ToUpper(good)}}, false, "01", "", ""},
		{"no trace", http.Header{"Traceparent": {"00-" + strings.Repeat("0", 32) + "-" + parent + "-01"}}, false, "01", "", ""},
		{"no parent", http.Header{"Traceparent": {"00-" + id + "-0000000000000000-01"}}, false, "01", "", ""},
		{"version ff", http.Header{"Traceparent": {"ff" + good[2:]}}, false, "01", "", ""},
		{"short", http.Header{"Traceparent": {good[:54]}}, false, "01", "", ""},
		{"empty", http.Header{"Traceparent": {""}}, false, "01", "", ""},
		{"huge", http.Header{"Traceparent": {strings.Repeat("0", 60<<10)}, "Tracestate": {strings.Repeat(",", 60<<10)}, "Baggage": {strings.Repeat("=", 60<<10)}}, false, "01", "", ""},
	} {
		t.Run(x.name, func(t *testing.T) {
			sent := r.request(x.header)
			got := sent["Traceparent"]
			if len(got) != 1 || len(got[0]) != 55 || (got[0][3:35] == id) != x.continued || got[0][36:52] == parent || got[0][53:] != x.sampled {
				t.Errorf("goes on with %q", got)
			}
			if s := strings.Join(sent["Tracestate"], "|"); s != x.state {
				t.Errorf("goes on with the state %q", s)
			}
			if s := strings.Join(sent["Baggage"], "|"); s != x.baggage {
				t.Errorf("goes on with the baggage %q", s)
			}
			if sent.Get("A") != "b" {
				t.Errorf("another header is gone: %v", sent)
			}
			if !x.continued && len(x.header["Traceparent"]) > 0 || len(x.header["Traceparent"]) == 0 {
				if id := tracing.TraceID(x.header); id != "" {
					t.Errorf("its trace is %q", id)
				}
			} else if got := tracing.TraceID(x.header); got != id {
				t.Errorf("its trace is %q", got)
			}
		})
	}
	r.Close()
	spans := map[string]tracingtest.Span{}
	for _, s := range c.Spans() {
		spans[s.SpanID] = s
	}
	if len(spans) != 2*20 { // one was not sampled
		t.Errorf("%d spans came", len(spans))
	}
	for _, s := range spans {
		up := spans[s.ParentID]
		switch {
		case s.Kind == "client" && (up.Kind != "server" || up.TraceID != s.TraceID):
			t.Errorf("the parent of %+v is %+v", s, up)
		case s.Kind == "server" && (s.TraceID == id) != (s.ParentID == parent):
			t.Errorf("the parent of %+v is %s", s, s.ParentID)
		}
	}
	r.want("exported=40", 0)
}

// TestLate: spans that end after the last export are counted, and end nothing else.
func TestLate(t *testing.T) {
	c := tracingtest.Start(t, nil)
	r := newRig(t, &tracing.Settings{Endpoint: c.URL})
	q := r.Begin(asking(nil), "/", time.Now())
	r.request(nil)
	r.Close()
	q.Step("read body").Read(1, "")
	q.End(&tracing.End{}, time.Now())
	if q := r.Begin(asking(nil), "/", time.Now()); q != nil {
		t.Error("it is on")
	}
	r.Close()
	r.want("exported=2 late=2", 0)
}

// TestSlowReader: a span says of a client that was cut off that it read too slowly, and neither that it left nor that an engine failed.
func TestSlowReader(t *testing.T) {
	c := tracingtest.Start(t, nil)
	r := newRig(t, &tracing.Settings{Endpoint: c.URL})
	r.Begin(asking(nil), "/v1/completions", time.Now()).End(&tracing.End{Status: 200, Outcome: "slow_reader", Slow: true, Broken: true}, time.Now())
	r.Close()
	for _, s := range c.Spans() {
		if a := s.Attributes; s.Failed || a["perigee.outcome"] != "slow_reader" || a["perigee.client_left"] != "" || a["perigee.broken"] != "true" {
			t.Errorf("failed: %v, %v", s.Failed, a)
		}
	}
	r.want("exported=1", 0)
}

// TestProtocols: what a server's span says of how a request came. A method that a client invents is none of its words.
func TestProtocols(t *testing.T) {
	c := tracingtest.Start(t, nil)
	r := newRig(t, &tracing.Settings{Endpoint: c.URL})
	for _, q := range []*http.Request{
		{Method: "POST", ProtoMajor: 1, ProtoMinor: 0}, {Method: "POST", ProtoMajor: 2, TLS: &tls.ConnectionState{}}, {Method: "SESAME", ProtoMajor: 1, ProtoMinor: 1},
	} {
		r.Begin(q, "/v1/chat/completions", time.Now()).End(&tracing.End{Status: 405, Code: "method_not_allowed"}, time.Now())
	}
	r.Close()
	var got []string
	for _, s := range c.Spans() {
		a := s.Attributes
		got = append(got, strings.Join([]string{s.Name, a["http.request.method"], a["url.scheme"], a["network.protocol.version"], a["error.type"], fmt.Sprint(s.Failed)}, " "))
	}
	want := []string{
		"POST /v1/chat/completions POST http 1.0 method_not_allowed false", "POST /v1/chat/completions POST https 2 method_not_allowed false",
		"HTTP /v1/chat/completions _OTHER http 1.1 method_not_allowed false",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

// TestWordsOfOthers: a text that is no UTF-8, or long, costs no span.
func TestWordsOfOthers(t *testing.T) {
	c := tracingtest.Start(t, nil)
	r := newRig(t, &tracing.Settings{Endpoint: c.URL})
	q := r.Begin(asking(nil), "/", time.Now())
	now := time.Now()
	bad := "an answer \xff\xfe" + strings.Repeat("long", 1000)
	q.Pick(1, &explain.Try{Detail: bad, SourceError: bad}, now, now)
	q.NewAttempt(2, "w", bad)
	l := q.Leg("w", "http://engine:1", "plain", 1)
	l.Send("POST", "/", http.Header{}, now)
	l.Blame("code", bad)
	l.End(0, "error", now)
	q.End(&tracing.End{}, now)
	r.Close()
	r.want("exported=3", 0)
	for _, s := range c.Spans() {
		for k, v := range s.Attributes {
			if len(v) > 1100 {
				t.Errorf("%s has %d bytes", k, len(v))
			}
		}
	}
}

// TestSampling: the ratio is of traces that begin here; a client's decision stands, unless the environment's sampler says otherwise.
func TestSampling(t *testing.T) {
	c := tracingtest.Start(t, nil)
	none := 0.0
	began := http.Header{"Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}
	r := newRig(t, &tracing.Settings{Endpoint: c.URL, Ratio: &none})
	r.request(nil)
	r.request(began)
	r.Close()
	r.want("exported=2", 0)
	t.Setenv("OTEL_TRACES_SAMPLER", "traceidratio")
	t.Setenv("OTEL_TRACES_SAMPLER_ARG", "0")
	r = newRig(t, &tracing.Settings{Endpoint: c.URL})
	r.request(nil)
	r.request(began)
	r.Close()
	r.want("", 0)
}

// TestEnvironment: what the settings leave open is the environment's, what they say is theirs.
func TestEnvironment(t *testing.T) {
	c := tracingtest.Start(t, nil)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-from=environment")
	t.Setenv("OTEL_SERVICE_NAME", "edge")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.name=no")
	t.Setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
	r := newRig(t, &tracing.Settings{})
	r.request(nil)
	r.Close()
	check := func(service, from string) {
		t.Helper()
		s, calls := c.Spans(), c.Calls()
		if len(s) != 2 || len(calls) == 0 {
			t.Fatal(s, calls)
		}
		if a := s[0].Resource; a["service.name"] != service || a["deployment.environment.name"] != "test" || a["host.name"] == "" || a["telemetry.sdk.language"] != "go" {
			t.Errorf("they come from %v", a)
		}
		if got := calls[0].Get("X-From"); got != from {
			t.Errorf("they come with %q", got)
		}
	}
	check("edge", "environment")
	c.Forget()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	r = newRig(t, &tracing.Settings{Endpoint: c.URL, Service: "mine", Headers: map[string]string{"X-From": "settings"}})
	r.request(nil)
	r.Close()
	check("mine", "settings")
}

// TestTLS: a collector is known by the authorities that are given, and no other is.
func TestTLS(t *testing.T) {
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000") // a request's spans are one batch, and one line in the log
	var root []byte
	c := tracingtest.Start(t, func(s *httptest.Server) {
		s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
		s.StartTLS()
		root = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	})
	r := newRig(t, &tracing.Settings{Endpoint: c.URL, Authorities: root})
	r.request(nil)
	r.Close()
	r.want("exported=2", 0)
	r = newRig(t, &tracing.Settings{Endpoint: c.URL})
	r.request(nil)
	r.Close()
	r.want("failed=2", 1, "certificate")
	r = newRig(t, nil)
	if _, err := r.Prepare(&tracing.Settings{Endpoint: "http://127.0.0.1:1", Authorities: root}); err == nil {
		t.Error("authorities for plain HTTP are taken")
	}
	r.Close()
}

// TestBadCollectors: whatever a collector does, a request goes on, spans are dropped and counted, and the log has one line in a minute.
func TestBadCollectors(t *testing.T) {
	hang := make(chan struct{})
	for name, x := range map[string]struct {
		answer http.HandlerFunc
		counts string
		text   string
	}{
		"500": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no\n\x00"+strings.Repeat("long", 1000), 500)
		}, "failed=16", "500 Internal Server Error"},
		"401": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }, "failed=16", "401"},
		"503": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, "failed=16", "retry"},
		"503 for long": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "100000")
			w.WriteHeader(503)
		}, "failed=16", "retry"},
		"garbage": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/x-protobuf")
			_, _ = w.Write([]byte("\xff\xffgarbage"))
		}, "failed=16", "proto"},
		"not HTTP": {speakGarbage, "failed=16", "malformed HTTP"},
		"slow":     {func(_ http.ResponseWriter, r *http.Request) { <-hang }, "failed=16", "timeout"},
		"endless": {func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		}, "failed=16", ""},
		"redirects": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/v1/traces", http.StatusTemporaryRedirect)
		}, "failed=16", "redirects"},
		"some":      {partly(3, "too old"), "exported=10 rejected=6", "too old"},
		"a warning": {partly(0, "be quick"), "exported=16", "be quick"},
		"more":      {partly(1<<40, "all"), "rejected=16", "all"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000") // a batch goes out when it is full
			c := tracingtest.Start(t, nil)
			c.Answer(x.answer)
			s := &tracing.Settings{Endpoint: c.URL, Queue: 16}
			switch name {
			case "503", "slow", "endless": // what ends in no other way
				s.Timeout = 300 * time.Millisecond
			}
			r := newRig(t, s)
			for range 2 {
				before := r.done()
				for range 4 {
					r.request(nil)
				}
				await(t, func() bool { return r.done() == before+8 })
			}
			r.Close()
			log, _ := r.said()
			if len(log) > 2000 || strings.Count(log, "\n") > 2 {
				t.Errorf("the log has %s", log)
			}
			r.want(x.counts, -1, x.text)
			if name == "slow" {
				close(hang)
			}
		})
	}
}

func speakGarbage(w http.ResponseWriter, _ *http.Request) {
	c, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		_, _ = c.Write([]byte("garbage\r\n\r\n"))
		_ = c.Close()
	}
}

// TestAway: a collector to which no connection can be made.
func TestAway(t *testing.T) {
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000") // as in TestTLS
	r := newRig(t, &tracing.Settings{Endpoint: "http://127.0.0.1:1"})
	r.request(nil)
	r.Close()
	r.want("failed=2", 1, "refused", "failed=2")
}

// TestQueueFull: while a collector hangs no more spans wait than may, and the end of it all is bounded.
func TestQueueFull(t *testing.T) {
	hang := make(chan struct{})
	c := tracingtest.Start(t, nil)
	c.Answer(func(http.ResponseWriter, *http.Request) { <-hang })
	r := newRig(t, &tracing.Settings{Endpoint: c.URL, Queue: 16})
	for range 50 {
		r.request(nil)
	}
	await(t, func() bool { _, counts := r.said(); return counts == "queue_full=84" })
	await(t, func() bool { return len(c.Calls()) == 1 })
	close(hang) // with it the queue empties
	c.Answer(nil)
	await(t, func() bool { _, counts := r.said(); return counts == "exported=16 queue_full=84" })
	r.request(nil)
	r.Close()
	r.want("exported=18 queue_full=84", 1, "queue_full=84")
}

// TestCloseIsBounded: a collector that hangs holds up the end for flushLimit.
func TestCloseIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for five seconds")
	}
	hang := make(chan struct{})
	c := tracingtest.Start(t, nil)
	c.Answer(func(http.ResponseWriter, *http.Request) { <-hang })
	r := newRig(t, &tracing.Settings{Endpoint: c.URL, Queue: 64})
	for range 20 {
		r.request(nil)
	}
	began := time.Now()
	r.Close()
	if took := time.Since(began); took < 4*time.Second || took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
	close(hang)
	r.want("failed=40", -1, "the gateway ends")
}

// TestUseAnother: requests end under what they began with, and what was replaced exports what it has.
func TestUseAnother(t *testing.T) {
	a, b := tracingtest.Start(t, nil), tracingtest.Start(t, nil)
	r := newRig(t, &tracing.Settings{Endpoint: a.URL})
	q := r.Begin(asking(nil), "/", time.Now())
	r.use(&tracing.Settings{Endpoint: a.URL}) // the same
	r.use(&tracing.Settings{Endpoint: b.URL})
	r.request(nil)
	l := q.Leg("w", "http://engine:1", "prefill", 1)
	l.Send("POST", "/", http.Header{}, time.Now())
	q.End(&tracing.End{}, time.Now())
	l.End(200, "success", time.Now()) // a leg outlives its request
	await(t, func() bool { return len(a.Spans()) == 2 && len(b.Spans()) == 2 })
	p, err := r.Prepare(nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Drop()
	if p, err = r.Prepare(&tracing.Settings{Endpoint: a.URL}); err != nil {
		t.Fatal(err)
	}
	p.Drop()
	r.request(nil)
	await(t, func() bool { return len(b.Spans()) == 4 })
	r.use(nil)
	if q := r.Begin(asking(nil), "/", time.Now()); q != nil {
		t.Error("it is on")
	}
	r.Close()
	r.want("exported=6", 0)
}

// TestEverySpanEnds: whatever a collector does, and however often it is changed for another, each span comes to one end, and to one alone.
func TestEverySpanEnds(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	var turn atomic.Uint64
	c := tracingtest.Start(t, nil)
	answers := []http.HandlerFunc{
		func(http.ResponseWriter, *http.Request) {}, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) },
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, speakGarbage, partly(2, "no"), func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	}
	c.Answer(func(w http.ResponseWriter, r *http.Request) {
		answers[rand.New(rand.NewPCG(seed, turn.Add(1))).IntN(len(answers))](w, r)
	})
	r := newRig(t, &tracing.Settings{Endpoint: c.URL, Queue: 32, Timeout: 20 * time.Millisecond})
	var wg sync.WaitGroup
	const each = 300
	for range 4 {
		wg.Go(func() {
			for range each {
				r.request(nil)
			}
		})
	}
	for i := range 30 {
		r.use(&tracing.Settings{Endpoint: c.URL, Queue: 32 + i, Timeout: 20 * time.Millisecond})
	}
	wg.Wait()
	r.Close()
	if n := r.done(); n != 4*each*2 {
		_, counts := r.said()
		t.Errorf("%d of %d spans ended: %s", n, 4*each*2, counts)
	}
}

// TestBadEnvironment: a variable that cannot be read is told, and the default stands.
func TestBadEnvironment(t *testing.T) {
	c := tracingtest.Start(t, nil)
	t.Setenv("OTEL_TRACES_SAMPLER", "sometimes")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "no")
	t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", "many")
	r := newRig(t, &tracing.Settings{Endpoint: c.URL})
	r.request(nil)
	r.Close()
	r.want("exported=2", -1, "unsupported sampler: sometimes", "missing value")
}

// TestTogether: requests, and changes under them, for the race detector: no span is lost.
func TestTogether(t *testing.T) {
	c := tracingtest.Start(t, nil)
	r := newRig(t, &tracing.Settings{Endpoint: c.URL})
	var wg sync.WaitGroup
	const each = 100
	for range 4 {
		wg.Go(func() {
			for range each {
				r.request(nil)
			}
		})
	}
	for i := range 20 {
		r.use(&tracing.Settings{Endpoint: c.URL, Queue: 4096 + i})
	}
	wg.Wait()
	await(t, func() bool { return r.done() == 4*each*2 }) // the end of all has a bound, which a busy machine may meet
	r.Close()
	r.want(fmt.Sprint("exported=", 4*each*2), 0)
}

// await polls a condition, for at most 20 s.
func await(t *testing.T, met func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
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
