package api

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
)

// TestAbortByClientsID: an engine aborts every request whose id begins with the one given, so a client's own id aborts only if it is long
// enough to be nobody else's beginning. Whichever it is, the access log has it.
func TestAbortByClientsID(t *testing.T) {
	for rid, aborts := range map[string]int{
		"a": 0, "": 0, strings.Repeat("x", 31): 0, strings.Repeat("x", 32): 1, strings.Repeat("é", 31): 0, strings.Repeat("y", 300): 1,
	} {
		t.Run(rid, func(t *testing.T) {
			bubble(t, rigOptions{Specs: plain(1, fleet.SGLang), Settings: func(s *Settings) { s.Refused = 0 }}, func(t *testing.T, r *rig) {
				e := r.engines[0]
				e.handler = func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() }
				ctx, leave := context.WithCancel(t.Context())
				r.wg.Go(func() {
					if resp, err := r.open(ctx, `{"model":"m","messages":[],"rid":"`+rid+`"}`); err == nil {
						_ = resp.Body.Close()
					}
				})
				r.pass(time.Second)
				leave()
				r.pass(time.Second)
				if got := e.aborts(); len(got) != aborts || aborts == 1 && !strings.Contains(got[0], `"rid":"`+rid+`"`) {
					t.Errorf("the aborts are %q", got)
				}
				if got, _ := r.access.last()["engine_rid"].(string); got != rid[:min(len(rid), 128)] || r.access.last()["outcome"] != "cancelled" {
					t.Errorf("the access log has %q, %v", got, r.access.last()["outcome"])
				}
			})
		})
	}
}

// TestOutcomeLogged: the access log says how a request ended in the words of the dispatches' metric.
func TestOutcomeLogged(t *testing.T) {
	status := func(n int) http.HandlerFunc { return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(n) } }
	for want, h := range map[string]http.HandlerFunc{
		"success": nil, "client_error": status(422), "backpressure": status(429), "error": status(500),
	} {
		t.Run(want, func(t *testing.T) {
			bubble(t, rigOptions{}, func(t *testing.T, r *rig) {
				r.engines[0].handler = h
				r.post(chatPath, chatBody)
				synctest.Wait()
				if got := r.access.last()["outcome"]; got != want {
					t.Errorf("got %v", got)
				}
				if got := r.metric(`worker_requests_total{mode="plain",model="m",outcome="` + want + `",worker="w0"}`); got != "1" {
					t.Errorf("the metric has %q", got)
				}
			})
		})
	}
}

// TestSeriesStayForgotten: a request that was under way when its model and its engine were taken out brings their series back when it
// ends, but not for good.
func TestSeriesStayForgotten(t *testing.T) {
	bubble(t, rigOptions{Models: []string{"other"}}, func(t *testing.T, r *rig) {
		release := make(chan struct{})
		r.engines[0].handler = func(w http.ResponseWriter, _ *http.Request) { <-release; _, _ = io.WriteString(w, okAnswer) }
		r.wg.Go(func() { r.post(chatPath, chatBody) })
		r.pass(time.Second)
		r.s.Pin()
		next := r.s.current.Load().Config
		next.Models = next.Models[1:]
		if err := r.s.Apply(next); err != nil {
			t.Fatal(err)
		}
		r.reg.Remove("w0")
		r.s.Metrics.Forget("worker", "w0")
		close(release)
		synctest.Wait()
		if page := r.scrape("/metrics"); !strings.Contains(page, `model="m"`) || !strings.Contains(page, `worker="w0"`) {
			t.Error("the request is not counted")
		}
		r.pass(2 * time.Minute)
		if page := r.scrape("/metrics"); strings.Contains(page, `model="m"`) || strings.Contains(page, `worker="w0"`) {
			t.Error("the series came back")
		}
	})
}
