package upstream

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
)

// TestHangsBeforeTheRequest: a connection that does not come about, and a handshake that is not answered, take their time and no more, and
// nothing was sent.
func TestHangsBeforeTheRequest(t *testing.T) {
	for scheme, dial := range map[string]func(context.Context, string, string) (net.Conn, error){
		"http": func(ctx context.Context, _, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() },
		"https": func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, far) }()
			return near, nil
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			tr := New(Options{Dial: dial, DialTimeout: 5 * time.Second})
			defer tr.Close()
			req, err := http.NewRequestWithContext(t.Context(), "GET", scheme+"://engine/x", nil)
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			_, err = tr.RoundTrip(req) //nolint:bodyclose // there is none
			var e *Error
			if took := time.Since(began); !errors.As(err, &e) || e.Stage != Dialing || took != 5*time.Second {
				t.Errorf("%s: %v after %v", scheme, err, took)
			}
		})
	}
}

// vanishing is a connection whose other end is gone without a word: what was sent is never acknowledged, which the system says at last.
type vanishing struct {
	net.Conn
	gone chan struct{}
}

func (c *vanishing) Read(p []byte) (int, error) {
	select {
	case <-c.gone:
		<-time.After(patience)
		return 0, &net.OpError{Op: "read", Err: syscall.ETIMEDOUT}
	default:
		return c.Conn.Read(p)
	}
}

// TestVanishedHost: a request over a kept connection to a host that is gone fails as one that was reused, so that it is tried again, and the other
// connections kept to it are not tried first.
func TestVanishedHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{t: t, parts: [][]string{{"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"}, {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"}}}
		gone := make(chan struct{})
		tr := New(Options{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			nc, err := e.dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &vanishing{nc, gone}, nil
		}})
		defer tr.Close()
		ask := func() error {
			req, err := http.NewRequestWithContext(t.Context(), "GET", "http://engine/x", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := tr.RoundTrip(req)
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
			return err
		}
		if err := ask(); err != nil {
			t.Fatal(err)
		}
		close(gone)
		var failed *Error
		if err := ask(); !errors.As(err, &failed) || failed.Stage != Asking || !failed.Reused || !errors.Is(err, syscall.ETIMEDOUT) {
			t.Errorf("got %v", err)
		}
		if n := tr.Idle(); n != 0 {
			t.Errorf("%d connections are kept", n)
		}
	})
}
