package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/remote"
)

// identity is a certificate that signs itself, for 127.0.0.1 and for a client, and its key.
type identity struct {
	cert, key []byte // PEM
	tls       *tls.Config
}

func newIdentity(t *testing.T) (i identity) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	i.cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	i.key = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(i.cert)
	i.tls = &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	return i
}

// logLines gets what a command logs, a line at a time.
type logLines chan string

func (l logLines) Write(b []byte) (int, error) {
	if !strings.Contains(string(b), "the index's files") {
		return len(b), nil
	}
	l <- string(b)
	return len(b), nil
}

// TestIndexReadsAnew: SIGHUP has the index take what its files hold now, all of them or none.
func TestIndexReadsAnew(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(token string, i identity) {
		t.Helper()
		for name, content := range map[string][]byte{"token": []byte(token), "cert": i.cert, "key": i.key, "ca": i.cert} {
			if err := os.WriteFile(at(name), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	one, two := newIdentity(t), newIdentity(t)
	write("sk-one", one)
	c := indexCmd{
		Listen: "127.0.0.1:0", TokenFile: at("token"), TLSCertFile: at("cert"), TLSKeyFile: at("key"), TLSClientCAFile: at("ca"), hangupsForTesting: make(chan os.Signal, 1),
	}
	c.WorkerURLs.Given = []string{"http://127.0.0.1:1"}
	r, w := io.Pipe()
	log, ended := make(logLines, 10), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		ended <- c.Run(&runContext{ctx: ctx, stdout: w, stderr: io.Discard, log: slog.New(slog.NewTextHandler(log, nil))})
		w.Close()
	}()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatal(err, <-ended)
	}
	asks := func(token string, i identity, want string) {
		t.Helper()
		x, err := remote.NewIndex(remote.Options{
			Endpoints: []string{"https://" + strings.TrimSpace(strings.TrimPrefix(line, "perigee indexes on "))}, Engines: func(string) map[string]uint32 { return nil },
			Secrets: func() remote.Secrets { return remote.Secrets{Token: token, TLS: i.tls} }, Timeout: 10 * time.Second,
		})
		if err != nil {
			t.Fatal(err)
		}
		defer x.Close()
		err = x.Lookup(t.Context(), &prefix.Query{Model: "m", Tokens: []uint32{1}}, new(prefix.Match))
		got := "rejected"
		if away, ok := errors.AsType[*prefix.Unavailable](err); ok {
			got = string(away.Reason)
		}
		if got != want {
			t.Errorf("%s: %v, want %s", token, err, want)
		}
	}
	hangUp := func(want string) {
		t.Helper()
		c.hangupsForTesting <- syscall.SIGHUP
		if got := <-log; !regexp.MustCompile(want).MatchString(got) || strings.Contains(got, "sk-") {
			t.Errorf("logged %q, want %s", got, want)
		}
	}
	const heard = string(prefix.NotReady) // it follows an engine that nobody has seen
	asks("sk-one", one, heard)
	asks("sk-two", one, "rejected")
	hangUp(`level=INFO msg="[^"]*: nothing is different"`)

	write("sk-two", one)
	hangUp(`level=INFO .*changed=token\n`)
	asks("sk-two", one, heard)
	asks("sk-one", one, "rejected")

	write("", two) // the certificate could be taken, and the token not
	hangUp(`level=ERROR msg="[^"]*nothing has changed" .*faults=".*is not one line`)
	write("sk-three", identity{two.cert, one.key, nil})
	hangUp(`level=ERROR .*private key does not match public key`)
	asks("sk-two", one, heard)

	write("sk-three", two)
	hangUp(`level=INFO .*changed="token, certificate, client authorities"`)
	asks("sk-three", two, heard)
	asks("sk-three", one, string(prefix.Unreachable))

	if err := errors.Join(os.Remove(at("ca")), os.Mkdir(at("ca"), 0o700)); err != nil {
		t.Fatal(err)
	}
	hangUp(`level=ERROR .*is not a file`)
	asks("sk-three", two, heard)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := len(log); n > 0 {
		t.Error(fmt.Sprint(n, " more lines: ", <-log))
	}
}
