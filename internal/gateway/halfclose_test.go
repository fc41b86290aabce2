package gateway_test

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/perigee-llm/perigee/internal/engine/enginehttp"
)

// TestHalfClosed: a client that closes its own direction has left, as for every server on net/http; but it still reads, and what it
// reads must not be taken for an answer: net/http makes an empty 200 of a handler that writes nothing.
func TestHalfClosed(t *testing.T) {
	engines := startEngines(t, 2, enginehttp.SGLang)
	g := startGateway(t, oneModel, engines)
	for _, e := range engines {
		if err := e.SetFault(enginehttp.Fault{Kind: enginehttp.FaultHangBeforeHeaders}); err != nil {
			t.Fatal(err)
		}
	}
	const whole = `{"model":"m","prompt":"hi","max_tokens":2}`
	for _, c := range []struct{ name, framing, body, status string }{
		{"after the body", fmt.Sprintf("Content-Length: %d", len(whole)), whole, ""},
		{"within the body", "Content-Length: 100", whole, "HTTP/1.1 400 "},
		{"within a chunk", "Transfer-Encoding: chunked", "ff\r\n" + whole, "HTTP/1.1 400 "},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, err := net.Dial("tcp", strings.TrimPrefix(g.URL(), "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n%s", c.framing, c.body)
			if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(conn)
			if err != nil || !strings.HasPrefix(string(text), c.status) || (c.status == "") != (len(text) == 0) {
				t.Errorf("got %q, %v", text, err)
			}
		})
	}
}
