package main

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/perigee-llm/perigee/internal/cache/manager"
)

// freeAddr is an address on which nobody listens.
func freeAddr(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

func TestExplainExitCodes(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/none/debug/decisions", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery != "limit=5" {
			t.Errorf("query %q", r.URL.RawQuery)
		}
		_, _ = w.Write([]byte(`{"decisions":[]}`))
	})
	mux.HandleFunc("/all/debug/decisions", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery != "limit=1024" {
			t.Errorf("query %q", r.URL.RawQuery)
		}
		_, _ = w.Write([]byte(`{"decisions":[]}`))
	})
	mux.HandleFunc("/other/debug/decisions", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) })
	mux.HandleFunc("/broken/debug/decisions", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	mux.HandleFunc("/short/debug/decisions", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "9") })
	mux.HandleFunc("/manager/explain", func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("request") != "mine" {
			_, _ = w.Write([]byte("[]"))
			return
		}
		_ = json.NewEncoder(w).Encode([]manager.QueryExplanation{{
			Instance: "engine-0", Session: 1, Op: 7, Request: "cmpl-mine-0", Mode: "prefix", SecondsAgo: 2, Asked: []int{10}, Hits: []uint32{8}, Answer: "found",
			TookMicros: 120, First: &manager.Explanation{Block: "ab", Why: "evicted: its slots were needed", SecondsAgo: 1.5},
			Others: map[string]string{"other": "model.content"},
		}})
	})
	s := httptest.NewServer(mux)
	defer s.Close()
	for _, tt := range []struct {
		args []string
		code int
		want string // on stdout if the code is 0, else on stderr
	}{
		{[]string{"--url", s.URL + "/none"}, exitDone, "the gateway has had no request yet\n"},
		{[]string{"--url", s.URL + "/none/", "--json"}, exitDone, "{\n  \"decisions\": []\n}\n"},
		{[]string{"--url", s.URL + "/all", "--limit=0"}, exitDone, "the gateway has had no request yet\n"},
		{[]string{"--url", s.URL}, exitRun, "it is not the admin listener; start the gateway with --admin-port"},
		{[]string{"--url", s.URL + "/other"}, exitRun, "does not answer as a gateway of this version does"},
		{[]string{"--url", s.URL + "/broken"}, exitRun, "answers 500 Internal Server Error"},
		{[]string{"--url", s.URL + "/short"}, exitRun, "the answer broke off"},
		{[]string{"--url", "http://" + freeAddr(t)}, exitRun, "start the gateway with --admin-port"},
		{[]string{"--url", "127.0.0.1:30001"}, exitUsage, "--url"},
		{[]string{"--url", "localhost:30001"}, exitUsage, "is no http or https URL"},
		{[]string{"--url", "ftp://127.0.0.1"}, exitUsage, "is no http or https URL"},
		{[]string{"--url", "http://"}, exitUsage, "is no http or https URL"},
		{[]string{"--url", "http://127.0.0.1:1/?x=1"}, exitUsage, "leave out what follows the path"},
		{[]string{"--limit=-1"}, exitUsage, "--limit"},
		{[]string{"--manager", s.URL + "/manager", "--request", "mine"}, exitDone,
			"request cmpl-mine-0, engine-0 2.0 s ago (session 1, operation 7)\n  prefix: found; 8 of 10 blocks, after 120 µs\n" +
				"  the first that it did not get: evicted: its slots were needed, 1.5 s ago (block ab)\n  pages of other are of no use to it: model.content differs\n"},
		{[]string{"--manager", s.URL + "/manager", "--request", "other"}, exitRun, "remembers no query of request"},
		{[]string{"--manager", s.URL + "/manager"}, exitUsage, "wants --request"},
		{[]string{"--manager", s.URL + "/manager", "--instance", "other"}, exitRun, `and instance "other"`},
		{[]string{"--manager", "http://" + freeAddr(t), "--request", "mine"}, exitRun, "start perigee cache with --admin"},
		{[]string{"--limit=1025"}, exitUsage, "--limit is a number from 0 to 1024"},
		{[]string{"--nonsense"}, exitUsage, "unknown flag"},
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), append([]string{"explain"}, tt.args...), &out, &errs)
		got := errs.String()
		if code == exitDone {
			got = out.String()
		}
		if code != tt.code || !strings.Contains(got, tt.want) || (code != exitDone && out.Len() > 0) {
			t.Errorf("%q: exit code %d, %q; want %d, %q", tt.args, code, got, tt.code, tt.want)
		}
	}
}
