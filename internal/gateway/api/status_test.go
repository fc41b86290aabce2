package api

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/explain"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/load"
)

// TestModels: every model and alias is listed, an alias with its model as root, and both are served.
func TestModels(t *testing.T) {
	bubble(t, rigOptions{Aliases: []string{"nick"}, Models: []string{"other"}}, func(t *testing.T, r *rig) {
		a := r.do("GET", "/v1/models", "")
		created := itoa(int(time.Now().Unix()))
		entry := func(id, root string) string {
			return `{"id":"` + id + `","object":"model","created":` + created + `,"owned_by":"perigee","root":"` + root + `","parent":null}`
		}
		if want := `{"object":"list","data":[` + entry("m", "m") + `,` + entry("nick", "m") + `,` + entry("other", "other") + "]}\n"; a.body != want {
			t.Errorf("got\n%s, want\n%s", a.body, want)
		}
		sent := strings.Replace(chatBody, `"m"`, `"nick"`, 1)
		if a := r.post(chatPath, sent); a.status != 200 || !strings.Contains(r.engines[0].calls()[0].body, `"model":"nick"`) {
			t.Errorf("got %+v", a)
		}
		if a := r.do("HEAD", "/v1/models", ""); a.status != 200 || a.body != "" {
			t.Errorf("HEAD: %+v", a)
		}
	})
}

// TestReady: ready is who can serve at least one model and does not drain; health looks at nothing.
func TestReady(t *testing.T) {
	bubble(t, rigOptions{Models: []string{"other"}}, func(t *testing.T, r *rig) {
		ready := func(status int, body string) {
			t.Helper()
			if a := r.do("GET", "/readyz", ""); a.status != status || a.body != body+"\n" {
				t.Errorf("got %d %s, want %d %s", a.status, a.body, status, body)
			}
			if a := r.do("GET", "/healthz", ""); a.status != 200 || a.body != `{"status":"ok"}`+"\n" {
				t.Errorf("health: %+v", a)
			}
		}
		ready(200, `{"models":{"m":true,"other":false},"ready":true}`)
		r.reg.Remove("w0")
		ready(503, `{"models":{"m":false,"other":false},"ready":false}`)
		r.engines[0].worker = r.reg.Put(r.engines[0].worker.Spec)
		ready(200, `{"models":{"m":true,"other":false},"ready":true}`)
		r.s.Drain()
		a := r.do("GET", "/readyz", "")
		if a.status != 503 || a.header.Get("X-Router-Error-Code") != "draining" {
			t.Errorf("draining: %+v", a)
		}
		if a := r.post(chatPath, chatBody); a.status != 200 {
			t.Errorf("a request while draining: %+v", a)
		}
	})
}

// TestReadyPair: half a pair serves nothing.
func TestReadyPair(t *testing.T) {
	for _, gone := range []string{"w0", "w1"} {
		bubble(t, rigOptions{Specs: pair(fleet.VLLM)}, func(t *testing.T, r *rig) {
			if a := r.do("GET", "/readyz", ""); a.status != 200 {
				t.Errorf("got %+v", a)
			}
			r.reg.Remove(gone)
			if a := r.do("GET", "/readyz", ""); a.status != 503 {
				t.Errorf("without %s: %+v", gone, a)
			}
		})
	}
}

