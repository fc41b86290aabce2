package downstream

import (
	"bufio"
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/script"
)

// onTLS runs a test over TLS of each version.
func onTLS(t *testing.T, test func(t *testing.T, k kind)) {
	onEach(t, func(t *testing.T, k kind) {
		if k.version != 0 {
			test(t, k)
		}
	})
}

// TestRecordBuffers: the buffers that a *tls.Conn has are where they are looked for, and a connection that waits has none of them. If this fails with a new
// version of Go, that has them elsewhere: see records.go.
func TestRecordBuffers(t *testing.T) {
	if !rawInput.known || !handInput.known {
		t.Fatal("a *tls.Conn has its buffers elsewhere")
	}
	onTLS(t, func(t *testing.T, k kind) {
		under, finish := make(chan struct{}), make(chan struct{})
		r := k.rig(t, func(_ http.ResponseWriter, q *http.Request) {
			_, _ = io.Copy(io.Discard, q.Body)
			under <- struct{}{}
			<-finish
		})
		defer r.end()
		c := r.dial()
		defer func() { _ = c.Close() }()
		in := bufio.NewReader(c)
		for _, n := range []int{0, 10, 1 << 20} {
			_, _ = fmt.Fprintf(c, "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", n, strings.Repeat("x", n))
			<-under
			own := r.only()
			check := func(when string) {
				t.Helper()
				own.heed.reading.Lock()
				defer own.heed.reading.Unlock()
				s := own.secure
				if raw, hand := rawInput.of(s.conn), handInput.of(s.conn); raw.Cap() != 0 || hand.Cap() != 0 || s.records.pooled != nil || own.in.buf != nil || s.link.out != nil {
					t.Errorf("%s of %d bytes it has buffers of %d and %d bytes, %v %v %v", when, n, raw.Cap(), hand.Cap(), s.records.pooled != nil, own.in.buf != nil, s.link.out != nil)
				}
			}
			check("within a request")
			finish <- struct{}{}
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
		}
	})
}

// TestLongOverTLS: long bodies and answers pass as they are, whatever their records are cut into.
func TestLongOverTLS(t *testing.T) {
	rng := script.Rand(t)
	onTLS(t, func(t *testing.T, k kind) {
		handlers := rand.New(rand.NewPCG(rng.Uint64(), 0))
		r := k.rig(t, func(w http.ResponseWriter, q *http.Request) {
			text, err := io.ReadAll(q.Body)
			if err != nil {
				t.Error(err)
			}
			w.Header()["Content-Type"] = nil
			rc := http.NewResponseController(w)
			for len(text) > 0 {
				n := min(len(text), 1+handlers.IntN(100_000))
				if _, err := w.Write(text[:n]); err != nil {
					t.Error(err)
				}
				if text = text[n:]; n%3 == 0 {
					_ = rc.Flush()
				}
			}
		})
		defer r.end()
		c := r.dial()
		defer func() { _ = c.Close() }()
		in := bufio.NewReader(c)
		for range 5 {
			text := make([]byte, rng.IntN(3<<20))
			for i := range text {
				text[i] = byte(rng.Uint32())
			}
			var wg sync.WaitGroup
			wg.Go(func() {
				_, _ = fmt.Fprintf(c, "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", len(text))
				for rest := text; len(rest) > 0; {
					n := min(len(rest), 1+rng.IntN(40_000))
					_, _ = c.Write(rest[:n])
					rest = rest[n:]
				}
			})
			wg.Wait()
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(resp.Body); !bytes.Equal(got, text) || err != nil {
				t.Fatalf("%d bytes of %d, or others, %v", len(got), len(text), err)
			}
		}
	})
}

// TestReadAhead: a further request that comes while a handler works is no leave, and is answered; nor is a part of one, however small.
func TestReadAhead(t *testing.T) {
	onTLS(t, func(t *testing.T, k kind) {
		under, finish := make(chan struct{}), make(chan struct{})
		r := k.rig(t, func(w http.ResponseWriter, q *http.Request) {
			under <- struct{}{}
			<-finish
			_, _ = fmt.Fprint(w, q.RequestURI, q.Context().Err())
		})
		defer r.end()
		c := r.dial()
		defer func() { _ = c.Close() }()
		in := bufio.NewReader(c)
		next := "GET /0 HTTP/1.1\r\nHost: x\r\n\r\n"
		for i := range 20 {
			_, _ = io.WriteString(c, next)
			<-under
			next = fmt.Sprintf("GET /%d HTTP/1.1\r\nHost: x\r\n\r\n", i+1)
			_, _ = io.WriteString(c, next[:i]) // of which some come as one record, and some not at all
			next = next[i:]
			if i%2 == 0 { // the goroutine that looks has been there
				for i > 0 && !aheadOf(r.only()) {
					<-time.After(time.Millisecond)
				}
			}
			finish <- struct{}{}
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			if text, _ := io.ReadAll(resp.Body); string(text) != fmt.Sprint("/", i, "<nil>") {
				t.Errorf("%q", text)
			}
		}
	})
}

