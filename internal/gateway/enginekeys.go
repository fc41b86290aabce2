package gateway

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
)

// engineKeys presents to each engine the key that was configured for it, whatever the question: a request, an abort, its load. It
// stands between the transports and everybody else, so that no type of the fleet, and hence no page or log about engines, has
// ever held a key. The zero value has none; all methods may be called at once.
type engineKeys struct {
	current atomic.Pointer[engineKeySet]
}

// engineKeySet has the keys by scheme and host, those with the longer paths first.
type engineKeySet map[origin][]engineKey

type origin struct{ scheme, host string }

type engineKey struct {
	path   string // that the engine's URL has, without a slash at its end
	header []string
}

func originOf(u *url.URL) origin { return origin{strings.ToLower(u.Scheme), strings.ToLower(u.Host)} }

// set replaces the keys: base URL → key.
func (k *engineKeys) set(byURL map[string]string) {
	next := engineKeySet{}
	for base, key := range byURL {
		u, err := url.Parse(base)
		if err != nil || key == "" { // URLs were checked with the configuration
			continue
		}
		at := originOf(u)
		next[at] = append(next[at], engineKey{path: u.Path, header: []string{"Bearer " + key}})
	}
	for _, keys := range next {
		slices.SortFunc(keys, func(a, b engineKey) int { return len(b.path) - len(a.path) })
	}
	k.current.Store(&next)
}

// header returns the Authorization header for a URL; nil: no key was configured for it.
func (k *engineKeys) header(u *url.URL) []string {
	set := k.current.Load()
	if set == nil || len(*set) == 0 {
		return nil
	}
	for _, key := range (*set)[originOf(u)] {
		if rest, ok := strings.CutPrefix(u.Path, key.path); ok && (rest == "" || rest[0] == '/') {
			return key.header
		}
	}
	return nil
}

// over returns a transport that presents the keys and leaves the rest to base.
func (k *engineKeys) over(base http.RoundTripper) http.RoundTripper { return &keyedTransport{base, k} }

type keyedTransport struct {
	base http.RoundTripper
	keys *engineKeys
}

// RoundTrip implements http.RoundTripper. The request is copied where a key is put in: it may be on its way to another engine as well.
func (t *keyedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	header := t.keys.header(r.URL)
	if header == nil {
		return t.base.RoundTrip(r)
	}
	with := *r
	if with.Header = maps.Clone(r.Header); with.Header == nil {
		with.Header = http.Header{}
	}
	with.Header["Authorization"] = header
	return t.base.RoundTrip(&with)
}

// CloseIdleConnections closes those of the transport below.
func (t *keyedTransport) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