// TestDecisions: a request is in the log from its first selection on, and the queries narrow it down.
func TestDecisions(t *testing.T) {
	bubble(t, rigOptions{Specs: plain(2, fleet.VLLM)}, func(t *testing.T, r *rig) {
		read := func(query string) []explain.Record {
			t.Helper()
			var got struct{ Decisions []explain.Record }
			if err := json.Unmarshal([]byte(r.scrape("/debug/decisions"+query)), &got); err != nil {
				t.Fatal(err)
			}
			return got.Decisions
		}
		if got := read(""); len(got) != 0 {
			t.Errorf("%d at first", len(got))
		}
		release := make(chan struct{})
		r.engines[0].handler = func(w http.ResponseWriter, _ *http.Request) { <-release; _, _ = io.WriteString(w, okAnswer) }
		began := time.Now()
		r.wg.Go(func() { r.post(textPath, `{"model":"m","prompt":[1,2,3],"max_tokens":4}`, "X-Request-Id", "first") })
		synctest.Wait()
		flying := read("?request=first")
		if len(flying) != 1 || flying[0].Done || flying[0].DurationMillis != nil || flying[0].Attempts[0].Outcome != "dispatching" {
			t.Errorf("in flight: %+v", flying)
		}
		if a := r.post(chatPath, chatBody, "X-Request-Id", "second"); a.status != 200 {
			t.Fatal(a)
		}
		r.pass(time.Second)
		close(release)
		synctest.Wait()
		all := read("")
		if len(all) != 2 || all[0].RequestID != "second" || all[1].RequestID != "first" {
			t.Fatalf("got %+v", all)
		}
		if got := read("?limit=1"); len(got) != 1 || got[0].RequestID != "second" {
			t.Errorf("limit=1: %+v", got)
		}
		if got := read("?request=nobody"); len(got) != 0 {
			t.Errorf("nobody's: %+v", got)
		}
		ms := 1000.0
		want := explain.Record{
			Time: began, RequestID: "first", Route: textPath, Model: "m", InputTokens: 3, InputExact: true, InputSource: "given", PeakTokens: load.Known(7),
			Attempts: []explain.Attempt{{Bucket: "all", Outcome: "answered", Tries: []explain.Try{{
				Bucket: "all", Stage: "plain", Policy: "round_robin", Live: 2, Picked: "w0", Reason: all[1].Attempts[0].Tries[0].Reason,
				Considered: all[1].Attempts[0].Tries[0].Considered,
			}}}},
			Done: true, Status: 200, DurationMillis: &ms, PromptTokens: load.Known(3), CachedTokens: load.Known(1), CompletionTokens: load.Known(2),
		}
		if diff := cmpDiff(want, all[1]); diff != "" {
			t.Errorf("(- want):\n%s", diff)
		}
		for range explain.DefaultLimit {
			r.post(textPath, `{"model":"m","prompt":[1]}`)
		}
		if n, all := len(read("")), len(read("?limit=1024")); n != explain.DefaultLimit || all != explain.DefaultLimit+2 {
			t.Errorf("without a limit %d are told, with the largest %d", n, all)
		}
		for _, bad := range []string{"0", "-1", "x", "1.5", "1025", "99999999999999999999"} {
			if got := r.scrape("/debug/decisions?limit=" + bad); !strings.Contains(got, "bad_request") {
				t.Errorf("limit=%s: %s", bad, got)
			}
		}
	})
}

// TestWorkers: what is not known is null.
func TestWorkers(t *testing.T) {
	bubble(t, rigOptions{Specs: plain(2, fleet.VLLM)}, func(t *testing.T, r *rig) {
		r.engines[1].worker.Load.Observe(0, load.RankReport{At: time.Now(), Running: load.Known(2)})
		r.pass(time.Second)
		want := `{"workers":[` +
			`{"id":"w0","url":"http://engine-w0:8000","kind":"vllm","role":"plain","models":["m"],"max_context_tokens":null,"breaker":"closed","failures_in_a_row":0,"in_flight":0,"in_flight_prefill_tokens":0,"report":null},` +
			`{"id":"w1","url":"http://engine-w1:8000","kind":"vllm","role":"plain","models":["m"],"max_context_tokens":null,"breaker":"closed","failures_in_a_row":0,"in_flight":0,"in_flight_prefill_tokens":0,` +
			`"report":{"age_ms":1000,"running":2,"waiting":null,"waiting_uncached_tokens":null,"used_tokens":null,"total_tokens":null,"capacity_tokens":null,"queue_us":null}}]}` + "\n"
		if got := r.scrape("/debug/workers"); got != want {
			t.Errorf("got\n%s, want\n%s", got, want)
		}
	})
}

