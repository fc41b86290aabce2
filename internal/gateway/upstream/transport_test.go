package upstream

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pieces is a request body in pieces. When nobody is to read it any more it becomes another: who still sends it is seen to.
type pieces struct {
	parts [][]byte
	sent  int // times that it was said to be
}

func (p *pieces) Pieces() [][]byte         { return append([][]byte(nil), p.parts...) }
func (p *pieces) Read([]byte) (int, error) { panic("a body in pieces is not read") }
func (p *pieces) Close() error             { return nil }

func (p *pieces) Sent() {
	p.sent++
	for _, part := range p.parts {
		for i := range part {
			part[i] = '!'
		}
	}
}

// engine answers one in-memory connection with a script: it reads a request whole, then writes the parts one by one.
type engine struct {
	t     *testing.T
	parts [][]string // of each connection, of each request
	dials int
	got   []string // requests as they came
}

// dial implements Options.Dial: a further connection to the engine.
func (e *engine) dial(context.Context, string, string) (net.Conn, error) {
	if e.dials == len(e.parts) {
		return nil, errors.New("connection refused")
	}
	client, server := net.Pipe()
	answers := e.parts[e.dials]
	e.dials++
	go func() {
		defer server.Close()
		br := bufio.NewReader(server)
		for _, a := range answers {
			req, err := http.ReadRequest(br)
			if err != nil {
				return
			}
			text, err := io.ReadAll(req.Body)
			if err != nil {
				return
			}
			e.got = append(e.got, req.Method+" "+req.URL.Path+" "+string(text))
			for part := range strings.SplitSeq(a, "|") {
				if part == "CLOSE" {
					return
				}
				if part == "HANG" {
					_, _ = br.ReadByte() // until the other side goes
					return
				}
				if _, err := io.WriteString(server, part); err != nil {
					return
				}
			}
		}
		_, _ = br.ReadByte()
	}()
	return client, nil
}

func post(ctx context.Context, body ...string) *http.Request {
	p := new(pieces)
	n := 0
	for _, b := range body {
		p.parts = append(p.parts, []byte(b))
		n += len(b)
	}
	req := &http.Request{
		Method: http.MethodPost, URL: &url.URL{Scheme: "http", Host: "engine:80", Path: "/v1/completions"},
		Header: http.Header{"Content-Type": {"application/json"}}, ContentLength: int64(n), Body: p,
	}
	return req.WithContext(ctx)
}

// bubble runs a script of connections in a synctest bubble.
func bubble(t *testing.T, parts [][]string, f func(*testing.T, *Transport, *engine)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := &engine{t: t, parts: parts}
		tr := New(Options{Dial: e.dial})
		defer func() {
			tr.Close()
			synctest.Wait()
		}()
		f(t, tr, e)
	})
}

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"

