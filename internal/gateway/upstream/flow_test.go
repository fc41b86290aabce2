package upstream

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
)

// TestNothingIsHeldBack: a part of an answer is there for its reader before the engine sends the next, wherever the parts are cut.
func TestNothingIsHeldBack(t *testing.T) {
	const head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, c := range []struct {
		name  string
		parts []string
		want  []string // what is there after each part
	}{
		{"a chunk each", []string{"1\r\na\r\n", "2\r\nbc\r\n", "0\r\n\r\n"}, []string{"a", "bc", ""}},
		{"the end of a chunk with the next", []string{"1\r\na", "\r\n2\r\nbc", "\r\n0\r\n\r\n"}, []string{"a", "bc", ""}},
		{"half of the next head", []string{"1\r\na\r\n2", "\r\nbc\r\n", "0\r\n\r\n"}, []string{"a", "bc", ""}},
		{"half of a line's end", []string{"1\r\na\r", "\n2\r\nbc\r\n", "0\r\n\r\n"}, []string{"a", "bc", ""}},
		{"half of a chunk", []string{"3\r\na", "bc\r\n", "0\r\n\r\n"}, []string{"a", "bc", ""}},
		{"two at once", []string{"1\r\na\r\n2\r\nbc\r\n", "0\r\n\r\n"}, []string{"abc", ""}},
		{"half of the last", []string{"1\r\na\r\n0\r\n", "\r\n"}, []string{"a", ""}},
		{"all at once", []string{"1\r\na\r\n0\r\n\r\n"}, []string{"a"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				tr := New(Options{Dial: func(context.Context, string, string) (net.Conn, error) { return near, nil }})
				next := make(chan struct{})
				var wg sync.WaitGroup
				wg.Go(func() {
					if _, err := http.ReadRequest(bufio.NewReader(far)); err != nil {
						return
					}
					_, _ = io.WriteString(far, head)
					for _, p := range c.parts {
						<-next
						_, _ = io.WriteString(far, p)
					}
				})
				req, err := http.NewRequestWithContext(t.Context(), "GET", "http://x/", nil)
				if err != nil {
					t.Fatal(err)
				}
				resp, err := tr.RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				got := make(chan string, 100)
				wg.Go(func() {
					defer close(got)
					buf := make([]byte, 100)
					for {
						n, err := resp.Body.Read(buf)
						if n > 0 {
							got <- string(buf[:n])
						}
						if err != nil {
							if err != io.EOF {
								t.Errorf("it ended with %v", err)
							}
							return
						}
					}
				})
				for i, want := range c.want {
					next <- struct{}{}
					synctest.Wait()
					have := ""
					for len(got) > 0 {
						have += <-got
					}
					if have != want {
						t.Errorf("after part %d: %q, want %q", i, have, want)
					}
				}
				wg.Wait()
				_ = resp.Body.Close()
				tr.Close()
				_ = far.Close()
			})
		})
	}
}
