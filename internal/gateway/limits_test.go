package gateway

import (
	"bufio"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
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

// serveOne has one connection served, in fake time. The handler answers with the path.
func serveOne(t *testing.T, test func(t *testing.T, c net.Conn)) {
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
		s := newHTTPServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Path) }), slog.New(slog.DiscardHandler))
		var wg sync.WaitGroup
		wg.Go(func() { _ = s.Serve(p) })
		near, far := net.Pipe()
		p.conns <- far
		test(t, near)
		_ = near.Close()
		_ = s.Close()
		wg.Wait()
		<-time.After(time.Second) // net/http lets a connection linger for half of that
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
	serveOne(t, func(t *testing.T, c net.Conn) {
		began := time.Now()
		_, err := io.WriteString(c, "GET / HTTP/1.1\r\n")
		for err == nil {
			<-time.After(time.Second)
			_, err = io.WriteString(c, "X: y\r\n")
		}
		if took := time.Since(began); !errors.Is(err, io.ErrClosedPipe) || took < headerTimeout || took > headerTimeout+time.Second {
			t.Errorf("ended after %v with %v", took, err)
		}
	})
	serveOne(t, func(t *testing.T, c net.Conn) {
		if took := closedAfter(t, c); took != headerTimeout {
			t.Errorf("a connection on which nothing came was closed after %v", took)
		}
	})
}

// TestIdleConnection: a connection is kept so long after a request.
func TestIdleConnection(t *testing.T) {
	serveOne(t, func(t *testing.T, c net.Conn) {
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
			<-time.After(keepAlive - time.Second)
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
		name, head string
		status     int
	}{
		{"fits", "X: " + strings.Repeat("a", maxHeader-1000) + "\r\nConnection: close\r\n", 200},
		{"bomb", "X: " + strings.Repeat("a", 2*maxHeader) + "\r\n", 431},
		{"flood", many, 431},
		{"length and chunks", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n", 200},
		{"two lengths", "Content-Length: 5\r\nContent-Length: 6\r\n", 400},
		{"odd coding", "Transfer-Encoding: gzip, chunked\r\n", 501},
		{"no name", ": x\r\n", 400},
		{"space before the colon", "X : y\r\n", 400},
	} {
		t.Run(c.name, func(t *testing.T) {
			serveOne(t, func(t *testing.T, conn net.Conn) {
				var wg sync.WaitGroup
				wg.Go(func() { _, _ = io.WriteString(conn, "POST /a HTTP/1.1\r\nHost: x\r\n"+c.head+"\r\n0\r\n\r\n") })
				in := bufio.NewReader(conn)
				resp, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Fatal(err)
				}
				if resp.StatusCode != c.status {
					t.Errorf("status %d", resp.StatusCode)
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				if _, err := in.ReadByte(); err == nil {
					t.Error("the connection goes on")
				}
				_ = conn.Close()
				wg.Wait()
			})
		})
	}
}
