package api

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
)

func event(text string) string {
	return `data: {"object":"chat.completion.chunk","choices":[{"delta":{"content":"` + text + `"}}]}` + "\n\n"
}

const doneEvent = "data: [DONE]\n\n"

func startStream(w http.ResponseWriter) *http.ResponseController {
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(200)
	rc := http.NewResponseController(w)
	_ = rc.Flush()
	return rc
}

// open sends a streamed request and returns its answer as soon as the head is there.
func (r *rig) open(ctx context.Context, text string) (*http.Response, error) {
	return r.client.Do(r.request(ctx, "POST", chatPath, text, "Authorization", "Bearer k"))
}

// TestProbeIsAStream: an engine that has begun to answer its probe is there for others at once, however long that answer takes; one that has not, when another
// cool-down has passed.
func TestProbeIsAStream(t *testing.T) {
	for _, begins := range []bool{true, false} {
		bubble(t, rigOptions{Settings: func(s *Settings) { s.StreamIdle = time.Hour }}, func(t *testing.T, r *rig) {
			e := r.engines[0]
			e.handler = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }
			for range 3 {
				r.post(chatPath, chatBody)
			}
			r.wantError(r.post(chatPath, chatBody), 503, "no_healthy_workers")
			r.pass(30 * time.Second)
			end := make(chan struct{})
			e.handler = func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				if begins {
					_, _ = io.WriteString(w, "data: {}\n\n")
				}
				_ = http.NewResponseController(w).Flush()
				<-end
			}
			resp, err := r.open(t.Context(), streamed(chatBody))
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			e.handler = nil
			if a := r.post(chatPath, chatBody); begins == (a.status != 200) {
				t.Errorf("with the probe's answer begun %v: %d", begins, a.status)
			}
			r.pass(30 * time.Second)
			if a := r.post(chatPath, chatBody); a.status != 200 {
				t.Errorf("with the probe's answer begun %v, after another cool-down: %d", begins, a.status)
			}
			close(end)
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		})
	}
}

// TestStreamIsFlushed: the client has each part before the engine sends the next one, the head before any.
func TestStreamIsFlushed(t *testing.T) {
	for _, contentType := range []string{"text/event-stream", "application/x-ndjson"} {
		bubble(t, rigOptions{}, func(t *testing.T, r *rig) {
			next := make(chan struct{})
			r.engines[0].handler = func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", contentType)
				rc := http.NewResponseController(w)
				_ = rc.Flush()
				for range 50 {
					<-next
					_, _ = io.WriteString(w, event("x"))
					_ = rc.Flush()
				}
				<-next
				_, _ = io.WriteString(w, doneEvent)
			}
			resp, err := r.open(t.Context(), streamed(chatBody))
			if err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, len(event("x")))
			began := time.Now()
			for i := range 50 {
				next <- struct{}{}
				if _, err := io.ReadFull(resp.Body, buf); err != nil || string(buf) != event("x") {
					t.Fatalf("part %d: %q, %v", i, buf, err)
				}
			}
			next <- struct{}{}
			rest, err := io.ReadAll(resp.Body)
			if string(rest) != doneEvent || err != nil {
				t.Errorf("the end is %q, %v", rest, err)
			}
			if took := time.Since(began); took != 0 {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// TestClientLeaves: the engine's connection is closed within 100 ms wherever the client leaves, the engine is told where it has
// a way, and it is no strike.
func TestClientLeaves(t *testing.T) {
	silent := func(w http.ResponseWriter, q *http.Request) { startStream(w); <-q.Context().Done() }
	for _, c := range []struct {
		name    string
		kind    fleet.Kind
		body    string
		handler http.HandlerFunc
		aborts  int
		status  int
	}{
		{"before headers", fleet.SGLang, chatBody, func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() }, 1, 499},
		{"before headers, vLLM", fleet.VLLM, chatBody, func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() }, 0, 499},
		{"in a whole answer", fleet.SGLang, chatBody, func(w http.ResponseWriter, q *http.Request) {
			_, _ = io.WriteString(w, "{")
			_ = http.NewResponseController(w).Flush()
			<-q.Context().Done()
		}, 1, 499},
		{"on a silent stream", fleet.SGLang, streamed(chatBody), silent, 1, 200},
		{"on a silent stream, vLLM", fleet.VLLM, streamed(chatBody), silent, 0, 200},
		{"on a silent stream of many", fleet.SGLang, streamed(`{"model":"m","messages":[],"n":2}`), silent, 0, 200},
		{"in a stream", fleet.SGLang, streamed(chatBody), func(w http.ResponseWriter, q *http.Request) {
			rc := startStream(w)
			for q.Context().Err() == nil {
				_, _ = io.WriteString(w, event("x"))
				_ = rc.Flush()
				<-time.After(10 * time.Millisecond)
			}
		}, 1, 200},
		{"on a failed stream", fleet.SGLang, streamed(chatBody), func(w http.ResponseWriter, q *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			w.WriteHeader(500)
			_ = http.NewResponseController(w).Flush()
			<-q.Context().Done()
		}, 0, 500},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, rigOptions{Specs: plain(1, c.kind)}, func(t *testing.T, r *rig) {
				e := r.engines[0]
				e.handler = c.handler
				ctx, leave := context.WithCancel(t.Context())
				r.wg.Go(func() {
					resp, err := r.open(ctx, c.body)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				})
				r.pass(5 * time.Second)
				if n := e.worker.Load.Active(); n != 1 {
					t.Fatalf("%d in flight", n)
				}
				left := time.Now()
				leave()
				r.pass(100 * time.Millisecond)
				if gone := e.calls()[0].gone; gone.IsZero() || gone.Sub(left) > 100*time.Millisecond {
					t.Errorf("the engine noticed at %v, the client left at %v", gone, left)
				}
				r.atRest()
				if n := len(e.aborts()); n != c.aborts {
					t.Errorf("%d aborts", n)
				}
				if c.aborts > 0 {
					rid := e.calls()[0].body[strings.Index(e.calls()[0].body, `"rid":"`)+7:][:32]
					if e.aborts()[0] != `Bearer k{"abort_all":false,"rid":"`+rid+`"}` {
						t.Errorf("the abort is %s, the id was %s", e.aborts()[0], rid)
					}
				}
				if _, n := r.reg.Breaker(e.worker); n != 0 {
					t.Errorf("%d strikes", n)
				}
				log := r.access.last()
				if log["client_left"] != true || log["status"] != int64(c.status) {
					t.Errorf("the log has %v", log)
				}
				if got := r.metric(`worker_requests_total{mode="plain",model="m",outcome="cancelled",worker="w0"}`); got != "1" {
					t.Errorf("cancelled %q times", got)
				}
				if got := r.s.Explain.Records(noQuery)[0].Attempts[0].Outcome; got != "the client left" {
					t.Errorf("the decision log has %q", got)
				}
			})
		})
	}
}

