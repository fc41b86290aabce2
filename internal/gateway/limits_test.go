package gateway

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/script"
	"github.com/perigee-llm/perigee/internal/telemetry"
)

// pipes is a listener in memory.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

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

var testLimits = config.ClientLimits{HeaderTimeout: 10 * time.Second, IdleTimeout: 120 * time.Second, SendTimeout: 60 * time.Second, MaxHeaderBytes: 64 << 10, MaxConnections: 2, MaxRequests: 8, MaxStreams: 4}

// cuts returns what the metrics say of connections that were ended and of requests that were refused.
func cuts(t *testing.T, m *telemetry.Metrics) string {
	t.Helper()
	families, err := m.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range families {
		for _, x := range f.GetMetric() {
			switch f.GetName() {
			case "perigee_client_connections_cut_total":
				out = append(out, fmt.Sprint(x.GetLabel()[1].GetValue(), "=", x.GetCounter().GetValue()))
			case "perigee_refused_total":
				out = append(out, fmt.Sprint(x.GetLabel()[0].GetValue(), "=", x.GetCounter().GetValue()))
			}
		}
	}
	return strings.Join(out, " ")
}

// medium is what is below the HTTP of a test: nothing but the connection, or TLS.
type medium struct {
	cert   *tls.Certificate // nil: there is no TLS
	client *tls.Config
}

// onBoth runs a test plain and over TLS.
func onBoth(t *testing.T, test func(t *testing.T, m medium)) {
	t.Helper()
	t.Run("plain", func(t *testing.T) { test(t, medium{}) })
	cert, client := script.Certificate(t)
	t.Run("TLS", func(t *testing.T) { test(t, medium{&cert, client}) })
}

// serve has a door served. Whatever the test does, end leaves nothing.
func (m medium) serve(p *pipes, d *door, h http.Handler) (end func()) {
	d.Listener, d.name, d.metrics, d.secure = p, "public", telemetry.New(), m.cert != nil
	s := d.server(h, func() *tls.Certificate { return m.cert }, slog.New(slog.DiscardHandler))
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Serve(d) })
	return func() {
		_ = s.Close()
		wg.Wait()
		s.Wait()
		<-time.After(time.Second) // net/http lets a connection linger for half of that
	}
}

// over returns a client's end over a connection.
func (m medium) over(t *testing.T, c net.Conn) net.Conn {
	t.Helper()
	if m.cert == nil {
		return c
	}
	s := tls.Client(c, m.client)
	if err := s.Handshake(); err != nil {
		t.Fatal(err)
	}
	return s
}

// hangUp closes a client's connection without a word.
func hangUp(c net.Conn) {
	if s, ok := c.(*tls.Conn); ok {
		c = s.NetConn()
	}
	_ = c.Close()
}

// serveOne has one connection served plain and over TLS, in fake time. The handler answers with the path.
func serveOne(t *testing.T, wantCut string, test func(t *testing.T, c net.Conn)) {
	t.Helper()
	onBoth(t, func(t *testing.T, m medium) {
		synctest.Test(t, func(t *testing.T) {
			p := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
			d := &door{limits: testLimits}
			end := m.serve(p, d, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Path) }))
			near, far := net.Pipe()
			p.conns <- far
			c := m.over(t, near)
			test(t, c)
			hangUp(c)
			end()
			if n := d.open.Load(); n != 0 {
				t.Errorf("%d connections are still counted", n)
			}
			if got := cuts(t, d.metrics); got != wantCut {
				t.Errorf("cut: %q, want %q", got, wantCut)
			}
		})
	})
}

// closedAfter waits for the connection's end, and returns when that was.
func closedAfter(t *testing.T, in io.Reader) time.Duration {
	t.Helper()
	began := time.Now()
	if rest, err := io.ReadAll(in); err != nil || len(rest) != 0 {
		t.Errorf("%q came, then %v", rest, err)
	}
	return time.Since(began)
}

