package downstream

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
)

// only returns the one connection.
func (r *rig) only() (c *conn) {
	r.Server.mu.Lock()
	defer r.Server.mu.Unlock()
	for c = range r.Server.mu.conns {
	}
	return c
}

// TestLongHeadIsLetGo: a connection keeps nothing of a long head, or of one with many fields, neither between two requests nor, but for the head
// itself, while a handler waits.
func TestLongHeadIsLetGo(t *testing.T) {
	many := strings.Repeat("a:b\r\n", maxFields-10) // is longer than what is kept, too; one with fewer bytes is not to be had
	for name, fields := range map[string]string{
		"long": "A: " + strings.Repeat("x", 12<<10) + "\r\n", "many fields": many, "some fields": strings.Repeat("a:b\r\n", 2*keptFields),
	} {
		t.Run(name, func(t *testing.T) {
			var buffer atomic.Int64
			r := newRig(t, listen(t), testOptions(func(w http.ResponseWriter, _ *http.Request) {
				buffer.Store(int64(cap(w.(*response).c.in.buf))) // its goroutine is this one
			}))
			defer r.end()
			c := r.dial()
			defer func() { _ = c.Close() }()
			answers := bufio.NewReader(c)
			ask := func(text string) {
				t.Helper()
				_, _ = io.WriteString(c, text)
				resp, err := http.ReadResponse(answers, nil)
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
			}
			ask("GET /long HTTP/1.1\r\nHost: x\r\n" + fields + "\r\nG") // and the beginning of another one
			if n := buffer.Load(); n != readBuffer {
				t.Errorf("while the handler ran, %d bytes were kept for one that was read ahead", n)
			}
			ask("ET /next HTTP/1.1\r\nHost: x\r\n\r\n")
			ask("GET /long HTTP/1.1\r\nHost: x\r\n" + fields + "\r\n")
			server := r.only()
			for server.state.Load() != idle { // what its goroutine did before that can be looked at
				runtime.Gosched()
			}
			if h := &server.head; h.text != "" || cap(h.fields) > keptFields || cap(h.values) > keptFields {
				t.Errorf("between requests, %d bytes of a head, %d fields and %d values are kept", len(h.text), cap(h.fields), cap(h.values))
			}
		})
	}
}

// TestLengths: several lengths are one only if they are so letter for letter, as net/http has it.
func TestLengths(t *testing.T) {
	r := newRig(t, listen(t), testOptions(echo))
	defer r.end()
	for lengths, status := range map[string]string{"5 5": "200", "5 05": "400", "05 05": "200", "5 6": "400", "5 5 5": "200", "5 5 005": "400"} {
		var fields strings.Builder
		for n := range strings.FieldsSeq(lengths) {
			fmt.Fprintf(&fields, "Content-Length: %s\r\n", n)
		}
		got := r.say("POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + fields.String() + "\r\nhello")
		if !strings.HasPrefix(got, "HTTP/1.1 "+status) {
			t.Errorf("%s: %q", lengths, got)
		}
	}
}
