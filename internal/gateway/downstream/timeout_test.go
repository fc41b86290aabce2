package downstream

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// inMemory runs a test on a server in fake time, over each kind of connection, and wants it to have cut connections for the reasons.
func inMemory(t *testing.T, cuts string, h http.HandlerFunc, test func(t *testing.T, c net.Conn)) {
	t.Helper()
	onEach(t, func(t *testing.T, k kind) { k.inMemory(t, cuts, h, test) })
}

func (k kind) inMemory(t *testing.T, cuts string, h http.HandlerFunc, test func(t *testing.T, c net.Conn)) {
	synctest.Test(t, func(t *testing.T) {
		ln := newPipes()
		r := newRig(t, ln, k.options(h))
		c := k.over(ln.dial())
		if s, ok := c.(*tls.Conn); ok {
			if err := s.Handshake(); err != nil {
				t.Fatal(err)
			}
		}
		test(t, c)
		_ = below(c).Close()
		synctest.Wait()
		if got := r.end(); got != cuts {
			t.Errorf("cut for %q, want %q", got, cuts)
		}
	})
}

// TestTimeouts: each wait for a client has its own.
func TestTimeouts(t *testing.T) {
	const ask = "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n"
	ends := func(t *testing.T, c io.Reader, after time.Duration) {
		t.Helper()
		began := time.Now()
		if rest, err := io.ReadAll(c); len(rest) != 0 || err != nil {
			t.Errorf("%q, %v", rest, err)
		}
		if took := time.Since(began); took != after {
			t.Errorf("it ended after %v, want %v", took, after)
		}
	}
	say := func(t *testing.T, c io.Writer, text string) {
		t.Helper()
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("nothing comes", func(t *testing.T) {
		inMemory(t, CutSlowHead, echo, func(t *testing.T, c net.Conn) { ends(t, c, 10*time.Second) })
	})
	t.Run("half a head", func(t *testing.T) {
		inMemory(t, CutSlowHead, echo, func(t *testing.T, c net.Conn) { say(t, c, ask[:20]); ends(t, c, 10*time.Second) })
	})
	t.Run("idle", func(t *testing.T) {
		inMemory(t, CutIdle, echo, func(t *testing.T, c net.Conn) {
			in := bufio.NewReader(c)
			for range 3 {
				say(t, c, ask+"abc")
				resp, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadAll(resp.Body); err != nil {
					t.Fatal(err)
				}
				time.Sleep(2*time.Minute - 1) // on the fake clock
			}
			ends(t, in, 1)
		})
	})
	t.Run("half a second head", func(t *testing.T) {
		inMemory(t, CutSlowHead, echo, func(t *testing.T, c net.Conn) {
			in := bufio.NewReader(c)
			say(t, c, ask+"abc")
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.ReadAll(resp.Body)
			time.Sleep(time.Minute) // on the fake clock
			say(t, c, ask[:20])
			ends(t, in, 10*time.Second)
		})
	})
	t.Run("a slow body", func(t *testing.T) {
		h := func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(5 * time.Second))
			began := time.Now()
			_, err := io.ReadAll(r.Body)
			if !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != 5*time.Second {
				t.Errorf("%v after %v", err, time.Since(began))
			}
			w.WriteHeader(http.StatusRequestTimeout)
		}
		inMemory(t, "", h, func(t *testing.T, c net.Conn) {
			say(t, c, ask+"ab")
			text, err := io.ReadAll(c)
			if !strings.HasPrefix(string(text), "HTTP/1.1 408 ") || !strings.Contains(string(text), "Connection: close") || err != nil {
				t.Errorf("%q, %v", text, err)
			}
		})
	})
	t.Run("a body that is left and does not come", func(t *testing.T) {
		h := func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(5 * time.Second))
		}
		inMemory(t, "", h, func(t *testing.T, c net.Conn) {
			say(t, c, ask+"ab")
			if text, err := io.ReadAll(c); !strings.Contains(string(text), "Connection: close") || err != nil {
				t.Errorf("%q, %v", text, err)
			}
		})
	})
	t.Run("a slow reader", func(t *testing.T) {
		h := func(w http.ResponseWriter, _ *http.Request) {
			rc := http.NewResponseController(w)
			began := time.Now()
			for {
				_ = rc.SetWriteDeadline(time.Now().Add(7 * time.Second))
				_, err := io.WriteString(w, strings.Repeat("x", 10_000))
				if err == nil {
					continue
				}
				if !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != 7*time.Second {
					t.Errorf("%v after %v", err, time.Since(began))
				}
				return
			}
		}
		inMemory(t, "", h, func(t *testing.T, c net.Conn) {
			say(t, c, ask+"abc")
			time.Sleep(10 * time.Second) // on the fake clock
		})
	})
}