// TestBrokenStream: an answer that breaks after its head never ends cleanly for the client, and is the engine's fault.
func TestBrokenStream(t *testing.T) {
	for _, c := range []struct{ name, answer string }{
		{"chunked", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + hexa(len(event("x"))) + "\r\n" + event("x") + "\r\n"},
		{"chunked, after the end event", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + hexa(len(doneEvent)) + "\r\n" + doneEvent + "\r\n"},
		{"bad chunk", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + hexa(len(event("x"))) + "\r\n" + event("x") + "\r\nzz\r\n"},
		{"length", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 1000\r\n\r\n" + event("x")},
		{"to the close", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + event("x")},
		{"HTTP/1.0", "HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + event("x")},
		{"no type, to the close", "HTTP/1.1 200 OK\r\n\r\n" + event("x")},
		{"long", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2000000\r\n\r\n{" + strings.Repeat(" ", 1500000)},
		{"long, to the close", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{" + strings.Repeat(" ", 1500000)},
		{"half an event", "HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + event("x")[:20]},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, rigOptions{Specs: plain(2, fleet.VLLM)}, func(t *testing.T, r *rig) {
				for _, e := range r.engines {
					e.raw = func(conn net.Conn, _ *seenCall) { _, _ = io.WriteString(conn, c.answer) }
				}
				a := r.post(chatPath, streamed(chatBody))
				if a.status != 200 || a.err == nil {
					t.Fatalf("got %d, %v, %.100q", a.status, a.err, a.body)
				}
				if !errors.Is(a.err, io.ErrUnexpectedEOF) {
					t.Errorf("the client sees %v", a.err)
				}
				synctest.Wait()
				if n := len(r.engines[0].calls()) + len(r.engines[1].calls()); n != 1 {
					t.Errorf("%d requests: an answer that has begun is never tried again", n)
				}
				strikes := 0
				for _, e := range r.engines {
					_, n := r.reg.Breaker(e.worker)
					strikes += n
				}
				if strikes != 1 {
					t.Errorf("%d strikes", strikes)
				}
				if log := r.access.last(); log["broken"] != true || log["client_left"] != nil {
					t.Errorf("the log has %v", log)
				}
			})
		})
	}
}

// TestStreamTimeouts: silence within a stream ends it, its length does not; the janitor ends even one that talks.
func TestStreamTimeouts(t *testing.T) {
	talk := func(every time.Duration, n int) http.HandlerFunc {
		return func(w http.ResponseWriter, q *http.Request) {
			rc := startStream(w)
			for range n {
				select {
				case <-time.After(every):
				case <-q.Context().Done():
					return
				}
				_, _ = io.WriteString(w, event("x"))
				_ = rc.Flush()
			}
			_, _ = io.WriteString(w, doneEvent)
		}
	}
	for _, c := range []struct {
		name    string
		handler http.HandlerFunc
		broken  bool
		after   time.Duration
		strikes int
		outcome string
		aborts  int
	}{
		{"longer than a request may take", talk(19*time.Second, 30), false, 570 * time.Second, 0, "ok", 0},
		{"silent", talk(21*time.Second, 1), true, 20 * time.Second, 1, "upstream_error", 1},
		{"too old", talk(10*time.Second, 1000), true, time.Hour, 0, "expired", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, rigOptions{}, func(t *testing.T, r *rig) {
				e := r.engines[0]
				e.handler = c.handler
				began := time.Now()
				a := r.post(chatPath, streamed(chatBody))
				took := time.Since(began)
				if (a.err != nil) != c.broken || took < c.after || took > c.after+time.Minute {
					t.Errorf("ended after %v with %v", took, a.err)
				}
				r.pass(time.Second)
				if _, n := r.reg.Breaker(e.worker); n != c.strikes || len(e.aborts()) != c.aborts {
					t.Errorf("%d strikes, %d aborts", n, len(e.aborts()))
				}
				if got := r.metric(`stream_outcome_total{model="m",outcome="` + c.outcome + `",worker="w0"}`); got != "1" {
					t.Errorf("outcome %s %q times", c.outcome, got)
				}
			})
		})
	}
}

// TestSlowReader: a client that stops reading is ended by its time-out and nobody else is to blame; meanwhile the gateway takes
// no more from the engine than its buffers hold.
func TestSlowReader(t *testing.T) {
	var written atomic.Int64
	flood := func(w http.ResponseWriter, q *http.Request) {
		rc := startStream(w)
		for q.Context().Err() == nil && written.Load() < 10<<20 {
			n, err := io.WriteString(w, event(strings.Repeat("x", 1000)))
			written.Add(int64(n))
			if err != nil || rc.Flush() != nil {
				return
			}
		}
	}
	for _, c := range []struct {
		name    string
		body    string
		handler http.HandlerFunc
		status  int
		outcome string
	}{
		{"stream", streamed(chatBody), flood, 200, "cancelled"},
		{"long answer", chatBody, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", itoa(4<<20))
			for written.Load() < 4<<20 {
				n, err := io.WriteString(w, strings.Repeat(" ", 4<<10))
				written.Add(int64(n))
				if err != nil {
					return
				}
			}
		}, 200, "cancelled"},
		{"answer that fits", chatBody, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat(" ", 100<<10))
		}, 200, "success"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, rigOptions{}, func(t *testing.T, r *rig) {
				e := r.engines[0]
				e.handler = c.handler
				written.Store(0)
				conn, _ := r.raw("POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nContent-Length: " + itoa(len(c.body)) + "\r\n\r\n" + c.body)
				r.pass(clientStall - time.Second)
				if n := r.s.Active(); n != 1 {
					t.Fatalf("%d active", n)
				}
				if n := written.Load(); n > 128<<10 {
					t.Errorf("%d bytes were taken for a client that reads none", n)
				}
				if a := r.post(chatPath, `{"model":"x"}`); a.status != 404 {
					t.Errorf("another client got %+v", a)
				}
				r.pass(2 * time.Second)
				if n := r.s.Active(); n != 0 {
					t.Errorf("%d active", n)
				}
				r.atRest()
				if _, n := r.reg.Breaker(e.worker); n != 0 {
					t.Errorf("%d strikes", n)
				}
				if got := r.metric(`worker_requests_total{mode="plain",model="m",outcome="` + c.outcome + `",worker="w0"}`); got != "1" {
					t.Errorf("%s %q times", c.outcome, got)
				}
				r.wantSlowReader(c.name == "stream")
				_ = conn.Close()
			})
		})
	}
}