// TestSlowHead: a request's head has its time as a whole, however it trickles.
func TestSlowHead(t *testing.T) {
	serveOne(t, "slow_head=1", func(t *testing.T, c net.Conn) {
		began := time.Now()
		_, err := io.WriteString(c, "GET / HTTP/1.1\r\n")
		for err == nil {
			<-time.After(time.Second)
			_, err = io.WriteString(c, "X: y\r\n")
		}
		if took := time.Since(began); !errors.Is(err, io.ErrClosedPipe) || took < testLimits.HeaderTimeout || took > testLimits.HeaderTimeout+time.Second {
			t.Errorf("ended after %v with %v", took, err)
		}
	})
	serveOne(t, "slow_head=1", func(t *testing.T, c net.Conn) {
		if took := closedAfter(t, c); took != testLimits.HeaderTimeout {
			t.Errorf("a connection on which nothing came was closed after %v", took)
		}
	})
}

// TestIdleConnection: a connection is kept so long after a request.
func TestIdleConnection(t *testing.T) {
	serveOne(t, "idle=1", func(t *testing.T, c net.Conn) {
		in := bufio.NewReader(c)
		for range 2 {
			if _, err := io.WriteString(c, "GET /a HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			if text, err := io.ReadAll(resp.Body); string(text) != "/a" || err != nil {
				t.Errorf("got %q, %v", text, err)
			}
			<-time.After(testLimits.IdleTimeout - time.Second)
		}
		if took := closedAfter(t, in); took != time.Second {
			t.Errorf("closed %v late", took-time.Second)
		}
	})
}

// TestBadHeads: heads that are too long or ambiguous are refused, and their connections end.
func TestBadHeads(t *testing.T) {
	many := strings.Repeat("X-Flood: y\r\n", 10_000)
	for _, c := range []struct {
		name, head, code string
		status           int
	}{
		{"fits", "X: " + strings.Repeat("a", int(testLimits.MaxHeaderBytes)-1000) + "\r\nConnection: close\r\n", "", 200},
		{"bomb", "X: " + strings.Repeat("a", 2*int(testLimits.MaxHeaderBytes)) + "\r\n", "request_header_too_large", 431},
		{"flood", many, "request_header_too_large", 431},
		{"two lengths", "Content-Length: 5\r\nContent-Length: 6\r\n", "bad_request", 400},
		{"odd coding", "Transfer-Encoding: gzip, chunked\r\n", "unsupported_transfer_encoding", 501},
		{"no name", ": x\r\n", "bad_request", 400},
		{"space before the colon", "X : y\r\n", "bad_request", 400},
		{"two hosts", "Host: y\r\n", "bad_request", 400},
		{"another expectation", "Expect: miracles\r\n", "expectation_failed", 417},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := ""
			if c.code != "" {
				want = "bad_head=1 " + c.code + "=1"
			}
			text := "POST /a HTTP/1.1\r\nHost: x\r\n" + c.head + "\r\n0\r\n\r\n"
			serveOne(t, want, func(t *testing.T, conn net.Conn) { wantAnswer(t, conn, text, c.status, c.code) })
		})
	}
	serveOne(t, "bad_head=1 unsupported_http_version=1", func(t *testing.T, conn net.Conn) {
		wantAnswer(t, conn, "GET / HTTP/3.0\r\nHost: x\r\n\r\n", 505, "unsupported_http_version")
	})
	serveOne(t, "bad_head=1 bad_request=1", func(t *testing.T, conn net.Conn) {
		wantAnswer(t, conn, "\x16\x03\x01\r\n\r\n", 400, "bad_request")
	})
	serveOne(t, "bad_head=1 bad_request=1", func(t *testing.T, conn net.Conn) { // net/http would take the chunks
		wantAnswer(t, conn, "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "bad_request")
	})
}

