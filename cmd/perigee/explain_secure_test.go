package main

import (
	"bytes"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestExplainSecured: a listener with TLS and keys is asked with both, and what is missing is said.
func TestExplainSecured(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer sk-operator" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = w.Write([]byte(`{"decisions":[]}`))
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // clients that do not trust it are part of the test
	s.StartTLS()
	defer s.Close()
	dir := t.TempDir()
	write := func(name, text string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	ca := write("ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
	key, wrong := write("key", "sk-operator\n"), write("wrong", "sk-nobody")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--ca-file", ca, "--api-key-file", key}, exitDone, "no request yet"},
		{[]string{"--ca-file", ca}, exitRun, "asks for an API key"},
		{[]string{"--ca-file", ca, "--api-key-file", wrong}, exitRun, "asks for an API key"},
		{[]string{"--api-key-file", key}, exitRun, "certificate"},
		{[]string{"--ca-file", key}, exitRun, "there is no certificate in"},
		{[]string{"--ca-file", filepath.Join(dir, "none")}, exitRun, "no such file"},
		{[]string{"--ca-file", ca, "--api-key-file", ca}, exitRun, "is not one line"},
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), append([]string{"explain", "--url", s.URL}, c.args...), &out, &errs)
		if said := out.String() + errs.String(); code != c.code || !strings.Contains(said, c.want) || strings.Contains(said, "sk-") {
			t.Errorf("%v: exit code %d, %q; want %d, %q", c.args, code, said, c.code, c.want)
		}
	}
}