// TestFlush: every engine is asked in its own way, whatever its breaker says, and failures are named.
func TestFlush(t *testing.T) {
	bubble(t, rigOptions{Specs: []fleet.Spec{{Kind: fleet.SGLang}, {Kind: fleet.VLLM}, {Kind: fleet.UnknownKind}}}, func(t *testing.T, r *rig) {
		flush := func() (int, flushResult) {
			t.Helper()
			w, q := httptest.NewRecorder(), httptest.NewRequest("POST", "/flush_cache", nil)
			q.Header.Set("Authorization", "Bearer k")
			r.s.Admin().ServeHTTP(w, q)
			var got flushResult
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			return w.Code, got
		}
		for range 3 {
			ticket, _ := r.reg.Claim(r.engines[0].worker, time.Now())
			r.reg.Done(ticket, fleet.Failure, time.Now())
		}
		status, got := flush()
		if want := (flushResult{Successful: []string{"w0", "w1", "w2"}, Failed: []flushFailure{}, TotalWorkers: 3, Message: "3 of 3 engines emptied their cache"}); status != 200 || cmpDiff(want, got) != "" {
			t.Errorf("got %d %+v", status, got)
		}
		for i, path := range []string{"/flush_cache", "/reset_prefix_cache", "/flush_cache"} {
			c := r.engines[i].calls()[0]
			if c.path != path || c.method != "POST" || c.header.Get("Authorization") != "Bearer k" {
				t.Errorf("w%d got %s %s %v", i, c.method, c.path, c.header)
			}
		}
		r.engines[1].handler = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }
		r.engines[2].refuse.Store(true)
		r.transport.CloseIdleConnections()
		status, got = flush()
		if status != 502 || len(got.Failed) != 2 || got.Failed[0].Worker != "w1" || !strings.Contains(got.Failed[0].Error, "404") || got.Failed[1].Worker != "w2" || len(got.Successful) != 1 {
			t.Errorf("got %d %+v", status, got)
		}
		for _, e := range r.engines {
			r.reg.Remove(e.id)
		}
		if status, got := flush(); status != 200 || got.TotalWorkers != 0 {
			t.Errorf("without engines: %d %+v", status, got)
		}
	})
}

// TestFlushTakesLong: an answer that takes longer to come than a client may take to read it arrives all the same.
func TestFlushTakesLong(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprint("HTTP/2 ", http2), func(t *testing.T) {
			bubble(t, rigOptions{HTTP2: http2, Settings: func(s *Settings) { s.ClientStall, s.PublicFlush = 5*time.Second, true }}, func(t *testing.T, r *rig) {
				r.engines[0].handler = func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() }
				began := time.Now()
				a := r.post("/flush_cache", "")
				if took := time.Since(began); a.status != 502 || !strings.Contains(a.body, "deadline") || took < time.Minute {
					t.Errorf("got %+v after %v", a, took)
				}
			})
		})
	}
}

// TestMetricNames holds names, types and labels of all metrics: dashboards stand on them.
func TestMetricNames(t *testing.T) {
	bubble(t, rigOptions{Specs: plain(2, fleet.SGLang), Contract: `{"temperature":{"min":0,"max":1}}`, Settings: func(s *Settings) { s.Stale, s.RequestTimeout = 30*time.Second, time.Hour }}, func(t *testing.T, r *rig) {
		r.post(chatPath, chatBody)                                                                                // answered
		r.post(chatPath, `{"model":"m","messages":[],"temperature":2}`)                                           // refused
		r.engines[0].worker.Load.Observe(0, load.RankReport{At: time.Now().Add(time.Hour)})                       // a report
		r.s.Metrics.LoadPolls.WithLabelValues("w0", "ok").Inc()                                                   // the keeper's
		h := func(w http.ResponseWriter, _ *http.Request) { startStream(w); _, _ = io.WriteString(w, doneEvent) } // a stream
		r.engines[0].handler, r.engines[1].handler = h, h
		r.post(chatPath, streamed(chatBody))
		for _, e := range r.engines { // an attempt, a failed selection
			e.refuse.Store(true)
		}
		r.transport.CloseIdleConnections()
		r.post(chatPath, chatBody)
		for _, e := range r.engines { // stale, abort
			e.refuse.Store(false)
			e.handler = func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() }
		}
		r.post(chatPath, chatBody)
		r.pass(time.Second)
		got := metricNames(r.scrape("/metrics"))
		const file = "testdata/metrics.txt"
		if os.Getenv("UPDATE_METRICS") != "" {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmpDiff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
			t.Errorf("UPDATE_METRICS=1 writes the file anew (- want):\n%s", diff)
		}
	})
}

