package gateway_test

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestDoorBelowTLS: what ends connections is counted over TLS too, and a client that speaks plain HTTP is told so in the envelope.
func TestDoorBelowTLS(t *testing.T) {
	a := newAuthority(t)
	cert, key := a.issue(t, time.Now().Add(time.Hour))
	l := startLive(t, time.Hour, map[string]string{
		"cert.pem": cert, "key.pem": key,
		configFile: `
models: [{id: m}]
server: {port: 0, clients: {header_timeout: 3s, idle_timeout: 3s}, tls: {cert_file: $DIR/cert.pem, key_file: $DIR/key.pem}, admin: {port: 0}}
discovery: {static: {workers: ['http://127.0.0.1:1']}}`,
	})
	host := strings.TrimPrefix(l.URL(), "https://")
	talk := func(secure bool, text string) string {
		c, err := net.Dial("tcp", host)
		if secure && err == nil {
			c = tls.Client(c, &tls.Config{RootCAs: a.pool, ServerName: "127.0.0.1"})
		}
		if err == nil {
			_, err = io.WriteString(c, text)
		}
		if err != nil {
			return err.Error()
		}
		defer func() { _ = c.Close() }()
		answer, _ := io.ReadAll(c) // a reset may end it
		return string(answer)
	}
	var wg sync.WaitGroup // all at once: the times that they wait for are long enough for the handshakes of a busy machine
	wg.Go(func() {
		if s := talk(false, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); !strings.Contains(s, `"code":"bad_request","message":"this port speaks HTTPS"`) {
			t.Errorf("over plain HTTP: %q", s)
		}
	})
	wg.Go(func() {
		if s := talk(false, ""); s != "" { // it never begins its handshake
			t.Errorf("to nothing: %q", s)
		}
	})
	wg.Go(func() {
		if s := talk(true, "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"); !strings.HasPrefix(s, "HTTP/1.1 400 ") || !strings.Contains(s, `"code":"bad_request"`) {
			t.Errorf("to a bad head: %q", s)
		}
	})
	wg.Go(func() {
		if s := talk(true, "GET / HTTP/1.1\r\n"); s != "" {
			t.Errorf("to half a head: %q", s)
		}
	})
	wg.Go(func() {
		if s := talk(true, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); !strings.HasPrefix(s, "HTTP/1.1 200 ") {
			t.Errorf("to a good request: %q", s)
		}
	})
	wg.Wait()
	get(t, a.client(t, true), l.URL()+"/healthz") // HTTP/2
	want := map[string]string{"tls_handshake": "2", "bad_head": "1", "slow_head": "1"}
	await(t, func() bool {
		got := map[string]string{}
		resp, err := http.Get(l.AdminURL() + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		for sc := bufio.NewScanner(resp.Body); sc.Scan(); {
			if rest, ok := strings.CutPrefix(sc.Text(), `perigee_client_connections_cut_total{listener="public",reason="`); ok {
				reason, n, _ := strings.Cut(rest, `"} `)
				got[reason] = n
			}
		}
		for reason, n := range want {
			if got[reason] != n {
				return false
			}
		}
		return got["idle"] != "" && got["over_cap"] == ""
	})
}
