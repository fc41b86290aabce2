package downstream

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
)

// TestLeaving: a request's context ends when its client closes the connection, resets it, or closes its own direction, of TLS or of the socket; also
// where something of the client's is unread, which net/http does not see. With a further request in between only TLS's goodbye is not seen.
func TestLeaving(t *testing.T) { onEach(t, testLeaving) }

func testLeaving(t *testing.T, k kind) {
	const ask = "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
	const again = "GET /b HTTP/1.1\r\nHost: x\r\n\r\n"
	for _, c := range []struct {
		name, more string
		leave      func(c net.Conn) error
	}{
		{"closes", "", net.Conn.Close}, {"closes", again, net.Conn.Close},
		{"closes its direction", "", closeWrite}, {"closes its direction", again, func(c net.Conn) error { return closeWrite(below(c)) }},
		{"closes the socket", "", func(c net.Conn) error { return below(c).Close() }}, {"closes the socket", again, func(c net.Conn) error { return below(c).Close() }},
		{"resets", "", reset}, {"resets", again, reset},
	} {
		t.Run(c.name+c.more[:min(len(c.more), 3)], func(t *testing.T) {
			under, over := make(chan struct{}, 2), make(chan error, 2)
			r := k.rig(t, func(_ http.ResponseWriter, q *http.Request) {
				_, _ = io.ReadAll(q.Body)
				under <- struct{}{}
				<-q.Context().Done()
				over <- q.Context().Err()
			})
			defer r.end()
			conn := r.dial()
			defer func() { _ = conn.Close() }()
			if _, err := io.WriteString(conn, ask+c.more); err != nil {
				t.Fatal(err)
			}
			<-under
			if err := c.leave(conn); err != nil {
				t.Fatal(err)
			}
			if err := <-over; err == nil {
				t.Error("the context has no error")
			}
		})
	}
}

func reset(c net.Conn) error {
	tcp := below(c).(*net.TCPConn)
	_ = tcp.SetLinger(0)
	return tcp.Close()
}

// TestLeavingOverPipe is the same where nothing tells of it but a read.
func TestLeavingOverPipe(t *testing.T) { onEach(t, testLeavingOverPipe) }

func testLeavingOverPipe(t *testing.T, k kind) {
	under, over := make(chan struct{}), make(chan struct{})
	ln := newPipes()
	r := newRig(t, ln, k.options(func(_ http.ResponseWriter, q *http.Request) {
		close(under)
		<-q.Context().Done()
		close(over)
	}))
	defer r.end()
	c := k.over(ln.dial())
	if _, err := io.WriteString(c, "GET /a HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	<-under
	_ = below(c).Close()
	<-over
}

// TestManyLeave: thousands that leave at once are all seen, and nothing is kept of them.
func TestManyLeave(t *testing.T) { onEach(t, testManyLeave) }

func testManyLeave(t *testing.T, k kind) {
	const n = 1000
	under, over := make(chan struct{}, n), make(chan struct{}, n)
	r := k.rig(t, func(w http.ResponseWriter, q *http.Request) {
		_ = http.NewResponseController(w).Flush()
		ctx, cancel := context.WithCancel(q.Context())
		defer cancel()
		under <- struct{}{}
		<-ctx.Done()
		over <- struct{}{}
	})
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