// TestAnswers holds what each answer is read as, and whether its connection is kept.
func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		name, answer string
		want         string // status, body, how it ended
		idle         int
	}{
		{"fixed length", ok + "hello", `200 "hello" EOF`, 1},
		{"fixed length in parts", ok + "he|l|lo", `200 "hello" EOF`, 1},
		{"nothing", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", `200 "" EOF`, 1},
		{"no content", "HTTP/1.1 204 No Content\r\n\r\n", `204 "" EOF`, 1},
		{"line feeds alone", "HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", `200 "hello" EOF`, 1},
		{"no phrase", "HTTP/1.1 503\r\nContent-Length: 5\r\n\r\nhello", `503 "hello" EOF`, 1},
		{"the engine closes", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello", `200 "hello" EOF`, 0},
		{"HTTP/1.0", "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", `200 "hello" EOF`, 0},
		{"HTTP/1.0 that stays", "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello", `200 "hello" EOF`, 1},
		{"to the end", "HTTP/1.1 200 OK\r\n\r\nhel|lo|CLOSE", `200 "hello" EOF`, 0},
		{"chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n|2;x=y\r\nlo\r\n0\r\n\r\n", `200 "hello" EOF`, 1},
		{"chunks split anywhere", "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n|0|3|\r|\n|he|l\r|\n2\r\nlo\r\n|0\r\n|\r\n", `200 "hello" EOF`, 1},
		{"chunks with a trailer", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n", `200 "hello" EOF`, 1},
		{"continue first", "HTTP/1.1 100 Continue\r\n\r\n" + ok + "hello", `200 "hello" EOF`, 1},
		{"equal lengths", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", `200 "hello" EOF`, 1},

		{"cut in the body", ok + "hel|CLOSE", `200 "hel" unexpected EOF`, 0},
		{"cut in a chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel|CLOSE", `200 "hel" unexpected EOF`, 0},
		{"cut between chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n|CLOSE", `200 "hel" unexpected EOF`, 0},
		{"cut before the last line", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n|CLOSE", `200 "hello" unexpected EOF`, 0},
		{"chunk too long for its size", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhello\r\n0\r\n\r\n", `200 "hel" the answer has a malformed chunk`, 0},
		{"chunk size not a number", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n", `200 "" the answer has a malformed chunk`, 0},
		{"chunk size too large", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1000000000000000\r\nhello\r\n", `200 "" the answer has a malformed chunk`, 0},
		{"chunk line without end", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;" + strings.Repeat("x", 5000), `200 "" the answer has a chunk line that is too long`, 0},
		{"more than was said", ok + "helloHTTP/1.1 200 OK\r\n", `200 "hello" EOF`, 0},

		{"garbage", "SSH-2.0-OpenSSH_9\r\n\r\n|CLOSE", `answering: the answer does not begin as HTTP/1 does`, 0},
		{"HTTP/2", "HTTP/2.0 200 OK\r\n\r\n", `answering: the answer does not begin as HTTP/1 does`, 0},
		{"status of four digits", "HTTP/1.1 2000 OK\r\n\r\n", `answering: the answer does not begin as HTTP/1 does`, 0},
		{"status below 100", "HTTP/1.1 099 OK\r\n\r\n", `answering: the answer does not begin as HTTP/1 does`, 0},
		{"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", `answering: the answer's Content-Length is not one number`, 0},
		{"length with a sign", "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello", `answering: the answer's Content-Length is not one number`, 0},
		{"length beyond int64", "HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775808\r\n\r\n", `answering: the answer's Content-Length is not one number`, 0},
		{"length and chunks", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", `answering: the answer has a Content-Length and a Transfer-Encoding`, 0},
		{"another encoding", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", `answering: the answer's Transfer-Encoding is not chunked`, 0},
		{"folded line", "HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n", `answering: the answer has a malformed header line`, 0},
		{"space before the colon", "HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\n", `answering: the answer has a malformed header line`, 0},
		{"NUL in a value", "HTTP/1.1 200 OK\r\nX: a\x00b\r\n\r\n", `answering: the answer has a malformed header line`, 0},
		{"head cut", "HTTP/1.1 200 OK\r\nConte|CLOSE", `answering: unexpected EOF`, 0},
		{"header bomb", "HTTP/1.1 200 OK\r\n" + strings.Repeat("X-A: "+strings.Repeat("b", 1000)+"\r\n", 70), `answering: the answer's head is too long`, 0},
		{"one endless header", "HTTP/1.1 200 OK\r\nX-A: " + strings.Repeat("b", 100_000), `answering: the answer's head is too long`, 0},
		{"continue without end", strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 20), `answering: informational answers without end`, 0},
		{"switched protocols", "HTTP/1.1 101 Switching Protocols\r\n\r\n", `answering: the engine switched protocols`, 0},
		{"nothing at all", "CLOSE", `asking: unexpected EOF`, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, [][]string{{c.answer}}, func(t *testing.T, tr *Transport, _ *engine) {
				if got := ask(tr, post(t.Context(), `{"a":`, `1}`)); got != c.want {
					t.Errorf("got  %s\nwant %s", got, c.want)
				}
				synctest.Wait()
				if n := tr.Idle(); n != c.idle {
					t.Errorf("%d idle connections, want %d", n, c.idle)
				}
			})
		})
	}
}

var stageNames = map[Stage]string{Dialing: "dialing", Asking: "asking", Answering: "answering", Refused: "refused"}

// ask makes a request and tells how it went, and whether the body's sender was told otherwise than once, or though nothing was sent.
func ask(tr *Transport, req *http.Request) (got string) {
	resp, err := tr.RoundTrip(req)
	defer func() {
		want := 1
		if e, ok := errors.AsType[*Error](err); ok && e.Stage == Dialing {
			want = 0
		}
		if p, ok := req.Body.(*pieces); ok && p.sent != want {
			got += fmt.Sprintf(", sent %d times", p.sent)
		}
	}()
	if err != nil {
		var e *Error
		if !errors.As(err, &e) {
			return "another error: " + err.Error()
		}
		reused := ""
		if e.Reused {
			reused = "reused, "
		}
		return reused + stageNames[e.Stage] + ": " + err.Error()
	}
	defer resp.Body.Close()
	text, end := readSlowly(resp.Body)
	return fmt.Sprintf("%d %q %v", resp.StatusCode, text, end)
}

// readSlowly reads with a small buffer to the end, and returns the end too.
func readSlowly(r io.Reader) (string, error) {
	var b bytes.Buffer
	p := make([]byte, 3)
	for {
		n, err := r.Read(p)
		b.Write(p[:n])
		if err != nil {
			return b.String(), err
		}
	}
}

func TestConnectionsAreKept(t *testing.T) {
	bubble(t, [][]string{{ok + "first", ok + "again"}, {ok + "third"}}, func(t *testing.T, tr *Transport, e *engine) {
		for i, want := range []string{`200 "first" EOF`, `200 "again" EOF`} {
			if got := ask(tr, post(t.Context(), "x")); got != want {
				t.Errorf("request %d: %s", i, got)
			}
			synctest.Wait()
		}
		tr.mu.Lock()
		for _, s := range tr.mu.shelves {
			list := s.idle
			if c := list[0]; c.hung != nil || c.stop != nil {
				t.Error("an idle connection keeps the request that went over it")
			}
		}
		tr.mu.Unlock()
		if e.dials != 1 {
			t.Errorf("%d connections", e.dials)
		}
		time.Sleep(121 * time.Second) // on the fake clock: the sweeper closes it
		if n := tr.Idle(); n != 0 {
			t.Errorf("%d idle after the time-out", n)
		}
		if got := ask(tr, post(t.Context(), "x")); got != `200 "third" EOF` || e.dials != 2 {
			t.Errorf("%s over %d connections", got, e.dials)
		}
	})
}

// TestIdleIsBounded: of the connections that a burst needed only so many are kept.
// remembering is a body that remembers where connections are kept.
type remembering struct {
	*pieces
	shelf **Shelf
}

func (r remembering) Shelf() **Shelf { return r.shelf }

// TestShelf: what a body remembers saves looking up where connections are kept, and what is old, of another place or of another transport is looked up.
func TestShelf(t *testing.T) {
	var parts [][]string
	for i := range 8 {
		parts = append(parts, []string{fmt.Sprintf("%s%d-1st", ok, i), fmt.Sprintf("%s%d-2nd", ok, i), fmt.Sprintf("%s%d-3rd", ok, i)})
	}
	bubble(t, parts, func(t *testing.T, tr *Transport, e *engine) {
		other := New(Options{Dial: e.dial})
		defer other.Close()
		var shelf *Shelf
		want := func(tr *Transport, host, answer string) {
			t.Helper()
			req := post(t.Context(), "x")
			req.URL.Host, req.Body = host, remembering{req.Body.(*pieces), &shelf}
			if got := ask(tr, req); got != fmt.Sprintf("200 %q EOF", answer) {
				t.Fatalf("%s, want %s", got, answer)
			}
			synctest.Wait()
		}
		want(tr, "a:80", "0-1st")
		want(tr, "a:80", "0-2nd")
		at := func(host string) *Shelf {
			tr.mu.Lock()
			defer tr.mu.Unlock()
			return tr.mu.shelves[place{"http", host}]
		}
		if shelf == nil || shelf != at("a:80") {
			t.Fatal("it is not remembered where connections are kept")
		}
		want(tr, "b:80", "1-1st") // not over what is remembered
		want(tr, "b:80", "1-2nd")
		want(other, "b:80", "2-1st")
		want(tr, "b:80", "1-3rd")
		tr.CloseIdleConnections()
		want(tr, "b:80", "3-1st") // what is remembered is gone
		want(tr, "b:80", "3-2nd")
		if n := tr.Idle(); n != 1 || shelf != at("b:80") {
			t.Fatalf("%d idle connections", n)
		}
		time.Sleep(121 * time.Second) // on the fake clock: they were idle too long
		want(tr, "b:80", "4-1st")
		want(tr, "engine:80", "5-1st")
		resp, err := tr.RoundTrip(post(t.Context(), "x")) // over a connection whose shelf is given up meanwhile
		if err != nil {
			t.Fatal(err)
		}
		tr.CloseIdleConnections()
		if got, end := readSlowly(resp.Body); got != "5-2nd" || end != io.EOF {
			t.Fatalf("%q %v", got, end)
		}
		if n := tr.Idle(); n != 1 {
			t.Fatalf("%d idle connections", n)
		}
	})
}

func TestIdleIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{t: t, parts: [][]string{{ok + "first"}, {ok + "again"}, {ok + "third"}}}
		tr := New(Options{Dial: e.dial, IdlePerHost: 2})
		defer func() {
			tr.Close()
			synctest.Wait()
		}()
		var open []*http.Response
		for range 3 {
			resp, err := tr.RoundTrip(post(t.Context(), "x"))
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, resp)
		}
		for _, resp := range open {
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				t.Error(err)
			}
			_ = resp.Body.Close()
		}
		if n := tr.Idle(); e.dials != 3 || n != 2 {
			t.Errorf("%d of %d connections are kept, want 2 of 3", n, e.dials)
		}
	})
}

func TestAnEndedConnectionIsToldApart(t *testing.T) {
	bubble(t, [][]string{{ok + "first", "CLOSE"}}, func(t *testing.T, tr *Transport, e *engine) {
		ask(tr, post(t.Context(), "x"))
		synctest.Wait()
		if got := ask(tr, post(t.Context(), "x")); got != "reused, asking: unexpected EOF" {
			t.Error(got)
		}
		if got := ask(tr, post(t.Context(), "x")); got != "dialing: connection refused" {
			t.Error(got)
		}
	})
}

// TestOneEndedMeansAll holds that after a kept connection ended the others that are idle are not tried one by one.
func TestOneEndedMeansAll(t *testing.T) {
	stale := []string{ok + "first", "CLOSE"}
	bubble(t, [][]string{stale, stale, stale, stale, {ok + "fresh"}}, func(t *testing.T, tr *Transport, e *engine) {
		var open []*http.Response
		for range 4 {
			resp, err := tr.RoundTrip(post(t.Context(), "x"))
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, resp)
		}
		for _, resp := range open {
			_, _ = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
		synctest.Wait()
		if n := tr.Idle(); n != 4 {
			t.Fatalf("%d idle", n)
		}
		if got := ask(tr, post(t.Context(), "x")); got != "reused, asking: unexpected EOF" {
			t.Error(got)
		}
		if got := ask(tr, post(t.Context(), "x")); got != `200 "fresh" EOF` || e.dials != 5 {
			t.Errorf("%s over %d connections", got, e.dials)
		}
	})
}

// TestContextEnds holds that a connection is closed as soon as its context ends, at each stage.
func TestContextEnds(t *testing.T) {
	for _, answer := range []string{"HANG", "HTTP/1.1 200 OK\r\nConte|HANG", ok + "he|HANG", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n|HANG"} {
		bubble(t, [][]string{{answer}}, func(t *testing.T, tr *Transport, _ *engine) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			began := time.Now()
			resp, err := tr.RoundTrip(post(ctx, "x"))
			if err == nil {
				_, err = io.ReadAll(resp.Body)
				resp.Body.Close()
			} else if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%q: %v", answer, err)
			}
			if took := time.Since(began); err == nil || took != time.Second {
				t.Errorf("%q: %v after %v", answer, err, took)
			}
			if tr.Idle() != 0 {
				t.Error("the connection was kept")
			}
		})
	}
}

