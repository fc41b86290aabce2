package gateway_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestSlowReaderCosts: what a client that reads nothing has of the gateway is two sockets of bounded size, and it is cut off when its time is over, not at twice it.
func TestSlowReaderCosts(t *testing.T) {
	const patience = 2 * time.Second
	var sent atomic.Int64
	done := make(chan struct{})
	sick := newSick(t)
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/completions" {
			sick.Config.Handler.ServeHTTP(w, r)
			return
		}
		defer close(done)
		w.Header().Set("Content-Type", "text/event-stream")
		part := strings.Repeat("x", 8<<10)
		for sent.Load() < 64<<20 {
			n, err := io.WriteString(w, part)
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	}))
	defer engine.Close()
	config := strings.Replace(oneEngine, "max_attempts: 1}", "max_attempts: 1, clients: {send_timeout: 2s}}", 1)
	g := startAt(t, config, []any{engine.URL})
	c, err := net.Dial("tcp", strings.TrimPrefix(g.URL(), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if err := c.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if _, err := io.WriteString(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 38\r\n\r\n"+`{"model":"m","prompt":"hi","n":1     }`); err != nil {
		t.Fatal(err)
	}
	<-done
	// The engine's own socket, which grows as it likes, is among it.
	if n := sent.Load(); n > 6<<20 {
		t.Errorf("%d KiB were taken for a client that reads none", n>>10)
	}
	if took := time.Since(began); took < patience || took > patience+patience/2 {
		t.Errorf("it was cut off after %v", took)
	}
}
