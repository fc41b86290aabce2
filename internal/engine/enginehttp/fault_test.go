package enginehttp

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
)

const (
	streamBody = `{"prompt":[1,2,3],"max_tokens":6,"stream":true}`
	wholeBody  = `{"prompt":[1,2,3],"max_tokens":6}`
)

func (s *Server) mustFault(t *testing.T, f Fault) {
	t.Helper()
	if err := s.SetFault(f); err != nil {
		t.Fatal(err)
	}
}

func TestFaultStatus(t *testing.T) {
	s, c := start(t, Options{Engine: engine.Config{Timing: quick}})
	s.mustFault(t, Fault{Kind: FaultStatus, Status: 503, RetryAfter: "7", Count: 2})
	for i := range 3 {
		status, h, body := c.do(http.MethodPost, "/v1/completions", wholeBody)
		if i < 2 && (status != 503 || h.Get("Retry-After") != "7" || !strings.Contains(body, `"error"`)) {
			t.Errorf("request %d: %d %v %s", i, status, h, body)
		}
		if i == 2 && status != 200 {
			t.Errorf("the fault meets more than two requests: %d", status)
		}
		if status, _, _ := c.do(http.MethodGet, "/v1/models", ""); status != 200 {
			t.Errorf("it meets a request that does not generate: %d", status)
		}
	}
	s.mustFault(t, Fault{Kind: FaultStatus, Path: "/v1/models"})
	if status, _, _ := c.do(http.MethodGet, "/v1/models", ""); status != 500 {
		t.Errorf("asked for by its path: %d", status)
	}
	if n := s.Stats().FaultsMet; n != 3 {
		t.Errorf("%d faults met, want 3", n)
	}
}

// TestFaultResetMidStream: the client gets exactly the chunks asked for, then a reset, never a clean end.
func TestFaultResetMidStream(t *testing.T) {
	s, c := start(t, Options{Engine: engine.Config{Timing: quick}})
	for _, after := range []int{0, 1, 4} {
		s.mustFault(t, Fault{Kind: FaultResetMidStream, AfterChunks: after, Count: 1})
		resp, err := c.try(t.Context(), http.MethodPost, "/v1/completions", streamBody)
		var got []byte
		if err == nil {
			got, err = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
		if n := strings.Count(string(got), "\n\n"); n != after || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("after %d chunks, want %d: %v", n, after, err)
		}
	}
	s.mustFault(t, Fault{Kind: FaultResetMidStream, Count: 1})
	resp, err := c.try(t.Context(), http.MethodPost, "/v1/completions", wholeBody)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); len(b) == 0 || int64(len(b)) >= resp.ContentLength || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%d of %d bytes: %v", len(b), resp.ContentLength, err)
	}
	if status, _, _ := c.do(http.MethodPost, "/v1/completions", wholeBody); status != 200 { // on a connection that was never kept
		t.Errorf("afterwards: %d", status)
	}
}

// TestFaultHangs: the engine falls silent where it is told to, until the fault ends or the client leaves.
func TestFaultHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := start(t, Options{Listener: newMemListener()})
		s.mustFault(t, Fault{Kind: FaultHangBeforeHeaders})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if resp, err := c.try(ctx, http.MethodPost, "/v1/completions", wholeBody); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("%v %v", resp, err)
		}
		synctest.Wait()
		if st := s.Stats(); st.ClientGone != 1 || st.Load.Steps != 0 {
			t.Errorf("%+v", st)
		}

		s.mustFault(t, Fault{Kind: FaultHangMidStream, AfterChunks: 2})
		st := c.stream(t.Context(), "/v1/completions", streamBody)
		for range 2 {
			if _, err := st.next(); err != nil {
				t.Fatal(err)
			}
		}
		go func() {
			time.Sleep(time.Hour)
			_ = s.SetFault(Fault{Kind: FaultNone})
		}()
		begin := time.Now()
		if rest := st.all(); len(rest) != 4 || time.Since(begin) < time.Hour-time.Second {
			t.Errorf("%d chunks after %v", len(rest), time.Since(begin))
		}
	})
}

func TestFaultSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := start(t, Options{Listener: newMemListener()})
		s.mustFault(t, Fault{Kind: FaultSlow, DelayMS: 5000, ChunkDelayMS: 1000, Count: 1})
		begin := time.Now()
		st := c.stream(t.Context(), "/v1/completions", streamBody)
		if _, err := st.next(); err != nil {
			t.Fatal(err)
		}
		want := 5*time.Second + engine.Timing{}.Filled().Step(3, 0, 0) + time.Second
		if got := time.Since(begin); got != want {
			t.Errorf("first chunk after %v, want %v", got, want)
		}
		st.all()
		if got := time.Since(begin); got != want+6*time.Second { // five more chunks and [DONE]
			t.Errorf("end after %v, want %v", got, want+6*time.Second)
		}
	})
}

// TestFaultRefuse: connections are refused, kept ones are closed, what runs goes on; afterwards the port is the same.
func TestFaultRefuse(t *testing.T) {
	s, c := start(t, Options{})
	st := c.stream(t.Context(), "/v1/completions", `{"prompt":[1,2,3],"max_tokens":20,"stream":true}`)
	if _, err := st.next(); err != nil {
		t.Fatal(err)
	}
	c.do(http.MethodGet, "/health", "") // leaves an idle connection behind
	until(t, "an idle connection", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, st := range s.mu.conns {
			if st == http.StateIdle {
				return true
			}
		}
		return false
	})
	s.mustFault(t, Fault{Kind: FaultRefuse})
	if !s.Stats().Down {
		t.Error("not down")
	}
	// A client of its own: c may still hold the connection that was closed, and not know it yet.
	fresh := &client{t, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, c.url}
	if _, err := fresh.try(t.Context(), http.MethodPost, "/v1/completions", wholeBody); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("want refused: %v", err)
	}
	if rest := st.all(); len(rest) != 19 {
		t.Errorf("the stream that ran got %d more chunks, want 19", len(rest))
	}
	until(t, "its connection is closed too", func() bool { return s.Stats().OpenConnections == 0 })
	s.mustFault(t, Fault{Kind: FaultNone})
	if status, _, _ := fresh.do(http.MethodPost, "/v1/completions", wholeBody); status != 200 {
		t.Errorf("afterwards: %d", status)
	}
}

// TestFaultRestart: what runs is reset, the engine is down for a while, and comes back on its port with an empty cache and counters at
// zero.
func TestFaultRestart(t *testing.T) {
	s, c := start(t, Options{})
	prompt := `{"prompt":` + ids(0, 100) + `,"max_tokens":1}`
	c.json(http.MethodPost, "/v1/completions", prompt)
	st := c.stream(t.Context(), "/v1/completions", `{"prompt":[1,2,3],"max_tokens":1000,"stream":true}`)
	if _, err := st.next(); err != nil {
		t.Fatal(err)
	}
	s.mustFault(t, Fault{Kind: FaultRestart, DelayMS: 50})
	for {
		if _, err := st.next(); err != nil {
			if !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the stream that ran ended with %v", err)
			}
			break
		}
	}
	if got := s.Stats(); got.Load.Running != 0 || got.Load.CachedBlocks != 0 || got.Requests != 0 || got.ClientGone != 0 {
		t.Errorf("right after: %+v", got)
	}
	until(t, "up again", func() bool { return !s.Stats().Down })
	c.http.CloseIdleConnections() // the reset ones may not be noticed yet
	v := c.json(http.MethodPost, "/v1/completions", prompt)
	if cached := v["usage"].(map[string]any)["prompt_tokens_details"].(map[string]any)["cached_tokens"]; cached != 0.0 {
		t.Errorf("%v tokens cached after a restart", cached)
	}
	if got := s.Stats(); got.Requests != 1 || got.Completed != 1 {
		t.Errorf("%+v", got)
	}
}

