package gateway_test

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/engine/enginehttp"
	"github.com/perigee-llm/perigee/internal/gateway/explain"
)

// startHalves starts a simulated engine of each role, in order. What they hold for pairs is free after some time.
func startHalves(t testing.TB, flavor enginehttp.Flavor, model string, timing engine.Timing, free time.Duration, roles ...enginehttp.Role) (engines []*enginehttp.Server) {
	t.Helper()
	for _, role := range roles {
		e, err := enginehttp.Start(enginehttp.Options{
			Engine: engine.Config{Timing: timing, MeetFor: free, HoldFor: free, FetchFor: 2 * free}, Flavor: flavor, Models: []string{model},
			Pair: &enginehttp.Pair{Role: role, Attempts: 2, Retry: 10 * time.Millisecond},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		engines = append(engines, e)
	}
	return engines
}

// halvesAtRest waits until no engine holds anything, for a pair or otherwise.
func halvesAtRest(t testing.TB, engines []*enginehttp.Server) {
	t.Helper()
	for _, e := range engines {
		await(t, func() bool {
			l := e.Stats().Load
			return l.Running+l.Waiting+l.Held+l.Meeting+l.Joined+l.Fetching+l.UsedTokens == 0
		})
	}
}

const pairBuckets = `
models:
  - id: m
    policy: round_robin
    buckets:
      - {id: short, max_input_tokens: 60, pd: {prefill: {workers: [p0]}, decode: {workers: [d0]}}}
      - {id: long, pd: {prefill: {policy: power_of_two, workers: [p1, p2]}, decode: {policy: load_based, workers: [d1, d2]}}}
server: {port: 0, host: 127.0.0.1, admin: {port: 0}}
discovery: {static: {workers: [{id: p0, url: %s, role: prefill}, {id: d0, url: %s, role: decode}, {id: p1, url: %s, role: prefill}, {id: d1, url: %s, role: decode},
  {id: p2, url: %s, role: prefill}, {id: d2, url: %s, role: decode}]}}
`

var generated = regexp.MustCompile(`"(?:text|content)":"([^"]*)"`)

// wrote puts an answer's text together, of a stream too.
func wrote(answer string) (text string) {
	for _, m := range generated.FindAllStringSubmatch(answer, -1) {
		text += m[1]
	}
	return text
}

// TestPairedEngines: both halves of a request go to engines of one bucket, the client gets what one engine alone would have said, and no decode
// engine computes a prompt, by the engines' own counters.
func TestPairedEngines(t *testing.T) {
	for _, flavor := range []enginehttp.Flavor{enginehttp.SGLang, enginehttp.VLLM} {
		t.Run(string(flavor), func(t *testing.T) {
			p, d := enginehttp.Prefill, enginehttp.Decode
			engines := startHalves(t, flavor, "m", engine.Timing{Speed: 200}, time.Minute, p, d, p, d, p, d)
			alone := startEngines(t, 1, flavor)[0]
			g := startGateway(t, pairBuckets, engines)
			c := newClient(t)
			for i := range 40 {
				n := 10 + i%2*80
				asked := `"prompt":` + strings.Replace(ids(n), "1", fmt.Sprint(100+i), 1)
				path := "/v1/completions"
				if i%4 > 1 {
					path, asked = "/v1/chat/completions", fmt.Sprintf(`"messages":[{"role":"user","content":"%d %s"}]`, i, strings.Repeat("word", n))
				}
				body := fmt.Sprintf(`{"model":"m",%s,"max_tokens":%d,"stream":%v}`, asked, 1+i%7, i%8 > 3)
				status, got, err := send(t, c, "POST", g.URL()+path, body)
				_, want, _ := send(t, c, "POST", alone.URL()+path, body)
				if err != nil || status != 200 || wrote(got) == "" || wrote(got) != wrote(want) {
					t.Fatalf("%s: %d %v\n%s\nalone:\n%s", body, status, err, got, want)
				}
				rec := g.Explain().Records(explain.Query{Limit: 1})[0]
				if want := []string{"short", "long"}[i%2]; len(rec.Attempts) != 1 || rec.Attempts[0].Bucket != want {
					t.Fatalf("%+v", rec.Attempts)
				}
			}
			halvesAtRest(t, engines)
			for _, e := range engines[:2] { // a prefill engine's answer may end after the client's
				await(t, func() bool { return e.Stats().Completed >= 20 })
			}
			fetched := int64(0)
			for i, e := range engines {
				st := e.Stats()
				fetched += st.Load.FetchedTokens
				if short := i < 2; short && st.Completed != 20 || i%2 == 1 && (st.Load.PrefillUncachedTokens != 0 || st.Load.Unfetched != 0) || st.Load.RoomsExpired != 0 {
					t.Errorf("engine %d: %+v", i, st)
				}
			}
			if a := alone.Stats().Load; fetched < a.PrefillUncachedTokens/2 {
				t.Errorf("%d tokens were fetched; alone %+v", fetched, a)
			}
		})
	}
}

// TestPairedClientLeaves: a client that leaves in the middle is no failure of either engine, though SGLang's prefill engine answers 500 then.
func TestPairedClientLeaves(t *testing.T) {
	for _, flavor := range []enginehttp.Flavor{enginehttp.SGLang, enginehttp.VLLM} {
		t.Run(string(flavor), func(t *testing.T) {
			engines := startHalves(t, flavor, "m", engine.Timing{PrefillPerToken: 10 * time.Millisecond}, time.Minute, enginehttp.Prefill, enginehttp.Decode)
			g := startGateway(t, `
models: [{id: m, buckets: [{id: b, pd: {prefill: {}, decode: {}}}]}]
server: {port: 0, host: 127.0.0.1, admin: {port: 0}}
breaker: {threshold: 1, cool_down: 1h}
discovery: {static: {workers: [{url: %s, role: prefill}, {url: %s, role: decode}]}}
`, engines)
			c := newClient(t)
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			req, err := http.NewRequestWithContext(ctx, "POST", g.URL()+"/v1/completions", strings.NewReader(`{"model":"m","prompt":`+ids(80)+`,"max_tokens":4}`))
			if err != nil {
				t.Fatal(err)
			}
			left := make(chan error)
			go func() {
				resp, err := c.Do(req)
				if err == nil {
					_ = resp.Body.Close()
				}
				left <- err
			}()
			await(t, func() bool { return engines[0].Stats().Load.Running == 1 })
			leave()
			if <-left == nil {
				t.Error("an answer")
			}
			halvesAtRest(t, engines)
			await(t, func() bool { return g.Held() == 0 })
			if status, text, err := send(t, c, "POST", g.URL()+"/v1/completions", `{"model":"m","prompt":[1],"max_tokens":4}`); status != 200 || err != nil { // both are in
				t.Errorf("%d %s %v", status, text, err)
			}
			_, page, _ := send(t, c, "GET", g.AdminURL()+"/metrics", "")
			for _, m := range regexp.MustCompile(`perigee_worker_requests_total.*outcome="error".*`).FindAllString(page, -1) {
				t.Errorf("an engine was blamed: %s", m)
			}
		})
	}
}
