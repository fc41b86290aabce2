package api

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

// hoarder is a client that takes nothing and keeps what it was given, as net/http's server of HTTP/2 does for a moment when a stream is reset.
type hoarder struct {
	sink
	after int // writes that it takes
	kept  []byte
}

func (h *hoarder) Write(p []byte) (int, error) {
	if h.after--; h.after >= 0 {
		return len(p), nil
	}
	h.kept = p
	return 0, errors.New("reset")
}

// TestFailedWritesKeepTheirBuffers: what one client was given is not another's answer by the time that it is sent.
func TestFailedWritesKeepTheirBuffers(t *testing.T) {
	for _, c := range []struct {
		name   string
		kind   string
		length int64
		stream bool
	}{{"stream", "text/event-stream", -1, true}, {"whole", "application/json", 7000, false}, {"long", "application/json", bufferedAnswer + 7000, false}} {
		t.Run(c.name, func(t *testing.T) {
			server := func(mark string) http.Handler {
				e := &cannedEngine{contentType: []string{c.kind}, length: c.length}
				for n := max(c.length, 7000); n > 0; n -= 7000 {
					e.parts = append(e.parts, []byte(strings.Repeat(mark, int(min(n, 7000)))))
				}
				return relayServer(t, e).Public()
			}
			ask := func(s http.Handler, w http.ResponseWriter) {
				text := `{"model":"m","messages":[]}`
				if c.stream {
					text = streamed(text)
				}
				r, err := http.NewRequestWithContext(t.Context(), "POST", "http://gateway"+chatPath, io.NopCloser(strings.NewReader(text)))
				if err != nil {
					t.Fatal(err)
				}
				r.ContentLength = int64(len(text))
				defer func() { _ = recover() }() // how an answer breaks off
				s.ServeHTTP(w, r)
			}
			h := &hoarder{sink: sink{header: http.Header{}}}
			ask(server("a"), h)
			if len(h.kept) == 0 {
				t.Fatal("nothing was written")
			}
			other := server("b")
			for range 10 {
				ask(other, &sink{header: http.Header{}})
			}
			if bytes.Contains(h.kept, []byte("b")) {
				t.Error("it is used again")
			}
		})
	}
}