// TestAnswerBeforeTheBody holds that an engine may answer without having read the request.
func TestAnswerBeforeTheBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := New(Options{Dial: func(context.Context, string, string) (net.Conn, error) {
			client, server := net.Pipe()
			go func() {
				br := bufio.NewReader(server)
				for {
					line, err := br.ReadString('\n')
					if err != nil || line == "\r\n" {
						break
					}
				}
				_, _ = io.WriteString(server, "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
				<-t.Context().Done()
				server.Close()
			}()
			return client, nil
		}})
		defer tr.Close()
		if got := ask(tr, post(t.Context(), strings.Repeat("x", 1<<20))); got != `413 "no" EOF` {
			t.Error(got)
		}
		if tr.Idle() != 0 {
			t.Error("a connection with half a request on it was kept")
		}
	})
}

func TestRequestsThatCannotBeSent(t *testing.T) {
	bubble(t, [][]string{{ok + "hello"}, {ok + "hello"}, {ok + "hello"}}, func(t *testing.T, tr *Transport, _ *engine) {
		value := post(t.Context(), "x")
		value.Header.Set("X-A", "a\r\nX-B: b")
		name := post(t.Context(), "x")
		name.Header["X A"] = []string{"b"}
		host := post(t.Context(), "x")
		host.URL.Host = "a b"
		for _, req := range []*http.Request{value, name, host} {
			if got := ask(tr, req); !strings.HasPrefix(got, "refused: ") {
				t.Error(got)
			}
		}
	})
}

