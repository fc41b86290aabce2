package indexd

import (
	"net/http"
	"strings"

	"github.com/perigee-llm/perigee/internal/gateway/fleet/keeper"
)

// WithKeys returns a transport that presents to each engine its key: base URL → key. It follows no redirects, so a key never goes elsewhere.
func WithKeys(byURL map[string]string) http.RoundTripper {
	return &keyed{base: keeper.NewClient().Transport, byURL: byURL}
}

type keyed struct {
	base  http.RoundTripper
	byURL map[string]string // immutable
}

// RoundTrip implements http.RoundTripper.
func (k *keyed) RoundTrip(r *http.Request) (*http.Response, error) {
	url := r.URL.String()
	best := ""
	for base := range k.byURL {
		if rest, ok := strings.CutPrefix(url, base); ok && (rest == "" || rest[0] == '/') && len(base) > len(best) {
			best = base
		}
	}
	if best != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+k.byURL[best])
	}
	return k.base.RoundTrip(r)
}

// CloseIdleConnections closes those of the transport below.
func (k *keyed) CloseIdleConnections() {
	if c, ok := k.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
