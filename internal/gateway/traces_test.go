package gateway_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/tracing/tracingtest"
)

// scripted is an engine that answers completions as the test says, and keeps the headers of the last.
type scripted struct {
	url    string
	close  func()
	answer atomic.Pointer[http.HandlerFunc]
	header atomic.Pointer[http.Header]
}

func (e *scripted) will(h http.HandlerFunc) { e.answer.Store(&h) }

// startScripted starts engines of a family with these roles. They answer at once.
func startScripted(t *testing.T, family string, roles ...string) (list []*scripted, urls []any) {
	for _, role := range roles {
		e := &scripted{}
		e.will(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"usage":{"prompt_tokens":3,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}},"kv_transfer_params":{"a":1}}`)
		})
		mux := http.NewServeMux()
		mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"object":"list","data":[{"id":"m","object":"model","owned_by":"%s"}]}`, family)
		})
		if family == "sglang" {
			mux.HandleFunc("GET /server_info", func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprintf(w, `{"model_path":"m","disaggregation_mode":"%s","disaggregation_bootstrap_port":8998}`, role)
			})
		}
		mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			e.header.Store(&r.Header)
			(*e.answer.Load())(w, r)
		})
		s := httptest.NewServer(mux)
		e.close = func() { s.CloseClientConnections(); s.Close() }
		t.Cleanup(e.close)
		e.url = s.URL
		list, urls = append(list, e), append(urls, s.URL)
	}
	return list, urls
}

// story tells the spans of a collector as a tree, a span a line with its kind, "!" if it failed, its attributes and its events. What differs from
// run to run is left out.
func story(c *tracingtest.Collector) string {
	var b strings.Builder
	list := c.Spans()
	known := map[string]bool{}
	for _, s := range list {
		known[s.SpanID] = true
	}
	var tell func(parent string, depth int)
	tell = func(parent string, depth int) {
		for _, s := range list {
			if !(s.ParentID == parent || depth == 0 && !known[s.ParentID]) {
				continue
			}
			fmt.Fprintf(&b, "%s%s %s", strings.Repeat("  ", depth), s.Kind, s.Name)
			if s.Failed {
				b.WriteString(" !")
			}
			attributes(&b, s.Attributes)
			for _, e := range s.Events {
				b.WriteString(" (" + e.Name)
				attributes(&b, e.Attributes)
				b.WriteString(")")
			}
			b.WriteString("\n")
			tell(s.SpanID, depth+1)
		}
	}
	for i := 1; i < len(list); i++ { // the halves of a pair begin at once
		a, b := list[i-1], list[i]
		if a.Kind == "client" && b.Kind == "client" && b.Start.Before(a.End) && b.Attributes["perigee.stage"] > a.Attributes["perigee.stage"] {
			list[i-1], list[i] = b, a
		}
	}
	tell("-", 0)
	return b.String()
}

var port = regexp.MustCompile(`127\.0\.0\.1:\d+(->127\.0\.0\.1:\d+)?`)

func attributes(b *strings.Builder, list map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(list)) {
		switch k {
		case "perigee.request_id", "server.address", "server.port", "http.request.method", "http.route", "url.path", "url.template", "url.full", "url.scheme", "network.protocol.version":
		default:
			fmt.Fprintf(b, " %s=%s", strings.TrimPrefix(k, "perigee."), port.ReplaceAllString(list[k], "HOST"))
		}
	}
}

const traced = `
models: [{id: m, policy: round_robin%s}]
server: {port: 0, host: 127.0.0.1, admin: {port: 0}}
tracing: {endpoint: %q}
discovery: {static: {workers: [%s]}}
`

func startTraced(t *testing.T, c *tracingtest.Collector, model string, urls []any, roles ...string) string {
	t.Helper()
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "5")
	var workers []string
	for i, u := range urls {
		workers = append(workers, fmt.Sprintf("{id: %c, url: %q, role: %s}", 'a'+i, u, strings.Replace(roles[i], "null", "plain", 1)))
	}
	return startAt(t, strings.ReplaceAll(fmt.Sprintf(traced, model, c.URL, strings.Join(workers, ", ")), "%", "%%"), nil).URL()
}

