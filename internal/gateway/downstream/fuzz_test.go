package downstream

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"
)

// said is what a handler saw of a request.
type said struct {
	method, target, proto, host, path, query, body, bad string
	length                                              int64
	header                                              http.Header
}

// note reads a request. What is wrong with its body is noted as one word: the two servers have their own texts.
func note(r *http.Request) said {
	text, err := io.ReadAll(r.Body)
	s := said{
		method: r.Method, target: r.RequestURI, proto: r.Proto, host: r.Host, path: r.URL.Path, query: r.URL.RawQuery, body: string(text),
		length: r.ContentLength, header: r.Header.Clone(),
	}
	if err != nil {
		s.bad = "broken"
	}
	return s
}

// wire is a connection whose other side has sent all that it will, and reads what comes.
type wire struct {
	in  io.Reader
	out bytes.Buffer
	mu  sync.Mutex
	end chan struct{}
	off sync.Once
}

func newWire(in io.Reader) *wire { return &wire{in: in, end: make(chan struct{})} }

func (w *wire) Read(p []byte) (int, error) {
	select {
	case <-w.end:
		return 0, net.ErrClosed
	default:
	}
	return w.in.Read(p)
}

func (w *wire) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.out.Write(p)
}

func (w *wire) said() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.out.String()
}

func (w *wire) Close() error                     { w.off.Do(func() { close(w.end) }); return nil }
func (w *wire) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (w *wire) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (w *wire) SetDeadline(time.Time) error      { return nil }
func (w *wire) SetReadDeadline(time.Time) error  { return nil }
func (w *wire) SetWriteDeadline(time.Time) error { return nil }

// oneWire is a listener of one connection.
type oneWire struct {
	c    chan net.Conn
	done chan struct{}
	once sync.Once
}

func (l *oneWire) Accept() (net.Conn, error) {
	select {
	case c := <-l.c:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *oneWire) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *oneWire) Addr() net.Addr { return &net.TCPAddr{} }

type anyServer interface {
	Serve(net.Listener) error
	Close() error
}

// ask has a server answer what comes, and returns what its handler saw and what it wrote.
func ask(in io.Reader, of func(http.Handler) anyServer) (seen []said, wrote string) {
	var mu sync.Mutex
	s := of(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := note(r)
		mu.Lock()
		seen = append(seen, x)
		mu.Unlock()
		w.Header()["Content-Type"] = nil
		_, _ = io.WriteString(w, "ok")
	}))
	w := newWire(in)
	ln := listenerOf(w)
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Serve(ln) })
	<-w.end // the input ends, so both servers close it
	_ = s.Close()
	wg.Wait()
	if o, ok := s.(*Server); ok {
		o.Wait()
	}
	mu.Lock()
	defer mu.Unlock()
	return slices.Clone(seen), w.said()
}

func listenerOf(c net.Conn) *oneWire {
	l := &oneWire{c: make(chan net.Conn, 1), done: make(chan struct{})}
	l.c <- c
	return l
}

func ours(h http.Handler) anyServer {
	return New(Options{
		Handler: h, HeaderTimeout: time.Hour, IdleTimeout: time.Hour, MaxHeaderBytes: 8 << 10, Log: slog.New(slog.DiscardHandler),
		Refuse: func(r Refusal) []byte { return []byte("HTTP/1.1 400 " + r.Why + "\r\nConnection: close\r\n\r\n") },
	})
}

func theirs(h http.Handler) anyServer {
	return &http.Server{
		Handler: h, MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		ConnState: func(net.Conn, http.ConnState) {},
	}
}

var requests = []string{
	"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "POST /a?b=c HTTP/1.1\r\nHost: x:80\r\nContent-Length: 3\r\nX-A: b\r\nx-a: c\r\n\r\nabcGET /z HTTP/1.1\r\nHost: x\r\n\r\n",
	"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nT: u\r\n\r\nGET /z HTTP/1.0\r\n\r\n",
	"GET http://y/b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET / HTTP/1.0\r\n\r\n",
	"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
	"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
	"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n", "POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nab",
	"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", "GET / HTTP/1.1\nHost: x\n\n", "GET / HTTP/1.1\r\nHost : x\r\n\r\n", "GET //a/../b%2f HTTP/1.1\r\nHost:\r\n\r\n",
	"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: Content-Length\r\n\r\n0\r\n\r\n", "HEAD / HTTP/1.1\r\nHost: x\r\nPragma: no-cache\r\n\r\n",
	"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\na", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabc",
	"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n",
}