var (
	typeLine   = regexp.MustCompile(`^# TYPE (\S+) (\S+)`)
	seriesLine = regexp.MustCompile(`^(\w+?)(_bucket|_sum|_count)?(\{(.*)\})? `)
	labelName  = regexp.MustCompile(`(\w+)="`)
)

// metricNames returns one line for each metric: name, type, labels.
func metricNames(text string) string {
	kinds, labels := map[string]string{}, map[string]string{}
	for line := range strings.Lines(text) {
		if !strings.Contains(line, "perigee_") {
			continue // the library's own, of the process
		}
		if m := typeLine.FindStringSubmatch(line); m != nil {
			kinds[m[1]] = m[2]
			continue
		}
		m := seriesLine.FindStringSubmatch(line)
		if m == nil || line[0] == '#' {
			continue
		}
		name := m[1]
		if kinds[name] == "" {
			name += m[2]
		}
		var names []string
		for _, l := range labelName.FindAllStringSubmatch(m[4], -1) {
			if l[1] != "le" {
				names = append(names, l[1])
			}
		}
		labels[name] = strings.Join(names, ",")
	}
	var out []string
	for name, kind := range kinds {
		out = append(out, strings.TrimSpace(name+" "+kind+" "+labels[name]))
	}
	slices.Sort(out)
	return strings.Join(out, "\n") + "\n"
}

// ridOf returns the id that the gateway put into a body.
func ridOf(body string) string { return body[strings.Index(body, `"rid":"`)+7:][:32] }

// TestAccessLog holds the fields of the access log.
func TestAccessLog(t *testing.T) {
	bubble(t, rigOptions{}, func(t *testing.T, r *rig) {
		r.engines[0].handler = func(w http.ResponseWriter, _ *http.Request) {
			rc := startStream(w)
			<-time.After(1500 * time.Millisecond)
			_, _ = io.WriteString(w, event("x"))
			_ = rc.Flush()
			<-time.After(time.Second)
			_, _ = io.WriteString(w, `data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":0}}}`+"\n\n"+doneEvent)
		}
		a := r.post(textPath, streamed(`{"model":"m","prompt":[1,2,3]}`), "X-Request-Id", "one")
		synctest.Wait()
		want := map[string]any{
			"request_id": "one", "method": "POST", "path": textPath, "status": int64(200), "outcome": "success", "duration_ms": 2500.0, "sent_bytes": int64(len(a.body)),
			"model": "m", "stream": true, "input_tokens": int64(3), "input_source": "given", "attempts": int64(1), "bucket": "all", "worker": "w0", "engine_rid": ridOf(r.engines[0].calls()[0].body), "ttft_ms": 1500.0,
			"prompt_tokens": int64(3), "cached_tokens": int64(0), "completion_tokens": int64(2),
		}
		if diff := cmpDiff(want, r.access.last()); diff != "" {
			t.Errorf("(- want):\n%s", diff)
		}
		r.do("PURGE", textPath, "", "X-Request-Id", "two")
		synctest.Wait()
		want = map[string]any{
			"request_id": "two", "method": "PURGE", "path": textPath, "status": int64(405), "outcome": "client_error", "duration_ms": 0.0, "sent_bytes": int64(0), "error_code": "method_not_allowed",
		}
		if diff := cmpDiff(want, r.access.last()); diff != "" {
			t.Errorf("(- want):\n%s", diff)
		}
		if got := r.metric(`requests_total{method="other",route="` + textPath + `"}`); got != "1" {
			t.Errorf("a method that nobody knows was counted %q times as other", got)
		}
	})
}