// TestSlowReaderOfTheEnd: a client that does not read the end of its answer, which the server writes when all else is done, is told of as one that reads too slowly; one
// that has left, as one that left.
func TestSlowReaderOfTheEnd(t *testing.T) {
	request := "POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nContent-Length: " + itoa(len(chatBody)) + "\r\n\r\n" + chatBody
	bubble(t, rigOptions{}, func(t *testing.T, r *rig) {
		conn, _ := r.raw(request)
		r.pass(clientStall + time.Second)
		if last := r.access.last(); last["outcome"] != outcomeSlow || last["client_left"] != nil || last["broken"] != true {
			t.Errorf("the access log has %v", last)
		}
		if got := r.metric(`slow_readers_total{model="m"}`); got != "1" {
			t.Errorf("%q slow readers", got)
		}
		r.atRest()
		_ = conn.Close()
	})
	bubble(t, rigOptions{}, func(t *testing.T, r *rig) {
		conn, _ := r.raw(request)
		r.pass(clientStall / 2)
		_ = conn.Close()
		if last := r.access.last(); last["outcome"] != "cancelled" || last["client_left"] != true {
			t.Errorf("the access log has %v", last)
		}
		if got := r.metric(`slow_readers_total{model="m"}`); got != "" {
			t.Errorf("%q slow readers", got)
		}
	})
}

