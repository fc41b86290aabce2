package gateway_test

import (
	"crypto/tls"
	"encoding/pem"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/engine/enginehttp"
	"github.com/perigee-llm/perigee/internal/gateway"
	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/indexd"
)

// root is the authority's own certificate.
func (a *authority) root() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
}

var lookups = regexp.MustCompile(`(?m)^perigee_prefix_lookups_total\{outcome="(\w+)",source="\w+"\} [1-9]`)

// TestProtectedIndex: a gateway asks an index that wants a token and a certificate, and presents what its files hold now.
func TestProtectedIndex(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	until := time.Now().Add(time.Hour)
	cert, key := a.issue(t, until)
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	engines := startEngines(t, 1, enginehttp.VLLM)
	s, err := indexd.Start(indexd.Options{
		Listen: "127.0.0.1:0", Workers: []config.Worker{{ID: engines[0].URL(), URL: engines[0].URL()}}, Token: "sk-index",
		TLS: &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: a.pool, ClientAuth: tls.RequireAndVerifyClientCert},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(0)
	mine, myKey := a.issue(t, until)
	l := startLive(t, time.Hour, map[string]string{
		"token": "sk-index", "ca.pem": other.root(), "cert.pem": mine, "key.pem": myKey,
		configFile: `
models:
  - id: m
    policy: {name: cost, prefix_provider: perigee_index, kv_indexer: {endpoint: "https://` + s.Addr() + `", query_timeout: 10s,
      token_file: $DIR/token, ca_file: $DIR/ca.pem, cert_file: $DIR/cert.pem, key_file: $DIR/key.pem}}
server: {port: 0, admin: {port: 0}}
discovery: {static: {workers: [` + engines[0].URL() + `]}}`,
	})
	c := newClient(t)
	seen := map[string]bool{}
	// ask sends requests until a look-up has an outcome that there was not before, and returns it with the last answer's status.
	ask := func() (outcome string, status int) {
		t.Helper()
		for range 10_000 {
			status, _, err := send(t, c, "POST", l.URL()+"/v1/completions", oneRequest)
			if err != nil {
				t.Fatal(err)
			}
			_, text, err := send(t, c, "GET", l.AdminURL()+"/metrics", "")
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range lookups.FindAllStringSubmatch(text, -1) {
				if !seen[m[1]] {
					seen[m[1]] = true
					return m[1], status
				}
			}
		}
		t.Fatal("nothing new is seen")
		return "", 0
	}
	want := func(outcome string, status int) {
		t.Helper()
		if got, code := ask(); got != outcome || code != status {
			t.Errorf("%s, and the client gets %d; want %s, %d", got, code, outcome, status)
		}
	}
	want("unreachable", 200) // it is not known by that authority
	l.write("ca.pem", a.root())
	l.mustReload("ca.pem: some authorities → others")
	want("miss", 200) // when it was dialled again; the prompt is too short for a block
	l.write("token", "sk-another")
	l.mustReload("token: a token → another token")
	want("rejected", 500)
	l.write("token", "sk-index")
	l.mustReload("token: a token → another token")
	if status, body, err := send(t, c, "POST", l.URL()+"/v1/completions", oneRequest); status != 200 || err != nil {
		t.Errorf("with the right token again: %d %s %v", status, body, err)
	}

	mine, _ = a.issue(t, until)
	l.write("cert.pem", mine) // the key is the old one's
	if said, err := l.reload(); !errors.Is(err, gateway.ErrRefused) || !strings.Contains(said, "cannot be used with") {
		t.Errorf("half a pair: %v\n%s", err, said)
	}
	l.write("ca.pem", "sk-no certificate")
	if said, err := l.reload(); !errors.Is(err, gateway.ErrRefused) || !strings.Contains(said, "ca.pem: has no certificate") {
		t.Errorf("no authority: %v\n%s", err, said)
	}
}

// TestSharedCertificate: the index's listener shows the certificate that its files hold now.
func TestSharedCertificate(t *testing.T) {
	a := newAuthority(t)
	cert, key := a.issue(t, time.Now().Add(time.Hour))
	l := startLive(t, 10*time.Millisecond, map[string]string{
		"cert.pem": cert, "key.pem": key,
		configFile: `
models: [{id: m, policy: cost}]
server: {port: 0, admin: {port: 0}}
prefix_index: {listen: "127.0.0.1:0", tls: {cert_file: $DIR/cert.pem, key_file: $DIR/key.pem}}
discovery: {static: {workers: ["http://127.0.0.1:1"]}}`,
	})
	at := regexp.MustCompile(`the prefix index is served" address=(\S+)`).FindStringSubmatch(l.log.take())
	if at == nil {
		t.Fatal("nothing says where the index is served")
	}
	shown := func() string {
		c, err := tls.Dial("tcp", at[1], &tls.Config{RootCAs: a.pool, NextProtos: []string{"h2"}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.Text(16)
	}
	if n := shown(); n != "2" {
		t.Errorf("it shows certificate %s, want 2", n)
	}
	cert, key = a.issue(t, time.Now().Add(2*time.Hour))
	l.write("cert.pem", cert)
	l.write("key.pem", key)
	for deadline := time.Now().Add(30 * time.Second); shown() != "3"; {
		if time.Now().After(deadline) {
			t.Fatal("it still shows the certificate of the start")
		}
	}
}
