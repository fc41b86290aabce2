package api

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
)

// TestRefusals holds the rows of the error table that need no engine.
func TestRefusals(t *testing.T) {
	huge := `{"model":"m","prompt":"` + strings.Repeat("a", 1<<20) + `"}`
	for _, c := range []struct {
		name, method, path, body string
		status                   int
		code                     string
	}{
		{"malformed", "POST", chatPath, `{"model":"m"`, 400, "bad_request"},
		{"empty", "POST", chatPath, ``, 400, "bad_request"},
		{"list", "POST", chatPath, `[]`, 400, "bad_request"},
		{"trailing", "POST", chatPath, chatBody + "x", 400, "bad_request"},
		{"no model", "POST", chatPath, `{"messages":[]}`, 400, "bad_request"},
		{"null model", "POST", chatPath, `{"model":null}`, 400, "bad_request"},
		{"wrong type", "POST", chatPath, `{"model":"m","messages":[],"stream":"yes"}`, 400, "bad_request"},
		{"repeated key", "POST", chatPath, `{"model":"m","messages":[],"max_tokens":1,"max_tokens":1}`, 400, "bad_request"},
		{"repeated key by escape", "POST", chatPath, `{"model":"m","messages":[],"mod\u0065l":"m"}`, 400, "bad_request"},
		{"not UTF-8", "POST", chatPath, "{\"model\":\"m\",\"x\":\"\xff\"}", 400, "bad_request"},
		{"deep", "POST", chatPath, `{"model":"m","x":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + `}`, 400, "bad_request"},
		{"overflow", "POST", textPath, `{"model":"m","prompt":"hi","max_tokens":9223372036854775807}`, 400, "bad_request"},
		{"guarded field", "POST", chatPath, `{"model":"m","messages":[],"bootstrap_room":1}`, 400, "bad_request"},
		{"unknown model", "POST", chatPath, `{"model":"M","messages":[]}`, 404, "model_not_found"},
		{"too large", "POST", textPath, huge, 413, "request_too_large"},
		{"path", "POST", "/v1/embeddings", `{}`, 404, "not_found"},
		{"method", "GET", chatPath, ``, 405, "method_not_allowed"},
		{"method of models", "POST", "/v1/models", ``, 405, "method_not_allowed"},
		{"admin path", "GET", "/metrics", ``, 404, "not_found"},
		{"admin path", "GET", "/debug/workers", ``, 404, "not_found"},
		{"admin path", "POST", "/flush_cache", ``, 404, "not_found"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, rigOptions{}, func(t *testing.T, r *rig) {
				r.wantError(r.do(c.method, c.path, c.body), c.status, c.code)
				if n := len(r.engines[0].calls()); n != 0 {
					t.Errorf("the engine got %d requests", n)
				}
			})
		})
	}
}

// TestSelectionErrors holds the rows that come from a selection.
func TestSelectionErrors(t *testing.T) {
	one := int64(1)
	zero := int64(0)
	group := func(stage fleet.Stage, members []string, l policy.Limits) *bucket.Group {
		return bucket.NewGroup("m", stage, members, policy.NewRoundRobin(l))
	}
	short := bucket.Range{MaxInput: 4}
	for _, c := range []struct {
		name    string
		buckets []*bucket.Bucket
		status  int
		code    string
		message string

		missing, full string // groups that failed so, as counted
	}{
		{"no bucket", []*bucket.Bucket{bucket.NewPlain("a", 0, short, group(fleet.Plain, nil, policy.Limits{}))}, 400, "bad_request", "no bucket of this model takes a request of this length", "", ""},
		{"no plain", []*bucket.Bucket{bucket.NewPlain("a", 0, bucket.Range{}, group(fleet.Plain, []string{}, policy.Limits{}))}, 503, "no_healthy_workers", "no plain engine is available", "1", ""},
		{"no prefill", []*bucket.Bucket{bucket.NewPD("a", 0, bucket.Range{}, group(fleet.Prefill, []string{}, policy.Limits{}), group(fleet.Decode, nil, policy.Limits{}))}, 503, "no_prefill_workers_available", "no prefill engine is available", "1", ""},
		{"no decode", []*bucket.Bucket{bucket.NewPD("a", 0, bucket.Range{}, group(fleet.Prefill, nil, policy.Limits{}), group(fleet.Decode, []string{}, policy.Limits{}))}, 503, "no_decode_workers_available", "no decode engine is available", "1", ""},
		{"full", []*bucket.Bucket{bucket.NewPlain("a", 0, bucket.Range{}, group(fleet.Plain, nil, policy.Limits{MaxInflightRequests: &zero}))}, 503, "policy_selection_failed", "max_inflight_requests rejected 1 engine", "", "1"},
		{"full, then missing", []*bucket.Bucket{
			bucket.NewPlain("a", 0, bucket.Range{MaxInput: 100}, group(fleet.Plain, nil, policy.Limits{MaxInflightRequests: &zero})),
			bucket.NewPlain("b", 0, bucket.Range{}, group(fleet.Plain, []string{}, policy.Limits{MaxInflightRequests: &one})),
		}, 503, "policy_selection_failed", "max_inflight_requests rejected 1 engine", "1", "1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			specs := []fleet.Spec{{Kind: fleet.SGLang}, {Kind: fleet.SGLang, Stage: fleet.Prefill}, {Kind: fleet.SGLang, Stage: fleet.Decode}}
			bubble(t, rigOptions{Specs: specs, Buckets: func(func(fleet.Stage) *bucket.Group) []*bucket.Bucket { return c.buckets }}, func(t *testing.T, r *rig) {
				a := r.post(textPath, `{"model":"m","prompt":[1,2,3,4,5]}`)
				r.wantError(a, c.status, c.code)
				if !strings.Contains(a.body, `"message":"`+c.message+`"`) {
					t.Errorf("the message is %s", a.body)
				}
				for class, want := range map[policy.Class]string{policy.NoCandidates: c.missing, policy.NoAdmissibleEngine: c.full} {
					if got := r.metric(`policy_selection_failures_total{policy="round_robin",reason="` + class.String() + `"}`); got != want {
						t.Errorf("%s was counted %q times, want %q", class, got, want)
					}
				}
			})
		})
	}
}

// TestTooLargeUndeclared: a body of undeclared length gets its 413 once the limit is passed, and the connection ends.
func TestTooLargeUndeclared(t *testing.T) {
	bubble(t, rigOptions{}, func(t *testing.T, r *rig) {
		req := r.request(t.Context(), "POST", textPath, "")
		in, out := io.Pipe()
		req.Body, req.ContentLength = in, -1
		r.wg.Go(func() {
			_, err := io.WriteString(out, `{"model":"m","prompt":"`+strings.Repeat("a", 2<<20))
			_ = out.CloseWithError(err)
		})
		resp, err := r.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		_ = in.Close()
		r.wantError(answer{resp.StatusCode, resp.Header, string(b), err}, 413, "request_too_large")
		if !resp.Close {
			t.Error("the connection stays open, with the rest of the body in it")
		}
	})
}

