package upstream

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// BenchmarkRoundTrip is one request of 1 KiB over a kept connection on loopback, beside net/http's transport in the same run.
func BenchmarkRoundTrip(b *testing.B) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header()["Content-Length"] = []string{"5"}
		_, _ = w.Write([]byte("hello"))
	}))
	defer srv.Close()
	u, _ := url.Parse(srv.URL)
	text := strings.Repeat("x", 1024)
	ours := New(Options{})
	defer ours.Close()
	theirs := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64}
	defer theirs.CloseIdleConnections()
	for _, c := range []struct {
		name string
		rt   http.RoundTripper
		body func() io.ReadCloser
	}{
		{"upstream", ours, func() io.ReadCloser { return &pieces{parts: [][]byte{[]byte(text)}} }},
		{"net/http", theirs, func() io.ReadCloser { return io.NopCloser(strings.NewReader(text)) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				req := &http.Request{
					Method: http.MethodPost, URL: u, Header: http.Header{"Content-Type": {"application/json"}},
					ContentLength: int64(len(text)), Body: c.body(),
				}
				resp, err := c.rt.RoundTrip(req.WithContext(b.Context()))
				if err != nil {
					b.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		})
	}
}
