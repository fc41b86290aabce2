package downstream

import (
	"bytes"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// asker sends the same request again and again over one connection, without allocating.
type asker struct {
	c    net.Conn
	text []byte
	buf  [4 << 10]byte
}

var answered = []byte("\r\n\r\nok")

func (a *asker) ask(t testing.TB) {
	if _, err := a.c.Write(a.text); err != nil {
		t.Fatal(err)
	}
	for n := 0; !bytes.HasSuffix(a.buf[:n], answered); {
		k, err := a.c.Read(a.buf[n:])
		if n += k; err != nil {
			t.Fatal(err)
		}
	}
}

// answerer reads a body and answers with a short text, as a gateway does.
func answerer() http.HandlerFunc {
	var bufs sync.Pool
	bufs.New = func() any { return new([2 << 10]byte) }
	plain, two, ok := []string{"text/plain"}, []string{"2"}, []byte("ok")
	return func(w http.ResponseWriter, r *http.Request) {
		buf := bufs.Get().(*[2 << 10]byte)
		defer bufs.Put(buf)
		for {
			if _, err := r.Body.Read(buf[:]); err != nil {
				break
			}
		}
		w.Header()["Content-Type"], w.Header()["Content-Length"] = plain, two
		_, _ = w.Write(ok)
	}
}

func newAsker(t testing.TB, ln net.Listener) *asker {
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &asker{c: c, text: []byte("POST /v1/completions HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\nContent-Type: application/json\r\n" +
		"User-Agent: OpenAI/Python 1.99.0\r\nAuthorization: Bearer sk-abc\r\nContent-Length: 1024\r\n\r\n" + strings.Repeat("x", 1024))}
}

// TestAllocs holds how often a request allocates that has the head of the one before, as those of one client have: the request, its life, and what
// the runtime does now and then.
func TestAllocs(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates, too")
	}
	r := newRig(t, listen(t), testOptions(answerer()))
	defer r.end()
	a := newAsker(t, r.ln)
	a.ask(t)
	n := testing.AllocsPerRun(300, func() { a.ask(t) })
	t.Logf("%.0f a request", n)
	if n > 4 {
		t.Errorf("a request allocates %.0f times", n)
	}
}

// BenchmarkBesideNetHTTP is one request and its answer over loopback.
func BenchmarkBesideNetHTTP(b *testing.B) {
	b.Run("ours", func(b *testing.B) {
		r := newRig(b, listen(b), testOptions(answerer()))
		defer r.end()
		a := newAsker(b, r.ln)
		b.ReportAllocs()
		for b.Loop() {
			a.ask(b)
		}
	})
	b.Run("net-http", func(b *testing.B) {
		s := &http.Server{Handler: answerer(), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
		ln := listen(b)
		var wg sync.WaitGroup
		wg.Go(func() { _ = s.Serve(ln) })
		a := newAsker(b, ln)
		b.ReportAllocs()
		for b.Loop() {
			a.ask(b)
		}
		_ = s.Close()
		wg.Wait()
	})
}
