package main

import (
	"bytes"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
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
		{[]string{"--url", s.URL}, exitRun, "it is not the admin listener, whose port is --admin-port"},
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
