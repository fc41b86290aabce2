package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestCheck holds the output and the exit code of check, which scripts rely on.
func TestCheck(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{
		"good.yaml":   "models: [{id: m}]\ndiscovery: {static: {workers: [http://a:1, http://b:1]}}\n",
		"bad.yaml":    "models: [{id: m}]\nserver: {port: -1}\ndiscovery: {}\n",
		"warn.yaml":   "models: [{id: m}]\nserver: {shutdown_drain: 40s}\ndiscovery: {static: {workers: [http://a:1]}}\n",
		"secret.yaml": "models: [{id: m}]\ndiscovery: {static: {workers: ['http://a:1']}}\nserver: {api_keys: {file: none}}\n",
		"tokens.yaml": "models: [{id: m, tokenizer: none}]\ndiscovery: {static: {workers: ['http://a:1']}}\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const (
		port   = "bad.yaml:2:16: server.port: -1 is out of range; choose 0 to 65535\n"
		source = "bad.yaml:3:12: discovery: has no source of engines; add static: {workers: [URL, ...]}\n"
		good   = "good.yaml: ok: 1 model, 2 buckets, 2 workers\n"
		drain  = "warn.yaml:2:26: warning: server.shutdown_drain: the drain of 40s does not fit into the termination grace of 30s; shorten the drain or grant more, else requests are cut off\n"
	)
	for _, tt := range []struct {
		cmd  checkCmd
		want string
		code int
	}{
		{checkCmd{Files: []string{"good.yaml"}}, good, exitDone},
		{checkCmd{Files: []string{"bad.yaml", "good.yaml"}}, port + source + good, exitUsage},
		{checkCmd{Files: []string{"warn.yaml"}}, drain + "warn.yaml: ok: 1 model, 2 buckets, 1 worker\n", exitDone},
		{checkCmd{Files: []string{"secret.yaml"}}, "secret.yaml: ok: 1 model, 2 buckets, 1 worker\n", exitDone},
		{checkCmd{Files: []string{"secret.yaml"}, Secrets: true}, "none: cannot be read: stat none: no such file or directory\n", exitUsage},
		{checkCmd{Files: []string{"tokens.yaml"}}, "tokens.yaml: ok: 1 model, 2 buckets, 1 worker\n", exitDone},
		{checkCmd{Files: []string{"tokens.yaml"}, Secrets: true}, "none: cannot be used as a tokenizer: stat none: no such file or directory; give the directory of a model with a tokenizer.json that is supported, or none\n", exitUsage},
		{checkCmd{Files: []string{"none.yaml"}}, "none.yaml: cannot be read: open none.yaml: no such file or directory\n", exitUsage},
		{checkCmd{Files: []string{"good.yaml"}, JSON: true}, "[]\n", exitDone},
		{checkCmd{Files: []string{"bad.yaml"}, JSON: true}, `[
  {
    "file": "bad.yaml",
    "line": 2,
    "column": 16,
    "path": "server.port",
    "severity": "error",
    "what": "-1 is out of range",
    "cure": "choose 0 to 65535"
  },
  {
    "file": "bad.yaml",
    "line": 3,
    "column": 12,
    "path": "discovery",
    "severity": "error",
    "what": "has no source of engines",
    "cure": "add static: {workers: [URL, ...]}"
  }
]
`, exitUsage},
	} {
		var out bytes.Buffer
		err := tt.cmd.Run(&runContext{stdout: &out})
		if diff := cmp.Diff(tt.want, out.String()); diff != "" {
			t.Errorf("%+v: %s", tt.cmd, diff)
		}
		code := exitDone
		if e := (exitError{}); errors.As(err, &e) {
			code = e.code
		}
		if code != tt.code {
			t.Errorf("%+v: exit code %d, want %d", tt.cmd, code, tt.code)
		}
	}
}

// TestCheckHelpExample runs the example that check --help shows.
func TestCheckHelpExample(t *testing.T) {
	var out bytes.Buffer
	cmd := checkCmd{Files: []string{filepath.FromSlash("../../examples/buckets.yaml")}}
	if err := cmd.Run(&runContext{stdout: &out}); err != nil {
		t.Errorf("%v: %s", err, out.String())
	}
}
