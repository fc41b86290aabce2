package downstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pipes is a listener in memory.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial() net.Conn {
	near, far := net.Pipe()
	p.conns <- far
	return near
}

// rig is a server under test. Its answers to what it refuses are a line with the status.
type rig struct {
	*Server
	t    testing.TB
	kind kind
	ln   net.Listener
	wg   sync.WaitGroup
	mu   sync.Mutex
	cuts []string
}

func testOptions(h http.HandlerFunc) Options {
	return Options{
		Handler: h, HeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10, Log: slog.New(slog.DiscardHandler),
		Refuse: func(r Refusal) []byte {
			return fmt.Appendf(nil, "HTTP/1.1 %d x\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", r.Status, len(r.Why), r.Why)
		},
	}
}

func newRig(t testing.TB, ln net.Listener, o Options) *rig {
	r := &rig{t: t, ln: ln}
	o.Cut = func(reason string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.cuts = append(r.cuts, reason)
	}
	r.Server = New(o)
	r.wg.Go(func() {
		if err := r.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return r
}

// end takes the server down and returns what connections were cut for.
func (r *rig) end() string {
	_ = r.Server.Close()
	r.wg.Wait()
	r.Wait()
	r.Server.mu.Lock()
	defer r.Server.mu.Unlock()
	if n := len(r.Server.mu.conns); n != 0 {
		r.t.Errorf("%d connections are left", n)
	}
	return strings.Join(r.cuts, " ")
}

// rig starts a server on a port for connections of the kind.
func (k kind) rig(t testing.TB, h http.HandlerFunc) *rig {
	r := newRig(t, listen(t), k.options(h))
	r.kind = k
	return r
}

func listen(t testing.TB) net.Listener {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

func (r *rig) dial() net.Conn {
	r.t.Helper()
	c, err := net.Dial("tcp", r.ln.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return r.kind.over(c)
}

// say sends text and returns everything that comes until the connection ends.
func (r *rig) say(text string) string {
	r.t.Helper()
	c := r.dial()
	defer func() { _ = c.Close() }()
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.WriteString(c, text) })
	got, _ := io.ReadAll(c)
	wg.Wait()
	return string(got)
}

// echo answers with what it understood.
func echo(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(r.Body)
	_, _ = fmt.Fprintf(w, "%s %s %s %q %v", r.Method, r.RequestURI, r.Host, text, err)
}

// TestAnswers holds how answers are framed.
func TestAnswers(t *testing.T) { onEach(t, testAnswers) }

func testAnswers(t *testing.T, k kind) {
	const get = "GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
	const old = "GET /a HTTP/1.0\r\n\r\n"
	long := strings.Repeat("0123456789", 1000)
	for _, c := range []struct {
		name, ask string
		h         http.HandlerFunc
		want      string // less the date
	}{
		{"nothing", get, func(http.ResponseWriter, *http.Request) {}, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"},
		{"short", get, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hi") },
			"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"},
		{"no type", get, func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			_, _ = io.WriteString(w, "hi")
		},
			"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"},
		{"declared", get, func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			w.Header().Set("Content-Length", "10000")
			for i := range 10 {
				if _, err := io.WriteString(w, long[i*1000:(i+1)*1000]); err != nil {
					t.Error(err)
				}
			}
			if _, err := io.WriteString(w, "x"); !errors.Is(err, http.ErrContentLength) {
				t.Errorf("one more: %v", err)
			}
		}, "HTTP/1.1 200 OK\r\nContent-Length: 10000\r\nConnection: close\r\n\r\n" + long},
		{"declared and long", get, func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			w.Header().Set("Content-Length", "10000")
			_, _ = io.WriteString(w, long)
		}, "HTTP/1.1 200 OK\r\nContent-Length: 10000\r\nConnection: close\r\n\r\n" + long},
		{"chunks", get, func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			w.WriteHeader(201)
			w.Header().Set("X-Late", "y")
			rc := http.NewResponseController(w)
			_, _ = io.WriteString(w, "a")
			_ = rc.Flush()
			_, _ = io.WriteString(w, "bc")
			_, _ = io.WriteString(w, "d")
			_ = rc.Flush()
		}, "HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n1\r\na\r\n2\r\nbc\r\n1\r\nd\r\n0\r\n\r\n"},
		{"long without a length", get, func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			_, _ = io.WriteString(w, "a")
			_, _ = io.WriteString(w, long)
		}, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n1\r\na\r\n2710\r\n" + long + "\r\n0\r\n\r\n"},
		{"HTTP/1.0", old, func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			_, _ = io.WriteString(w, "a")
			_ = http.NewResponseController(w).Flush()
			_, _ = io.WriteString(w, "b")
		}, "HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nab"},
		{"HEAD", strings.Replace(get, "GET", "HEAD", 1), func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			_, _ = io.WriteString(w, "hi")
		}, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n"},
		{"no content", get, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "2")
			w.WriteHeader(204)
			if _, err := io.WriteString(w, "hi"); !errors.Is(err, http.ErrBodyNotAllowed) {
				t.Error(err)
			}
		}, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"},
		{"a line's end in a value", get, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-A", "b\r\nX-C: d")
			w.WriteHeader(299)
		}, "HTTP/1.1 299 status code 299\r\nX-A: b  X-C: d\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"},
		{"a panic", get, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hi"); panic("x") }, ""},
		{"an abort within a stream", get, func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			_, _ = io.WriteString(w, "hi")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n2\r\nhi\r\n"},
		{"less than declared", "GET /a HTTP/1.1\r\nHost: x\r\n\r\n", func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			w.Header().Set("Content-Length", "3")
			_, _ = io.WriteString(w, "hi")
		}, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi"},
		{"OPTIONS *", "OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", func(http.ResponseWriter, *http.Request) { t.Error("the handler was asked") },
			"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := k.rig(t, c.h)
			got := undated(t, r.say(c.ask))
			if got != c.want {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
			if cut := r.end(); cut != "" {
				t.Error(cut)
			}
		})
	}
}