// post sends a prompt that nobody may find in a span, with more members of the body, or a whole body.
func post(t *testing.T, url, more string, header ...string) (status int, body string) {
	t.Helper()
	text := more
	if !strings.HasPrefix(more, "{") {
		text = `{"model":"m","prompt":"sesame open"` + more + `}`
	}
	req, err := http.NewRequestWithContext(t.Context(), "POST", url+"/v1/completions", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header[header[i]] = append(req.Header[header[i]], header[i+1])
	}
	resp, err := newClient(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(answer)
}

// wantStory waits until the collector has a request's spans, and compares them.
func wantStory(t *testing.T, c *tracingtest.Collector, want string) {
	t.Helper()
	want = strings.TrimPrefix(want, "\n")
	await(t, func() bool { return len(c.Spans()) >= strings.Count(want, "\n") })
	if got := story(c); got != want {
		t.Errorf("it tells\n%s\nwant\n%s", got, want)
	}
	for _, s := range c.Spans() {
		if s.End.Before(s.Start) || s.TraceID != c.Spans()[0].TraceID {
			t.Errorf("%+v", s)
		}
		if text := fmt.Sprint(s); strings.Contains(text, "sesame") || strings.Contains(text, "sk-") {
			t.Errorf("a prompt or a key is in %s", text)
		}
	}
	c.Forget()
}

// TestTraces: the spans of requests, by what becomes of them.
func TestTraces(t *testing.T) {
	for _, x := range []struct {
		name   string
		model  string // more of the model's configuration
		family string
		roles  []string
		run    func(t *testing.T, url string, e []*scripted, _ *tracingtest.Collector)
		want   string
	}{
		{"plain", "", "vllm", []string{"null"}, func(t *testing.T, url string, _ []*scripted, _ *tracingtest.Collector) {
			post(t, url, "", "Authorization", "Bearer sk-secret")
		}, `
server POST /v1/completions gen_ai.operation.name=text_completion gen_ai.request.model=m gen_ai.usage.input_tokens=3 gen_ai.usage.output_tokens=2 http.response.status_code=200 attempts=1 bucket=plain cached_tokens=1 input_tokens=2 outcome=success stream=false worker=a
  internal read body http.request.body.size=36
  internal measure input input_exact=false input_source=estimated input_tokens=2
  internal pick plain attempt=1 bucket=plain considered=[a: in flight 0; its own report unknown (none that is fresh and complete)] live=1 picked=a policy=round_robin reason=rotation stage=plain
  client POST /v1/completions http.response.status_code=200 attempt=1 outcome=success stage=plain worker=a
`},
		{"a failed engine", "", "vllm", []string{"null", "null"}, func(t *testing.T, url string, e []*scripted, _ *tracingtest.Collector) {
			e[0].close()
			post(t, url, "")
		}, `
server POST /v1/completions gen_ai.operation.name=text_completion gen_ai.request.model=m gen_ai.usage.input_tokens=3 gen_ai.usage.output_tokens=2 http.response.status_code=200 attempts=2 bucket=plain cached_tokens=1 input_tokens=2 outcome=success stream=false worker=b (new attempt attempt=2 because=no connection: dial tcp HOST: connect: connection refused failed=a)
  internal read body http.request.body.size=36
  internal measure input input_exact=false input_source=estimated input_tokens=2
  internal pick plain attempt=1 bucket=plain considered=[a: in flight 0; its own report unknown (none that is fresh and complete)] live=2 picked=a policy=round_robin reason=rotation stage=plain
  client POST /v1/completions ! error.type=upstream_unreachable attempt=1 because=no connection: dial tcp HOST: connect: connection refused outcome=error stage=plain worker=a
  internal pick plain attempt=2 bucket=plain considered=[b: in flight 0; its own report unknown (none that is fresh and complete)] live=1 picked=b policy=round_robin reason=rotation stage=plain
  client POST /v1/completions http.request.resend_count=1 http.response.status_code=200 attempt=2 outcome=success stage=plain worker=b
`},
		{"all engines fail", ", admission: {max_inflight_requests: 5}", "vllm", []string{"null", "null"}, func(t *testing.T, url string, e []*scripted, _ *tracingtest.Collector) {
			e[0].close()
			e[1].close()
			post(t, url, "")
		}, `
server POST /v1/completions ! error.type=upstream_unreachable gen_ai.operation.name=text_completion gen_ai.request.model=m http.response.status_code=502 attempts=3 input_tokens=2 outcome=error stream=false (new attempt attempt=2 because=no connection: dial tcp HOST: connect: connection refused failed=a) (new attempt attempt=3 because=no connection: dial tcp HOST: connect: connection refused failed=b)
  internal read body http.request.body.size=36
  internal measure input input_exact=false input_source=estimated input_tokens=2
  internal pick plain attempt=1 bucket=plain considered=[a: in flight 0; its own report unknown (none that is fresh and complete)] live=2 picked=a policy=round_robin reason=rotation stage=plain
  client POST /v1/completions ! error.type=upstream_unreachable attempt=1 because=no connection: dial tcp HOST: connect: connection refused outcome=error stage=plain worker=a
  internal pick plain attempt=2 bucket=plain considered=[b: in flight 0; its own report unknown (none that is fresh and complete)] live=1 picked=b policy=round_robin reason=rotation stage=plain
  client POST /v1/completions ! error.type=upstream_unreachable http.request.resend_count=1 attempt=2 because=no connection: dial tcp HOST: connect: connection refused outcome=error stage=plain worker=b
  internal pick plain attempt=3 bucket=plain error=no_candidates live=0 policy=round_robin stage=plain
  internal pick prefill attempt=3 bucket=pd error=no_candidates live=0 policy=round_robin stage=prefill
`},
		{"an engine's error", "", "vllm", []string{"null"}, func(t *testing.T, url string, e []*scripted, _ *tracingtest.Collector) {
			e[0].will(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
			post(t, url, "")
		}, `
server POST /v1/completions ! error.type=500 gen_ai.operation.name=text_completion gen_ai.request.model=m http.response.status_code=500 attempts=1 bucket=plain input_tokens=2 outcome=error stream=false worker=a
  internal read body http.request.body.size=36
  internal measure input input_exact=false input_source=estimated input_tokens=2
  internal pick plain attempt=1 bucket=plain considered=[a: in flight 0; its own report unknown (none that is fresh and complete)] live=1 picked=a policy=round_robin reason=rotation stage=plain
  client POST /v1/completions ! error.type=500 http.response.status_code=500 attempt=1 outcome=error stage=plain worker=a
`},
		{"a broken answer", "", "vllm", []string{"null"}, func(t *testing.T, url string, e []*scripted, _ *tracingtest.Collector) {
			e[0].will(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", "100")
				fmt.Fprint(w, "half")
			})
			post(t, url, "")
		}, `
server POST /v1/completions ! error.type=upstream_body_incomplete gen_ai.operation.name=text_completion gen_ai.request.model=m http.response.status_code=502 attempts=1 bucket=plain input_tokens=2 outcome=error stream=false worker=a
  internal read body http.request.body.size=36
  internal measure input input_exact=false input_source=estimated input_tokens=2
  internal pick plain attempt=1 bucket=plain considered=[a: in flight 0; its own report unknown (none that is fresh and complete)] live=1 picked=a policy=round_robin reason=rotation stage=plain
  client POST /v1/completions ! error.type=upstream_invalid_answer http.response.status_code=200 attempt=1 because=unreadable answer: unexpected EOF outcome=error stage=plain worker=a
`},
		{"no such model", "", "vllm", []string{"null"}, func(t *testing.T, url string, _ []*scripted, _ *tracingtest.Collector) {
			post(t, url, `{"model":"sesame","prompt":"open"}`)
		}, `
server POST /v1/completions error.type=model_not_found gen_ai.operation.name=text_completion http.response.status_code=404 outcome=client_error
  internal read body http.request.body.size=34
`},
		{"no bucket", ", buckets: [{id: long, min_input_tokens: 100, plain: {}}]", "vllm", []string{"null"}, func(t *testing.T, url string, _ []*scripted, _ *tracingtest.Collector) { post(t, url, "") }, `
server POST /v1/completions error.type=bad_request gen_ai.operation.name=text_completion gen_ai.request.model=m http.response.status_code=400 attempts=1 input_tokens=2 outcome=client_error stream=false
  internal read body http.request.body.size=36
  internal measure input input_exact=false input_source=estimated input_tokens=2
`},
		{"full", ", admission: {max_inflight_requests: 1}", "vllm", []string{"null"}, func(t *testing.T, url string, e []*scripted, c *tracingtest.Collector) {
			here := make(chan struct{})
			e[0].will(func(_ http.ResponseWriter, r *http.Request) { close(here); <-r.Context().Done() })
			hold(t, url, here)
			await(t, func() bool { return len(c.Spans()) == 3 })
			c.Forget()
			post(t, url, "")
		}, `
server POST /v1/completions ! error.type=policy_selection_failed gen_ai.operation.name=text_completion gen_ai.request.model=m http.response.status_code=503 attempts=1 input_tokens=2 outcome=backpressure stream=false
  internal read body http.request.body.size=36
  internal measure input input_exact=false input_source=estimated input_tokens=2
  internal pick plain attempt=1 bucket=plain considered=[a: in flight 1; its own report unknown (none that is fresh and complete)] error=no_admissible_engine live=1 policy=round_robin rejections=[a: at its max_inflight_requests] stage=plain
  internal pick prefill attempt=1 bucket=pd error=no_candidates live=0 policy=round_robin stage=prefill
`},
		{"stream", "", "vllm", []string{"null"}, func(t *testing.T, url string, e []*scripted, _ *tracingtest.Collector) {
			e[0].will(streams(true))
			post(t, url, `,"stream":true`)
		}, `
server POST /v1/completions gen_ai.operation.name=text_completion gen_ai.request.model=m gen_ai.usage.input_tokens=3 gen_ai.usage.output_tokens=2 http.response.status_code=200 attempts=1 bucket=plain input_tokens=2 outcome=success stream=true worker=a
  internal read body http.request.body.size=50
  internal measure input input_exact=false input_source=estimated input_tokens=2
  internal pick plain attempt=1 bucket=plain considered=[a: in flight 0; its own report unknown (none that is fresh and complete)] live=1 picked=a policy=round_robin reason=rotation stage=plain
  client POST /v1/completions http.response.status_code=200 attempt=1 outcome=success stage=plain worker=a (first byte)
`},
		{"a broken stream", "", "vllm", []string{"null"}, func(t *testing.T, url string, e []*scripted, _ *tracingtest.Collector) {
			e[0].will(streams(false))
			post(t, url, `,"stream":true`)
		}, `
server POST /v1/completions ! error.type=upstream_body_incomplete gen_ai.operation.name=text_completion gen_ai.request.model=m http.response.status_code=200 attempts=1 broken=true bucket=plain input_tokens=2 outcome=error stream=true worker=a
  internal read body http.request.body.size=50
  internal measure input input_exact=false input_source=estimated input_tokens=2
  internal pick plain attempt=1 bucket=plain considered=[a: in flight 0; its own report unknown (none that is fresh and complete)] live=1 picked=a policy=round_robin reason=rotation stage=plain
  client POST /v1/completions ! error.type=upstream_body_incomplete http.response.status_code=200 attempt=1 outcome=error stage=plain worker=a (first byte)
`},
		{"the client leaves", "", "vllm", []string{"null"}, func(t *testing.T, url string, e []*scripted, _ *tracingtest.Collector) {
			here := make(chan struct{})
			e[0].will(func(_ http.ResponseWriter, r *http.Request) { close(here); <-r.Context().Done() })
			_ = hold(t, url, here).Close()
		}, `
server POST /v1/completions gen_ai.operation.name=text_completion gen_ai.request.model=m attempts=1 bucket=plain client_left=true input_tokens=2 outcome=cancelled stream=false worker=a
  internal read body http.request.body.size=36
  internal measure input input_exact=false input_source=estimated input_tokens=2
  internal pick plain attempt=1 bucket=plain considered=[a: in flight 0; its own report unknown (none that is fresh and complete)] live=1 picked=a policy=round_robin reason=rotation stage=plain
  client POST /v1/completions attempt=1 because=the client left outcome=cancelled stage=plain worker=a
`},
		{"an SGLang pair", ", buckets: [{id: pd, pd: {prefill: {}, decode: {}}}]", "sglang", []string{"prefill", "decode"}, func(t *testing.T, url string, _ []*scripted, _ *tracingtest.Collector) { post(t, url, "") }, `
server POST /v1/completions gen_ai.operation.name=text_completion gen_ai.request.model=m gen_ai.usage.input_tokens=3 gen_ai.usage.output_tokens=2 http.response.status_code=200 attempts=1 bucket=pd cached_tokens=1 input_tokens=2 outcome=success stream=false worker=a>b
  internal read body http.request.body.size=36
  internal measure input input_exact=false input_source=estimated input_tokens=2
  internal pick prefill attempt=1 bucket=pd considered=[a: in flight 0; its own report unknown (none that is fresh and complete)] live=1 picked=a policy=round_robin reason=rotation stage=prefill
  internal pick decode attempt=1 bucket=pd considered=[b: in flight 0; its own report unknown (none that is fresh and complete)] live=1 picked=b policy=power_of_two reason=only_candidate stage=decode
  client POST /v1/completions http.response.status_code=200 attempt=1 outcome=success stage=prefill worker=a
  client POST /v1/completions http.response.status_code=200 attempt=1 outcome=success stage=decode worker=b
`},
		{"a vLLM pair", ", buckets: [{id: pd, pd: {prefill: {}, decode: {}}}]", "vllm", []string{"prefill", "decode"}, func(t *testing.T, url string, _ []*scripted, _ *tracingtest.Collector) { post(t, url, "") }, `
server POST /v1/completions gen_ai.operation.name=text_completion gen_ai.request.model=m gen_ai.usage.input_tokens=3 gen_ai.usage.output_tokens=2 http.response.status_code=200 attempts=1 bucket=pd cached_tokens=1 input_tokens=2 outcome=success stream=false worker=a>b
  internal read body http.request.body.size=36
  internal measure input input_exact=false input_source=estimated input_tokens=2
  internal pick prefill attempt=1 bucket=pd considered=[a: in flight 0; its own report unknown (none that is fresh and complete)] live=1 picked=a policy=round_robin reason=rotation stage=prefill
  internal pick decode attempt=1 bucket=pd considered=[b: in flight 0; its own report unknown (none that is fresh and complete)] live=1 picked=b policy=power_of_two reason=only_candidate stage=decode
  client POST /v1/completions http.response.status_code=200 attempt=1 outcome=success stage=prefill worker=a
  client POST /v1/completions http.response.status_code=200 attempt=1 outcome=success stage=decode worker=b
`},
		{"a pair whose prefill fails", ", buckets: [{id: pd, pd: {prefill: {}, decode: {}}}]", "vllm", []string{"prefill", "decode"}, func(t *testing.T, url string, e []*scripted, _ *tracingtest.Collector) {
			e[0].will(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
			post(t, url, "")
		}, `
server POST /v1/completions ! error.type=prefill_failed gen_ai.operation.name=text_completion gen_ai.request.model=m http.response.status_code=502 attempts=1 bucket=pd input_tokens=2 outcome=error stream=false worker=a>b
  internal read body http.request.body.size=36
  internal measure input input_exact=false input_source=estimated input_tokens=2
  internal pick prefill attempt=1 bucket=pd considered=[a: in flight 0; its own report unknown (none that is fresh and complete)] live=1 picked=a policy=round_robin reason=rotation stage=prefill
  internal pick decode attempt=1 bucket=pd considered=[b: in flight 0; its own report unknown (none that is fresh and complete)] live=1 picked=b policy=power_of_two reason=only_candidate stage=decode
  client POST /v1/completions ! error.type=500 http.response.status_code=500 attempt=1 outcome=error stage=prefill worker=a
`},
		{"a question for tokens", "", "vllm", []string{"null"}, func(t *testing.T, url string, _ []*scripted, _ *tracingtest.Collector) {
			if status, body, err := send(t, newClient(t), "POST", url+"/v1/tokenize", `{"model":"m","prompt":"sesame"}`); status != 501 || err != nil {
				t.Error(status, body, err)
			}
		}, `
server POST /v1/tokenize ! error.type=no_tokenizer http.response.status_code=501 outcome=error
`},
		{"an engine counts", ", engine_tokenize: true", "vllm", []string{"null"}, func(t *testing.T, url string, _ []*scripted, _ *tracingtest.Collector) { post(t, url, "") }, `
server POST /v1/completions gen_ai.operation.name=text_completion gen_ai.request.model=m gen_ai.usage.input_tokens=3 gen_ai.usage.output_tokens=2 http.response.status_code=200 attempts=1 bucket=plain cached_tokens=1 input_tokens=2 outcome=success stream=false worker=a
  internal read body http.request.body.size=36
  internal measure input input_exact=false input_source=estimated input_tokens=2
  client POST /tokenize ! error.type=not_counted because=the engine does not count stage=tokenize worker=a
  internal pick plain attempt=1 bucket=plain considered=[a: in flight 0; its own report unknown (none that is fresh and complete)] live=1 picked=a policy=round_robin reason=rotation stage=plain
  client POST /v1/completions http.response.status_code=200 attempt=1 outcome=success stage=plain worker=a
`},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := tracingtest.Start(t, nil)
			engines, urls := startScripted(t, x.family, x.roles...)
			url := startTraced(t, c, x.model, urls, x.roles...)
			x.run(t, url, engines, c)
			wantStory(t, c, x.want)
		})
	}
}

