package api

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/explain"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/upstream"
)

// floorRig has engines that report, and answer 500 to bodies with the word "poison".
func floorRig(r *rig) {
	for _, e := range r.engines {
		e.worker.Load.Observe(0, load.RankReport{At: time.Now(), Running: load.Known(1)})
		e.handler = func(w http.ResponseWriter, _ *http.Request) {
			if c := e.calls(); strings.Contains(c[len(c)-1].body, "poison") {
				w.WriteHeader(http.StatusInternalServerError)
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, okAnswer)
		}
	}
}

func reporting(n int) []fleet.Spec {
	specs := plain(n, fleet.SGLang)
	for i := range specs {
		specs[i].Ranks = 1
	}
	return specs
}

// TestPoisonTakesNoFleet: a client whose requests make every engine fail takes no engine from the others; breakers open, and do not
// count where they would leave too few. An engine that is down is not tried for that.
func TestPoisonTakesNoFleet(t *testing.T) {
	bubble(t, rigOptions{Specs: reporting(4)}, func(t *testing.T, r *rig) {
		floorRig(r)
		r.engines[3].refuse.Store(true)
		for range 40 {
			r.post(chatPath, strings.Replace(chatBody, "hello", "poison", 1))
		}
		for _, e := range r.engines {
			if s, _ := r.reg.Breaker(e.worker); s != fleet.Open {
				t.Errorf("the breaker of %s is %v: the test does not reach what it tests", e.id, s)
			}
		}
		if n := r.engines[3].mu.dials; n != 3 {
			t.Errorf("the engine that is down was dialled %d times", n)
		}
		if a := r.post(chatPath, chatBody); a.status != 200 {
			t.Errorf("another client got %d: %s", a.status, a.body)
		}
		rec := r.s.Explain.Records(explain.Query{Limit: 1})[0]
		if !rec.Attempts[0].Tries[0].Floored || !strings.Contains(rec.Text(), "breakers did not count") {
			t.Errorf("the decision log does not say why:\n%s", rec.Text())
		}
		served := ""
		for _, e := range r.engines {
			if s, _ := r.reg.Breaker(e.worker); s == fleet.Closed {
				served += e.id
			}
		}
		if len(served) != 2 {
			t.Errorf("the answer closed the breakers of %q, want its engine's", served)
		}
		r.pass(10 * time.Second) // the reports are old: nobody knows any more who is up
		if a := r.post(chatPath, chatBody); a.status != 200 {
			t.Errorf("the engine whose breaker is closed was not used: %d", a.status)
		}
	})
}

// TestNobodyThere: a connection that took too long says nothing of whether somebody is there.
func TestNobodyThere(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, true},
		{&net.OpError{Op: "dial", Err: syscall.EHOSTUNREACH}, true},
		{&upstream.Error{Err: &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}}, true},
		{&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, false},
		{&net.OpError{Op: "dial", Err: syscall.ETIMEDOUT}, false},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, false},
		{errors.New("a bad certificate"), false},
	} {
		if got := nobodyThere(c.err); got != c.want {
			t.Errorf("%v: %v", c.err, got)
		}
	}
}
