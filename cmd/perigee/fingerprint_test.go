package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestFingerprint: what it prints is what the adapters in Python compute, for the same files wherever they lie.
func TestFingerprint(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, model := range []string{"one", "same"} {
		write(model+"/config.json", "{}")
		write(model+"/deep/model.safetensors", "weights")
		write(model+"/.git/config.json", model)
		write(model+"/README.md", model)
	}
	write("other/config.json", "{ }")
	write("other/deep/model.safetensors", "weights")
	write("alone.gguf", "weights")
	paths := []string{filepath.Join(dir, "one"), filepath.Join(dir, "same"), filepath.Join(dir, "other"), filepath.Join(dir, "alone.gguf")}

	var out, errs bytes.Buffer
	if code := run(context.Background(), append([]string{"fingerprint"}, paths...), &out, &errs); code != exitDone || errs.Len() > 0 {
		t.Fatalf("exit code %d: %s", code, errs.String())
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	digests := make([]string, len(paths))
	for i, path := range paths {
		digest, rest, _ := strings.Cut(lines[i], "  ")
		if digests[i] = digest; rest != path || len(digest) != 64 {
			t.Fatalf("%q is no line for %s", lines[i], path)
		}
	}
	if digests[0] != digests[1] || digests[0] == digests[2] || digests[0] == digests[3] {
		t.Errorf("%q: equal files are equal, and nothing else", digests)
	}

	if _, err := exec.LookPath("python3"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("CI needs python3")
		}
		t.Skip("no python3")
	}
	const script = "import sys; sys.path.insert(0, '../../python/perigee/client')\nimport fingerprint\nfor p in sys.argv[1:]: print(fingerprint.of_path(p).hex(), '', p)"
	got, err := exec.Command("python3", append([]string{"-I", "-B", "-c", script}, paths...)...).CombinedOutput()
	if err != nil || string(got) != out.String() {
		t.Errorf("in Python: %v\n%s\nhere:\n%s", err, got, out.String())
	}
}

// TestFingerprintFaults: each path that cannot be read is named, and the others are printed all the same.
func TestFingerprintFaults(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	empty := t.TempDir()
	for _, tt := range []struct {
		path, says string
		code       int
	}{
		{filepath.Join(dir, "none"), "no such file", exitUsage},
		{empty, "no artifacts", exitRun},
	} {
		var out, errs bytes.Buffer
		code := run(context.Background(), []string{"fingerprint", tt.path, dir}, &out, &errs)
		if code != tt.code || !strings.Contains(errs.String(), tt.path) || !strings.Contains(errs.String(), tt.says) || !strings.HasSuffix(out.String(), "  "+dir+"\n") {
			t.Errorf("%s: exit code %d, %q, %q", tt.path, code, errs.String(), out.String())
		}
	}
}