// TestTraceHeaders: while tracing is on an engine gets our span as its parent, and baggage; while it is off it gets what the client sent, byte for
// byte, and no baggage. The access log has the trace either way.
func TestTraceHeaders(t *testing.T) {
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "5")
	const id = "0af7651916cd43dd8448eb211c80319c"
	engines, urls := startScripted(t, "vllm", "null")
	c := tracingtest.Start(t, nil)
	config := fmt.Sprintf("models: [{id: m, policy: round_robin}]\nserver: {port: 0}\ndiscovery: {static: {workers: [%q]}}\n", urls[0])
	l := startLive(t, time.Hour, map[string]string{configFile: config})
	ask := func(header ...string) (http.Header, string) {
		t.Helper()
		l.log.take()
		if status, body := post(t, l.URL(), "", header...); status != 200 {
			t.Fatal(status, body)
		}
		var line struct {
			TraceID string `json:"trace_id"`
		}
		said := l.log.await("}\n")
		record := said[strings.Index(said, `{"time"`):]
		if err := json.NewDecoder(strings.NewReader(record)).Decode(&line); err != nil {
			t.Fatal(err, said)
		}
		return *engines[0].header.Load(), line.TraceID
	}
	sent := []string{"Traceparent", "00-" + id + "-b7ad6b7169203331-01", "Tracestate", " a=1 ,b=2", "Tracestate", "c=3", "Baggage", "x=1"}
	got, trace := ask(sent...)
	want := http.Header{"Traceparent": {sent[1]}, "Tracestate": {"a=1 ,b=2", "c=3"}}
	for _, name := range []string{"Traceparent", "Tracestate", "Baggage"} {
		if !slices.Equal(got[name], want[name]) {
			t.Errorf("off, %s is %q", name, got[name])
		}
	}
	if trace != id {
		t.Errorf("off, the access log has the trace %q", trace)
	}
	odd := []string{"Traceparent", "Odd  value", "Traceparent", "", "Tracestate", "==="}
	if got, trace = ask(odd...); !slices.Equal(got["Traceparent"], []string{"Odd  value", ""}) || !slices.Equal(got["Tracestate"], []string{"==="}) || trace != "" {
		t.Errorf("off, %v came, and the access log has the trace %q", got, trace)
	}
	if _, trace = ask(); trace != "" {
		t.Errorf("off, the access log has the trace %q", trace)
	}

	l.write(configFile, config+fmt.Sprintf("tracing: {endpoint: %q}\n", c.URL))
	l.mustReload("tracing: none → given")
	got, trace = ask(sent...)
	await(t, func() bool { return len(c.Spans()) == 5 })
	spans := c.Spans()
	leg := spans[slices.IndexFunc(spans, func(s tracingtest.Span) bool { return s.Kind == "client" })]
	if parent := []string{"00-" + id + "-" + leg.SpanID + "-01"}; !slices.Equal(got["Traceparent"], parent) || got.Get("Tracestate") != "a=1,b=2,c=3" || got.Get("Baggage") != "x=1" || trace != id {
		t.Errorf("on, %v came, want %q, and the access log has the trace %q", got, parent, trace)
	}
	if root := spans[0]; root.ParentID != "b7ad6b7169203331" || root.TraceID != id || root.State != "a=1,b=2,c=3" || root.Attributes["perigee.request_id"] == "" {
		t.Errorf("on, the span is %+v", root)
	}
	c.Forget()

	got, trace = ask("Traceparent", "00-"+id+"-b7ad6b7169203331-00") // whoever began it does not want it recorded
	if p := got.Get("Traceparent"); !strings.HasPrefix(p, "00-"+id+"-") || !strings.HasSuffix(p, "-00") || trace != id {
		t.Errorf("not sampled, %q came, and the access log has the trace %q", p, trace)
	}
	got, trace = ask(odd...)
	if p := got["Traceparent"]; len(p) != 1 || len(p[0]) != 55 || p[0][3:35] != trace || trace == id || got["Tracestate"] != nil {
		t.Errorf("hostile, %v came, and the access log has the trace %q", got, trace)
	}
	await(t, func() bool { return len(c.Spans()) == 5 }) // of the last alone
}