// FuzzRequest holds that every request which our handler sees, net/http's sees too, in the same place and the same way, whatever is sent and
// however it is cut. We refuse more, and then the rest is not looked at.
func FuzzRequest(f *testing.F) {
	for _, s := range requests {
		f.Add([]byte(s), false)
	}
	f.Fuzz(func(t *testing.T, data []byte, bytewise bool) {
		if len(data) > 6<<10 {
			return
		}
		var in io.Reader = bytes.NewReader(data)
		if bytewise {
			in = iotest.OneByteReader(in)
		}
		got, wrote := ask(in, ours)
		want, _ := ask(bytes.NewReader(data), theirs)
		agree(t, got, want)
		wellFormed(t, wrote, got)
		// The same over a connection of the system's, which is what serves: there reads and writes go past package net.
		if raw, wrote, ok := askRaw(t, data, bytewise); ok {
			if len(raw) != len(got) {
				t.Fatalf("over a socket we take %d requests, through a pump %d", len(raw), len(got))
			}
			agree(t, raw, want)
			wellFormed(t, wrote, raw)
		}
	})
}

func agree(t *testing.T, got, want []said) {
	t.Helper()
	if len(got) > len(want) {
		t.Fatalf("we take %d requests, net/http %d: %+v, net/http %+v", len(got), len(want), got, want)
	}
	for i := range got {
		w := want[i]
		w.header = w.header.Clone() // compare takes out of it
		compare(t, got[i], w)
	}
}

func compare(t *testing.T, got, want said) {
	t.Helper()
	for _, h := range []http.Header{got.header, want.header} {
		delete(h, "Content-Length") // net/http takes all but one of several
		delete(h, "Trailer")        // which net/http leaves where there are no chunks
		if h.Get("Pragma") == "no-cache" {
			delete(h, "Cache-Control") // which net/http makes of it
		}
	}
	if got.bad != "" && want.bad == "" && strings.HasPrefix(want.body, got.body) {
		want.body, want.bad = got.body, got.bad // chunks that we refuse
	}
	if got.bad != "" && want.bad != "" { // how much of a broken body is there differs
		got.body, want.body = "", ""
	}
	for name, values := range got.header {
		if !slices.Equal(values, want.header[name]) {
			t.Errorf("%s: %q, net/http %q", name, values, want.header[name])
		}
	}
	if len(got.header) != len(want.header) {
		t.Errorf("%v, net/http %v", got.header, want.header)
	}
	got.header, want.header = nil, nil
	if g, w := got, want; g.method != w.method || g.target != w.target || g.proto != w.proto || g.host != w.host || g.path != w.path || g.query != w.query ||
		g.body != w.body || g.bad != w.bad || g.length != w.length {
		t.Errorf("%+v, net/http %+v", g, w)
	}
}

// wellFormed holds that what was written are answers, one for each request and perhaps a refusal.
func wellFormed(t *testing.T, wrote string, seen []said) {
	t.Helper()
	in := bufio.NewReader(strings.NewReader(wrote))
	n := 0
	for {
		method := http.MethodGet
		if n < len(seen) {
			method = seen[n].method
		}
		resp, err := http.ReadResponse(in, &http.Request{Method: method})
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) && in.Buffered() == 0 {
			break
		}
		if err != nil {
			t.Fatalf("%v in %q", err, wrote)
		}
		if resp.StatusCode == http.StatusContinue {
			continue
		}
		if _, err := io.ReadAll(resp.Body); err != nil {
			t.Errorf("%v in %q", err, wrote)
		}
		if resp.StatusCode == 200 && resp.ContentLength != 0 { // OPTIONS * is not the handler's
			n++
		}
	}
	if n != len(seen) {
		t.Errorf("%d answers to %d requests: %q", n, len(seen), wrote)
	}
}

// FuzzAnswer holds that an answer is read as it was written, however the handler writes it, and that where the next one begins is known.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte("abc"), uint8(1), uint8(0), false)
	f.Add(bytes.Repeat([]byte("0123456789"), 1000), uint8(200), uint8(3), true)
	f.Fuzz(func(t *testing.T, text []byte, part, flushes uint8, declared bool) {
		h := func(w http.ResponseWriter, _ *http.Request) {
			if declared {
				w.Header().Set("Content-Length", strconv.Itoa(len(text)))
			}
			rc := http.NewResponseController(w)
			rest := text
			for i := 0; len(rest) > 0; i++ {
				k := min(len(rest), 1+int(part)*(1+i%50))
				if n, err := w.Write(rest[:k]); n != k || err != nil {
					t.Errorf("%d of %d, %v", n, k, err)
				}
				rest = rest[k:]
				if flushes > 0 && i%int(flushes) == 0 {
					_ = rc.Flush()
				}
			}
		}
		const ask2 = "GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
		w := newWire(strings.NewReader(ask2))
		s := ours(http.HandlerFunc(h)).(*Server)
		ln := listenerOf(w)
		var wg sync.WaitGroup
		wg.Go(func() { _ = s.Serve(ln) })
		<-w.end
		_ = s.Shutdown(context.Background())
		_ = s.Close()
		s.Wait()
		wg.Wait()
		in := bufio.NewReader(strings.NewReader(w.said()))
		for range 2 {
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(resp.Body); !bytes.Equal(got, text) || err != nil {
				t.Errorf("%d bytes of %d, %v", len(got), len(text), err)
			}
		}
		if rest, _ := io.ReadAll(in); len(rest) != 0 {
			t.Errorf("%q stands behind the answers", rest)
		}
	})
}
