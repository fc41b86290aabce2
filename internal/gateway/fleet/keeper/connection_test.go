package keeper

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet/ask"
)

// TestLost: which failures of a question are those of the way to the engine, and which answers came over a new connection.
func TestLost(t *testing.T) {
	const good = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	silent := func(context.Context) (net.Conn, error) { // takes the question and says nothing
		near, far := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, far) }()
		return near, nil
	}
	answers := func(text string) func(context.Context) (net.Conn, error) {
		return func(context.Context) (net.Conn, error) {
			near, far := net.Pipe()
			go func() {
				defer func() { _ = far.Close() }()
				for {
					if _, err := far.Read(make([]byte, 4096)); err != nil {
						return
					}
					if _, err := io.WriteString(far, text); err != nil || text != good {
						return
					}
				}
			}()
			return near, nil
		}
	}
	for _, c := range []struct {
		name              string
		dial              func(context.Context) (net.Conn, error)
		times             int
		ok, lost, renewed bool
	}{
		{"dropped", func(ctx context.Context) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }, 1, false, true, false},
		{"refused", func(context.Context) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
		}, 1, false, true, false},
		{"taken and ended", answers(""), 1, false, true, true},
		{"cut", answers(good[:len(good)-1]), 1, false, true, true},
		{"refuses to tell", answers("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"), 1, false, false, true},
		{"slow", silent, 1, false, false, true},
		{"new", answers(good), 1, true, false, true},
		{"kept", answers(good), 2, true, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx) }}
				client := &http.Client{Transport: tr}
				var conn connection
				var err error
				for range c.times {
					conn = connection{}
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					err = ask.Get(conn.watch(ctx), client, "http://engine/x", "", 8, func([]byte) error { return nil })
					cancel()
					synctest.Wait()
				}
				if (err == nil) != c.ok || conn.lost(err) != c.lost || conn.fresh != c.renewed {
					t.Errorf("%v: lost %v, over a new one %v", err, conn.lost(err), conn.fresh)
				}
				tr.CloseIdleConnections()
			})
		})
	}
	if (&connection{}).lost(errors.New("x")) {
		t.Error("an error of another class is none of the way")
	}
}