// TestTracingReload: every key can change while requests go on, files too; what cannot be used changes nothing.
func TestTracingReload(t *testing.T) {
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "5")
	_, urls := startScripted(t, "vllm", "null")
	a, b := tracingtest.Start(t, nil), tracingtest.Start(t, nil)
	config := fmt.Sprintf("models: [{id: m, policy: round_robin}]\nserver: {port: 0, admin: {port: 0}}\ndiscovery: {static: {workers: [%q]}}\n", urls[0])
	with := func(keys string) string { return config + "tracing: {" + keys + "}\n" }
	l := startLive(t, time.Hour, map[string]string{
		configFile: with(fmt.Sprintf("endpoint: %q, headers_file: $DIR/headers", a.URL)), "headers": "X-Token: sk-one\n",
	})
	came := func(c *tracingtest.Collector, token string) {
		t.Helper()
		post(t, l.URL(), "")
		await(t, func() bool { return len(c.Spans()) == 5 })
		if got := c.Calls()[0].Get("X-Token"); got != token {
			t.Errorf("they came with %q", got)
		}
		c.Forget()
	}
	came(a, "sk-one")
	l.write("headers", "# rotated\nX-Token: sk-two\n")
	l.mustReload("tracing.headers_file: some headers → others")
	came(a, "sk-two")
	for text, fault := range map[string]string{
		"X-Token sk-two": "has a line that is not a header", "": "has no header", "A: b\na: c": "has a header twice", "A: sk-\x01": "has a line that is not a header",
	} {
		l.write("headers", text)
		if said, err := l.reload(); err == nil || !strings.Contains(said, fault) {
			t.Errorf("%q: %v, %s", text, err, said)
		}
	}
	came(a, "sk-two")
	l.write(configFile, with(fmt.Sprintf("endpoint: %q, queue_size: 64, service_name: edge", b.URL)))
	l.mustReload("tracing.headers_file: headers → none", "tracing.queue_size: none → 64", "tracing.service_name: none → edge", "tracing.endpoint: ")
	came(b, "")
	l.write(configFile, with(fmt.Sprintf("endpoint: %q, sample_ratio: 0", b.URL)))
	l.mustReload("tracing.sample_ratio: none → 0")
	post(t, l.URL(), "")
	l.write(configFile, config)
	l.mustReload("tracing: given → none")
	post(t, l.URL(), "")
	if n := len(a.Spans()) + len(b.Spans()); n != 0 {
		t.Errorf("%d spans came", n)
	}
	_, metrics, _ := send(t, newClient(t), "GET", l.AdminURL()+"/metrics", "")
	for _, line := range []string{`perigee_spans_total{outcome="exported"} 20`, `perigee_spans_total{outcome="queue_full"} 0`, `perigee_spans_total{outcome="failed"} 0`} {
		if !strings.Contains(metrics, line+"\n") {
			t.Errorf("%s is not in the metrics", line)
		}
	}
}