// aheadOf tells whether something of a further request is in a connection's buffer.
func aheadOf(c *conn) bool {
	c.heed.reading.Lock()
	defer c.heed.reading.Unlock()
	return c.in.buffered() > 0
}

// TestStaleDeadline: a time-out for writing that is no longer wanted when it comes breaks nothing, and one that is wanted ends the connection.
func TestStaleDeadline(t *testing.T) {
	onTLS(t, func(t *testing.T, k kind) {
		const size = 32 << 20 // more than both sockets keep
		begun := make(chan struct{})
		r := k.rig(t, func(w http.ResponseWriter, q *http.Request) {
			rc := http.NewResponseController(w)
			_ = rc.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
			if q.RequestURI == "/late" {
				_ = rc.SetWriteDeadline(time.Now().Add(time.Hour))
			}
			w.Header().Set("Content-Length", fmt.Sprint(size))
			close(begun)
			_, err := w.Write(make([]byte, size))
			if (err == nil) != (q.RequestURI == "/late") || err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error(q.RequestURI, err)
			}
		})
		defer r.end()
		for path, whole := range map[string]bool{"/late": true, "/slow": false} {
			begun = make(chan struct{})
			c := r.dial()
			_, _ = io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
			<-begun
			<-time.After(100 * time.Millisecond)
			n, err := io.Copy(io.Discard, c)
			if (n > size) != whole || whole && err != nil {
				t.Errorf("%s: %d bytes, %v", path, n, err)
			}
			_ = c.Close()
		}
	})
}

// tap takes down what is read.
type tap struct {
	net.Conn
	seen bytes.Buffer
}

func (t *tap) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	t.seen.Write(p[:n])
	return n, err
}

// last returns the type of the last record.
func (t *tap) last() (kind byte) {
	for p := t.seen.Bytes(); len(p) >= 5; p = p[5+int(binary.BigEndian.Uint16(p[3:])):] {
		kind = p[0]
	}
	return kind
}

// TestGoodbye: a connection that ends after a whole answer, or idle, ends with TLS's goodbye, and one whose answer broke off without.
func TestGoodbye(t *testing.T) {
	const alert, data = 21, 23
	onTLS(t, func(t *testing.T, k kind) {
		if k.version != tls.VersionTLS12 {
			t.Skip("records do not show what they are")
		}
		for path, want := range map[string]byte{"/whole": alert, "/idle": alert, "/broken": data, "/short": data} {
			r := k.rig(t, func(w http.ResponseWriter, q *http.Request) {
				switch q.RequestURI {
				case "/whole":
					w.Header().Set("Connection", "close")
				case "/short":
					w.Header().Set("Content-Length", "10")
				}
				_, _ = io.WriteString(w, "text")
				if q.RequestURI == "/broken" {
					_ = http.NewResponseController(w).Flush()
					panic(http.ErrAbortHandler)
				}
			})
			raw := &tap{Conn: below(r.dial())}
			c := k.over(raw)
			in := bufio.NewReader(c)
			_, _ = io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n")
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			if path == "/idle" {
				if err := r.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
			}
			_, _ = io.Copy(io.Discard, in)
			if got := raw.last(); got != want {
				t.Errorf("%s: the last record is of type %d, want %d", path, got, want)
			}
			_ = c.Close()
			r.end()
		}
	})
}

// forger makes records of TLS 1.3 as a client would.
type forger struct {
	secret []byte
	seq    uint64
	raw    net.Conn
}

