package api

import (
	"bufio"
	"compress/gzip"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/api/body"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
)

// TestRequestBytes: what the gateway does not read arrives as it was sent.
func TestRequestBytes(t *testing.T) {
	odd := `"x": 1e400, "a":1.10,"a":9007199254740993 ,"é\u00e9\ud83d\ude00":"\u0041\/","nested":{"z":-0.0,"z":[1E5,{"b":1,"b":2}]},"big":123456789012345678901234567890`
	for _, c := range []struct {
		name, path, body string
		kind             fleet.Kind
		settings         func(*Settings)
		contract         string
		want             string // RID stands for the id that the gateway made
	}{
		{"as it is", chatPath, ` {"model":"m","messages":[{"role":"user","content":"hi","unknown":1.10}],` + odd + "}\n", fleet.VLLM, nil, "", ""},
		{"as it is, text", textPath, `{` + odd + `,"prompt":[[1,2],[3]],"model":"m"}`, fleet.VLLM, nil, "", ""},
		{"with rid", chatPath, `{"model":"m","messages":[],` + odd + ` } `, fleet.SGLang, nil, "", `{"model":"m","messages":[],` + odd + ` ,"rid":"RID"} `},
		{"no rid for many sequences", chatPath, `{"model":"m","messages":[],"n":2,` + odd + `}`, fleet.SGLang, nil, "", ""},
		{"no rid for a batch", textPath, `{"model":"m","prompt":["a","b"],` + odd + `}`, fleet.SGLang, nil, "", ""},
		{"the client's rid", chatPath, `{"rid":"mine","model":"m","messages":[]}`, fleet.SGLang, func(s *Settings) { s.Refused = 0 }, "", ""},
		{"rid stripped", chatPath, `{"rid":"mine","model":"m","messages":[]}`, fleet.SGLang, func(s *Settings) { s.Refused, s.Stripped = 0, body.ProtectedKeys }, "", `{"rid":"RID","model":"m","messages":[]}`},
		{"guarded fields stripped", chatPath, `{"model":"m","bootstrap_host":"x","messages":[],"extra_key":1,"cache_salt":"s"}`, fleet.VLLM, func(s *Settings) { s.Refused, s.Stripped = 0, body.ProtectedKeys }, "", `{"model":"m","messages":[]}`},
		{"what clients may set", chatPath, `{"model":"m","messages":[],"priority":1,"request_id":"mine","session_id":"s"}`, fleet.VLLM, nil, "", ""},
		{"guarded fields allowed", chatPath, `{"model":"m","bootstrap_host":"x","messages":[],"cache_salt":"s"}`, fleet.VLLM, func(s *Settings) { s.Refused = 0 }, "", ""},
		{"sampling injected", chatPath, `{"model":"m","messages":[],"top_p":null,` + odd + `}`, fleet.VLLM, nil, `{"temperature":0.70,"top_p":1.0}`, `{"model":"m","messages":[],"top_p":1.0,` + odd + `,"temperature":0.70}`},
		{"sampling agrees", chatPath, `{"model":"m","messages":[],"temperature":"0.7"}`, fleet.VLLM, nil, `{"temperature":0.70}`, ""},
		{"sampling beyond a double", chatPath, `{"model":"m","messages":[],"temperature":1e400}`, fleet.VLLM, nil, `{"top_p":1}`, `{"model":"m","messages":[],"temperature":1e400,"top_p":1}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, rigOptions{Specs: plain(1, c.kind), Settings: c.settings, Contract: c.contract}, func(t *testing.T, r *rig) {
				if a := r.post(c.path, c.body); a.status != 200 {
					t.Fatalf("got %+v", a)
				}
				want := c.want
				if want == "" {
					want = c.body
				}
				got := r.engines[0].calls()[0]
				if i := strings.Index(want, "RID"); i >= 0 && len(got.body) >= i+32 {
					want = want[:i] + got.body[i:i+32] + want[i+3:]
				}
				if got.body != want || got.path != c.path {
					t.Errorf("%s got\n%s, want\n%s", got.path, got.body, want)
				}
				if got.header.Get("Content-Length") != "" && got.header.Get("Content-Length") != itoa(len(want)) {
					t.Errorf("length %s", got.header.Get("Content-Length"))
				}
			})
		})
	}
}

// TestGuardedFieldsRefused: each field that a client may not set is refused by name, and only its name.
func TestGuardedFieldsRefused(t *testing.T) {
	for k := range body.ProtectedKeys.All() {
		t.Run(k.String(), func(t *testing.T) {
			bubble(t, rigOptions{}, func(t *testing.T, r *rig) {
				a := r.post(chatPath, `{"model":"m","messages":[],"`+k.String()+`":null}`)
				r.wantError(a, 400, "bad_request")
				if !strings.Contains(a.body, k.String()) {
					t.Errorf("the field is not named: %s", a.body)
				}
			})
		})
	}
}

// TestSamplingContract: a violation is refused, counted for each field, and names the first.
func TestSamplingContract(t *testing.T) {
	bubble(t, rigOptions{Contract: `{"temperature":{"min":0,"max":1},"top_p":0.9}`}, func(t *testing.T, r *rig) {
		for _, b := range []string{`"temperature":1.5,"top_p":0.5`, `"temperature":1e400,"top_p":[]`, `"temperature":true,"temperature":1`} {
			a := r.post(chatPath, `{"model":"m","messages":[],`+b+`}`)
			if strings.Contains(b, "true") {
				r.wantError(a, 400, "bad_request") // we read it, so it may stand there once
				continue
			}
			r.wantError(a, 400, "sampling_contract_violation")
			if !strings.Contains(a.body, "temperature") {
				t.Errorf("got %s", a.body)
			}
		}
		if got := r.metric(`sampling_contract_rejections_total{param="top_p"}`); got != "2" {
			t.Errorf("top_p was counted %s times", got)
		}
	})
}

// TestHeaders: the whitelist, both ways.
func TestHeaders(t *testing.T) {
	bubble(t, rigOptions{}, func(t *testing.T, r *rig) {
		e := r.engines[0]
		e.handler = func(w http.ResponseWriter, _ *http.Request) {
			for k, v := range map[string]string{
				"Content-Type": "application/json; charset=utf-8", "Retry-After": "7", "X-Request-Id": "the engine's", "Set-Cookie": "a=b",
				"Server": "uvicorn", "X-Engine": "http://engine-w0:8000", "Location": "http://engine-w0:8000/x", "Content-Encoding": "identity",
			} {
				w.Header().Set(k, v)
			}
			_, _ = io.WriteString(w, okAnswer)
		}
		a := r.post(chatPath, chatBody,
			"Authorization", "Bearer k", "X-Request-Id", "id-1", "X-Request-Id-Parent", "p", "X-Correlation-Id", "c", "Traceparent", "t", "Tracestate", "s",
			"X-Sgl-Foo", "f", "X-Sgl-Foo", "g", "Cookie", "secret=1", "X-Session-Id", "s", "X-Data-Parallel-Rank", "3", "Accept", "text/html", "User-Agent", "curl",
			"X-Forwarded-For", "1.2.3.4", "Te", "trailers", "Content-Type", "text/plain", "Accept-Encoding", "gzip")
		got := e.calls()[0].header
		want := http.Header{
			"Authorization": {"Bearer k"}, "X-Request-Id": {"id-1"}, "X-Request-Id-Parent": {"p"}, "X-Correlation-Id": {"c"}, "Traceparent": {"t"}, "Tracestate": {"s"},
			"X-Sgl-Foo": {"f", "g"}, "Content-Type": {"application/json"}, "User-Agent": {"perigee"}, "Content-Length": got["Content-Length"],
		}
		if diff := cmpDiff(want, got); diff != "" {
			t.Errorf("to the engine (- want):\n%s", diff)
		}
		a.header.Del("Date")
		back := http.Header{
			"X-Request-Id": {"id-1"}, "Content-Type": {"application/json; charset=utf-8"}, "Content-Encoding": {"identity"}, "Retry-After": {"7"}, "Content-Length": {itoa(len(okAnswer))},
		}
		if diff := cmpDiff(back, a.header); diff != "" {
			t.Errorf("to the client (- want):\n%s", diff)
		}
	})
}

// TestRequestID: the client's comes back if it can stand in a log line; else it gets a new one.
func TestRequestID(t *testing.T) {
	for _, c := range []struct {
		name string
		sent []string
		kept bool
	}{
		{"own", []string{"req-1"}, true},
		{"longest", []string{strings.Repeat("x", 128)}, true},
		{"none", nil, false},
		{"empty", []string{""}, false},
		{"too long", []string{strings.Repeat("x", 129)}, false},
		{"with a space", []string{"a b"}, false},
		{"not ASCII", []string{"é"}, false},
		{"two", []string{"first", "second"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, rigOptions{}, func(t *testing.T, r *rig) {
				var header []string
				for _, id := range c.sent {
					header = append(header, "X-Request-Id", id)
				}
				a := r.post(chatPath, chatBody, header...)
				got := a.header["X-Request-Id"]
				if len(got) != 1 || (c.kept && got[0] != c.sent[0]) || (!c.kept && (len(got[0]) != 32 || strings.Trim(got[0], "0123456789abcdef") != "")) {
					t.Errorf("came back as %q", got)
				}
				if at := r.engines[0].calls()[0].header["X-Request-Id"]; len(at) != 1 || at[0] != got[0] {
					t.Errorf("the engine got %q", at)
				}
				if log := r.access.last(); log["request_id"] != got[0] {
					t.Errorf("the log has %v", log["request_id"])
				}
			})
		})
	}
}

// TestAnswerBytes: what an engine answers arrives as it was sent, whatever it is.
func TestAnswerBytes(t *testing.T) {
	long := `{"text":"` + strings.Repeat("é", 1<<20) + `","usage":{"prompt_tokens":7}}`
	sse := ": comment\r\n\r\ndata: {\"a\":1}\r\ndata: more\r\n\r\nevent: x\nid: 1\nretry: 5\ndata:{\"choices\":[]}\n\n\ndata: [DONE]\n\n"
	var packed [2]string // gzip's: nothing can be read in them
	for i, text := range []string{okAnswer, event("x") + doneEvent} {
		var b strings.Builder
		z := gzip.NewWriter(&b)
		_, _ = io.WriteString(z, text)
		_ = z.Close()
		packed[i] = b.String()
	}
	const coding = "Content-Encoding: gzip\r\n"
	head := func(status, contentType, more string) string {
		h := "HTTP/1.1 " + status + "\r\n"
		if contentType != "" {
			h += "Content-Type: " + contentType + "\r\n"
		}
		return h + more + "\r\n"
	}
	length := func(b string) string { return "Content-Length: " + itoa(len(b)) + "\r\n" }
	chunked := func(b string) string {
		return strings.ToUpper(hexa(len(b))) + ";ext=1\r\n" + b + "\r\n0\r\nTrailer-X: y\r\n\r\n"
	}
	for _, c := range []struct {
		name, request, answer string
		status                int
		contentType           string
		body                  string
	}{
		{"JSON", chatBody, head("200 OK", "application/json", length(okAnswer)) + okAnswer, 200, "application/json", okAnswer},
		{"JSON, chunked", chatBody, head("200 OK", "application/json", "Transfer-Encoding: chunked\r\n") + chunked(okAnswer), 200, "application/json", okAnswer},
		{"JSON to the close", chatBody, head("200 OK", "application/json", "Connection: close\r\n") + okAnswer, 200, "application/json", okAnswer},
		{"JSON, HTTP/1.0", chatBody, strings.Replace(head("200 OK", "application/json", ""), "1.1", "1.0", 1) + okAnswer, 200, "application/json", okAnswer},
		{"long", chatBody, head("200 OK", "application/json", length(long)) + long, 200, "application/json", long},
		{"long, chunked", chatBody, head("200 OK", "application/json", "Transfer-Encoding: chunked\r\n") + chunked(long), 200, "application/json", long},
		{"long to the close", chatBody, head("200 OK", "application/json", "") + long, 200, "application/json", long},
		{"long text to the close", chatBody, head("200 OK", "text/plain", "") + long[:len(long)-1], 200, "text/plain", long[:len(long)-1]},
		{"not JSON though it says so", chatBody, head("200 OK", "application/json", length("\xff\x00")) + "\xff\x00", 200, "application/json", "\xff\x00"},
		{"odd type", chatBody, head("200 OK", "Text/HTML ;CHARSET=x", length("<p>")) + "<p>", 200, "Text/HTML ;CHARSET=x", "<p>"},
		{"no type", chatBody, head("200 OK", "", length("<html>")) + "<html>", 200, "", "<html>"},
		{"broken type", chatBody, head("200 OK", ";;/", length("x")) + "x", 200, ";;/", "x"},
		{"empty", chatBody, head("200 OK", "application/json", length("")), 200, "application/json", ""},
		{"no content", chatBody, head("204 No Content", "", ""), 204, "", ""},
		{"not modified", chatBody, head("304 Not Modified", "", ""), 304, "", ""},
		{"stream", streamed(chatBody), head("200 OK", "text/event-stream", "Transfer-Encoding: chunked\r\n") + chunked(sse), 200, "text/event-stream", sse},
		{"stream with a charset", streamed(chatBody), head("200 OK", "Text/Event-Stream; charset=utf-8", "Transfer-Encoding: chunked\r\n") + chunked(sse), 200, "Text/Event-Stream; charset=utf-8", sse},
		{"stream with a length", streamed(chatBody), head("200 OK", "text/event-stream", length(sse)) + sse, 200, "text/event-stream", sse},
		{"stream to the close", streamed(chatBody), head("200 OK", "text/event-stream", "") + sse, 200, "text/event-stream", sse},
		{"stream of another kind to the close", streamed(chatBody), head("200 OK", "text/event-stream", "") + ": nothing of OpenAI's\n\n", 200, "text/event-stream", ": nothing of OpenAI's\n\n"},
		{"stream without a type", streamed(chatBody), head("200 OK", "", "Transfer-Encoding: chunked\r\n") + chunked(sse), 200, "", sse},
		{"stream that nobody asked for", chatBody, head("200 OK", "text/event-stream", "Transfer-Encoding: chunked\r\n") + chunked(sse), 200, "text/event-stream", sse},
		{"JSON instead of a stream", streamed(chatBody), head("200 OK", "application/json", length(okAnswer)) + okAnswer, 200, "application/json", okAnswer},
		{"packed", chatBody, head("200 OK", "application/json", coding+length(packed[0])) + packed[0], 200, "application/json", packed[0]},
		{"packed to the close", chatBody, head("200 OK", "application/json", coding) + packed[0], 200, "application/json", packed[0]},
		{"long and packed to the close", chatBody, head("200 OK", "application/json", coding) + packed[0] + long, 200, "application/json", packed[0] + long},
		{"packed stream to the close", streamed(chatBody), head("200 OK", "text/event-stream", coding) + packed[1], 200, "text/event-stream", packed[1]},
		{"client error", streamed(chatBody), head("422 No", "application/json", length(`{"detail":"http"}`)) + `{"detail":"http"}`, 422, "application/json", `{"detail":"http"}`},
		{"server error as a stream", streamed(chatBody), head("500 Oh", "text/event-stream", "Transfer-Encoding: chunked\r\n") + chunked("data: {\"error\":1}\n\n"), 500, "text/event-stream", "data: {\"error\":1}\n\n"},
		{"informational first", chatBody, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + head("200 OK", "application/json", length(okAnswer)) + okAnswer, 200, "application/json", okAnswer},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, rigOptions{}, func(t *testing.T, r *rig) {
				r.engines[0].raw = func(conn net.Conn, _ *seenCall) { _, _ = io.WriteString(conn, c.answer) }
				a := r.post(chatPath, c.request)
				if a.err != nil || a.status != c.status || a.body != c.body {
					t.Fatalf("got %d %v %.200q", a.status, a.err, a.body)
				}
				if got := strings.Join(a.header["Content-Type"], "|"); got != c.contentType {
					t.Errorf("content type %q", got)
				}
				if _, n := r.reg.Breaker(r.engines[0].worker); (n > 0) != (c.status >= 500) {
					t.Errorf("%d strikes", n)
				}
			})
		})
	}
}

// TestOverloadPassesOn: an engine's 503 and 429 arrive with their Retry-After, and are no strike.
func TestOverloadPassesOn(t *testing.T) {
	for _, status := range []int{503, 429} {
		bubble(t, rigOptions{Specs: plain(2, fleet.VLLM)}, func(t *testing.T, r *rig) {
			for _, e := range r.engines {
				e.handler = func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Retry-After", "11")
					w.Header().Set("Content-Type", "application/json")
					w.WriteHeader(status)
					_, _ = io.WriteString(w, `{"error":"busy"}`)
				}
			}
			for range 8 {
				if a := r.post(chatPath, chatBody); a.status != status || a.header.Get("Retry-After") != "11" || a.body != `{"error":"busy"}` {
					t.Fatalf("got %+v", a)
				}
			}
			for _, e := range r.engines {
				if _, n := r.reg.Breaker(e.worker); n != 0 || len(e.calls()) != 4 {
					t.Errorf("%s: %d strikes, %d requests", e.id, n, len(e.calls()))
				}
			}
		})
	}
}

// TestAnswerBeforeBody: an engine that answers before it has read the request is heard, and is not at fault.
func TestAnswerBeforeBody(t *testing.T) {
	bubble(t, rigOptions{}, func(t *testing.T, r *rig) {
		e := r.engines[0]
		done := make(chan struct{})
		e.bare = func(c net.Conn) {
			if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 413 Too Long\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
			<-done
		}
		a := r.post(textPath, `{"model":"m","prompt":"`+strings.Repeat("a", 500_000)+`"}`)
		if a.status != 413 || a.body != "{}" || a.header.Get("X-Router-Error-Code") != "" {
			t.Errorf("got %+v", a)
		}
		if _, n := r.reg.Breaker(e.worker); n != 0 {
			t.Errorf("%d strikes", n)
		}
		close(done)
	})
}