// wantAnswer sends bytes, and wants an answer with the status, an envelope with the code if there is one, and the connection's end.
func wantAnswer(t *testing.T, conn net.Conn, text string, status int, code string) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.WriteString(conn, text) })
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != status {
		t.Errorf("status %d, %q, %v", resp.StatusCode, body, err)
	}
	if code != "" && (resp.Header.Get("X-Router-Error-Code") != code || !strings.Contains(string(body), `"code":"`+code+`","message":"`)) {
		t.Errorf("%v %s is not the envelope of %s", resp.Header, body, code)
	}
	if _, err := in.ReadByte(); err == nil {
		t.Error("the connection goes on")
	}
	_ = conn.Close()
	wg.Wait()
}

// TestConnectionCap: one connection more than may be is told so and closed, and a place that is given back can be had again.
func TestConnectionCap(t *testing.T) {
	onBoth(t, testConnectionCap)
}

func testConnectionCap(t *testing.T, m medium) {
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
		d := &door{limits: testLimits}
		free := make(chan struct{})
		end := m.serve(p, d, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/long" {
				<-free
			}
			_, _ = io.WriteString(w, "ok")
		}))
		dial := func() (net.Conn, *bufio.Reader) {
			near, far := net.Pipe()
			p.conns <- far
			c := m.over(t, near)
			return c, bufio.NewReader(c)
		}
		send := func(c net.Conn, path string) {
			t.Helper()
			if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
		}
		read := func(in *bufio.Reader, status int, code string) {
			t.Helper()
			resp, err := http.ReadResponse(in, nil)
			if err != nil || resp.StatusCode != status || resp.Header.Get("X-Router-Error-Code") != code {
				t.Fatalf("%v, %v", resp, err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
		}
		// Both places wait for requests, and the one that has waited longer is given away.
		first, firstIn := dial()
		send(first, "/")
		read(firstIn, 200, "")
		<-time.After(time.Second)
		second, secondIn := dial()
		send(second, "/")
		read(secondIn, 200, "")
		<-time.After(time.Second)
		third, thirdIn := dial()
		closedAfter(t, firstIn)
		send(third, "/long")
		synctest.Wait()
		send(second, "/long")
		synctest.Wait()
		// Both are at work: nobody has to go.
		fourth, far := net.Pipe()
		p.conns <- far
		want := "made_room=4 over_cap=1 too_many_connections=1"
		if m.cert != nil { // with TLS there is no way to say it
			closedAfter(t, fourth)
			want = "made_room=4 over_cap=1"
		} else {
			read(bufio.NewReader(fourth), 503, "too_many_connections")
		}
		close(free)
		read(secondIn, 200, "")
		read(thirdIn, 200, "")
		synctest.Wait()
		// One that has never asked anything waits, too.
		<-time.After(time.Second)
		fifth, fifthIn := dial()
		<-time.After(time.Second)
		sixth, _ := dial()
		<-time.After(time.Second)
		seventh, seventhIn := dial()
		closedAfter(t, fifthIn)
		send(seventh, "/")
		read(seventhIn, 200, "")
		for _, c := range []net.Conn{first, second, third, fourth, fifth, sixth, seventh} {
			hangUp(c)
		}
		end()
		if got := cuts(t, d.metrics); got != want || d.open.Load() != 0 || len(d.places) != 0 {
			t.Errorf("%q, %d open", got, d.open.Load())
		}
	})
}

// scarce is a listener that has no descriptor where there is something in its channel.
type scarce struct {
	net.Listener
	short chan struct{}
}

func (l scarce) Accept() (net.Conn, error) {
	select {
	case <-l.short:
		return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	default:
		return l.Listener.Accept()
	}
}