// TestAgainstNetHTTP holds the whole against net/http's server over real sockets: bodies of many sizes, streamed and not, with
// connections kept.
func TestAgainstNetHTTP(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if r.Header.Get("X-Stream") != "" {
			for len(text) > 0 {
				n := min(len(text), 1000)
				_, _ = w.Write(text[:n])
				_ = http.NewResponseController(w).Flush()
				text = text[n:]
			}
			return
		}
		_, _ = w.Write(text)
	}))
	defer srv.Close()
	tr := New(Options{})
	defer tr.Close()
	u, _ := url.Parse(srv.URL)
	for _, size := range []int{0, 1, 100, 4095, 4096, 4097, 70_000, 3 << 20} {
		for _, stream := range []bool{false, true} {
			req := post(t.Context(), strings.Repeat("a", size/2), strings.Repeat("b", size-size/2))
			req.URL = u
			if stream {
				req.Header.Set("X-Stream", "1")
			}
			resp, err := tr.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			var text []byte
			if stream { // as a relay reads: it waits without a buffer, over sockets that can
				for p := make([]byte, 700); err == nil; {
					resp.Body.(Waiter).Wait()
					var n int
					n, err = resp.Body.Read(p)
					text = append(text, p[:n]...)
				}
				if errors.Is(err, io.EOF) {
					err = nil
				}
			} else {
				text, err = io.ReadAll(resp.Body)
			}
			resp.Body.Close()
			if err != nil || len(text) != size || strings.Count(string(text), "b") != size-size/2 {
				t.Errorf("size %d, stream %v: %d bytes, %v", size, stream, len(text), err)
			}
		}
	}
	if tr.Idle() != 1 {
		t.Errorf("%d idle connections; all requests came one after the other", tr.Idle())
	}
}

