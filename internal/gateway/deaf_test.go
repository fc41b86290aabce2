package gateway_test

import (
	"bytes"
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// TestDeafOverHTTP2: a client that grants HTTP/2 all the windows there are and reads nothing of its connection is cut off in its time, which a reload may change, and told
// of as a slow reader.
func TestDeafOverHTTP2(t *testing.T) {
	sick := newSick(t)
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/completions" {
			sick.Config.Handler.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		part := strings.Repeat("x", 8<<10)
		for {
			if _, err := io.WriteString(w, part); err != nil {
				return
			}
		}
	}))
	defer engine.Close()
	a := newAuthority(t)
	cert, key := a.issue(t, time.Now().Add(time.Hour))
	config := `
models: [{id: m, policy: round_robin}]
server: {port: 0, tls: {cert_file: $DIR/cert.pem, key_file: $DIR/key.pem}, admin: {port: 0}, clients: {send_timeout: 1h}}
discovery: {static: {workers: [` + engine.URL + `]}}`
	l := startLive(t, time.Hour, map[string]string{"cert.pem": cert, "key.pem": key, configFile: config})
	l.write(configFile, strings.Replace(config, "1h", "1s", 1))
	l.mustReload("server.clients.send_timeout: 1h → 1s")

	c, err := tls.Dial("tcp", strings.TrimPrefix(l.URL(), "https://"), &tls.Config{RootCAs: a.pool, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	const body = `{"model":"m","prompt":"hi","stream":true}`
	var block bytes.Buffer
	coder := hpack.NewEncoder(&block)
	for i, all := 0, []string{":method", "POST", ":scheme", "https", ":authority", "x", ":path", "/v1/completions"}; i < len(all); i += 2 {
		if err := coder.WriteField(hpack.HeaderField{Name: all[i], Value: all[i+1]}); err != nil {
			t.Fatal(err)
		}
	}
	f := http2.NewFramer(c, c)
	_, err = io.WriteString(c, http2.ClientPreface)
	for _, step := range []func() error{
		func() error { return f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30}) },
		func() error { return f.WriteWindowUpdate(0, 1<<30) },
		func() error {
			return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true})
		},
		func() error { return f.WriteData(1, true, []byte(body)) },
	} {
		if err == nil {
			err = step()
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	admin := newClient(t)
	await(t, func() bool {
		_, text, _ := send(t, admin, "GET", l.AdminURL()+"/metrics", "")
		return strings.Contains(text, `perigee_slow_readers_total{model="m"} 1`) && strings.Contains(text, `perigee_client_connections{listener="public"} 0`)
	})
}
