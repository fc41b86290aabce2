package api

import (
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/perigee-llm/perigee/internal/gateway/explain"
	"github.com/perigee-llm/perigee/internal/gateway/load"
)

var noQuery explain.Query

func itoa(n int) string { return strconv.Itoa(n) }

func hexa(n int) string { return strconv.FormatInt(int64(n), 16) }

func cmpDiff(want, got any) string {
	return cmp.Diff(want, got, cmp.Comparer(func(a, b load.Count) bool { return a == b }))
}

// scrape returns what the admin handler answers to a GET.
func (r *rig) scrape(path string) string {
	w := httptest.NewRecorder()
	r.s.Admin().ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	return w.Body.String()
}

// metric returns the value of one series, without the prefix perigee_; empty: there is none.
func (r *rig) metric(series string) string {
	for line := range strings.Lines(r.scrape("/metrics")) {
		if v, ok := strings.CutPrefix(line, "perigee_"+series+" "); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// TestEngineURL: a worker's base may have a path of its own.
func TestEngineURL(t *testing.T) {
	for _, c := range []struct{ base, want, host string }{
		{"http://h:8000", "http://h:8000/v1/x", "h"},
		{"https://h", "https://h/v1/x", "h"},
		{"http://h:8000/prefix", "http://h:8000/prefix/v1/x", "h"},
		{"http://h/a/b/", "http://h/a/b/v1/x", "h"},
		{"http://[::1]:8000", "http://[::1]:8000/v1/x", "::1"},
		{"http://[::1]", "http://[::1]/v1/x", "::1"},
	} {
		if got := engineURL(c.base, "/v1/x").String(); got != c.want {
			t.Errorf("%s: %s", c.base, got)
		}
		if got := hostOf(c.base); got != c.host {
			t.Errorf("%s: host %s, want %s", c.base, got, c.host)
		}
	}
}
