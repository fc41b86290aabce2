package downstream

import (
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perigee-llm/perigee/internal/script"
)

// hello returns the first thing that a client says in TLS.
func hello(t *testing.T, client *tls.Config) []byte {
	t.Helper()
	near, far := net.Pipe()
	defer func() { _ = near.Close() }()
	go func() { _ = tls.Client(near, client).Handshake() }() // ends with the pipe
	p := make([]byte, 4<<10)
	n, err := far.Read(p)
	if err != nil {
		t.Fatal(err)
	}
	return p[:n]
}

// shakeOne has one connection shake hands, in fake time, and wants it cut for the reason.
func shakeOne(t *testing.T, cuts string, test func(t *testing.T, c net.Conn)) {
	t.Helper()
	cert, client := script.Certificate(t)
	synctest.Test(t, func(t *testing.T) {
		ln := newPipes()
		r := newRig(t, ln, kind{version: tls.VersionTLS13, cert: cert, client: client}.options(echo))
		c := ln.dial()
		test(t, c)
		_ = c.Close()
		synctest.Wait()
		if n := r.Handshakes(); n != 0 {
			t.Errorf("%d handshakes are left", n)
		}
		if got := r.end(); got != cuts {
			t.Errorf("cut for %q, want %q", got, cuts)
		}
	})
}

// TestHandshakes: what is no handshake, or takes too long, is cut off; who only comes and goes is not counted.
func TestHandshakes(t *testing.T) {
	_, client := script.Certificate(t)
	first := hello(t, client)
	ends := func(t *testing.T, c net.Conn, after time.Duration) {
		t.Helper()
		began := time.Now()
		if _, err := io.Copy(io.Discard, c); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != after {
			t.Errorf("it ended after %v, want %v", took, after)
		}
	}
	t.Run("nothing comes", func(t *testing.T) {
		shakeOne(t, CutHandshake, func(t *testing.T, c net.Conn) { ends(t, c, 10*time.Second) })
	})
	t.Run("half a hello", func(t *testing.T) {
		shakeOne(t, CutHandshake, func(t *testing.T, c net.Conn) {
			_, _ = c.Write(first[:len(first)/2])
			ends(t, c, 10*time.Second)
		})
	})
	t.Run("a hello that trickles", func(t *testing.T) {
		shakeOne(t, CutHandshake, func(t *testing.T, c net.Conn) {
			began := time.Now()
			for _, b := range first {
				if _, err := c.Write([]byte{b}); err != nil {
					break
				}
				<-time.After(100 * time.Millisecond)
			}
			if took := time.Since(began); took < 10*time.Second || took > 11*time.Second {
				t.Errorf("it ended after %v", took)
			}
		})
	})
	t.Run("no answer to ours", func(t *testing.T) {
		shakeOne(t, CutHandshake, func(t *testing.T, c net.Conn) {
			_, _ = c.Write(first)
			ends(t, c, 10*time.Second)
		})
	})
	t.Run("garbage", func(t *testing.T) {
		for _, text := range []string{"\x00\x01\x02\x03\x04\x05", "\x16\x03\x01\x00\x05abcde", "SSH-2.0-x\r\n", "\x80\x2e\x01\x03\x01", strings.Repeat("\xff", 500), "PRI * HTTP/2.0\r\n\r\n"} {
			shakeOne(t, CutHandshake, func(t *testing.T, c net.Conn) {
				go func() { _, _ = io.WriteString(c, text) }() // ends with the connection
				ends(t, c, 0)
			})
		}
	})
	t.Run("an older version", func(t *testing.T) {
		shakeOne(t, CutHandshake, func(t *testing.T, c net.Conn) {
			old := client.Clone()
			old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
			if err := tls.Client(c, old).Handshake(); err == nil {
				t.Error("it is spoken")
			}
		})
	})
	t.Run("no TLS", func(t *testing.T) {
		shakeOne(t, CutHandshake, func(t *testing.T, c net.Conn) {
			go func() { _, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n") }() // ends with the connection
			if text, err := io.ReadAll(c); !strings.HasSuffix(string(text), "no TLS") || err != nil {
				t.Errorf("%q, %v", text, err)
			}
		})
	})
	t.Run("come and gone", func(t *testing.T) {
		shakeOne(t, "", func(*testing.T, net.Conn) {})
	})
	t.Run("gone within its hello", func(t *testing.T) {
		shakeOne(t, "", func(_ *testing.T, c net.Conn) { _, _ = c.Write(first[:100]) })
	})
}

// TestHandshakeFlood: of too many handshakes the oldest are ended, so that whoever means it gets through, and nothing is left of them.
func TestHandshakeFlood(t *testing.T) {
	onTLS(t, func(t *testing.T, k kind) {
		r := k.rig(t, echo)
		first := hello(t, k.client)
		var flood []net.Conn
		for i := range 500 {
			c, err := net.Dial("tcp", r.ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			_, _ = c.Write(first[:i%(len(first)+1)]) // it may have been ended before
			flood = append(flood, c)
			if i%100 == 0 {
				if text := r.say("GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); !strings.HasPrefix(text, "HTTP/1.1 200 ") {
					t.Errorf("%q", text)
				}
			}
			if n := r.Handshakes(); n > 64 {
				t.Fatalf("%d handshakes", n)
			}
		}
		for _, c := range flood {
			_ = c.Close()
		}
		for r.Handshakes() > 0 {
			<-time.After(time.Millisecond)
		}
		if n := strings.Count(r.end(), CutHandshake); n < 100 {
			t.Errorf("%d were cut off", n)
		}
	})
}

// TestShutdownWithinHandshake: it waits for a handshake as for a first request, and then no longer.
func TestShutdownWithinHandshake(t *testing.T) {
	shakeOne(t, "", func(t *testing.T, c net.Conn) {
		// shakeOne's end closes the server with the handshake under way
	})
	cert, client := script.Certificate(t)
	synctest.Test(t, func(t *testing.T) {
		ln := newPipes()
		r := newRig(t, ln, kind{version: tls.VersionTLS13, cert: cert, client: client}.options(echo))
		c := ln.dial()
		synctest.Wait()
		began := time.Now()
		if err := r.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != freshPatience {
			t.Errorf("it took %v", took)
		}
		_ = c.Close()
		if got := r.end(); got != "" {
			t.Error(got)
		}
	})
}
