package api

import (
	"context"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
)

// TestNothingToAbort: an engine to which a request was never sent is not told to forget it.
func TestNothingToAbort(t *testing.T) {
	for name, leave := range map[string]bool{"the client leaves": true, "time-out": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, rigOptions{Specs: plain(1, fleet.SGLang)}, func(t *testing.T, r *rig) {
				e := r.engines[0]
				r.pass(time.Second) // the engine has begun to accept
				accepting := e.ln
				e.ln = newMemListener() // nobody accepts
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				r.wg.Go(func() {
					if resp, err := r.open(ctx, chatBody); err == nil {
						_ = resp.Body.Close()
					}
				})
				r.pass(time.Second)
				if n := e.worker.Load.Active(); n != 1 {
					t.Fatalf("%d in flight", n)
				}
				if leave {
					cancel()
				} else {
					r.pass(time.Hour)
				}
				r.pass(time.Second)
				e.ln = accepting
				r.pass(time.Minute)
				if n := len(e.aborts()); n != 0 {
					t.Errorf("%d aborts", n)
				}
				for _, result := range []string{"sent", "failed", "dropped"} {
					if got := r.metric(`aborts_total{result="` + result + `"}`); got != "0" && got != "" {
						t.Errorf("%s aborts were %s", got, result)
					}
				}
			})
		})
	}
}
