package gateway_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/engine/enginehttp"
)

// reached is a gateway with how to connect to it.
type reached struct {
	*live
	dial func() net.Conn
}

// startBoth starts two gateways before engines, one of them with TLS.
func startBoth(t *testing.T, yaml string, engines []*enginehttp.Server) map[string]reached {
	t.Helper()
	a := newAuthority(t)
	cert, key := a.issue(t, time.Now().Add(time.Hour))
	args := make([]any, len(engines))
	for i, e := range engines {
		args[i] = e.URL()
	}
	yaml = fmt.Sprintf(yaml, args...)
	over := func(with string, wrap func(net.Conn) net.Conn) reached {
		l := startLive(t, time.Hour, map[string]string{"cert.pem": cert, "key.pem": key, configFile: strings.Replace(yaml, "port: 0", "port: 0"+with, 1)})
		return reached{l, func() net.Conn {
			t.Helper()
			_, host, _ := strings.Cut(l.URL(), "://")
			c, err := net.Dial("tcp", host)
			if err != nil {
				t.Fatal(err)
			}
			return wrap(c)
		}}
	}
	return map[string]reached{
		"plain": over("", func(c net.Conn) net.Conn { return c }),
		"TLS": over(", tls: {cert_file: $DIR/cert.pem, key_file: $DIR/key.pem}", func(c net.Conn) net.Conn {
			return tls.Client(c, &tls.Config{RootCAs: a.pool, ServerName: "127.0.0.1"})
		}),
	}
}

// TestHalfClosed: a client that closes its own direction has left, as for every server on net/http; but it still reads, and what it
// reads must not be taken for an answer: net/http makes an empty 200 of a handler that writes nothing.
func TestHalfClosed(t *testing.T) {
	engines := startEngines(t, 2, enginehttp.SGLang)
	gateways := startBoth(t, oneModel, engines)
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
		for name, g := range gateways {
			t.Run(c.name+", "+name, func(t *testing.T) {
				conn := g.dial()
				defer func() { _ = conn.Close() }()
				fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n%s", c.framing, c.body)
				if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil { // over TLS that is its goodbye, and nothing of the socket's
					t.Fatal(err)
				}
				text, err := io.ReadAll(conn)
				if err != nil || !strings.HasPrefix(string(text), c.status) || (c.status == "") != (len(text) == 0) {
					t.Errorf("got %q, %v", text, err)
				}
			})
		}
	}
}