// TestNoDescriptor: where the system has no descriptor for a connection, the one goes that has waited longest for a request; where none has waited for a while the server is told.
func TestNoDescriptor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
		l := scarce{p, make(chan struct{}, 1)}
		d := &door{Listener: l, limits: testLimits, metrics: telemetry.New(), name: "public"}
		near, far := net.Pipe()
		var wg sync.WaitGroup
		wg.Go(func() { p.conns <- far })
		idle, err := d.Accept()
		if err != nil {
			t.Fatal(err)
		}
		l.short <- struct{}{}
		if _, err := d.Accept(); !errors.Is(err, syscall.EMFILE) || d.open.Load() != 1 {
			t.Errorf("%v, and %d are open: who has just come does not go", err, d.open.Load())
		}
		<-time.After(settledFor)
		l.short <- struct{}{}
		other, far := net.Pipe()
		wg.Go(func() { p.conns <- far })
		next, err := d.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if d.open.Load() != 1 {
			t.Errorf("%d are open", d.open.Load())
		}
		closedAfter(t, near)
		next.(*place).Begins()
		l.short <- struct{}{}
		if _, err := d.Accept(); !errors.Is(err, syscall.EMFILE) {
			t.Errorf("nobody has to go, and there is %v", err)
		}
		if got := cuts(t, d.metrics); got != "made_room=1" {
			t.Error(got)
		}
		for _, c := range []net.Conn{idle, next, near, other} {
			_ = c.Close()
		}
		wg.Wait()
	})
}

// TestRequestCap: requests are bounded over all connections, and probes are let in.
func TestRequestCap(t *testing.T) {
	onBoth(t, func(t *testing.T, m medium) {
		synctest.Test(t, func(t *testing.T) {
			p := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
			d := &door{limits: testLimits}
			d.limits.MaxRequests = 1
			free := make(chan struct{})
			end := m.serve(p, d, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/long" {
					<-free
				}
			}))
			dial := func() net.Conn {
				near, far := net.Pipe()
				p.conns <- far
				return m.over(t, near)
			}
			near, other := dial(), dial()
			ask := func(c net.Conn, path string) {
				t.Helper()
				if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
					t.Fatal(err)
				}
			}
			in, otherIn := bufio.NewReader(near), bufio.NewReader(other)
			ask(near, "/long")
			synctest.Wait()
			for path, want := range map[string]string{"/": "too_many_requests", "/healthz": "", "/readyz": ""} {
				ask(other, path)
				resp, err := http.ReadResponse(otherIn, nil)
				if err != nil {
					t.Fatal(err)
				}
				text, _ := io.ReadAll(resp.Body)
				if got := resp.Header.Get("X-Router-Error-Code"); got != want || want != "" && (resp.StatusCode != 503 || !strings.HasPrefix(string(text), `{"error":{`)) {
					t.Errorf("%s: %d %q %s", path, resp.StatusCode, got, text)
				}
			}
			close(free)
			if resp, err := http.ReadResponse(in, nil); err != nil || resp.StatusCode != 200 {
				t.Errorf("%v, %v", resp, err)
			}
			hangUp(near)
			hangUp(other)
			end()
			if got := cuts(t, d.metrics); got != "too_many_requests=1" || d.active.Load() != 0 {
				t.Errorf("%q, %d active", got, d.active.Load())
			}
		})
	})
}

// TestLeavingIsNoFault: a client that leaves within a head, or before one, was not cut off.
func TestLeavingIsNoFault(t *testing.T) {
	serveOne(t, "", func(t *testing.T, c net.Conn) {
		if _, err := io.WriteString(c, "GET /a HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		if _, err := io.WriteString(c, "GET /b HT"); err != nil {
			t.Fatal(err)
		}
	})
	serveOne(t, "", func(*testing.T, net.Conn) {})
}

// TestSlowSecondHead: a head has its time on a connection that is kept, too, and is told from an idle connection.
func TestSlowSecondHead(t *testing.T) {
	serveOne(t, "slow_head=1", func(t *testing.T, c net.Conn) {
		if _, err := io.WriteString(c, "GET /a HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(c)
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		<-time.After(time.Minute)
		if _, err := io.WriteString(c, "GET /b HT"); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := io.ReadAll(in); err != nil { // net/http tells it of half a request line
			t.Error(err)
		}
		if took := time.Since(began); took != testLimits.HeaderTimeout {
			t.Errorf("closed after %v", took)
		}
	})
}
