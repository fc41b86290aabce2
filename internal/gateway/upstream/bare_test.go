package upstream

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// TestOverSockets holds what net.Pipe cannot show: how a request and its answer pass each other in the system's buffers. Each connection of the engine
// has a script; steps are what the client asks in turn, and what it gets.
func TestOverSockets(t *testing.T) {
	big := strings.Repeat("x", 16<<20) // more than the system keeps
	answer := func(c net.Conn, br *bufio.Reader) {
		req, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, req.Body); err == nil {
			_, _ = io.WriteString(c, ok+"hello")
		}
	}
	type script func(c *net.TCPConn, br *bufio.Reader, done func())
	answersOnce := func(c *net.TCPConn, br *bufio.Reader, done func()) {
		done()
		answer(c, br)
		done()
	}
	for _, x := range []struct {
		name  string
		conns []script // done tells the client that it may go on
		ask   []string // bodies
		want  []string
	}{
		{
			"one after the other",
			[]script{func(c *net.TCPConn, br *bufio.Reader, done func()) {
				done()
				answer(c, br)
				done()
				answer(c, br)
				done()
			}},
			[]string{"a", "b"}, []string{`200 "hello" EOF`, `200 "hello" EOF`},
		},
		{
			"a body longer than the buffers",
			[]script{func(c *net.TCPConn, br *bufio.Reader, done func()) {
				done()
				answer(c, br)
				done()
			}},
			[]string{big}, []string{`200 "hello" EOF`},
		},
		{
			"an answer to half a body",
			[]script{func(c *net.TCPConn, br *bufio.Reader, done func()) {
				done()
				_, _ = br.ReadString('\n')
				_, _ = io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
				done()
				_, _ = io.Copy(io.Discard, br)
			}},
			[]string{big}, []string{`413 "no" EOF`},
		},
		{
			"who speaks first on a new connection",
			[]script{func(c *net.TCPConn, br *bufio.Reader, done func()) {
				_, _ = io.WriteString(c, "HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy")
				done()
				done()
				_, _ = io.Copy(io.Discard, br)
			}},
			[]string{"a"}, []string{`503 "busy" EOF`},
		},
		{
			"who speaks on an idle connection is not asked again",
			[]script{func(c *net.TCPConn, br *bufio.Reader, done func()) {
				done()
				answer(c, br)
				_, _ = io.WriteString(c, ok+"other")
				done()
				_, _ = io.Copy(io.Discard, br)
			}, answersOnce},
			[]string{"a", "b"}, []string{`200 "hello" EOF`, `200 "hello" EOF`},
		},
		{
			"nor who has closed its direction alone",
			[]script{func(c *net.TCPConn, br *bufio.Reader, done func()) {
				done()
				answer(c, br)
				_ = c.CloseWrite()
				done()
				_, _ = io.Copy(io.Discard, br)
			}, answersOnce},
			[]string{"a", "b"}, []string{`200 "hello" EOF`, `200 "hello" EOF`},
		},
		{
			"nor who has reset it",
			[]script{func(c *net.TCPConn, br *bufio.Reader, done func()) {
				done()
				answer(c, br)
				_ = c.SetLinger(0)
				_ = c.Close()
				done()
			}, answersOnce},
			[]string{"a", "b"}, []string{`200 "hello" EOF`, `200 "hello" EOF`},
		},
		{
			"an end in place of an answer",
			[]script{func(c *net.TCPConn, br *bufio.Reader, done func()) {
				done()
				answer(c, br)
				done()
				_, _ = http.ReadRequest(br)
				_ = c.Close()
				done()
			}},
			[]string{"a", ""}, []string{`200 "hello" EOF`, "reused, asking: unexpected EOF"},
		},
	} {
		t.Run(x.name, func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			defer wg.Wait()
			defer ln.Close()
			ready := make(chan struct{}, 10)
			wg.Go(func() {
				for _, s := range x.conns {
					c, err := ln.Accept()
					if err != nil {
						return
					}
					wg.Go(func() {
						defer c.Close()
						s(c.(*net.TCPConn), bufio.NewReader(c), func() { ready <- struct{}{} })
					})
				}
			})
			dials := 0
			tr := New(Options{Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
				dials++
				c, err := (&net.Dialer{}).DialContext(ctx, "tcp", ln.Addr().String())
				<-ready
				return c, err
			}})
			defer tr.Close()
			for i, body := range x.ask {
				if got := ask(tr, post(t.Context(), body)); got != x.want[i] {
					t.Errorf("request %d: %s, want %s", i+1, got, x.want[i])
				}
				<-ready
			}
			if dials != len(x.conns) {
				t.Errorf("%d connections, want %d", dials, len(x.conns))
			}
		})
	}
}
