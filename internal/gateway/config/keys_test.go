package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/keyring"
)

var twoNames = &config.Config{Models: []config.Model{{ID: "m", Aliases: []string{"alias"}}}}

// TestKeyScripts parses each testdata/keys/*.yaml and compares its faults with the .faults file beside it, in which nothing of a key is.
func TestKeyScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/keys/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		keys, faults := config.ParseKeys(filepath.Base(file), data, twoNames)
		if (keys == nil) != (len(faults.Errors()) > 0) {
			t.Errorf("%s: %d keys with errors %v", file, len(keys), faults.Errors())
		}
		var out strings.Builder
		for _, f := range faults {
			out.WriteString(f.String() + "\n")
		}
		if strings.Contains(out.String(), "hidden") {
			t.Errorf("%s: a fault shows something of a key:\n%s", file, out.String())
		}
		golden(t, strings.TrimSuffix(file, ".yaml")+".faults", out.String())
	}
}

func TestKeys(t *testing.T) {
	keys, faults := config.ReadKeys("testdata/keys/ok.yaml", nil)
	if len(faults.Errors()) > 0 {
		t.Fatal(faults)
	}
	var hashed keyring.Digest
	copy(hashed[:], "\x9f\x86\xd0\x81\x88\x4c\x7d\x65\x9a\x2f\xea\xa0\xc5\x5a\xd0\x15\xa3\xbf\x4f\x1b\x2b\x0b\x82\x2c\xd1\x5d\x6c\x15\xb0\xf0\x0a\x08")
	want := []keyring.Key{
		{Name: "team-a", Digest: keyring.DigestOf("0123456789abcdef-team-a")},
		{Name: "ci@example.org", Digest: hashed, Models: []string{"m", "alias"}},
	}
	if diff := cmp.Diff(want, keys[:2]); diff != "" {
		t.Error(diff)
	}
	if _, err := keyring.New(keys); err != nil {
		t.Error(err)
	}
}

// TestReadSecrets: files that are not there, not files, open to all, or not one line.
func TestReadSecrets(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		name = filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(name, []byte(text), 0o600), os.Chmod(name, mode)); err != nil {
			t.Fatal(err)
		}
		return name
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, key, fault string }{
		{write("plain", "sk-engine", 0o600), "sk-engine", ""},
		{write("line", "sk-engine\n", 0o640), "sk-engine", ""},
		{write("dos", "sk-engine\r\n", 0o600), "sk-engine", ""},
		{write("open", "sk-engine\n", 0o604), "sk-engine", "warning: everybody"},
		{write("lines", "sk-engine\nx\n", 0o600), "", "is not one line"},
		{write("spaces", " sk-engine\n", 0o600), "", "is not one line"},
		{write("empty", "", 0o600), "", "is not one line"},
		{write("long", strings.Repeat("k", 4097), 0o600), "", "is not one line"},
		{write("longest", strings.Repeat("k", 4096), 0o600), strings.Repeat("k", 4096), ""},
		{pipe, "", "is not a file"}, // it would be waited for
		{dir, "", "is not a file"},
		{filepath.Join(dir, "none"), "", "cannot be read"},
	} {
		key, faults := config.ReadEngineKey(c.path)
		text := ""
		for _, f := range faults {
			text += f.String()
		}
		if key != c.key || (c.fault == "") != (text == "") || !strings.Contains(text, c.fault) || strings.Contains(text, "sk-engine") {
			t.Errorf("%s: key %.20q, faults %q", c.path, key, text)
		}
	}
	keys, faults := config.ReadKeys(write("keys", "version: 1\nkeys: [{name: a, key: 0123456789abcdefg}]\n", 0o644), nil)
	if len(keys) != 1 || len(faults) != 1 || !faults[0].Warning {
		t.Errorf("keys that everybody can read: %v %v", keys, faults)
	}
}

// FuzzParseKeys holds on any input: no panic, either keys or an error, faults of one line, and nothing of the file in them.
func FuzzParseKeys(f *testing.F) {
	files, err := filepath.Glob("testdata/keys/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(data), "sk-hidden-hidden-hidden")
		f.Add(strings.ReplaceAll(string(data), "sk-hidden-hidden-hidden", "%s"), "*a&b!c |>'\"{[#")
	}
	f.Fuzz(func(t *testing.T, file, secret string) {
		data := strings.ReplaceAll(file, "%s", secret)
		keys, faults := config.ParseKeys("f", []byte(data), twoNames)
		if (keys == nil) != (len(faults.Errors()) > 0) {
			t.Fatalf("%d keys with errors %v", len(keys), faults.Errors())
		}
		if keys != nil {
			if _, err := keyring.New(keys); err != nil {
				t.Error(err)
			}
		}
		// The words of faults are a fixed set: what is said depends on the file, how it is said does not.
		for _, fault := range faults {
			if strings.ContainsAny(fault.String(), "\n\r") {
				t.Errorf("fault %q", fault)
			}
			if len(secret) >= 8 && strings.Contains(fault.String(), secret) && !strings.Contains(sayable, secret) {
				t.Errorf("fault %q shows %q", fault, secret)
			}
		}
	})
}

// sayable is everything that faults say by themselves, so that a fuzzer that guesses a word of it has found nothing.
var sayable = func() string {
	var b strings.Builder
	files, _ := filepath.Glob("testdata/keys/*.faults")
	for _, file := range files {
		data, _ := os.ReadFile(file)
		b.Write(data)
	}
	return b.String()
}()
