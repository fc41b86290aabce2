package gateway_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/engine/enginehttp"
	"github.com/perigee-llm/perigee/internal/gateway"
	"github.com/perigee-llm/perigee/internal/gateway/config"
)

const oneRequest = `{"model":"m","prompt":[1,2,3],"max_tokens":2}`

// get asks over a client and tells the protocol, the certificate's serial number, and whether the connection was there before.
func get(t testing.TB, c *http.Client, target string) (proto string, serial int64, reused bool) {
	t.Helper()
	trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused }}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), "GET", target, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(io.Discard, resp.Body) // else the connection is not used again
	_ = resp.Body.Close()
	if resp.StatusCode != 200 || err != nil {
		t.Errorf("%s: %s, %v", target, resp.Status, err)
	}
	return resp.Proto, resp.TLS.PeerCertificates[0].SerialNumber.Int64(), reused
}

// TestTLS: HTTP/1.1 and 2, nothing before TLS 1.2, and a new certificate without the end of a connection; a broken one changes nothing.
func TestTLS(t *testing.T) {
	a := newAuthority(t)
	until := time.Now().Add(time.Hour)
	cert, key := a.issue(t, until)
	engines := startEngines(t, 1, enginehttp.VLLM)
	l := startLive(t, time.Hour, map[string]string{
		"cert.pem": cert, "key.pem": key,
		configFile: `
models: [{id: m}]
server: {port: 0, tls: {cert_file: $DIR/cert.pem, key_file: $DIR/key.pem}, admin: {port: 0, tls: {cert_file: $DIR/cert.pem, key_file: $DIR/key.pem}}}
discovery: {static: {workers: [` + engines[0].URL() + `]}}`,
	})
	if !strings.HasPrefix(l.URL(), "https://") || !strings.HasPrefix(l.AdminURL(), "https://") {
		t.Fatalf("it serves on %s and %s", l.URL(), l.AdminURL())
	}
	one, two := a.client(t, false), a.client(t, true)
	for c, want := range map[*http.Client]string{one: "HTTP/1.1", two: "HTTP/2.0"} {
		if proto, serial, _ := get(t, c, l.URL()+"/healthz"); proto != want || serial != 2 {
			t.Errorf("%s with certificate %d, want %s with 2", proto, serial, want)
		}
		if status, body, err := send(t, c, "POST", l.URL()+"/v1/completions", oneRequest); status != 200 || err != nil {
			t.Errorf("over %s: %d %s %v", want, status, body, err)
		}
	}
	get(t, one, l.AdminURL()+"/debug/workers")
	host := strings.TrimPrefix(l.URL(), "https://")
	if c, err := tls.Dial("tcp", host, &tls.Config{RootCAs: a.pool, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}); err == nil { //nolint:gosec // refused is what we want
		_ = c.Close()
		t.Error("TLS 1.1 is spoken")
	}

	// An answer that breaks off is broken over each protocol, and takes nothing else of its connection down over HTTP/2.
	if err := engines[0].SetFault(enginehttp.Fault{Kind: enginehttp.FaultResetMidStream, AfterChunks: 2}); err != nil {
		t.Fatal(err)
	}
	for c, name := range map[*http.Client]string{one: "HTTP/1.1", two: "HTTP/2"} {
		status, body, err := send(t, c, "POST", l.URL()+"/v1/completions", `{"model":"m","prompt":[1,2,3],"max_tokens":20,"stream":true}`)
		if status != 200 || err == nil || !strings.Contains(body, "data: ") {
			t.Errorf("over %s a broken stream ends with %d, %v after %q", name, status, err, body)
		}
	}
	old, err := tls.Dial("tcp", host, &tls.Config{RootCAs: a.pool})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = old.Close() }()
	const body = `{"model":"m","prompt":[1,2,3],"max_tokens":20,"stream":true}`
	if _, err := fmt.Fprintf(old, "POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(old); err == nil {
		t.Errorf("over HTTP/1.0 a broken stream ends cleanly after %q", text)
	}
	if _, _, reused := get(t, two, l.URL()+"/healthz"); !reused {
		t.Error("a broken stream took its HTTP/2 connection down")
	}
	if err := engines[0].SetFault(enginehttp.Fault{Kind: enginehttp.FaultNone}); err != nil {
		t.Fatal(err)
	}
	get(t, one, l.URL()+"/healthz")

	renewed, renewedKey := a.issue(t, until)
	l.write("cert.pem", renewed) // the key is still the old one
	if said, err := l.reload(); !errors.Is(err, gateway.ErrRefused) || !strings.Contains(said, "cannot be used with") {
		t.Errorf("half a pair: %v\n%s", err, said)
	}
	if _, serial, _ := get(t, a.client(t, false), l.URL()+"/healthz"); serial != 2 {
		t.Errorf("after a refusal there is certificate %d", serial)
	}
	l.write("key.pem", renewedKey)
	l.mustReload("server.tls: certificate 2 until", "→ certificate 3 until", "server.admin.tls: certificate 2")
	for _, c := range []*http.Client{one, two} {
		if _, serial, reused := get(t, c, l.URL()+"/healthz"); serial != 2 || !reused {
			t.Errorf("the old connection: certificate %d, kept %v", serial, reused)
		}
	}
	if _, serial, _ := get(t, a.client(t, false), l.URL()+"/healthz"); serial != 3 {
		t.Errorf("a new connection has certificate %d", serial)
	}
	if _, serial, _ := get(t, a.client(t, false), l.AdminURL()+"/healthz"); serial != 3 {
		t.Errorf("a new connection to the admin listener has certificate %d", serial)
	}
	ended, endedKey := a.issue(t, time.Now().Add(-time.Hour))
	l.write("cert.pem", ended)
	l.write("key.pem", endedKey)
	l.mustReload("warning: the certificate ended on")
}