// TestStalledBody: a sender that falls silent is cut off after BodyStall with an answer, at every place where it can, and
// its connection ends.
func TestStalledBody(t *testing.T) {
	for _, c := range []struct{ name, text, code string }{
		{"nothing sent", "POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n", "request_timeout"},
		{"part sent", "POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"model\":", "request_timeout"},
		{"chunked", "POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{\"model\":\r\n", "request_timeout"},
		{"other method", "PUT " + chatPath + " HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{", "method_not_allowed"},
		{"other path", "POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{", "not_found"},
		{"models", "GET /v1/models HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{", ""},
		{"health", "GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, rigOptions{}, func(t *testing.T, r *rig) {
				began := time.Now()
				conn, in := r.raw(c.text)
				resp, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Fatal(err)
				}
				b, err := io.ReadAll(resp.Body)
				if c.code == "request_timeout" {
					r.wantError(answer{resp.StatusCode, resp.Header, string(b), err}, 408, c.code)
				} else if got := resp.Header.Get("X-Router-Error-Code"); got != c.code {
					t.Errorf("code %q", got)
				}
				if took := time.Since(began); took > bodyStall {
					t.Errorf("answered after %v", took)
				}
				if _, err := in.ReadByte(); err == nil {
					t.Error("the connection sends more")
				}
				if took := time.Since(began); took > bodyStall+time.Second {
					t.Errorf("closed after %v", took)
				}
				_ = conn.Close()
			})
		})
	}
}

