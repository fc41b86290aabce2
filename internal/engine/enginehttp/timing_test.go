package enginehttp

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
)

// TestTimesAreTheModels: over HTTP, with the clock of a synctest bubble, the first token comes exactly when the timing model
// says, and each further token too.
func TestTimesAreTheModels(t *testing.T) {
	for _, flavor := range []Flavor{VLLM, SGLang} {
		t.Run(string(flavor), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, c := start(t, Options{Flavor: flavor, Listener: newMemListener()})
				begin := time.Now()
				st := c.stream(t.Context(), "/v1/completions", `{"prompt":`+ids(0, 10000)+`,"max_tokens":3,"stream":true}`)
				m := engine.Timing{}.Filled()
				// 10,000 tokens are more than a step's 8,192.
				want := m.Step(8192, 0, 0) + m.Step(10000-8192, 0, 0)
				for i := range 3 {
					if _, err := st.next(); err != nil {
						t.Fatal(err)
					}
					if got := time.Since(begin); got != want {
						t.Errorf("token %d after %v, want %v", i, got, want)
					}
					want += m.Step(0, 1, 10000+i)
				}
				st.all()

				// The same prompt again: all but the last block comes from the cache.
				begin = time.Now()
				st = c.stream(t.Context(), "/v1/completions", `{"prompt":`+ids(0, 10000)+`,"max_tokens":1,"stream":true}`)
				st.all()
				if got, want := time.Since(begin), m.Step(16, 0, 0); got != want {
					t.Errorf("cached: %v, want %v", got, want)
				}
				if l := s.Stats().Load; l.CacheHitTokens != 9984 {
					t.Errorf("%d tokens from the cache, want 9984", l.CacheHitTokens)
				}
			})
		})
	}
}

// TestClientThatLeaves: its request ends at once, at whatever point it is, and costs the others nothing.
func TestClientThatLeaves(t *testing.T) {
	for _, c := range []struct {
		name, body string
		after      time.Duration
	}{
		{"streaming, in its prefill", `{"prompt":` + ids(0, 8000) + `,"max_tokens":500,"stream":true}`, 50 * time.Millisecond},
		{"streaming, between tokens", `{"prompt":[1,2,3],"max_tokens":500,"stream":true}`, 3 * time.Second},
		{"not streaming", `{"prompt":[1,2,3],"max_tokens":500}`, 3 * time.Second},
		{"waiting", `{"prompt":[1,2,3],"max_tokens":500}`, time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, cl := start(t, Options{Listener: newMemListener()})
				ctx, leave := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				wg.Go(func() {
					resp, err := cl.try(ctx, http.MethodPost, "/v1/completions", c.body)
					if err == nil {
						<-ctx.Done()
						resp.Body.Close()
					}
				})
				time.Sleep(c.after)
				synctest.Wait()
				if l := s.Stats().Load; l.Running+l.Waiting != 1 {
					t.Fatalf("%d running, %d waiting before the client leaves", l.Running, l.Waiting)
				}
				leave()
				synctest.Wait() // without any time going by
				if st := s.Stats(); st.Load.Running+st.Load.Waiting+st.Load.UsedTokens != 0 || st.ClientGone != 1 || st.Completed != 0 {
					t.Errorf("after the client has left: %+v", st)
				}
				wg.Wait()
			})
		})
	}
}

// TestAbortRequest: SGLang's abort by the beginning of an id, and of all.
func TestAbortRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := start(t, Options{Flavor: SGLang, Listener: newMemListener()})
		reasons := make(chan string, 3)
		for _, rid := range []string{"job-1", "job-2", "other"} {
			go func() {
				v := c.json(http.MethodPost, "/v1/completions", `{"prompt":[1,2,3],"max_tokens":500,"rid":"`+rid+`"}`)
				reasons <- v["id"].(string) + " " + v["choices"].([]any)[0].(map[string]any)["finish_reason"].(string)
			}()
		}
		time.Sleep(time.Second)
		c.do(http.MethodPost, "/abort_request", `{"rid":"job-"}`)
		got := map[string]bool{<-reasons: true, <-reasons: true}
		if !got["job-1 abort"] || !got["job-2 abort"] {
			t.Errorf("aborted: %v", got)
		}
		if st := s.Stats(); st.Load.Running != 1 || st.Aborted != 2 {
			t.Errorf("%d running, %d aborted", st.Load.Running, st.Aborted)
		}
		c.do(http.MethodPost, "/abort_request", `{"rid":"","abort_all":false}`)
		if st := s.Stats(); st.Load.Running != 1 {
			t.Error("an empty id aborted something")
		}
		c.do(http.MethodPost, "/abort_request", `{"abort_all":true}`)
		if r := <-reasons; r != "other abort" {
			t.Error(r)
		}
	})
}