// TestKeyFile: keys are read from a file and anew with it.
func TestKeyFile(t *testing.T) {
	engines := startEngines(t, 1, enginehttp.VLLM)
	l := startLive(t, time.Hour, map[string]string{
		"keys.yaml": "version: 1\nkeys:\n- {name: a, key: sk-aaaaaaaaaaaaaaaa}\n- {name: b, key: sk-bbbbbbbbbbbbbbbb, models: [other]}\n",
		configFile: `
models: [{id: m}, {id: other}]
server: {port: 0, api_keys: {file: $DIR/keys.yaml}, admin: {port: 0, api_keys: {file: $DIR/keys.yaml}}}
discovery: {static: {workers: [` + engines[0].URL() + `]}}`,
	})
	c := newClient(t)
	ask := func(url, key string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), "POST", url, strings.NewReader(oneRequest))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+key)
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	check := func(a, b int) {
		t.Helper()
		if gotA, gotB := ask(l.URL()+"/v1/completions", "sk-aaaaaaaaaaaaaaaa"), ask(l.URL()+"/v1/completions", "sk-bbbbbbbbbbbbbbbb"); gotA != a || gotB != b {
			t.Errorf("a gets %d, b gets %d; want %d and %d", gotA, gotB, a, b)
		}
	}
	check(200, 404)
	if got := ask(l.AdminURL()+"/flush_cache", "sk-wrong"); got != 401 {
		t.Errorf("the admin listener answers %d without a key", got)
	}
	l.write("keys.yaml", "version: 1\nkeys:\n- {name: c, key: sk-cccccccccccccccc}\n- {name: b, key: sk-bbbbbbbbbbbbbbbb}\n")
	l.mustReload(
		`server.api_keys.file[\"c\"]: none → given`, `server.api_keys.file[\"a\"]: given → none`, `server.api_keys.file[\"b\"].models: [other] → all`,
		`server.admin.api_keys.file[\"c\"]: none → given`)
	check(401, 200)
	l.write("keys.yaml", "version: 1\nkeys:\n- {name: b, key: sk-aaaaaaaaaaaaaaaa}\n")
	l.mustReload(`server.api_keys.file[\"b\"]: a key → another key`)
	check(200, 401)
	l.write("keys.yaml", "version: 1\nkeys:\n- {name: b, key: sk-aaaaaaaaaaaaaaaa}\n- sk-oops\n")
	if said, err := l.reload(); !errors.Is(err, gateway.ErrRefused) || strings.Count(said, "keys.yaml:4:3: keys[1]: is not a plain mapping") != 2 {
		t.Errorf("%v:\n%s", err, said)
	}
	check(200, 401)
}

// lockedEngine is an engine that wants a key for everything, and takes down who came without.
type lockedEngine struct {
	url string
	mu  sync.Mutex
	key string
	// refused are the paths that were asked for with another Authorization, seen those asked for with the right one.
	refused, seen map[string]bool
}

