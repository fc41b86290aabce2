package gateway_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestSlowReaderCosts: what a client that reads no more has of the gateway is two sockets of bounded size, however fast it read before, and it is cut off when its time is
// over, not at twice it.
func TestSlowReaderCosts(t *testing.T) {
	const patience = 2 * time.Second
	const fast = 64 << 20 // for so many bytes it reads: sockets without a bound grow by it
	var sent atomic.Int64
	done := make(chan struct{})
	sick := newSick(t)
	engine := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/completions" {
			sick.Config.Handler.ServeHTTP(w, r)
			return
		}
		defer close(done)
		w.Header().Set("Content-Type", "text/event-stream")
		part := strings.Repeat("x", 8<<10)
		for sent.Load() < 2*fast {
			n, err := io.WriteString(w, part)
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	}))
	engine.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if err := c.(*net.TCPConn).SetWriteBuffer(32 << 10); err != nil { // its own socket is none of the gateway's
			t.Error(err)
		}
		return ctx
	}
	engine.Start()
	defer engine.Close()
	config := strings.Replace(oneEngine, "max_attempts: 1}", "max_attempts: 1, clients: {send_timeout: 2s}}", 1)
	g := startAt(t, config, []any{engine.URL})
	c, err := net.Dial("tcp", strings.TrimPrefix(g.URL(), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if err := c.(*net.TCPConn).SetReadBuffer(32 << 10); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 38\r\n\r\n"+`{"model":"m","prompt":"hi","n":1     }`); err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, bufio.NewReaderSize(c, 64<<10), fast); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	<-done
	if n := sent.Load() - fast; n > 5<<18 { // two sockets of 512 KiB, and the engine's and the client's
		t.Errorf("%d KiB were taken for a client that reads none", n>>10)
	}
	// A deadline is moved when an eighth of it is over.
	if took := time.Since(began); took < patience*7/8-patience/20 || took > patience+patience/2 {
		t.Errorf("it was cut off after %v", took)
	}
}