// TestSlowReaderOfTokens: a client that does not read the tokens that it asked for is counted as others are.
func TestSlowReaderOfTokens(t *testing.T) {
	modelBubble(t, measured(t), rigOptions{Settings: func(s *Settings) { s.MaxBuffered = 64 << 20 }}, func(t *testing.T, r *rig) {
		question := `{"model":"m","prompt":"` + strings.Repeat("hello ", 10_000) + `"}`
		conn, _ := r.raw("POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: " + itoa(len(question)) + "\r\n\r\n" + question)
		r.pass(clientStall + time.Second)
		if got := r.metric(`slow_readers_total{model="m"}`); got != "1" {
			t.Errorf("%q slow readers", got)
		}
		r.atRest()
		_ = conn.Close()
	})
}

// TestSlowReaderIsNotTheEngine: a client that reads a part just within its time-out, again and again, for longer than the
// engine may be silent or take, has the whole answer.
func TestSlowReaderIsNotTheEngine(t *testing.T) {
	text := strings.Repeat(event(strings.Repeat("x", 3000)), 40) + doneEvent
	long := `{"x":"` + strings.Repeat("y", 1<<20) + `"}`
	for _, c := range []struct {
		name, contentType, body, answer string
		part                            int
	}{
		{"stream", "text/event-stream", streamed(chatBody), text, 10_000},
		{"long answer", "application/json", chatBody, long, 100_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, rigOptions{}, func(t *testing.T, r *rig) {
				r.engines[0].handler = func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Type", c.contentType)
					_, _ = io.WriteString(w, c.answer)
				}
				conn, in := r.raw("POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " + itoa(len(c.body)) + "\r\n\r\n" + c.body)
				slow := &slowReader{r: in, every: c.part, pause: 100 * time.Second}
				a := readAnswer(bufio.NewReaderSize(slow, 16))
				if a.err != nil || a.body != c.answer {
					t.Errorf("%d bytes of %d came, then %v", len(a.body), len(c.answer), a.err)
				}
				if _, n := r.reg.Breaker(r.engines[0].worker); n != 0 {
					t.Errorf("%d strikes", n)
				}
				_ = conn.Close()
			})
		})
	}
}

// slowReader pauses each time it has passed on so many bytes.
type slowReader struct {
	r     io.Reader
	every int
	pause time.Duration
	n     int
}

func (s *slowReader) Read(p []byte) (int, error) {
	if s.n >= s.every {
		s.n = 0
		<-time.After(s.pause)
	}
	n, err := s.r.Read(p)
	s.n += n
	return n, err
}