func startLocked(t testing.TB, e *enginehttp.Server, key string) *lockedEngine {
	t.Helper()
	target, err := url.Parse(e.URL())
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	l := &lockedEngine{key: key, refused: map[string]bool{}, seen: map[string]bool{}}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, Transport: transport}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.mu.Lock()
		ok := r.Header.Get("Authorization") == "Bearer "+l.key
		if ok {
			l.seen[r.URL.Path] = true
		} else {
			l.refused[r.URL.Path] = true
		}
		l.mu.Unlock()
		if !ok {
			w.WriteHeader(401)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { s.Close(); transport.CloseIdleConnections() })
	l.url = s.URL
	return l
}

func (l *lockedEngine) change(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.key = key
	clear(l.refused)
	clear(l.seen)
}

// TestEngineKeys: each engine is asked with its own key, for everything; the client's Authorization goes no further.
func TestEngineKeys(t *testing.T) {
	engines := startEngines(t, 2, enginehttp.SGLang)
	a, b := startLocked(t, engines[0], "sk-engine-a"), startLocked(t, engines[1], "sk-engine-b")
	l := startLive(t, time.Hour, map[string]string{
		"a.key": "sk-engine-a\n", "b.key": "sk-engine-b",
		configFile: fmt.Sprintf(`
models: [{id: m}]
server: {port: 0, admin: {port: 0}}
discovery: {static: {api_key_file: $DIR/a.key, workers: ["%s", {url: "%s", api_key_file: $DIR/b.key}]}}
load: {poll_interval: 10ms}`, a.url, b.url),
	})
	c := newClient(t)
	both := func() {
		t.Helper()
		for range 2 {
			req, err := http.NewRequestWithContext(t.Context(), "POST", l.URL()+"/v1/completions", strings.NewReader(oneRequest))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer sk-of-a-client")
			resp, err := c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if _ = resp.Body.Close(); resp.StatusCode != 200 {
				t.Errorf("got %s", resp.Status)
			}
		}
	}
	both()
	if status, body, err := send(t, c, "POST", l.AdminURL()+"/flush_cache", ""); status != 200 || err != nil {
		t.Errorf("flush: %d %s %v", status, body, err)
	}
	for _, e := range []*lockedEngine{a, b} {
		e.mu.Lock()
		if len(e.refused) > 0 || !e.seen["/server_info"] || !e.seen["/v1/completions"] || !e.seen["/flush_cache"] {
			t.Errorf("seen %v, refused %v", e.seen, e.refused)
		}
		e.mu.Unlock()
	}
	l.write("b.key", "sk-engine-new")
	l.mustReload("discovery.static.workers[1].api_key_file: a key → another key")
	b.change("sk-engine-new")
	both()
	l.write("b.key", "two words")
	if _, err := l.reload(); !errors.Is(err, gateway.ErrRefused) {
		t.Error(err)
	}
	both()
}

// TestStartRefusesFiles: every file that cannot be used is told at once.
func TestStartRefusesFiles(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/keys.yaml", []byte("version: 1\nkeys: [sk-0, sk-1]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, faults := config.Parse("x", fmt.Appendf(nil, `
models: [{id: m}]
server: {port: 0, tls: {cert_file: %[1]s/none.pem, key_file: %[1]s/none.pem}, api_keys: {file: %[1]s/keys.yaml}}
discovery: {static: {api_key_file: %[1]s, workers: ["http://127.0.0.1:1"]}}`, dir))
	if cfg == nil {
		t.Fatal(faults)
	}
	_, err := gateway.Start(t.Context(), gateway.Options{Config: cfg, Log: newTestLog(t)})
	unusable := new(gateway.FilesError)
	if !errors.As(err, &unusable) || len(unusable.Faults) != 4 || strings.Contains(err.Error(), "sk-") {
		t.Errorf("got %v", err)
	}
	if again := gateway.CheckFiles(cfg); len(again) != 4 {
		t.Errorf("CheckFiles says %v", again)
	}
}

// TestSilentHandshake: a client that opens a connection and says nothing holds nobody else up, nor the end.
func TestSilentHandshake(t *testing.T) {
	a := newAuthority(t)
	cert, key := a.issue(t, time.Now().Add(time.Hour))
	l := startLive(t, time.Hour, map[string]string{
		"cert.pem": cert, "key.pem": key,
		configFile: "models: [{id: m}]\nserver: {port: 0, tls: {cert_file: $DIR/cert.pem, key_file: $DIR/key.pem}}\ndiscovery: {static: {workers: ['http://127.0.0.1:1']}}\n",
	})
	silent, err := net.Dial("tcp", strings.TrimPrefix(l.URL(), "https://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	get(t, a.client(t, false), l.URL()+"/healthz")
}