// TestCountsOfAModelThatReturns: requests of a model that was taken out, with its series, and put back are counted where they are seen.
func TestCountsOfAModelThatReturns(t *testing.T) {
	bubble(t, rigOptions{}, func(t *testing.T, r *rig) {
		with := r.s.current.Load().Config
		without := with
		without.Models = nil
		series := `worker_requests_total{mode="plain",model="m",outcome="success",worker="w0"}`
		for _, c := range []Config{with, without, with} {
			if err := r.s.Apply(c); err != nil {
				t.Fatal(err)
			}
			want := ""
			if len(c.Models) > 0 {
				r.post(textPath, textBody)
				r.post(textPath, textBody)
				want = "2"
			}
			if got := r.metric(series); got != want {
				t.Errorf("with %d models %q are counted, want %q", len(c.Models), got, want)
			}
		}
	})
}

// TestAnswerBeforeItsLine: a client has its whole answer before the line of the access log is written, and by then all else is accounted.
func TestAnswerBeforeItsLine(t *testing.T) {
	bubble(t, rigOptions{}, func(t *testing.T, r *rig) {
		r.access.stuck = make(chan struct{})
		a := r.post(textPath, textBody)
		if a.err != nil || a.status != 200 || a.body != okAnswer {
			t.Errorf("got %+v", a)
		}
		if got := a.header["Content-Length"]; len(got) != 1 || got[0] != itoa(len(okAnswer)) {
			t.Errorf("its length is %q", got)
		}
		if got := r.metric(`responses_total{method="POST",route="` + textPath + `",status_code="200"}`); got != "1" {
			t.Errorf("%q answers were counted", got)
		}
		if n, active := r.s.Active(), r.engines[0].worker.Load.Active(); n != 0 || active != 0 {
			t.Errorf("%d requests are under way, %d at the engine", n, active)
		}
		close(r.access.stuck)
		if got := r.access.last(); got["status"] != int64(200) {
			t.Errorf("the log has %v", got)
		}
	})
}

// TestLoadGauges: what is in flight on an engine is told by stage, tokens for prefill and requests for decode, and is gone with the request.
func TestLoadGauges(t *testing.T) {
	bubble(t, rigOptions{Specs: pair(fleet.SGLang)}, func(t *testing.T, r *rig) {
		release := make(chan struct{})
		for _, e := range r.engines {
			e.handler = func(w http.ResponseWriter, _ *http.Request) { <-release; _, _ = io.WriteString(w, okAnswer) }
		}
		want := func(values map[string]string) {
			t.Helper()
			for series, value := range values {
				if got := r.metric(series); got != value {
					t.Errorf("%s is %q, want %q", series, got, value)
				}
			}
		}
		r.wg.Go(func() { r.post(textPath, `{"model":"m","prompt":[1,2,3]}`) })
		synctest.Wait()
		want(map[string]string{
			`active_load{kind="prefill_tokens",worker="w0"}`: "3", `active_load{kind="decode_requests",worker="w0"}`: "0",
			`active_load{kind="prefill_tokens",worker="w1"}`: "0", `active_load{kind="decode_requests",worker="w1"}`: "1",
			`worker_inflight_requests{worker="w0"}`: "1", `worker_inflight_requests{worker="w1"}`: "1", "guards": "2", "active_requests": "1",
		})
		close(release)
		synctest.Wait()
		want(map[string]string{
			`active_load{kind="prefill_tokens",worker="w0"}`: "0", `active_load{kind="decode_requests",worker="w1"}`: "0", "guards": "0", "active_requests": "0",
		})
	})
}
