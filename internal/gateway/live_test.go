package gateway_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway"
	"github.com/perigee-llm/perigee/internal/gateway/config"
)

// journal is a log that can be waited for.
type journal struct {
	mu   sync.Mutex
	cond *sync.Cond
	text strings.Builder
}

func newJournal() *journal {
	j := &journal{}
	j.cond = sync.NewCond(&j.mu)
	return j
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.cond.Broadcast()
	return j.text.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// take returns what was written since the last take.
func (j *journal) take() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.text.Reset()
	return j.text.String()
}

// await waits for a text, however long the test may last, and takes everything.
func (j *journal) await(text string) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	for !strings.Contains(j.text.String(), text) {
		j.cond.Wait()
	}
	defer j.text.Reset()
	return j.text.String()
}

// live is a gateway whose configuration is in files that the test writes. Nothing that it logs may contain "sk-", with which all keys of
// these tests begin.
type live struct {
	*gateway.Gateway
	t     testing.TB
	dir   string
	log   *journal // both logs
	level *slog.LevelVar
}

const configFile = "perigee.yaml"

// startLive starts a gateway from files: name → text, in which $DIR stands for their folder.
func startLive(t testing.TB, watch time.Duration, files map[string]string) *live {
	t.Helper()
	l := &live{t: t, dir: t.TempDir(), log: newJournal(), level: new(slog.LevelVar)}
	for name, text := range files {
		l.write(name, text)
	}
	cfg, faults := config.ParseFile(l.path(configFile))
	if cfg == nil {
		t.Fatal(faults)
	}
	handler := slog.NewTextHandler(l.log, &slog.HandlerOptions{Level: slog.LevelDebug})
	var err error
	l.Gateway, err = gateway.Start(t.Context(), gateway.Options{
		Config: cfg, Log: slog.New(leveled{handler, l.level}), Access: l.log, Seed: 1, Level: l.level, WatchInterval: watch,
		Source: &gateway.Source{File: l.path(configFile), Read: func() (*config.Config, config.Faults) { return config.ParseFile(l.path(configFile)) }},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := l.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if n := l.Held(); n != 0 {
			t.Errorf("%d guards are held", n)
		}
		l.noKeys(l.log.take())
	})
	return l
}

// leveled keeps a handler to a level that can be changed.
type leveled struct {
	slog.Handler
	level *slog.LevelVar
}

func (l leveled) Enabled(_ context.Context, level slog.Level) bool { return level >= l.level.Level() }

func (l *live) path(name string) string { return filepath.Join(l.dir, name) }

// write replaces a file at once, as a careful operator does.
func (l *live) write(name, text string) {
	l.t.Helper()
	tmp := l.path("." + name)
	if err := errors.Join(os.WriteFile(tmp, []byte(strings.ReplaceAll(text, "$DIR", l.dir)), 0o600), os.Rename(tmp, l.path(name))); err != nil {
		l.t.Fatal(err)
	}
}

func (l *live) noKeys(said string) {
	l.t.Helper()
	if strings.Contains(said, "sk-") {
		l.t.Errorf("a key is in the log:\n%s", said)
	}
}

// reload reads the files anew and returns what was logged, less what is no news of it.
func (l *live) reload() (said string, err error) {
	l.t.Helper()
	l.noKeys(l.log.take())
	err = l.Reload(l.t.Context())
	said = strings.ReplaceAll(l.log.take(), l.dir+"/", "")
	l.noKeys(said)
	return said, err
}

// mustReload reloads and checks that the log has all of the texts.
func (l *live) mustReload(texts ...string) {
	l.t.Helper()
	said, err := l.reload()
	if err != nil {
		l.t.Fatalf("%v:\n%s", err, said)
	}
	for _, text := range texts {
		if !strings.Contains(said, text) {
			l.t.Errorf("%q is not in\n%s", text, said)
		}
	}
}

// authority signs certificates for 127.0.0.1.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
	next int64
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{pool: x509.NewCertPool(), next: 1}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pool.AddCert(a.cert)
	return a
}

// issue returns a certificate and its key in PEM. Serial numbers count up from 2.
func (a *authority) issue(t testing.TB, until time.Time) (cert, key string) {
	t.Helper()
	a.next++
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(a.next), NotAfter: until, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &own.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
}

// client trusts the authority. Without http2 it speaks HTTP/1.1.
func (a *authority) client(t testing.TB, http2 bool) *http.Client {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: a.pool}, ForceAttemptHTTP2: http2}}
	t.Cleanup(c.CloseIdleConnections)
	return c
}