// TestSlowBody: a sender that is slow but never silent is served; one that goes on for longer than a request may last is cut off.
func TestSlowBody(t *testing.T) {
	drip := func(r *rig, text string, every time.Duration) answer {
		conn, in := r.raw("POST " + textPath + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " + itoa(len(text)) + "\r\n\r\n")
		r.wg.Go(func() {
			for i := range len(text) {
				<-time.After(every)
				if _, err := conn.Write([]byte{text[i]}); err != nil {
					return
				}
			}
		})
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			return answer{err: err}
		}
		b, err := io.ReadAll(resp.Body)
		_ = conn.Close()
		return answer{resp.StatusCode, resp.Header, string(b), err}
	}
	t.Run("a byte at a time", func(t *testing.T) {
		bubble(t, rigOptions{}, func(t *testing.T, r *rig) {
			if a := drip(r, textBody, time.Second); a.status != 200 || a.body != okAnswer {
				t.Errorf("got %+v", a)
			}
		})
	})
	t.Run("too long", func(t *testing.T) {
		bubble(t, rigOptions{}, func(t *testing.T, r *rig) {
			r.wantError(drip(r, textBody, 10*time.Second), 408, "request_timeout")
		})
	})
}

// TestBodyBreaksOff: a sender that goes away in its body is not answered, and nothing is sent to an engine.
func TestBodyBreaksOff(t *testing.T) {
	bubble(t, rigOptions{}, func(t *testing.T, r *rig) {
		conn, _ := r.raw("POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
		r.pass(time.Second)
		_ = conn.Close()
		r.pass(time.Second)
		if got := r.access.last(); got["status"] != int64(499) || got["client_left"] != true {
			t.Errorf("the log says %v", got)
		}
	})
	bubble(t, rigOptions{}, func(t *testing.T, r *rig) { // chunks that are none
		conn, in := r.raw("POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
		r.wantError(readAnswer(in), 400, "bad_request")
		_ = conn.Close()
	})
}

func readAnswer(in *bufio.Reader) answer {
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		return answer{err: err}
	}
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(b), err}
}

// TestUpstreamErrors holds the rows that come from an engine.
func TestUpstreamErrors(t *testing.T) {
	script := func(text string) func(net.Conn, *seenCall) {
		return func(c net.Conn, _ *seenCall) { _, _ = io.WriteString(c, text) }
	}
	hang := func(c net.Conn, _ *seenCall) { _, _ = c.Read(make([]byte, 1)) }
	for _, c := range []struct {
		name   string
		raw    func(net.Conn, *seenCall) // nil: refuse
		status int
		code   string
		strike bool
	}{
		{"refused", nil, 502, "upstream_unreachable", true},
		{"closed before any byte", script(""), 502, "upstream_unreachable", true},
		{"garbage", script("SSH-2.0-OpenSSH_9.6\r\n"), 502, "upstream_invalid_answer", true},
		{"half a head", script("HTTP/1.1 200 OK\r\nContent-"), 502, "upstream_invalid_answer", true},
		{"a status that is none", script("HTTP/1.1 042 What\r\nContent-Length: 0\r\n\r\n"), 502, "upstream_invalid_answer", true},
		{"switching protocols", script("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"), 502, "upstream_invalid_answer", true},
		{"header bomb", script("HTTP/1.1 200 OK\r\nX-Bomb: " + strings.Repeat("b", 100<<10) + "\r\nContent-Length: 0\r\n\r\n"), 502, "upstream_invalid_answer", true},
		{"two lengths", script("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc"), 502, "upstream_invalid_answer", true},
		{"length that lies", script("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"a\":"), 502, "upstream_body_incomplete", true},
		{"chunks that break off", script("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"a\":\r\n"), 502, "upstream_body_incomplete", true},
		{"JSON to the close that breaks off", script("HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{\"a\":"), 502, "upstream_body_incomplete", true},
		{"no head in time", hang, 504, "upstream_timeout", true},
		{"no body in time", func(c net.Conn, s *seenCall) {
			script("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"a\":")(c, s)
			hang(c, s)
		}, 504, "upstream_timeout", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, rigOptions{}, func(t *testing.T, r *rig) {
				e := r.engines[0]
				e.raw = c.raw
				e.refuse.Store(c.raw == nil)
				r.wantError(r.post(chatPath, chatBody), c.status, c.code)
				if _, n := r.reg.Breaker(e.worker); (n == 1) != c.strike {
					t.Errorf("%d strikes", n)
				}
				if got := r.s.Explain.Records(noQuery); len(got) != 1 || got[0].Code != c.code || !got[0].Done {
					t.Errorf("the decision log has %+v", got)
				}
				synctest.Wait()
				if got := r.access.last(); got["status"] != int64(c.status) || got["error_code"] != c.code {
					t.Errorf("the access log has %v", got)
				}
			})
		})
	}
}