// undated takes the Date lines out of answers.
func undated(t testing.TB, text string) string {
	t.Helper()
	var out strings.Builder
	for line := range strings.SplitAfterSeq(text, "\r\n") {
		if date, ok := strings.CutPrefix(line, "Date: "); ok {
			if _, err := http.ParseTime(strings.TrimSpace(date)); err != nil {
				t.Error(err)
			}
			continue
		}
		out.WriteString(line)
	}
	return out.String()
}

// TestRequests holds what is taken, and that a connection goes on where both ends know where it is.
func TestRequests(t *testing.T) { onEach(t, testRequests) }

func testRequests(t *testing.T, k kind) {
	const last = "GET /z HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
	for _, c := range []struct {
		name, ask string
		want      []string
	}{
		{"pipelined", "GET /a HTTP/1.1\r\nHost: x\r\n\r\nPOST /b HTTP/1.1\r\nHost: y\r\nContent-Length: 3\r\n\r\nabc" + last, []string{`GET /a x "" <nil>`, `POST /b y "abc" <nil>`, `GET /z x "" <nil>`}},
		{"chunks", "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n2\r\nde\r\n0\r\nX: y\r\n\r\n" + last, []string{`POST /a x "abcde" <nil>`, `GET /z x "" <nil>`}},
		{"stray line ends", "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\na\r\n" + last, []string{`POST /a x "a" <nil>`, `GET /z x "" <nil>`}},
		{"absolute", "GET http://y/b?c HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", []string{`GET http://y/b?c y "" <nil>`}},
		{"HTTP/1.0 kept", "GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /b HTTP/1.0\r\n\r\n" + last, []string{`GET /a  "" <nil>`, `GET /b  "" <nil>`}},
		{"an upgrade", "GET /a HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n" + last, []string{`GET /a x "" <nil>`, `GET /z x "" <nil>`}},
		{"a bad chunk", "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n" + last, []string{`POST /a x "abc" malformed chunk`}},
		{"a chunk that ends in LF", "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n" + last, []string{`POST /a x "" malformed chunk`}},
		{"chunks that are mostly extensions", "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" +
			strings.Repeat("1;"+strings.Repeat("x", 250)+"\r\na\r\n", 100) + "0\r\n\r\n" + last,
			[]string{`POST /a x "` + strings.Repeat("a", 68) + `" chunks that are mostly not data`}},
		{"a long chunk line", "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3;" + strings.Repeat("x", 300) + "\r\nabc\r\n0\r\n\r\n" + last, []string{`POST /a x "" a line of a chunked body is too long`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := k.rig(t, echo)
			defer r.end()
			in := bufio.NewReader(strings.NewReader(r.say(c.ask)))
			var got []string
			for {
				resp, err := http.ReadResponse(in, nil)
				if err != nil {
					break
				}
				text, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Error(err)
				}
				got = append(got, string(text))
			}
			if fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestLeftBodies: what a handler does not read is read past where it is little, and else ends the connection after the answer.
func TestLeftBodies(t *testing.T) { onEach(t, testLeftBodies) }

func testLeftBodies(t *testing.T, k kind) {
	silent := func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.RequestURI) }
	for _, c := range []struct {
		name, head, body string
		answers          int
	}{
		{"a little", "Content-Length: 100000", strings.Repeat("x", 100_000), 2},
		{"much", "Content-Length: 1000000", strings.Repeat("x", 1_000_000), 1},
		{"a little in chunks", "Transfer-Encoding: chunked", strings.Repeat("a\r\n0123456789\r\n", 1000) + "0\r\n\r\n", 2},
		{"much in chunks", "Transfer-Encoding: chunked", strings.Repeat("1000\r\n"+strings.Repeat("x", 4096)+"\r\n", 100) + "0\r\n\r\n", 1},
		{"half a body", "Content-Length: 10", "abc", 1},
		{"not yet sent", "Expect: 100-continue\r\nContent-Length: 10", "", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := k.rig(t, silent)
			defer r.end()
			conn := r.dial()
			defer func() { _ = conn.Close() }()
			var wg sync.WaitGroup
			defer wg.Wait()
			wg.Go(func() {
				_, _ = io.WriteString(conn, "POST /a HTTP/1.1\r\nHost: x\r\n"+c.head+"\r\n\r\n"+c.body)
				if c.answers > 1 {
					_, _ = io.WriteString(conn, "GET /b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
				} else if c.name == "half a body" {
					_ = closeWrite(conn)
				}
			})
			text, err := io.ReadAll(conn)
			if n := strings.Count(string(text), "HTTP/1.1 200 OK"); n != c.answers || err != nil || strings.Contains(string(text), "100 Continue") {
				t.Errorf("%d answers, %v: %q", n, err, text)
			}
		})
	}
}

// TestContinue: a client that waits for leave to send gets it when the handler reads.
func TestContinue(t *testing.T) { onEach(t, testContinue) }

func testContinue(t *testing.T, k kind) {
	r := k.rig(t, echo)
	defer r.end()
	conn := r.dial()
	defer func() { _ = conn.Close() }()
	in := bufio.NewReader(conn)
	for range 2 {
		if _, err := io.WriteString(conn, "POST /a HTTP/1.1\r\nHost: x\r\nExpect: 100-Continue\r\nContent-Length: 3\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if line, err := in.ReadString('\n'); line != "HTTP/1.1 100 Continue\r\n" || err != nil {
			t.Fatalf("%q, %v", line, err)
		}
		if _, err := in.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "abc"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(resp.Body); string(text) != `POST /a x "abc" <nil>` || err != nil {
			t.Errorf("%q, %v", text, err)
		}
	}
}

// TestShutdown: idle connections end, those under way end after their answers, and it waits for them.
func TestShutdown(t *testing.T) { onEach(t, testShutdown) }

func testShutdown(t *testing.T, k kind) {
	under, finish := make(chan struct{}), make(chan struct{})
	r := k.rig(t, func(w http.ResponseWriter, q *http.Request) {
		if q.RequestURI == "/wait" {
			close(under)
			<-finish
		}
		_, _ = io.WriteString(w, "done")
	})
	defer r.end()
	idle, busy := r.dial(), r.dial()
	defer func() { _, _ = idle.Close(), busy.Close() }()
	in := bufio.NewReader(idle)
	_, _ = io.WriteString(idle, "GET /a HTTP/1.1\r\nHost: x\r\n\r\n")
	if resp, err := http.ReadResponse(in, nil); err != nil {
		t.Fatal(err)
	} else if _, err := io.ReadAll(resp.Body); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(busy, "GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
	<-under
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("with a request under way: %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- r.Shutdown(context.Background()) }()
	if rest, err := io.ReadAll(in); len(rest) != 0 || err != nil {
		t.Errorf("the idle connection: %q, %v", rest, err)
	}
	close(finish)
	text, err := io.ReadAll(busy)
	if !strings.Contains(string(text), "Connection: close\r\n") || !strings.HasSuffix(string(text), "done") || err != nil {
		t.Errorf("the busy one: %q, %v", text, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := r.Serve(listen(t)); !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}

// TestCloseEndsRequests: what is under way learns of it, and is waited for.
func TestCloseEndsRequests(t *testing.T) {
	onEach(t, func(t *testing.T, k kind) {
		for name, ln := range map[string]net.Listener{"tcp": listen(t), "pipe": newPipes()} {
			under := make(chan struct{})
			r := newRig(t, ln, k.options(func(_ http.ResponseWriter, q *http.Request) {
				close(under)
				<-q.Context().Done()
			}))
			r.kind = k
			var c net.Conn
			if p, ok := ln.(*pipes); ok {
				c = k.over(p.dial())
			} else {
				c = r.dial()
			}
			if _, err := io.WriteString(c, "GET /a HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
				t.Fatal(name, err)
			}
			<-under
			r.end()
			_ = below(c).Close()
		}
	})
}
