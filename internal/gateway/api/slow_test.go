package api

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
)

// TestSlowReaderFreesEngine: once an answer is whole its engine is free and the request is let go, however slowly the client reads; what is held is
// the answer.
func TestSlowReaderFreesEngine(t *testing.T) {
	one := int64(1)
	b := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", 900<<10) + `"}]}`
	for _, length := range []bool{false, true} {
		bubble(t, rigOptions{Buckets: func(func(fleet.Stage) *bucket.Group) []*bucket.Bucket {
			return []*bucket.Bucket{bucket.NewPlain("a", 0, bucket.Range{}, bucket.NewGroup("m", fleet.Plain, nil, policy.NewRoundRobin(policy.Limits{MaxInflightRequests: &one})))}
		}}, func(t *testing.T, r *rig) {
			e := r.engines[0]
			const size = 500 << 10
			e.handler = func(w http.ResponseWriter, _ *http.Request) {
				if length {
					w.Header().Set("Content-Length", itoa(size))
				}
				_, _ = io.WriteString(w, strings.Repeat(" ", size))
			}
			conn, _ := r.raw("POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nContent-Length: " + itoa(len(b)) + "\r\n\r\n" + b)
			r.pass(time.Second)
			if r.s.Active() != 1 || r.tracker.Held() != 0 || e.worker.Load.Active() != 0 {
				t.Errorf("%d active, %d guards, %d in flight", r.s.Active(), r.tracker.Held(), e.worker.Load.Active())
			}
			if held := r.s.buffered.Load(); held < size || held > 2*size {
				t.Errorf("an answer of %d bytes holds %d", size, held)
			}
			if got := r.metric(`worker_requests_total{mode="plain",model="m",outcome="success",worker="w0"}`); got != "1" {
				t.Errorf("the engine's success is counted %q times", got)
			}
			e.handler = nil
			if a := r.post(chatPath, chatBody); a.status != 200 {
				t.Errorf("another client gets %d %s", a.status, a.body)
			}
			_ = conn.Close()
			r.pass(time.Second)
		})
	}
}

// TestAnswersBeyondMemory: where no answer can be held back any more, it passes as it comes.
func TestAnswersBeyondMemory(t *testing.T) {
	for _, declared := range []bool{false, true} {
		bubble(t, rigOptions{Settings: func(s *Settings) { s.MaxBuffered = 64 << 10 }}, func(t *testing.T, r *rig) {
			text := strings.Repeat("y", 300<<10)
			r.engines[0].handler = func(w http.ResponseWriter, _ *http.Request) {
				if declared {
					w.Header().Set("Content-Length", itoa(len(text)))
				}
				_, _ = io.WriteString(w, text)
			}
			if a := r.post(chatPath, chatBody); a.status != 200 || a.body != text || a.err != nil {
				t.Errorf("got %d, %d bytes, %v", a.status, len(a.body), a.err)
			}
		})
	}
}
