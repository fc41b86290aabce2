//go:build unix

package gateway

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

// file writes a file of a test.
func (r *shareRig) file(text []byte) string {
	r.t.Helper()
	path := filepath.Join(r.t.TempDir(), "file")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		r.t.Fatal(err)
	}
	return path
}

// certificate is that of net/http's tests, for 127.0.0.1, signed by itself, and its key.
func (r *shareRig) certificate() (cert, key string) {
	r.t.Helper()
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	private, err := x509.MarshalPKCS8PrivateKey(s.TLS.Certificates[0].PrivateKey)
	if err != nil {
		r.t.Fatal(err)
	}
	return r.file(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})), r.file(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
}

// TestSnapshotOverTLS: a gateway that serves its index by TLS gives a snapshot to whoever knows its authority and has its token, and to nobody else.
func TestSnapshotOverTLS(t *testing.T) {
	r := newShareRig(t, 4, 400)
	cert, key := r.certificate()
	token := r.file([]byte("sk-index"))
	warm := r.gateway(fmt.Sprintf("listen: %q, token_file: %q, tls: {cert_file: %q, key_file: %q}", "127.0.0.1:0", token, cert, key))
	r.quiet(warm)
	r.run(150)
	prompts := r.prompts(100)
	r.quiet(warm)

	at := warm.prefixes.shared.addr.String()
	for _, c := range []struct {
		name, index, outcome string
	}{
		{"known and with the token", fmt.Sprintf("snapshot_from: %q, snapshot_ca_file: %q, snapshot_token_file: %q", "https://"+at, cert, token), "taken"},
		{"known to nobody", fmt.Sprintf("snapshot_from: %q, snapshot_token_file: %q", "https://"+at, token), "failed"},
		{"without the token", fmt.Sprintf("snapshot_from: %q, snapshot_ca_file: %q", "https://"+at, cert), "failed"},
		{"plain text", fmt.Sprintf("snapshot_from: %q, snapshot_token_file: %q", "http://"+at, token), "failed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			late := r.gateway("snapshot_timeout: 10s, " + c.index)
			r.quiet(late)
			if c.outcome == "taken" {
				r.eventually("the same as from the beginning", func() bool { return same(warm, late, r, prompts) })
			}
			r.eventually("both are counted as "+c.outcome, func() bool { return snapshots(late, c.outcome) == 2 })
		})
	}
}