// TestBadHeads: what is no request is refused, and the connection ends.
func TestBadHeads(t *testing.T) {
	for _, c := range []struct {
		name, head string
		want       *Refusal
	}{
		{"bytes", "\x16\x03\x01\r\n\r\n", errRequestLine},
		{"LF alone", "GET / HTTP/1.1\nHost: x\n\n", errLine},
		{"a line's end before", "\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", errRequestLine},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\n", errVersion},
		{"HTTP/1.2", "GET / HTTP/1.2\r\nHost: x\r\n\r\n", errVersion},
		{"no version", "GET /\r\n\r\n", errRequestLine},
		{"two spaces", "GET  / HTTP/1.1\r\nHost: x\r\n\r\n", errRequestLine},
		{"a method", "G[T / HTTP/1.1\r\nHost: x\r\n\r\n", errMethod},
		{"a target", "GET a HTTP/1.1\r\nHost: x\r\n\r\n", errTarget},
		{"a control in a target", "GET /\x01 HTTP/1.1\r\nHost: x\r\n\r\n", errTarget},
		{"folded", "GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", errName},
		{"no colon", "GET / HTTP/1.1\r\nHost: x\r\nA\r\n\r\n", errName},
		{"no name", "GET / HTTP/1.1\r\nHost: x\r\n: b\r\n\r\n", errName},
		{"a space before the colon", "GET / HTTP/1.1\r\nHost: x\r\nA : b\r\n\r\n", errName},
		{"a NUL", "GET / HTTP/1.1\r\nHost: x\r\nA: \x00\r\n\r\n", errValue},
		{"a CR", "GET / HTTP/1.1\r\nHost: x\r\nA: b\rc\r\n\r\n", errValue},
		{"no host", "GET / HTTP/1.1\r\n\r\n", errNoHost},
		{"two hosts", "GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", errTwoHosts},
		{"a bad host", "GET / HTTP/1.1\r\nHost: x y\r\n\r\n", errHost},
		{"two lengths", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", errLength},
		{"a list of lengths", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1, 1\r\n\r\n", errLength},
		{"a sign", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\n", errLength},
		{"no length", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n\r\n", errLength},
		{"beyond counting", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9223372036854775808\r\n\r\n", errLength},
		{"a length and chunks", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", errTwoLengths},
		{"two codings", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", errCoding},
		{"a coding twice", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", errCoding},
		{"chunks for HTTP/1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", errOldChunks},
		{"a trailer", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: a, content-length\r\n\r\n", errTrailer},
		{"an expectation", "POST / HTTP/1.1\r\nHost: x\r\nExpect: miracles\r\n\r\n", errExpectation},
		{"too long", "GET / HTTP/1.1\r\nHost: x\r\nA: " + strings.Repeat("b", 16<<10) + "\r\n\r\n", errLongHead},
		{"too long without an end", strings.Repeat("G", 16<<10+1), errLongHead},
		{"too many fields", "GET / HTTP/1.1\r\nHost: x\r\n" + strings.Repeat("A: b\r\n", maxFields) + "\r\n", errLongHead},
	} {
		t.Run(c.name, func(t *testing.T) {
			inMemory(t, CutBadHead, func(http.ResponseWriter, *http.Request) { t.Error("the handler was asked") }, func(t *testing.T, conn net.Conn) {
				go func() { _, _ = io.WriteString(conn, c.head) }() // ends with the connection
				text, err := io.ReadAll(conn)
				status, why := string(text[:min(len(text), 12)]), string(text[strings.LastIndex(string(text), "\n")+1:])
				if status != fmt.Sprint("HTTP/1.1 ", c.want.Status) || why != c.want.Why || err != nil {
					t.Errorf("%q, %v; want %+v", text, err, c.want)
				}
			})
		})
	}
}

// TestLongHead: a head of just the length that is allowed is taken, however it comes.
func TestLongHead(t *testing.T) {
	const limit = 16 << 10
	head := "GET / HTTP/1.1\r\nHost: x\r\nA: "
	head += strings.Repeat("b", limit-len(head)-4) + "\r\n\r\n"
	inMemory(t, "", func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Header.Get("A")) }, func(t *testing.T, c net.Conn) {
		in := bufio.NewReader(c)
		for range 2 {
			go func() {
				for rest := head; rest != ""; rest = rest[min(len(rest), 999):] {
					_, _ = io.WriteString(c, rest[:min(len(rest), 999)])
				}
			}()
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			if text, err := io.ReadAll(resp.Body); len(text) != limit-32 || err != nil {
				t.Errorf("%d bytes, %v", len(text), err)
			}
		}
	})
}
