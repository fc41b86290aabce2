package downstream

import (
	"bytes"
	"crypto/tls"
	"net"
	"net/http"
	"testing"

	"github.com/perigee-llm/perigee/internal/script"
)

// kind is what a connection of a test is: plain, or with a version of TLS.
type kind struct {
	version uint16 // 0: plain
	cert    tls.Certificate
	client  *tls.Config
	secrets bytes.Buffer // what a client's connections have agreed on, if they may be forged
}

// onEach runs a test over each kind of connection.
func onEach(t *testing.T, test func(t *testing.T, k kind)) {
	cert, client := script.Certificate(t)
	for name, version := range map[string]uint16{"plain": 0, "TLS 1.2": tls.VersionTLS12, "TLS 1.3": tls.VersionTLS13} {
		t.Run(name, func(t *testing.T) {
			own := client.Clone()
			own.MinVersion, own.MaxVersion = version, version
			test(t, kind{version: version, cert: cert, client: own})
		})
	}
}

// options are testOptions with the kind's TLS.
func (k kind) options(h http.HandlerFunc) Options {
	o := testOptions(h)
	if k.version != 0 {
		o.TLS = &TLS{
			Config:        &tls.Config{Certificates: []tls.Certificate{k.cert}, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12},
			MaxHandshakes: 64, Plain: func() []byte { return []byte("HTTP/1.1 400 x\r\nConnection: close\r\n\r\nno TLS") },
		}
	}
	return o
}

// over is a client's end over a connection.
func (k kind) over(c net.Conn) net.Conn {
	if k.version == 0 {
		return c
	}
	return tls.Client(c, k.client)
}

// below returns what is below TLS.
func below(c net.Conn) net.Conn {
	if t, ok := c.(*tls.Conn); ok {
		return t.NetConn()
	}
	return c
}

// closeWrite ends a client's direction: with TLS it says so, and the socket stays open.
func closeWrite(c net.Conn) error { return c.(interface{ CloseWrite() error }).CloseWrite() }
