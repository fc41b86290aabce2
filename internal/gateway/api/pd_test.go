package api

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/lifetime"
	"github.com/perigee-llm/perigee/internal/gateway/load"
)

// pair returns a prefill and a decode engine of a kind.
func pair(k fleet.Kind) []fleet.Spec {
	return []fleet.Spec{{Kind: k, Stage: fleet.Prefill, BootstrapPort: load.Known(8998)}, {Kind: k, Stage: fleet.Decode}}
}

func allowAll(s *Settings) { s.Refused = 0 }

// TestPairAtOnce: both SGLang engines get the same bytes, with our room in place of the client's; the decode engine's answer goes back.
func TestPairAtOnce(t *testing.T) {
	bubble(t, rigOptions{Specs: pair(fleet.SGLang), Settings: allowAll}, func(t *testing.T, r *rig) {
		p, d := r.engines[0], r.engines[1]
		p.handler = func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"prefill":true}`) }
		rooms := map[string]bool{}
		for range 3 {
			a := r.post(chatPath, `{"model":"m","bootstrap_room":7,"bootstrap_host":null,"messages":[],"x":1e400,"bootstrap_port":[1]}`)
			if a.status != 200 || a.body != okAnswer {
				t.Fatalf("got %+v", a)
			}
			last := len(p.calls()) - 1
			one, two := p.calls()[last].body, d.calls()[last].body
			if one != two {
				t.Errorf("they differ:\n%s\n%s", one, two)
			}
			var got struct {
				Room json.Number `json:"bootstrap_room"`
			}
			if err := json.Unmarshal([]byte(strings.Replace(one, "1e400", "1", 1)), &got); err != nil {
				t.Fatal(err)
			}
			if want := `{"model":"m","bootstrap_room":` + got.Room.String() + `,"bootstrap_host":"engine-w0","messages":[],"x":1e400,"bootstrap_port":8998}`; one != want {
				t.Errorf("got\n%s, want\n%s", one, want)
			}
			if n, err := got.Room.Int64(); err != nil || n < 0 || rooms[got.Room.String()] {
				t.Errorf("room %s", got.Room)
			}
			rooms[got.Room.String()] = true
			r.wantOutcomes("w0>w1 answered")
		}
	})
}

// TestPairAtOnceFails: the first failure wins, and the other half ends with it or, where its engine needs it, goes on.
func TestPairAtOnceFails(t *testing.T) {
	hang := func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() }
	status := func(code int, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Retry-After", "5")
			w.WriteHeader(code)
			_, _ = io.WriteString(w, text)
		}
	}
	headThenHang := func(w http.ResponseWriter, q *http.Request) { startStream(w); <-q.Context().Done() }
	for _, c := range []struct {
		name            string
		prefill, decode http.HandlerFunc // nil: refuse
		status          int
		code, body      string
		strikes         [2]int
		after           time.Duration
	}{
		{"prefill refuses the request", status(400, `{"bad":1}`), hang, 400, "", `{"bad":1}`, [2]int{}, 0},
		{"prefill is full", status(503, `{"full":1}`), hang, 503, "", `{"full":1}`, [2]int{}, 0},
		{"prefill limits", status(429, `{"full":1}`), hang, 429, "", `{"full":1}`, [2]int{}, 0},
		{"prefill fails", status(500, `secret`), hang, 502, "prefill_failed", "", [2]int{1, 0}, 0},
		{"prefill redirects", status(307, ``), hang, 502, "prefill_failed", "", [2]int{}, 0},
		{"prefill fails after the decode's head", status(500, `secret`), headThenHang, 502, "prefill_failed", "", [2]int{1, 0}, 0},
		{"prefill refused", nil, hang, 502, "prefill_failed", "", [2]int{1, 0}, 0},
		{"decode refused", hang, nil, 502, "upstream_unreachable", "", [2]int{0, 1}, 0},
		{"decode fails", hang, status(500, `{"oh":1}`), 500, "", `{"oh":1}`, [2]int{0, 1}, 0},
		{"decode is full", hang, status(503, `{"full":1}`), 503, "", `{"full":1}`, [2]int{}, 0},
		{"prefill is late", hang, headThenHang, 502, "prefill_failed", "", [2]int{1, 0}, time.Minute},
		{"decode is late", status(200, `{}`), hang, 504, "upstream_timeout", "", [2]int{0, 1}, time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, rigOptions{Specs: pair(fleet.SGLang)}, func(t *testing.T, r *rig) {
				for i, h := range []http.HandlerFunc{c.prefill, c.decode} {
					r.engines[i].handler = h
					r.engines[i].refuse.Store(h == nil)
				}
				began := time.Now()
				a := r.post(chatPath, streamed(chatBody))
				if c.code != "" {
					r.wantError(a, c.status, c.code)
				} else if a.status != c.status || a.body != c.body || a.header.Get("Retry-After") != "5" {
					t.Errorf("got %+v", a)
				}
				if took := time.Since(began); took != c.after {
					t.Errorf("after %v", took)
				}
				synctest.Wait()
				r.atRest() // at once: neither half is left behind
				for i, e := range r.engines {
					if _, n := r.reg.Breaker(e.worker); n != c.strikes[i] {
						t.Errorf("%s: %d strikes", e.id, n)
					}
				}
			})
		})
	}
}

// TestPairClientLeaves: the decode half ends at once, the prefill half is let finish.
func TestPairClientLeaves(t *testing.T) {
	bubble(t, rigOptions{Specs: pair(fleet.SGLang)}, func(t *testing.T, r *rig) {
		p, d := r.engines[0], r.engines[1]
		finished := false
		p.handler = func(w http.ResponseWriter, q *http.Request) {
			select {
			case <-time.After(10 * time.Second):
				finished = true
				_, _ = io.WriteString(w, `{}`)
			case <-q.Context().Done():
			}
		}
		d.handler = func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() }
		ctx, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		if resp, err := r.open(ctx, streamed(chatBody)); err == nil {
			_ = resp.Body.Close()
			t.Fatal("an answer")
		}
		r.pass(100 * time.Millisecond)
		if d.calls()[0].gone.IsZero() || d.worker.Load.Active() != 0 || p.worker.Load.Active() != 1 || r.s.Active() != 0 {
			t.Errorf("decode gone at %v with %d in flight, prefill %d", d.calls()[0].gone, d.worker.Load.Active(), p.worker.Load.Active())
		}
		r.pass(10 * time.Second)
		if !finished {
			t.Error("the prefill was cut off")
		}
		r.atRest()
		for _, e := range r.engines {
			if _, n := r.reg.Breaker(e.worker); n != 0 {
				t.Errorf("%s: %d strikes", e.id, n)
			}
		}
	})
}

// TestPairsLeftBehind: of clients that open requests and leave, so many prefill halves go on as may be left behind, by their number and by what they
// hold, which counts. The others end with their clients.
func TestPairsLeftBehind(t *testing.T) {
	for name, c := range map[string]struct{ padding, come, stay int }{
		"by number": {0, maxLeft + 3, maxLeft}, "by size": {300 << 10, 5, 3}, // an eighth of 8 MiB has room for three
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, rigOptions{Specs: pair(fleet.SGLang)}, func(t *testing.T, r *rig) {
				p, d := r.engines[0], r.engines[1]
				release := make(chan struct{})
				var cut, finished atomic.Int64
				p.handler = func(w http.ResponseWriter, q *http.Request) {
					select {
					case <-release:
						finished.Add(1)
						_, _ = io.WriteString(w, `{}`)
					case <-q.Context().Done():
						cut.Add(1)
					}
				}
				d.handler = func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() }
				text := chatBody + strings.Repeat(" ", c.padding)
				for range c.come {
					ctx, leave := context.WithTimeout(t.Context(), 10*time.Millisecond)
					if resp, err := r.open(ctx, text); err == nil {
						_ = resp.Body.Close()
						t.Fatal("an answer")
					}
					leave()
				}
				synctest.Wait()
				if held := r.s.buffered.Load(); held < int64(c.stay*len(text)) {
					t.Errorf("%d bytes are held of %d requests of %d bytes", held, c.stay, len(text))
				}
				if n := p.worker.Load.Active(); n != int64(c.stay) || cut.Load() != int64(c.come-c.stay) {
					t.Errorf("%d are left behind and %d were cut off, of %d", n, cut.Load(), c.come)
				}
				close(release)
				synctest.Wait()
				if n := finished.Load(); n != int64(c.stay) {
					t.Errorf("%d were let finish", n)
				}
				r.atRest()
				for _, e := range r.engines {
					if _, n := r.reg.Breaker(e.worker); n != 0 {
						t.Errorf("%s: %d strikes", e.id, n)
					}
				}
			})
		})
	}
}

// TestPairClientLeavesPrefillFails: SGLang's prefill engine answers 500 when the decode engine gives up. That is no strike where it gave up because the
// client had left.
func TestPairClientLeavesPrefillFails(t *testing.T) {
	bubble(t, rigOptions{Specs: pair(fleet.SGLang)}, func(t *testing.T, r *rig) {
		p, d := r.engines[0], r.engines[1]
		gone := make(chan struct{})
		p.handler = func(w http.ResponseWriter, _ *http.Request) { <-gone; w.WriteHeader(http.StatusInternalServerError) }
		d.handler = func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done(); close(gone) }
		ctx, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		if resp, err := r.open(ctx, chatBody); err == nil {
			_ = resp.Body.Close()
			t.Fatal("an answer")
		}
		r.pass(100 * time.Millisecond)
		r.atRest()
		for _, e := range r.engines {
			if _, n := r.reg.Breaker(e.worker); n != 0 {
				t.Errorf("%s: %d strikes", e.id, n)
			}
		}
	})
}

// TestPairStale: the janitor ends both halves, and the client gets its code, whichever half is noticed first.
func TestPairStale(t *testing.T) {
	hang := func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() }
	for _, k := range []fleet.Kind{fleet.SGLang, fleet.VLLM} {
		bubble(t, rigOptions{Specs: pair(k), Settings: func(s *Settings) { s.Stale, s.RequestTimeout = 10*time.Second, time.Hour }}, func(t *testing.T, r *rig) {
			r.engines[0].handler, r.engines[1].handler = hang, hang
			r.wantError(r.post(chatPath, chatBody), 504, "stale_request_expired")
			synctest.Wait()
			r.atRest()
			if got := r.metric(`stale_requests_total{outcome="expired"}`); got != "1" {
				t.Errorf("%s requests were stale", got)
			}
		})
	}
}

// TestPairCloses: closing the server does not wait for a prefill that nobody waits for.
func TestPairCloses(t *testing.T) {
	bubble(t, rigOptions{Specs: pair(fleet.SGLang), Settings: func(s *Settings) { s.RequestTimeout = time.Hour }}, func(t *testing.T, r *rig) {
		hang := func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() }
		r.engines[0].handler, r.engines[1].handler = hang, hang
		ctx, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		if resp, err := r.open(ctx, chatBody); err == nil {
			_ = resp.Body.Close()
		}
		synctest.Wait()
		began := time.Now()
		r.s.Close()
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// TestPairInTurn: the vLLM prefill engine computes one token, and what it says of its blocks goes to the decode engine as it stands.
func TestPairInTurn(t *testing.T) {
	params := `{"remote_block_ids": [1,2,12345678901234567890], "x":1e400,"remote_host":"h", "unknown":{"a":1.10}}`
	for _, c := range []struct{ name, sent, prefill, decode string }{
		{
			"stream", `{"model":"m","messages":[],"stream":true,"stream_options":{"include_usage":true},"max_tokens":50,"y":1e400}`,
			`{"model":"m","messages":[],"stream":false,"max_tokens":1,"y":1e400,"kv_transfer_params":WANT}`,
			`{"model":"m","messages":[],"stream":true,"stream_options":{"include_usage":true},"max_tokens":50,"y":1e400,"kv_transfer_params":GOT}`,
		},
		{
			"completion tokens", `{"model":"m","messages":[],"max_completion_tokens":9,"kv_transfer_params":{"mine":1}}`,
			`{"model":"m","messages":[],"max_completion_tokens":1,"kv_transfer_params":WANT,"stream":false,"max_tokens":1}`,
			`{"model":"m","messages":[],"max_completion_tokens":9,"kv_transfer_params":GOT}`,
		},
		{
			"least tokens", `{"model":"m","messages":[],"min_tokens":5,"max_tokens":9}`,
			`{"model":"m","messages":[],"max_tokens":1,"kv_transfer_params":WANT,"stream":false}`,
			`{"model":"m","messages":[],"min_tokens":5,"max_tokens":9,"kv_transfer_params":GOT}`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, rigOptions{Specs: pair(fleet.VLLM), Settings: allowAll}, func(t *testing.T, r *rig) {
				p, d := r.engines[0], r.engines[1]
				p.handler = func(w http.ResponseWriter, _ *http.Request) {
					if n := len(d.calls()); n != 0 {
						t.Errorf("the decode engine has %d requests already", n)
					}
					_, _ = io.WriteString(w, `{"choices":[], "kv_transfer_params":`+params+`,"usage":{}}`)
				}
				if a := r.post(chatPath, c.sent); a.status != 200 || a.body != okAnswer {
					t.Fatalf("got %+v", a)
				}
				want := `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`
				if got := p.calls()[0].body; !sameMembers(t, got, strings.Replace(c.prefill, "WANT", want, 1)) {
					t.Errorf("prefill got\n%s", got)
				}
				if got := d.calls()[0].body; got != strings.Replace(c.decode, "GOT", params, 1) {
					t.Errorf("decode got\n%s", got)
				}
			})
		})
	}
}

// sameMembers compares two objects whose members may stand in another order.
func sameMembers(t *testing.T, a, b string) bool {
	read := func(s string) map[string]json.RawMessage {
		var m map[string]json.RawMessage
		if err := json.Unmarshal([]byte(s), &m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	return cmpDiff(read(b), read(a)) == ""
}

// TestPairInTurnFails: nothing goes to the decode engine without a prefill that worked.
func TestPairInTurnFails(t *testing.T) {
	answer := func(code int, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_, _ = io.WriteString(w, text)
		}
	}
	works := answer(200, `{"kv_transfer_params":{"a":1}}`)
	for _, c := range []struct {
		name            string
		prefill, decode http.HandlerFunc // nil: refuse
		status          int
		code            string
		decodes         int
	}{
		{"refuses the request", answer(400, `{"bad":1}`), answer(200, "{}"), 400, "", 0},
		{"is full", answer(503, `{"full":1}`), answer(200, "{}"), 503, "", 0},
		{"fails", answer(500, `{}`), answer(200, "{}"), 502, "prefill_failed", 0},
		{"refused", nil, answer(200, "{}"), 502, "prefill_failed", 0},
		{"no params", answer(200, `{"choices":[]}`), answer(200, "{}"), 502, "prefill_failed", 0},
		{"null params", answer(200, `{"kv_transfer_params":null}`), answer(200, "{}"), 502, "prefill_failed", 0},
		{"not JSON", answer(200, `oh`), answer(200, "{}"), 502, "prefill_failed", 0},
		{"endless", answer(200, `{"x":"`+strings.Repeat("a", 2<<20)+`"}`), answer(200, "{}"), 502, "prefill_failed", 0},
		{"decode refused", works, nil, 502, "upstream_unreachable", 0},
		{"decode fails", works, answer(500, "{}"), 500, "", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, rigOptions{Specs: pair(fleet.VLLM)}, func(t *testing.T, r *rig) {
				for i, h := range []http.HandlerFunc{c.prefill, c.decode} {
					r.engines[i].handler = h
					r.engines[i].refuse.Store(h == nil)
				}
				a := r.post(chatPath, chatBody)
				if a.status != c.status || a.header.Get("X-Router-Error-Code") != c.code {
					t.Errorf("got %+v", a)
				}
				if n := len(r.engines[1].calls()); n != c.decodes {
					t.Errorf("the decode engine got %d requests", n)
				}
				synctest.Wait()
				r.atRest()
			})
		})
	}
}

// TestPairInTurnBatch: several prompts go to no vLLM pair, whose decode engine would answer all of them from the first one's KV; to an SGLang pair they do.
func TestPairInTurnBatch(t *testing.T) {
	for k, want := range map[fleet.Kind]int{fleet.VLLM: 400, fleet.SGLang: 200} {
		bubble(t, rigOptions{Specs: pair(k)}, func(t *testing.T, r *rig) {
			if a := r.post("/v1/completions", `{"model":"m","prompt":[[1,2],[3]]}`); a.status != want {
				t.Errorf("%v: %+v", k, a)
			}
			if n := len(r.engines[0].calls()); n != (want/200)%2 {
				t.Errorf("%v: %d requests for the prefill engine", k, n)
			}
			r.atRest()
		})
	}
}

// TestPairRetry: a pair whose half could not be reached is picked anew as a whole, without that engine.
func TestPairRetry(t *testing.T) {
	for _, k := range []fleet.Kind{fleet.SGLang, fleet.VLLM} {
		for _, bad := range []int{0, 2} {
			bubble(t, rigOptions{Specs: append(pair(k), pair(k)...)}, func(t *testing.T, r *rig) {
				// w0, w2 are prefill engines, w1, w3 decode engines.
				for _, e := range r.engines {
					if e.worker.Stage == fleet.Prefill {
						e.handler = func(w http.ResponseWriter, _ *http.Request) {
							_, _ = io.WriteString(w, `{"kv_transfer_params":{"a":1}}`)
						}
					}
				}
				r.engines[bad].refuse.Store(true)
				r.engines[3-bad].refuse.Store(bad == 0)
				for range 4 {
					if a := r.post(chatPath, chatBody); a.status != 200 {
						t.Errorf("got %+v", a)
					}
				}
				synctest.Wait()
				r.atRest()
			})
		}
	}
}

// TestMixedPair: engines of two families cannot be a pair.
func TestMixedPair(t *testing.T) {
	specs := []fleet.Spec{{Kind: fleet.VLLM, Stage: fleet.Prefill}, {Kind: fleet.SGLang, Stage: fleet.Decode}}
	bubble(t, rigOptions{Specs: specs}, func(t *testing.T, r *rig) {
		r.wantError(r.post(chatPath, chatBody), 503, "worker_misconfigured")
		for mode, w := range map[string]string{"prefill": "w0", "decode": "w1"} {
			if got := r.metric(`worker_requests_total{mode="` + mode + `",model="m",outcome="error",worker="` + w + `"}`); got != "1" {
				t.Errorf("%s has %q errors", w, got)
			}
		}
	})
}

// TestPairBreaksOff: the decode stream breaks, the client sees it.
func TestPairBreaksOff(t *testing.T) {
	bubble(t, rigOptions{Specs: pair(fleet.SGLang)}, func(t *testing.T, r *rig) {
		r.engines[1].raw = func(c net.Conn, _ *seenCall) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n: x\r\n")
		}
		if a := r.post(chatPath, streamed(chatBody)); a.err == nil {
			t.Errorf("got %+v", a)
		}
	})
}

// TestPairInTurnClientLeaves: nobody will fetch what the prefill engine computes, so it ends at once, and the decode engine hears nothing.
func TestPairInTurnClientLeaves(t *testing.T) {
	bubble(t, rigOptions{Specs: pair(fleet.VLLM)}, func(t *testing.T, r *rig) {
		p, d := r.engines[0], r.engines[1]
		p.handler = func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() }
		ctx, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		if resp, err := r.open(ctx, chatBody); err == nil {
			_ = resp.Body.Close()
			t.Fatal("an answer")
		}
		r.pass(100 * time.Millisecond)
		r.atRest()
		if p.calls()[0].gone.IsZero() || len(d.calls()) != 0 {
			t.Errorf("prefill gone at %v, the decode engine got %d requests", p.calls()[0].gone, len(d.calls()))
		}
	})
}

// TestVerdict: of the two halves of a pair the first to speak decides, and the other changes nothing any more.
func TestVerdict(t *testing.T) {
	begin := func() *leg {
		l := &leg{}
		l.life.Under(t.Context())
		return l
	}
	var refusedFirst, failedFirst verdict
	l := begin()
	if !refusedFirst.decodeRefused(l) {
		t.Error("nobody has spoken before the decode engine")
	}
	if refusedFirst.prefillFailed(l); l.life.Err() != nil {
		t.Error("a refusal that is being passed on was ended by the prefill engine")
	}
	l = begin()
	if failedFirst.prefillFailed(l); lifetime.Cause(&l.life) != causeOther {
		t.Errorf("ended by %v", lifetime.Cause(&l.life))
	}
	if failedFirst.decodeRefused(l) {
		t.Error("the prefill engine had spoken before")
	}
}
