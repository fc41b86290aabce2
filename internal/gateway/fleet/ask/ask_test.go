package ask_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"github.com/perigee-llm/perigee/internal/gateway/fleet/ask"
)

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func answer(status int, length int64, body io.Reader) *http.Client {
	return &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: status, ContentLength: length, Body: io.NopCloser(body), Request: r}, nil
	})}
}

func TestGet(t *testing.T) {
	broken := errors.New("reset")
	cases := []struct {
		name          string
		client        *http.Client
		url           string
		class         error
		retry, absent bool
		want          string
	}{
		{name: "whole", client: answer(200, 5, strings.NewReader("hello")), want: "hello"},
		{name: "byte by byte", client: answer(200, -1, iotest.OneByteReader(strings.NewReader("hello"))), want: "hello"},
		{name: "just the limit", client: answer(200, -1, strings.NewReader("12345678")), want: "12345678"},
		{name: "empty", client: answer(200, -1, strings.NewReader("")), want: ""},
		{name: "one over the limit", client: answer(200, -1, strings.NewReader("123456789")), class: ask.ErrTooLarge},
		{name: "announced over the limit", client: answer(200, 9, iotest.ErrReader(broken)), class: ask.ErrTooLarge},
		{name: "cut", client: answer(200, -1, io.MultiReader(strings.NewReader("hel"), iotest.ErrReader(io.ErrUnexpectedEOF))), class: ask.ErrUnreachable, retry: true},
		{name: "no connection", client: &http.Client{Transport: transport(func(*http.Request) (*http.Response, error) { return nil, broken })}, class: ask.ErrUnreachable, retry: true},
		{name: "bad URL", client: http.DefaultClient, url: "http://a b/", class: ask.ErrUnreachable, retry: true},
		{name: "404", client: answer(404, -1, strings.NewReader("{}")), class: ask.ErrStatus, absent: true},
		{name: "501", client: answer(501, -1, strings.NewReader("")), class: ask.ErrStatus, absent: true},
		{name: "401", client: answer(401, -1, strings.NewReader("")), class: ask.ErrStatus},
		{name: "503", client: answer(503, -1, strings.NewReader("")), class: ask.ErrStatus, retry: true},
		{name: "204 has no answer", client: answer(204, 0, http.NoBody), class: ask.ErrStatus},
		{name: "redirect", client: answer(307, 0, http.NoBody), class: ask.ErrStatus},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if c.url == "" {
				c.url = "http://engine/x"
			}
			got, called := "", false
			err := ask.Get(t.Context(), c.client, c.url, "text/plain", 8, func(b []byte) error {
				got, called = string(b), true
				return nil
			})
			if c.class == nil {
				if err != nil || got != c.want {
					t.Fatalf("got %q, %v; want %q", got, err, c.want)
				}
				return
			}
			if !errors.Is(err, c.class) || called {
				t.Errorf("err %v, called %v; want class %v and no call", err, called, c.class)
			}
			if ask.Retryable(err) != c.retry || ask.Absent(err) != c.absent {
				t.Errorf("%v: retryable %v, absent %v; want %v, %v", err, ask.Retryable(err), ask.Absent(err), c.retry, c.absent)
			}
		})
	}
}

// TestNoConnection: that nobody is there is told apart from an engine that is there and does not answer well.
func TestNoConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := "http://" + l.Addr().String()
	_ = l.Close()
	fails := func(err error) *http.Client {
		return &http.Client{Transport: transport(func(*http.Request) (*http.Response, error) { return nil, err })}
	}
	plain := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, c := range []struct {
		name   string
		client *http.Client
		url    string
		nobody bool
	}{
		{"refused", plain, closed, true},
		{"no such host", fails(&net.OpError{Op: "dial", Err: &net.DNSError{IsNotFound: true}}), "http://engine", true},
		{"no descriptor here", fails(&net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)}), "http://engine", false},
		{"connecting took too long", fails(&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}), "http://engine", false},
		{"the answer took too long", fails(context.DeadlineExceeded), "http://engine", false},
		{"reset", fails(&net.OpError{Op: "read", Err: errors.New("connection reset")}), "http://engine", false},
		{"cut", answer(200, -1, iotest.ErrReader(io.ErrUnexpectedEOF)), "http://engine", false},
	} {
		err := ask.Get(t.Context(), c.client, c.url, "", 8, func([]byte) error { return nil })
		if errors.Is(err, ask.ErrNoConnection) != c.nobody || !errors.Is(err, ask.ErrUnreachable) || !ask.Retryable(err) {
			t.Errorf("%s: %v; want nobody there: %v", c.name, err, c.nobody)
		}
	}
}

// TestCallersError: what use returns comes back as it is, and is not worth a retry unless it says so.
func TestCallersError(t *testing.T) {
	err := ask.Get(t.Context(), answer(200, -1, strings.NewReader("x")), "http://engine/x", "", 8, func([]byte) error { return ask.Malformed("%d", 7) })
	if !errors.Is(err, ask.ErrMalformed) || ask.Retryable(err) || err.Error() != "malformed answer: 7" {
		t.Errorf("got %v", err)
	}
}

func TestRequest(t *testing.T) {
	var got *http.Request
	client := &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
		got = r
		return &http.Response{StatusCode: 200, Body: http.NoBody, Request: r}, nil
	})}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := ask.Get(ctx, client, "http://engine:1/metrics", "text/plain", 8, func([]byte) error { return nil }); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"Accept": "text/plain", "Accept-Encoding": "identity", "User-Agent": "perigee"} {
		if got.Header.Get(name) != want {
			t.Errorf("%s: %q, want %q", name, got.Header.Get(name), want)
		}
	}
}