// TestControl: faults over HTTP, on a listener that stays when the engine's is down; unknown parameters are refused.
func TestControl(t *testing.T) {
	s, c := start(t, Options{Engine: engine.Config{Timing: quick}, Control: true})
	ctl := &client{t, c.http, s.ControlURL()}
	v := ctl.json(http.MethodPost, "/_control", `{"fault":"status","status":429,"count":1}`)
	if v["fault"].(map[string]any)["status"] != 429.0 || v["left"] != 1.0 {
		t.Errorf("%v", v)
	}
	if status, _, _ := c.do(http.MethodPost, "/v1/completions", wholeBody); status != 429 {
		t.Errorf("status %d", status)
	}
	for _, bad := range []string{`{"fault":"nosuch"}`, `{"fault":"status","statsu":1}`, `{"fault":"lie_load"}`, `{"fault":"slow","delay_ms":-1}`, `{"fault":"status","status":200}`, ``} {
		if status, _, body := ctl.do(http.MethodPost, "/_control", bad); status != 400 || decode(t, body)["error"] == "" {
			t.Errorf("%s: %d %s", bad, status, body)
		}
	}
	ctl.json(http.MethodPost, "/_control", `{"fault":"refuse"}`)
	if _, err := c.try(t.Context(), http.MethodGet, "/health", ""); err == nil {
		t.Error("not refused")
	}
	st := ctl.json(http.MethodGet, "/_control", "")["stats"].(map[string]any)
	if st["down"] != true || st["requests"] != 1.0 || st["faults_met"] != 1.0 {
		t.Errorf("%v", st)
	}
	ctl.json(http.MethodPost, "/_control", `{"fault":"none"}`)
	c.http.CloseIdleConnections()
	c.do(http.MethodGet, "/health", "")
}

// TestCloseDropsEverything: Close ends requests that run, that hang in a fault, and that wait for a restart.
func TestCloseDropsEverything(t *testing.T) {
	s, c := start(t, Options{Control: true})
	st := c.stream(t.Context(), "/v1/completions", `{"prompt":[1],"max_tokens":10000,"stream":true}`)
	s.mustFault(t, Fault{Kind: FaultHangBeforeHeaders})
	hung := make(chan error, 1)
	go func() {
		_, err := c.try(context.Background(), http.MethodPost, "/v1/completions", wholeBody) //nolint:bodyclose // it never comes
		hung <- err
	}()
	until(t, "the request hangs", func() bool { return s.Stats().FaultsMet == 1 })
	s.Close()
	select {
	case <-s.owner.done:
	default:
		t.Error("Close came back before the engine's goroutine ended")
	}
	s.Close()
	if err := <-hung; err == nil {
		t.Error("the request that hung got an answer")
	}
	if err := st.brokenOff(); err == io.EOF {
		t.Error("the stream ended cleanly")
	}
	if err := s.SetFault(Fault{Kind: FaultRestart, DelayMS: 1000}); !errors.Is(err, errStopped) {
		t.Errorf("restart after Close: %v", err)
	}
}

// TestDyingEnginesEndNoStreamCleanly takes the two halves of Close one at a time: the engine that drops its requests, and the handlers
// that are told to give up.
func TestDyingEnginesEndNoStreamCleanly(t *testing.T) {
	for name, die := range map[string]func(*Server){
		"the engine":   func(s *Server) { _ = s.owner.do(s.owner.dropAll) },
		"the handlers": func(s *Server) { s.stop() },
	} {
		s, c := start(t, Options{})
		st := c.stream(t.Context(), "/v1/completions", `{"prompt":[1],"max_tokens":10000,"stream":true}`)
		die(s)
		if err := st.brokenOff(); err == io.EOF {
			t.Errorf("%s: the stream ended cleanly", name)
		}
	}
}

// TestListenersThatCannotComeBack: a listener that was handed in can be taken down only if there is a way to open it again.
func TestListenersThatCannotComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemListener()
		s, c := start(t, Options{Listener: m})
		if err := s.SetFault(Fault{Kind: FaultRefuse}); err == nil || s.Stats().Down {
			t.Errorf("refused without a way back: %v", err)
		}
		c.do(http.MethodGet, "/health", "")

		s, c = start(t, Options{Listener: newMemListener(), Listen: func(addr string) (net.Listener, error) {
			if addr != "engine.test:80" {
				t.Errorf("listen on %q", addr)
			}
			return m, nil
		}})
		s.mustFault(t, Fault{Kind: FaultRestart, DelayMS: 60_000})
		if _, err := c.try(t.Context(), http.MethodGet, "/health", ""); !errors.Is(err, net.ErrClosed) {
			t.Errorf("down: %v", err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if s.Stats().Down {
			t.Error("still down")
		}
	})
}
