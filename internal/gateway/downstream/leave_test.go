package downstream

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
)

// TestLeaving: a request's context ends when its client closes the connection, resets it, or closes its own direction; also where something of
// the client's is unread, which net/http does not see.
func TestLeaving(t *testing.T) {
	const ask = "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
	leave := map[string]func(c *net.TCPConn) error{
		"closes": (*net.TCPConn).Close, "closes its direction": (*net.TCPConn).CloseWrite,
		"resets": func(c *net.TCPConn) error { _ = c.SetLinger(0); return c.Close() },
	}
	for name, f := range leave {
		for _, more := range []string{"", "GET /b HTTP/1.1\r\nHost: x\r\n\r\n"} {
			t.Run(name+more[:min(len(more), 3)], func(t *testing.T) {
				under, over := make(chan struct{}, 2), make(chan error, 2)
				r := newRig(t, listen(t), testOptions(func(_ http.ResponseWriter, q *http.Request) {
					_, _ = io.ReadAll(q.Body)
					under <- struct{}{}
					<-q.Context().Done()
					over <- q.Context().Err()
				}))
				defer r.end()
				c := r.dial()
				defer func() { _ = c.Close() }()
				if _, err := io.WriteString(c, ask+more); err != nil {
					t.Fatal(err)
				}
				<-under
				if err := f(c.(*net.TCPConn)); err != nil {
					t.Fatal(err)
				}
				if err := <-over; err == nil {
					t.Error("the context has no error")
				}
			})
		}
	}
}

// TestLeavingOverPipe is the same where nothing tells of it but a read.
func TestLeavingOverPipe(t *testing.T) {
	under, over := make(chan struct{}), make(chan struct{})
	ln := newPipes()
	r := newRig(t, ln, testOptions(func(_ http.ResponseWriter, q *http.Request) {
		close(under)
		<-q.Context().Done()
		close(over)
	}))
	defer r.end()
	c := ln.dial()
	if _, err := io.WriteString(c, "GET /a HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	<-under
	_ = c.Close()
	<-over
}

// TestManyLeave: thousands that leave at once are all seen, and nothing is kept of them.
func TestManyLeave(t *testing.T) {
	const n = 1000
	under, over := make(chan struct{}, n), make(chan struct{}, n)
	r := newRig(t, listen(t), testOptions(func(w http.ResponseWriter, q *http.Request) {
		_ = http.NewResponseController(w).Flush()
		ctx, cancel := context.WithCancel(q.Context())
		defer cancel()
		under <- struct{}{}
		<-ctx.Done()
		over <- struct{}{}
	}))
	conns := make([]net.Conn, n)
	for i := range conns {
		conns[i] = r.dial()
		if _, err := io.WriteString(conns[i], "GET /a HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	for range n {
		<-under
	}
	for _, c := range conns {
		_ = c.Close()
	}
	for range n {
		<-over
	}
	r.wg.Go(func() { _ = r.Shutdown(context.Background()) }) // which waits until all of them have gone
	r.Server.wg.Wait()
	if n := watched(r.Server.mu.watch); n != 0 {
		t.Errorf("%d are still watched", n)
	}
	r.end()
}