// TestTracingShutdown: what waits when the gateway ends is exported first.
func TestTracingShutdown(t *testing.T) {
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
	_, urls := startScripted(t, "vllm", "null")
	c := tracingtest.Start(t, nil)
	config := fmt.Sprintf("models: [{id: m, policy: round_robin}]\nserver: {port: 0}\ndiscovery: {static: {workers: [%q]}}\ntracing: {endpoint: %q}\n", urls[0], c.URL)
	l := startLive(t, time.Hour, map[string]string{configFile: config})
	for range 10 {
		post(t, l.URL(), "")
	}
	if n := len(c.Spans()); n != 0 {
		t.Errorf("%d spans came early", n)
	}
	if err := l.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if n := len(c.Spans()); n != 50 {
		t.Errorf("%d spans came", n)
	}
}

// TestTracingIsNoBurden: with a collector that is away, hangs or fails, requests are answered as ever.
func TestTracingIsNoBurden(t *testing.T) {
	_, urls := startScripted(t, "vllm", "null")
	c := tracingtest.Start(t, nil)
	release := make(chan struct{})
	c.Answer(func(w http.ResponseWriter, _ *http.Request) { <-release; w.WriteHeader(500) })
	url := startTraced(t, c, "", urls, "null")
	for range 200 { // the collector answers none of their spans before all are answered
		if status, body := post(t, url, ""); status != 200 {
			t.Fatal(status, body)
		}
	}
	close(release)
}

// streams is an engine's event stream of two parts, which ends well or breaks off.
func streams(well bool) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: {\"choices\":[{\"text\":\"sesame\"}]}\n\n")
		_ = http.NewResponseController(w).Flush()
		if !well {
			panic(http.ErrAbortHandler)
		}
		fmt.Fprint(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n")
	}
}

// hold sends a request, and returns its connection when its engine has it, which is closed with the test at the latest.
func hold(t *testing.T, url string, here <-chan struct{}) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	const text = `{"model":"m","prompt":"sesame open"}`
	fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
	t.Cleanup(func() { _ = conn.Close() })
	<-here
	return conn
}