// TestQueueFull: beyond MaxWaiting the answer is 503 in the flavor's shape, and a request for several prompts enters whole or not at all.
func TestQueueFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := start(t, Options{Engine: engine.Config{MaxRunning: 1, MaxWaiting: 2}, Listener: newMemListener()})
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { c.do(http.MethodPost, "/v1/completions", `{"prompt":[1,2,3],"max_tokens":50}`) })
			time.Sleep(time.Millisecond)
		}
		status, _, body := c.do(http.MethodPost, "/v1/completions", `{"prompt":[[1],[2]],"max_tokens":1}`)
		if status != http.StatusServiceUnavailable || decode(t, body)["error"].(map[string]any)["code"] != 503.0 {
			t.Errorf("status %d: %s", status, body)
		}
		if l := s.Stats().Load; l.Running != 1 || l.Waiting != 1 {
			t.Errorf("%d running, %d waiting", l.Running, l.Waiting)
		}
		wg.Wait()
	})
}

// TestLoadReports: both engines' reports show what runs and waits, and the lie that was asked for.
func TestLoadReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := start(t, Options{Flavor: SGLang, Engine: engine.Config{MaxRunning: 2}, Listener: newMemListener()})
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				c.do(http.MethodPost, "/v1/completions", `{"prompt":`+ids(i*1000, i*1000+100)+`,"max_tokens":100}`)
			})
		}
		time.Sleep(500 * time.Millisecond)
		rank := c.json(http.MethodGet, "/v1/loads?include=core", "")["loads"].([]any)[0].(map[string]any)
		for k, want := range map[string]float64{
			"num_running_reqs": 2, "num_waiting_reqs": 2, "num_waiting_uncached_tokens": 200, "num_used_tokens": 256,
			"num_total_tokens": 456, "max_total_num_tokens": 524288, "max_running_requests": 2, "total_prefill_uncached_tokens": 200,
		} {
			if rank[k] != want {
				t.Errorf("%s = %v, want %v", k, rank[k], want)
			}
		}
		if _, ok := rank["queues"]; ok {
			t.Error("include=core brings queues")
		}
		seven, usage := 7, .5
		if err := s.SetFault(Fault{Kind: FaultLieLoad, Load: &LoadLies{Waiting: &seven, Usage: &usage}}); err != nil {
			t.Fatal(err)
		}
		rank = c.json(http.MethodGet, "/v1/loads", "")["loads"].([]any)[0].(map[string]any)
		if rank["num_waiting_reqs"] != 7.0 || rank["token_usage"] != .5 || rank["num_running_reqs"] != 2.0 {
			t.Errorf("with a lie: %v", rank)
		}
		if s.Stats().Load.Waiting != 2 {
			t.Error("Stats lies too")
		}
		wg.Wait()
	})
}

// TestHistogramsFollowTheModel: what /metrics says of times is what the model says, to the digit.
func TestHistogramsFollowTheModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		timing := engine.Timing{StepFixed: 50 * time.Millisecond, PrefillPerToken: -1, DecodePerSeq: -1, PerKVToken: -1}
		_, c := start(t, Options{Engine: engine.Config{Timing: timing, MaxRunning: 1}, Listener: newMemListener()})
		var wg sync.WaitGroup
		for range 2 { // the second waits until the first has its three tokens
			wg.Go(func() { c.do(http.MethodPost, "/v1/completions", `{"prompt":[1,2,3],"max_tokens":3}`) })
			time.Sleep(time.Millisecond)
		}
		wg.Wait()
		_, _, page := c.do(http.MethodGet, "/metrics", "")
		for _, want := range []string{
			// The second one's first token comes after 149 ms in the queue and a step; a value on a bound is in that bound's bucket.
			`time_to_first_token_seconds_bucket{engine="0",model_name="perigee-sim",le="0.04"} 0.0`,
			`time_to_first_token_seconds_bucket{engine="0",model_name="perigee-sim",le="0.06"} 1.0`,
			`time_to_first_token_seconds_sum{engine="0",model_name="perigee-sim"} 0.249`,
			`inter_token_latency_seconds_bucket{engine="0",model_name="perigee-sim",le="0.025"} 0.0`,
			`inter_token_latency_seconds_bucket{engine="0",model_name="perigee-sim",le="0.05"} 4.0`,
			`inter_token_latency_seconds_count{engine="0",model_name="perigee-sim"} 4.0`,
			`request_queue_time_seconds_sum{engine="0",model_name="perigee-sim"} 0.149`,
			`request_generation_tokens_sum{engine="0",model_name="perigee-sim"} 6.0`,
		} {
			if !strings.Contains(page, "vllm:"+want+"\n") {
				t.Errorf("not on the page: %s", want)
			}
		}
	})
}