// TestWaitingTakesNoBuffer: a connection has a read buffer neither while it waits for the rest of a stream nor while it is idle, and the end
// of a chunk that was read does not keep one.
func TestWaitingTakesNoBuffer(t *testing.T) {
	next, waits := make(chan struct{}, 1), 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for range 2 {
			_, _ = io.WriteString(w, "data: x\n\n")
			_ = http.NewResponseController(w).Flush()
			<-next
		}
	}))
	defer srv.Close()
	tr := New(Options{})
	defer tr.Close()
	req := post(t.Context())
	req.URL, _ = url.Parse(srv.URL)
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	b := resp.Body.(*body)
	in, p := &b.c.in, make([]byte, 100)
	for range 2 {
		if n, err := b.Read(p); err != nil || string(p[:n]) != "data: x\n\n" {
			t.Fatalf("%q, %v", p[:n], err)
		}
		told := false
		goOn := func() { // the engine, once
			if !told {
				told = true
				next <- struct{}{}
			}
		}
		in.try = func(fd uintptr) bool {
			there := in.tryRead(fd)
			if !there {
				waits++
				if in.br != nil {
					t.Error("it waits with a buffer")
				}
				goOn()
			}
			return there
		}
		b.Wait()
		goOn()
	}
	if waits == 0 {
		t.Error("it never waited")
	}
	if n, err := b.Read(p); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("%d bytes, %v at the end", n, err)
	}
	if in.br != nil || tr.Idle() != 1 {
		t.Errorf("%d idle connections, one with a buffer: %v", tr.Idle(), in.br != nil)
	}
}