// TestKeptConnection: a client's connection serves again after a stream, and after a pause longer than any deadline of the
// request before.
func TestKeptConnection(t *testing.T) {
	bubble(t, rigOptions{}, func(t *testing.T, r *rig) {
		conn, in := r.raw("")
		r.engines[0].handler = func(w http.ResponseWriter, _ *http.Request) {
			startStream(w)
			<-time.After(15 * time.Second)
			_, _ = io.WriteString(w, event("x")+doneEvent)
		}
		b := streamed(chatBody)
		for range 3 {
			r.wg.Go(func() {
				_, _ = io.WriteString(conn, "POST "+chatPath+" HTTP/1.1\r\nHost: x\r\nContent-Length: "+itoa(len(b))+"\r\n\r\n"+b)
			})
			if a := readAnswer(in); a.err != nil || a.body != event("x")+doneEvent {
				t.Fatalf("got %+v", a)
			}
			r.pass(115 * time.Second)
			r.wg.Go(func() { _, _ = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n") })
			if a := readAnswer(in); a.status != 200 {
				t.Fatalf("got %+v", a)
			}
		}
		_ = conn.Close()
	})
}

// TestThousandIdleStreams: all are noticed to be left within a second, and nothing of them stays.
func TestThousandIdleStreams(t *testing.T) {
	const n = 1000
	bubble(t, rigOptions{Specs: plain(4, fleet.SGLang)}, func(t *testing.T, r *rig) {
		for _, e := range r.engines {
			e.handler = func(w http.ResponseWriter, q *http.Request) { startStream(w); <-q.Context().Done() }
		}
		ctx, leave := context.WithCancel(t.Context())
		for range n {
			r.wg.Go(func() {
				if resp, err := r.open(ctx, streamed(chatBody)); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				}
			})
		}
		r.pass(time.Second)
		if got := r.tracker.Held(); got != n {
			t.Errorf("%d streams are open", got)
		}
		leave()
		r.pass(100 * time.Millisecond)
		r.atRest()
		aborts := 0
		for _, e := range r.engines {
			aborts += len(e.aborts())
		}
		if dropped := r.metric(`aborts_total{result="dropped"}`); aborts != n {
			t.Errorf("%d aborts came, %s were dropped", aborts, dropped)
		}
	})
}

// TestNeverReads: a client that reads no answer at all, not even a short one, has its connection closed.
func TestNeverReads(t *testing.T) {
	for _, path := range []string{"/healthz", "/v1/models", "/nowhere", chatPath} {
		bubble(t, rigOptions{}, func(t *testing.T, r *rig) {
			conn, _ := r.raw("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n")
			r.pass(clientStall - time.Second)
			if _, err := conn.Write([]byte("G")); err != nil {
				t.Errorf("%s: closed too early: %v", path, err)
			}
			r.pass(2 * time.Second)
			if _, err := conn.Write([]byte("E")); !errors.Is(err, io.ErrClosedPipe) {
				t.Errorf("%s: the connection is open: %v", path, err)
			}
		})
	}
}

// TestSlowLongAnswer: a long answer that is not streamed has one time-out for the whole of it, however it trickles.
func TestSlowLongAnswer(t *testing.T) {
	bubble(t, rigOptions{Specs: plain(1, fleet.VLLM)}, func(t *testing.T, r *rig) {
		e := r.engines[0]
		e.handler = func(w http.ResponseWriter, q *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, "{"+strings.Repeat(" ", 2<<20))
			for q.Context().Err() == nil {
				_, _ = io.WriteString(w, " ")
				_ = http.NewResponseController(w).Flush()
				<-time.After(time.Second)
			}
		}
		began := time.Now()
		a := r.post(chatPath, chatBody)
		if took := time.Since(began); a.err == nil || took != time.Minute {
			t.Errorf("ended after %v with %v", took, a.err)
		}
		if _, n := r.reg.Breaker(e.worker); n != 1 {
			t.Errorf("%d strikes", n)
		}
	})
}

// wantSlowReader checks that the last answer is told of as one that its client did not read.
func (r *rig) wantSlowReader(stream bool) {
	r.t.Helper()
	if last := r.access.last(); last["outcome"] != outcomeSlow || last["client_left"] != nil {
		r.t.Errorf("the access log has %v", last)
	}
	if got := r.metric(`slow_readers_total{model="m"}`); got != "1" {
		r.t.Errorf("%q slow readers", got)
	}
	if got := r.metric(`stream_outcome_total{model="m",outcome="slow_reader",worker="w0"}`); stream && got != "1" {
		r.t.Errorf("%q streams", got)
	}
	if got := r.metric(`stream_outcome_total{model="m",outcome="client_disconnect",worker="w0"}`); got != "" {
		r.t.Errorf("%q streams of clients that left", got)
	}
	if rec := r.s.Explain.Records(noQuery); !strings.Contains(rec[0].Attempts[0].Outcome, "too slowly") {
		r.t.Errorf("the decision log has %+v", rec[0].Attempts)
	}
}