// TestEngineHangs: an engine that hangs at one stage or another costs what is stated, and is struck.
func TestEngineHangs(t *testing.T) {
	never := func(c net.Conn) { <-time.After(time.Hour); _ = c.Close() }
	long := `{"model":"m","prompt":"` + strings.Repeat("x", 900<<10) + `"}`
	for _, c := range []struct {
		name, scheme, path, body string
		drop                     bool
		status                   int
		code                     string
		after                    time.Duration
	}{
		{"at the connection", "", chatPath, chatBody, true, 502, "upstream_unreachable", 5 * time.Second},
		{"in the handshake of TLS", "https", chatPath, chatBody, false, 502, "upstream_unreachable", 5 * time.Second},
		{"without reading a short body", "", chatPath, chatBody, false, 504, "upstream_timeout", time.Minute},
		{"without reading a long body", "", textPath, long, false, 504, "upstream_timeout", time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, rigOptions{Specs: []fleet.Spec{{Kind: fleet.VLLM, URL: c.scheme}}}, func(t *testing.T, r *rig) {
				e := r.engines[0]
				e.bare = never
				e.drop.Store(c.drop)
				began := time.Now()
				r.wantError(r.post(c.path, c.body), c.status, c.code)
				if took := time.Since(began); took != c.after {
					t.Errorf("answered after %v", took)
				}
				if _, n := r.reg.Breaker(e.worker); n != 1 {
					t.Errorf("%d strikes", n)
				}
				r.pass(2 * time.Hour)
			})
		})
	}
}

// TestIncompleteNamesUpstreamStatus: the status that the engine had begun with is told.
func TestIncompleteNamesUpstreamStatus(t *testing.T) {
	bubble(t, rigOptions{}, func(t *testing.T, r *rig) {
		r.engines[0].raw = func(c net.Conn, _ *seenCall) {
			_, _ = io.WriteString(c, "HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\n{")
		}
		a := r.post(chatPath, chatBody)
		r.wantError(a, 502, "upstream_body_incomplete")
		if got := a.header.Get("X-Router-Upstream-Status"); got != "201" {
			t.Errorf("x-router-upstream-status is %q", got)
		}
	})
}

// TestStaleBeforeHeaders: the janitor's answer.
func TestStaleBeforeHeaders(t *testing.T) {
	bubble(t, rigOptions{Settings: func(s *Settings) { s.Stale, s.RequestTimeout = 10*time.Second, time.Hour }}, func(t *testing.T, r *rig) {
		e := r.engines[0]
		e.handler = func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() }
		began := time.Now()
		r.wantError(r.post(chatPath, chatBody), 504, "stale_request_expired")
		if took := time.Since(began); took > 11*time.Second {
			t.Errorf("after %v", took)
		}
		r.pass(time.Second)
		if _, n := r.reg.Breaker(e.worker); n != 0 || len(e.aborts()) != 1 {
			t.Errorf("%d strikes, aborts %v", n, e.aborts())
		}
	})
}

// TestNothingThere: what no path and no method answers is an error of our own in the envelope, for who has a key, and is counted.
func TestNothingThere(t *testing.T) {
	bubble(t, rigOptions{Keys: ring(t)}, func(t *testing.T, r *rig) {
		odd := []string{"//v1/models", "/v1//models", "/v1/./models", "/v1/../metrics", "/v1/models/", "/%761/models", "/v1%2fmodels", "/V1/models", "/v1/responses"}
		for _, path := range odd {
			r.wantError(r.do("GET", path, ""), 401, "invalid_api_key")
			r.wantError(r.do("GET", path, "", "Authorization", "Bearer "+keyAll), 404, "not_found")
		}
		r.wantError(r.do("DELETE", "/v1/models", "", "Authorization", "Bearer "+keyAll), 405, "method_not_allowed")
		r.wantError(r.do("GET", "/tokenize", "", "Authorization", "Bearer "+keyAll), 405, "method_not_allowed")
		for code, want := range map[string]int{"invalid_api_key": len(odd), "not_found": len(odd), "method_not_allowed": 2} {
			if got := r.metric(`refused_total{code="` + code + `"}`); got != strconv.Itoa(want) {
				t.Errorf("%s was counted %q times, want %d", code, got, want)
			}
		}
	})
}
