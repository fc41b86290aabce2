package gateway_test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/engine/enginehttp"
)

// TestManyLeaveOverTLS: streams that wait for their engine are all cancelled within a second of their clients' leaving, whether these close their socket
// or say goodbye within TLS alone, as clients do that wait for ours.
func TestManyLeaveOverTLS(t *testing.T) {
	engines := startEngines(t, 2, enginehttp.SGLang)
	for _, e := range engines {
		if err := e.SetFault(enginehttp.Fault{Kind: enginehttp.FaultHangMidStream, AfterChunks: 1}); err != nil {
			t.Fatal(err)
		}
	}
	g := startBoth(t, oneModel, engines)["TLS"]
	leave := map[string]func(c *tls.Conn) error{
		"closing": (*tls.Conn).Close, "saying goodbye": (*tls.Conn).CloseWrite, "closing the socket": func(c *tls.Conn) error { return c.NetConn().Close() },
	}
	for name, f := range leave {
		t.Run(name, func(t *testing.T) {
			const n = 200
			conns := make([]net.Conn, n)
			for i := range conns {
				conns[i] = g.dial()
				const body = `{"model":"m","prompt":[1,2,3],"max_tokens":20,"stream":true}`
				if _, err := io.WriteString(conns[i], "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 60\r\n\r\n"+body); err != nil {
					t.Fatal(err)
				}
				resp, err := http.ReadResponse(bufio.NewReader(conns[i]), nil)
				if err != nil || resp.StatusCode != 200 {
					t.Fatal(resp, err)
				}
			}
			if g.Held() != n {
				t.Fatalf("%d streams are under way", g.Held())
			}
			began := time.Now()
			for _, c := range conns {
				if err := f(c.(*tls.Conn)); err != nil && !errors.Is(err, net.ErrClosed) {
					t.Fatal(err)
				}
			}
			await(t, func() bool { return g.Held() == 0 })
			t.Logf("%d were cancelled within %v", n, time.Since(began))
			for _, c := range conns {
				_ = c.Close()
			}
		})
	}
}

// TestHandshakeFloodAtTheDoor: with handshakes that nobody goes on with, as many as there may be connections, and more, whoever means it is served, over
// HTTP/1.1 and 2; what is shown of it goes back to nothing.
func TestHandshakeFloodAtTheDoor(t *testing.T) {
	a := newAuthority(t)
	cert, key := a.issue(t, time.Now().Add(time.Hour))
	l := startLive(t, time.Hour, map[string]string{
		"cert.pem": cert, "key.pem": key,
		configFile: `
models: [{id: m}]
server: {port: 0, clients: {max_connections: 200}, tls: {cert_file: $DIR/cert.pem, key_file: $DIR/key.pem}, admin: {port: 0}}
discovery: {static: {workers: ['http://127.0.0.1:1']}}`,
	})
	metrics := func() map[string]string {
		_, text, err := send(t, newClient(t), "GET", l.AdminURL()+"/metrics", "")
		if err != nil {
			t.Fatal(err)
		}
		m := map[string]string{}
		for line := range strings.Lines(text) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
				m[name] = value
			}
		}
		return m
	}
	host := strings.TrimPrefix(l.URL(), "https://")
	var flood []net.Conn
	for i := range 500 {
		c, err := net.Dial("tcp", host)
		if err != nil {
			t.Fatal(err)
		}
		flood = append(flood, c)
		if i%50 == 0 {
			get(t, a.client(t, i%100 == 0), l.URL()+"/healthz")
			if n := metrics()[`perigee_client_handshakes{listener="public"}`]; len(n) > 2 { // 200/8 = 25
				t.Errorf("%s handshakes", n)
			}
		}
	}
	await(t, func() bool {
		n, _ := strconv.Atoi(metrics()[`perigee_client_connections_cut_total{listener="public",reason="tls_handshake"}`])
		return n >= 400
	})
	for _, c := range flood {
		_ = c.Close()
	}
	await(t, func() bool { return metrics()[`perigee_client_handshakes{listener="public"}`] == "0" })
}
