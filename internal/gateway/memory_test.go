//go:build !race

package gateway_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway"
	"github.com/perigee-llm/perigee/internal/gateway/explain"
)

// silentEngine is an engine whose streams fall silent after their first event. Its side of a connection takes next to nothing: no
// goroutine waits on it.
type silentEngine struct {
	ln   net.Listener
	wg   sync.WaitGroup
	mu   sync.Mutex
	held []net.Conn
}

func startSilentEngine(t *testing.T) *silentEngine {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &silentEngine{ln: ln}
	e.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			e.wg.Go(func() { e.one(c) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		e.wg.Wait()
		for _, c := range e.held {
			_ = c.Close()
		}
	})
	return e
}

// one answers the one request of a connection, and keeps the connection if it is a stream's.
func (e *silentEngine) one(c net.Conn) {
	r, err := http.ReadRequest(bufio.NewReader(c))
	var text []byte
	if err == nil {
		text, err = io.ReadAll(r.Body)
	}
	switch {
	case err != nil:
		_ = c.Close()
	case r.Method == http.MethodPost && !strings.Contains(string(text), "stream"):
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
		_ = c.Close()
	case r.Method == http.MethodPost:
		e.mu.Lock()
		e.held = append(e.held, c)
		e.mu.Unlock()
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n14\r\ndata: {\"id\":\"abc\"}\n\n\r\n")
	default:
		status, text := "200 OK", map[string]string{
			"/v1/models": `{"object":"list","data":[{"id":"m","object":"model","owned_by":"vllm","max_model_len":131072}]}`,
			"/version":   `{"version":"0.32.0"}`,
		}[r.URL.Path]
		if text == "" {
			status = "404 Not Found"
		}
		_, _ = fmt.Fprintf(c, "HTTP/1.1 %s\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s", status, len(text), text)
		_ = c.Close()
	}
}

// openSilent opens a stream and reads its answer up to the event. Its buffers are given up, those of TLS among them.
func openSilent(t *testing.T, g *gateway.Gateway, over *tls.Config, more, body string) net.Conn {
	_, host, _ := strings.Cut(g.URL(), "://")
	raw, err := net.Dial("tcp", host)
	if err != nil {
		t.Fatal(err)
	}
	c := raw
	if over != nil {
		c = tls.Client(raw, over)
	}
	if _, err := fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer sk-abc\r\nUser-Agent: OpenAI/Python 1.99.0\r\n%sContent-Length: %d\r\n\r\n%s", more, len(body), body); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(c)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(line, "data: ") {
			return raw
		}
	}
}

// inUse is what the heap and the stacks take, garbage left out.
func inUse() (heap, stack uint64) {
	runtime.GC()
	runtime.GC() // what pools keep over one collection
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse, m.StackInuse
}

// The bounds of what a stream takes in heap and stacks while its engine is silent, in bytes: it took 17 KiB when this was written, of which the stack
// of the connection's goroutine is 8 and about 1 is this test's own ends of the connections; over TLS 20. A buffer of 4 KiB or a doubled stack is over
// the bounds.
const (
	maxIdleStream       = 20 << 10
	maxIdleSecureStream = 24 << 10
)

// TestMemoryOfIdleStreams holds what a stream costs that waits for its engine. The race detector's own memory would hide it.
func TestMemoryOfIdleStreams(t *testing.T) {
	short := `{"model":"m","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("word ", 200) + `"}]}`
	t.Run("plain", func(t *testing.T) { memoryOfIdleStreams(t, false, "", short, maxIdleStream) })
	t.Run("TLS", func(t *testing.T) { memoryOfIdleStreams(t, true, "", short, maxIdleSecureStream) })
	t.Run("TLS with long requests", func(t *testing.T) {
		memoryOfIdleStreams(t, true, "", strings.Replace(short, "word ", strings.Repeat("word ", 8000), 1), maxIdleSecureStream)
	})
	var long strings.Builder // 62 KiB, which take 320
	for i := range 900 {
		fmt.Fprintf(&long, "H%d: %s\r\n", i, strings.Repeat("v", 62))
	}
	t.Run("long heads", func(t *testing.T) { memoryOfIdleStreams(t, false, long.String(), short, maxIdleStream) })
	t.Run("TLS with long heads", func(t *testing.T) { memoryOfIdleStreams(t, true, long.String(), short, maxIdleSecureStream) })
}

func memoryOfIdleStreams(t *testing.T, secure bool, more, body string, most uint64) {
	e := startSilentEngine(t)
	a := newAuthority(t)
	cert, key := a.issue(t, time.Now().Add(time.Hour))
	dir, with := t.TempDir(), ""
	for name, text := range map[string]string{"cert.pem": cert, "key.pem": key} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var over *tls.Config
	c := newClient(t)
	if secure {
		with = fmt.Sprintf(", tls: {cert_file: %[1]s/cert.pem, key_file: %[1]s/key.pem}", dir)
		over = &tls.Config{RootCAs: a.pool, ServerName: "127.0.0.1"}
		c = a.client(t, false)
	}
	g := startAt(t, `
models: [{id: m}]
server: {port: 0, host: 127.0.0.1%s}
load: {poll_interval: 1h, freshness: 2h}
discovery: {static: {workers: [{url: %s}]}}
`, []any{with, "http://" + e.ln.Addr().String()})
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	open := func(n int) {
		for range n {
			conns = append(conns, openSilent(t, g, over, more, body))
		}
	}
	for range explain.DefaultSize { // the decision log's memory is none of a stream's
		if status, text, err := send(t, c, "POST", g.URL()+"/v1/completions", `{"model":"m","prompt":"hi"}`); status != 200 || err != nil {
			t.Fatal(status, text, err)
		}
	}
	open(50)
	const n = 1000
	heap0, stack0 := inUse()
	open(n)
	heap1, stack1 := inUse()
	heap, stack := (heap1-heap0)/n, (stack1-stack0)/n
	t.Logf("a stream takes %d B of heap and %d B of stack", heap, stack)
	if heap+stack > most {
		t.Errorf("a stream takes %d B of heap and %d B of stack, together more than %d B", heap, stack, most)
	}
}
