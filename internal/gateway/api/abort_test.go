package api

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"sync"
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

// leaveAll has so many clients open streams, of which engines send no end, and leave, and returns when all have.
func (r *rig) leaveAll(t *testing.T, clients int) {
	t.Helper()
	for _, e := range r.engines {
		e.handler = func(w http.ResponseWriter, q *http.Request) { startStream(w); <-q.Context().Done() }
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var all sync.WaitGroup
	for range clients {
		resp, err := r.open(ctx, streamed(chatBody))
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() { _, _ = io.Copy(io.Discard, resp.Body); _ = resp.Body.Close() })
	}
	leave()
	all.Wait()
}

// TestHungAborts: an engine that hangs keeps no abort of another engine's waiting, however many of its own wait; what is beyond the bound of its queue is dropped, and counted.
func TestHungAborts(t *testing.T) {
	for name, c := range map[string]struct {
		leave   int // clients of the engine that hangs
		dropped string
	}{"some": {3 * abortSenders, ""}, "more than may wait": {abortsQueued + abortSenders + 5, "5"}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, rigOptions{Specs: plain(2, fleet.SGLang)}, func(t *testing.T, r *rig) {
				hung, other := r.engines[0], r.engines[1]
				hung.deaf.Store(true)
				r.leaveAll(t, c.leave*len(r.engines)) // which take turns
				r.pass(time.Second)
				if n := len(other.aborts()); n != c.leave {
					t.Errorf("the other engine has %d aborts of %d", n, c.leave)
				}
				if got := r.metric(`aborts_total{result="dropped"}`); got != c.dropped {
					t.Errorf("%q were dropped, want %q", got, c.dropped)
				}
				hung.deaf.Store(false)
				r.pass(abortLimit)
				if n, want := len(hung.aborts()), min(c.leave, abortsQueued+abortSenders)-abortSenders; n != want {
					t.Errorf("the one that hung has %d aborts, want %d", n, want)
				}
				if n := len(r.s.aborts.to); n != 0 {
					t.Errorf("%d queues are left", n)
				}
			})
		})
	}
}

// TestOldAborts: those that have waited for long are dropped one and all when a sender comes to them, and counted.
func TestOldAborts(t *testing.T) {
	bubble(t, rigOptions{Specs: plain(1, fleet.SGLang)}, func(t *testing.T, r *rig) {
		const left = 20 * abortSenders
		r.engines[0].deaf.Store(true)
		r.leaveAll(t, left)
		r.pass(abortsKept + abortLimit + time.Second)
		// Each sender has begun one at once, and then one whenever its call was given up, the last of them just before 30 s are over.
		tried := abortSenders * int(abortsKept/abortLimit+1)
		if got, want := r.metric(`aborts_total{result="failed"}`), strconv.Itoa(tried); got != want {
			t.Errorf("%s failed, want %s", got, want)
		}
		if got, want := r.metric(`aborts_total{result="dropped"}`), strconv.Itoa(left-tried); got != want {
			t.Errorf("%s were dropped, want %s", got, want)
		}
		if n := len(r.s.aborts.to); n != 0 {
			t.Errorf("%d queues are left", n)
		}
	})
}

// TestAbortsAtTheEnd: those that wait when the server ends are dropped, and counted as that.
func TestAbortsAtTheEnd(t *testing.T) {
	bubble(t, rigOptions{Specs: plain(1, fleet.SGLang)}, func(t *testing.T, r *rig) {
		r.engines[0].deaf.Store(true)
		r.leaveAll(t, abortSenders+3)
		r.pass(time.Second)
		r.s.Close()
		if got := r.metric(`aborts_total{result="dropped"}`); got != "3" {
			t.Errorf("%q were dropped, want 3", got)
		}
	})
}