func expand(t *testing.T, secret []byte, label string, n int) []byte {
	t.Helper()
	info := append([]byte{0, byte(n), byte(len("tls13 ") + len(label))}, "tls13 "+label+"\x00"...)
	out, err := hkdf.Expand(sha256.New, secret, string(info), n)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (f *forger) send(t *testing.T, kind byte, content []byte) {
	t.Helper()
	if err := f.try(t, kind, content); err != nil {
		t.Fatal(err)
	}
}

func (f *forger) try(t *testing.T, kind byte, content []byte) error {
	t.Helper()
	block, err := aes.NewCipher(expand(t, f.secret, "key", 16))
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	nonce := expand(t, f.secret, "iv", 12)
	for i, b := range binary.BigEndian.AppendUint64(nil, f.seq) {
		nonce[4+i] ^= b
	}
	f.seq++
	inner := append(bytes.Clone(content), kind)
	head := []byte{23, 3, 3, 0, byte(len(inner) + 16)}
	_, err = f.raw.Write(aead.Seal(head, nonce, inner, head))
	return err
}

// forgeable has the client's connections begin so that [kind.forge] can go on with them.
func (k *kind) forgeable(t *testing.T) {
	if k.version != tls.VersionTLS13 {
		t.Skip("there is no such thing")
	}
	k.client.KeyLogWriter = &k.secrets
	k.client.CurvePreferences = []tls.CurveID{tls.X25519}
}

// forge shakes hands, and goes on in the client's place.
func (k *kind) forge(t *testing.T, c net.Conn) *forger {
	t.Helper()
	if err := c.(*tls.Conn).Handshake(); err != nil {
		t.Fatal(err)
	}
	if suite := c.(*tls.Conn).ConnectionState().CipherSuite; suite != tls.TLS_AES_128_GCM_SHA256 {
		t.Skip("another cipher: ", tls.CipherSuiteName(suite))
	}
	_, line, _ := strings.Cut(k.secrets.String(), "CLIENT_TRAFFIC_SECRET_0 ")
	text, _, _ := strings.Cut(strings.TrimSpace(strings.Fields(line)[1]), "\n")
	f := &forger{raw: below(c)}
	var err error
	if f.secret, err = hex.DecodeString(text); err != nil {
		t.Fatal(err)
	}
	return f
}

// update changes the keys, and asks for the same.
func (f *forger) update(t *testing.T) {
	t.Helper()
	if err := f.tryUpdate(t); err != nil {
		t.Fatal(err)
	}
}

func (f *forger) tryUpdate(t *testing.T) error {
	t.Helper()
	err := f.try(t, 22, []byte{24, 0, 0, 1, 1})
	f.secret, f.seq = expand(t, f.secret, "traffic upd", 32), 0
	return err
}

// TestKeyUpdate: other keys while a handler works are no leave, what is sent with them is read, and so is a goodbye.
func TestKeyUpdate(t *testing.T) {
	onTLS(t, func(t *testing.T, k kind) {
		k.forgeable(t)
		under, finish := make(chan struct{}), make(chan struct{})
		r := k.rig(t, func(w http.ResponseWriter, q *http.Request) {
			under <- struct{}{}
			if q.RequestURI == "/leave" {
				<-q.Context().Done()
				under <- struct{}{}
				return
			}
			<-finish
			_, _ = fmt.Fprint(w, q.RequestURI, q.Context().Err())
		})
		defer r.end()
		c := r.dial()
		defer func() { _ = c.Close() }()
		f := k.forge(t, c)
		in := bufio.NewReader(c)
		const data, alert = 23, 21
		for i := range 3 {
			f.send(t, data, fmt.Appendf(nil, "GET /%d HTTP/1.1\r\nHost: x\r\n\r\n", i))
			<-under
			f.update(t)
			if i == 1 {
				f.update(t)
				f.send(t, data, nil) // records without anything in them
			}
			finish <- struct{}{}
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			if text, _ := io.ReadAll(resp.Body); string(text) != fmt.Sprint("/", i, "<nil>") {
				t.Errorf("%q", text)
			}
		}
		f.send(t, data, []byte("GET /leave HTTP/1.1\r\nHost: x\r\n\r\n"))
		<-under
		f.update(t)
		f.send(t, alert, []byte{1, 0}) // close_notify
		<-under
	})
}

// TestKeyUpdatesUnread: a client that wants other keys again and again, and does not read that it gets them, is not waited for: its connection ends.
func TestKeyUpdatesUnread(t *testing.T) {
	onTLS(t, func(t *testing.T, k kind) {
		if runtime.GOOS != "linux" {
			t.Skip("its head's time-out ends it")
		}
		k.forgeable(t)
		o := k.options(func(http.ResponseWriter, *http.Request) {})
		o.HeaderTimeout = time.Hour // it must not end by that
		r := newRig(t, narrow{listen(t)}, o)
		r.kind = k
		defer r.end()
		c := r.dial()
		defer func() { _ = c.Close() }()
		if err := below(c).(*net.TCPConn).SetReadBuffer(64 << 10); err != nil {
			t.Fatal(err)
		}
		f := k.forge(t, c)
		const data = 23
		_ = f.raw.SetWriteDeadline(time.Now().Add(20 * time.Second))
		f.send(t, data, []byte("GET / HTTP/1.1\r\nHost: x\r\nA: "))
		var err error
		for i := 0; err == nil; i++ {
			err = f.tryUpdate(t)
			if err == nil && i%12 == 0 { // a *tls.Conn takes sixteen records in a row that say nothing
				err = f.try(t, data, []byte("a"))
			}
		}
		if errors.Is(err, os.ErrDeadlineExceeded) { // all buffers on the way are full: nobody reads
			t.Error(err)
		}
	})
}

// narrow is a listener whose connections hold little that was not read.
type narrow struct{ net.Listener }

func (l narrow) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		err = c.(*net.TCPConn).SetWriteBuffer(4 << 10)
	}
	return c, err
}

// TestSecureAllocs holds how often a request over TLS allocates: beside what a plain one does, a *tls.Conn makes 24 bytes each time that it looks for a
// record, twice on our side and twice on the client's. Nothing is made for what is written.
func TestSecureAllocs(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates, too")
	}
	onTLS(t, func(t *testing.T, k kind) {
		r := k.rig(t, answerer())
		defer r.end()
		a := newAsker(t, r.ln)
		a.c = k.over(a.c)
		a.ask(t)
		n := testing.AllocsPerRun(300, func() { a.ask(t) })
		t.Logf("%.0f a request", n)
		if n > 7 {
			t.Errorf("a request allocates %.0f times", n)
		}
	})
}
