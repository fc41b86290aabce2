package api

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/upstream"
)

// longChat is a request whose body is in memory that is lent.
func longChat(model, mark string) string {
	return `{"model":"` + model + `","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat(mark, 30_000) + `"}]}`
}

// keeper is the transport and an engine that keeps the first body that it got, and may say that it has read it.
type keeper struct {
	cannedEngine
	says bool
	kept []byte
	last *byte // where the last body begins
}

func (k *keeper) RoundTrip(r *http.Request) (*http.Response, error) {
	p := r.Body.(upstream.Pieces)
	first := p.Pieces()[0]
	k.last = &first[0]
	if k.kept == nil {
		k.kept = first
	}
	resp, err := k.cannedEngine.RoundTrip(r)
	if k.says {
		p.Sent()
	}
	return resp, err
}

// TestMemoryOfBodies: a body's memory is another's when its engine says that it has the body, and not before.
func TestMemoryOfBodies(t *testing.T) {
	for _, says := range []bool{true, false} {
		k := &keeper{cannedEngine: cannedEngine{contentType: []string{"application/json"}, parts: [][]byte{[]byte(okAnswer)}, length: int64(len(okAnswer))}, says: says}
		h := relayServer(t, k).Public()
		ask := func(text string) {
			r, err := http.NewRequestWithContext(t.Context(), "POST", "http://gateway"+chatPath, io.NopCloser(strings.NewReader(text)))
			if err != nil {
				t.Fatal(err)
			}
			r.ContentLength = int64(len(text))
			w := &sink{header: http.Header{}}
			if h.ServeHTTP(w, r); w.status != 200 {
				t.Fatal(w.status)
			}
		}
		again := false
		for range 10 { // a pool may lose what it is given, and with the race detector does so with a quarter of it
			k.kept = nil
			ask(longChat("m", "a"))
			for range 10 {
				ask(longChat("m", "b"))
				again = again || k.last == &k.kept[0]
			}
			if !says && bytes.Contains(k.kept, []byte("b"+"b")) {
				t.Errorf("the first has %.80q", k.kept)
			}
		}
		if again != says {
			t.Errorf("said %v: used again %v", says, again)
		}
	}
}

// TestLentToSlowEngines: what an engine reads late is what its client sent, whoever has come since.
func TestLentToSlowEngines(t *testing.T) {
	body := longChat("m", "a")
	for _, c := range []struct {
		name  string
		specs []fleet.Spec
		leave bool
	}{
		{"it has begun to answer", plain(1, fleet.VLLM), false},
		{"its client has left, and it is a prefill engine", pair(fleet.SGLang), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, rigOptions{Specs: c.specs}, func(t *testing.T, r *rig) {
				goOn, got := make(chan struct{}), make(chan string, 1)
				r.engines[0].bare = func(conn net.Conn) {
					req, err := http.ReadRequest(bufio.NewReaderSize(conn, 16))
					if err != nil {
						return
					}
					if !c.leave {
						_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
					}
					<-goOn
					text, _ := io.ReadAll(req.Body)
					got <- string(text)
				}
				if c.leave {
					r.engines[1].handler = func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() }
				}
				ctx, leave := context.WithTimeout(t.Context(), time.Second)
				defer leave()
				resp, err := r.open(ctx, body)
				if (err != nil) != c.leave {
					t.Fatal(err)
				}
				for range 100 { // refused, and their bodies' memory is given back
					r.wantError(r.post(chatPath, longChat("nobody", "b")), 404, "model_not_found")
				}
				close(goOn)
				synctest.Wait()
				if text := <-got; !strings.HasPrefix(text, body[:len(body)-1]) { // a room follows in a pair's
					t.Errorf("the engine read %.80q… with %d of another's", text, strings.Count(text, "b"))
				}
				if err == nil {
					_ = resp.Body.Close()
				}
				r.pass(2 * time.Minute)
			})
		})
	}
}
