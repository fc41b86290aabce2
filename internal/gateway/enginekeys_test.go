package gateway

import (
	"net/http"
	"net/url"
	"testing"
)

// TestEngineKeyOfURL: a key goes to the engine that it was configured for, and to nobody else, however alike.
func TestEngineKeyOfURL(t *testing.T) {
	var k engineKeys
	if k.header(&url.URL{Scheme: "http", Host: "h"}) != nil {
		t.Error("there is a key before there are any")
	}
	k.set(map[string]string{
		"http://h:1": "one", "http://h:2/a": "a", "http://h:2/a/b": "b", "http://h:2": "rest", "https://h:1": "secure", "HTTP://Upper:1": "upper", "http://h:3": "",
	})
	for target, want := range map[string]string{
		"http://h:1/v1/models": "Bearer one", "http://h:1": "Bearer one", "https://h:1/": "Bearer secure", "http://H:1/x": "Bearer one",
		"http://h:2/a/v1": "Bearer a", "http://h:2/a/b/v1": "Bearer b", "http://h:2/ab/v1": "Bearer rest", "http://h:2/": "Bearer rest",
		"http://upper:1/x": "Bearer upper", "http://h:3/": "", "http://h/": "", "http://h.evil:1/": "",
	} {
		u, err := url.Parse(target)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if h := k.header(u); h != nil {
			got = h[0]
		}
		if got != want {
			t.Errorf("%s gets %q, want %q", target, got, want)
		}
	}
}

type seen func(*http.Request)

func (s seen) RoundTrip(r *http.Request) (*http.Response, error) {
	s(r)
	return nil, http.ErrHandlerTimeout
}

// TestEngineKeyLeavesTheRequestAlone: both engines of a pair are sent one header, each with its own key.
func TestEngineKeyLeavesTheRequestAlone(t *testing.T) {
	var k engineKeys
	k.set(map[string]string{"http://h:1": "one"})
	var got []string
	rt := k.over(seen(func(r *http.Request) { got = append(got, r.Header.Get("Authorization")) }))
	header := http.Header{"Authorization": {"Bearer client"}}
	for _, host := range []string{"h:1", "h:2"} {
		_, _ = rt.RoundTrip(&http.Request{URL: &url.URL{Scheme: "http", Host: host}, Header: header})
	}
	_, _ = rt.RoundTrip(&http.Request{URL: &url.URL{Scheme: "http", Host: "h:1"}})
	if len(got) != 3 || got[0] != "Bearer one" || got[1] != "Bearer client" || got[2] != "Bearer one" || header.Get("Authorization") != "Bearer client" {
		t.Errorf("engines see %q, and the header has become %v", got, header)
	}
}
