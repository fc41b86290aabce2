package keeper

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
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
		{"no descriptor here", func(context.Context) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)}
		}, 1, false, false, false},
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
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					err = ask.Get(conn.watch(ctx, time.Now()), client, "http://engine/x", "", 8, func([]byte) error { return nil })
					cancel()
					conn.ended(time.Now())
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

// TestRenewed: a kept connection that the engine ended tells of another process, also where the question is asked again over a new one; one that
// nobody kept, or for longer than engines do, tells nothing.
func TestRenewed(t *testing.T) {
	const good, last = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"
	for _, c := range []struct {
		name, text string
		pause      time.Duration
		end        string // of the first connection: before the second question, by it, or not at all
		renewed    bool
	}{
		{"ended in between", good, time.Second, "before", true},
		{"ended as it was asked", good, time.Second, "by", true},
		{"kept", good, time.Second, "", false},
		{"ended for its age", good, keptFor, "before", false},
		{"for one question each", last, time.Second, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var first net.Conn
				tr := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
					near, far := net.Pipe()
					isFirst := first == nil
					if isFirst {
						first = far
					}
					go func() {
						defer func() { _ = far.Close() }()
						for n := 0; ; n++ {
							if _, err := far.Read(make([]byte, 4096)); err != nil || n == 1 && isFirst && c.end == "by" {
								return
							}
							if _, err := io.WriteString(far, c.text); err != nil {
								return
							}
						}
					}()
					return near, nil
				}}
				var conn connection
				ask := func() {
					if err := ask.Get(conn.watch(t.Context(), time.Now()), &http.Client{Transport: tr}, "http://engine/x", "", 8, func([]byte) error { return nil }); err != nil {
						t.Fatal(err)
					}
					conn.ended(time.Now())
				}
				ask()
				if conn.renewed {
					t.Error("the first is no other")
				}
				if c.end == "before" {
					_ = first.Close()
				}
				<-time.After(c.pause)
				ask()
				if conn.renewed != c.renewed {
					t.Errorf("renewed is %v", conn.renewed)
				}
				ask()
				if conn.renewed {
					t.Error("the third question went over the same connection as the second, or over one that nobody kept")
				}
				tr.CloseIdleConnections()
				synctest.Wait()
			})
		})
	}
}
