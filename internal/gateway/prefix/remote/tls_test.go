package remote

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/indexer"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
)

// authority makes a certificate that signs itself, for 127.0.0.1 and for a client.
func authority(t *testing.T) (pair tls.Certificate, pool *x509.CertPool) {
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
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool = x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// TestTLS: both sides know each other by certificates, or nothing is said.
func TestTLS(t *testing.T) {
	ours, roots := authority(t)
	theirs, others := authority(t)
	s := local.New(local.Options{})
	s.Open(local.Engine{No: 1, Base: "m"}, 0).Mark(index.Exact)
	srv := indexer.New(indexer.Options{
		Store: s, URL: func(uint32) (string, bool) { return "http://a", true },
		TLS: &tls.Config{Certificates: []tls.Certificate{ours}, ClientCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert},
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(l) })
	defer wg.Wait()
	defer srv.Close(0)
	for _, c := range []struct {
		about, scheme string
		tls           *tls.Config
		want          string
	}{
		{"as it should be", "https", &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{ours}}, "blind [2 3]"},
		{"no certificate of ours", "https", &tls.Config{RootCAs: roots}, "unavailable: unreachable"},
		{"one of somebody else's", "https", &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{theirs}}, "unavailable: unreachable"},
		{"a service that we do not trust", "https", &tls.Config{RootCAs: others, Certificates: []tls.Certificate{ours}}, "unavailable: unreachable"},
		{"in plain text", "http", nil, "unavailable: unreachable"},
	} {
		x, err := NewIndex(Options{Endpoints: []string{c.scheme + "://" + l.Addr().String()}, Engines: fleet, Secrets: func() Secrets { return Secrets{TLS: c.tls} }, Timeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if got := look(t.Context(), x, 16); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %s, want %s", c.about, got, c.want)
		}
		x.Close()
	}
}