// TestQuiet holds that a connection which the engine closed while it was idle is not used again, and that one which it kept is.
func TestQuiet(t *testing.T) {
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("tls=%v", secure), func(t *testing.T) { testQuiet(t, secure) })
	}
}

func testQuiet(t *testing.T, secure bool) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	dials := 0
	o := Options{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials++
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}}
	if secure {
		srv.StartTLS()
		o.TLS = srv.Client().Transport.(*http.Transport).TLSClientConfig
	} else {
		srv.Start()
	}
	tr := New(o)
	defer tr.Close()
	u, _ := url.Parse(srv.URL)
	do := func() string {
		req := post(t.Context())
		req.URL = u
		return ask(tr, req)
	}
	const requests = 20
	for range requests {
		if got := do(); got != `200 "" EOF` {
			t.Fatal(got)
		}
	}
	if dials > 2 { // one, unless the machine is so busy that an answer overtakes its request's writer by milliseconds
		t.Errorf("%d connections for %d requests one after the other", dials, requests)
	}
	for tr.Idle() == 0 {
		_ = do()
	}
	srv.CloseClientConnections()
	deadline := time.Now().Add(5 * time.Second)
	for tr.Idle() > 0 && len(tr.stale()) == 0 {
		if time.Now().After(deadline) {
			t.Fatal("the closed connection still looks good")
		}
	}
	if got := do(); got != `200 "" EOF` {
		t.Error(got)
	}
	tr.Close()
	srv.Close()
}

// TestSentIsNotEarly: a body is not said to be sent while an engine that has begun to answer still reads it.
func TestSentIsNotEarly(t *testing.T) {
	for _, end := range []struct {
		name string
		rest bool // the engine reads all of the body
		want string
	}{{"it is read", true, `EOF`}, {"it is given up", false, `the answer's body was closed`}} {
		t.Run(end.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				text := strings.Repeat("body ", 4000) // more than is written without a time-out
				goOn := make(chan struct{})
				got := make(chan string, 1)
				go func() {
					defer far.Close()
					br := bufio.NewReaderSize(far, 16)
					req, err := http.ReadRequest(br)
					if err != nil {
						return
					}
					_, _ = io.WriteString(far, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n")
					<-goOn
					if end.rest {
						all, _ := io.ReadAll(req.Body)
						got <- string(all)
						_, _ = io.WriteString(far, "0\r\n\r\n")
					}
					_, _ = br.ReadByte()
				}()
				tr := New(Options{Dial: func(context.Context, string, string) (net.Conn, error) { return near, nil }})
				defer func() {
					tr.Close()
					synctest.Wait()
				}()
				req := post(t.Context(), text)
				p := req.Body.(*pieces)
				resp, err := tr.RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				two := make([]byte, 2)
				if _, err := io.ReadFull(resp.Body, two); err != nil || p.sent != 0 {
					t.Fatalf("%v; sent %d times with most of it to come", err, p.sent)
				}
				if end.rest {
					close(goOn)
					synctest.Wait()
				} else {
					_ = resp.Body.Close()
					close(goOn)
				}
				if _, err := resp.Body.Read(two); err == nil || err.Error() != end.want {
					t.Errorf("it ended with %v, want %s", err, end.want)
				}
				if _ = resp.Body.Close(); p.sent != 1 {
					t.Errorf("sent %d times in the end", p.sent)
				}
				if end.rest && <-got != text {
					t.Error("the engine read another body")
				}
			})
		})
	}
}
