package config_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/perigee-llm/perigee/internal/gateway/config"
)

// FuzzParse holds on any input: no panic, the same answer twice, either a config or an error, and faults that a person can act on.
func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/*.yaml", "../../../examples/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			f.Fatalf("%s: %v", pattern, err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, faults := config.Parse("f", data)
		if (cfg == nil) != (len(faults.Errors()) > 0) {
			t.Fatalf("config %v with errors %v", cfg, faults.Errors())
		}
		for _, fault := range faults {
			if fault.What == "" || fault.Flag != "" || strings.ContainsAny(fault.String(), "\n\r") {
				t.Errorf("fault %q", fault)
			}
			if n := bytes.Count(data, []byte("\n")) + bytes.Count(data, []byte("\r")) + 2; fault.Line < 0 || fault.Line > n+bytes.Count(data, []byte("\u2028"))+bytes.Count(data, []byte("\u2029"))+bytes.Count(data, []byte("\u0085")) {
				t.Errorf("fault %q in a file of %d lines", fault, n)
			}
		}
		if again, same := config.Parse("f", data); !cmp.Equal(cfg, again) || fmt.Sprint(faults) != fmt.Sprint(same) {
			t.Errorf("two answers:\n%v\n%v", faults, same)
		}
		if cfg != nil {
			mustBeComplete(t, cfg)
		}
	})
}

// mustBeComplete checks what Parse promises of a config that it accepts.
func mustBeComplete(t *testing.T, c *config.Config) {
	t.Helper()
	if len(c.Models) == 0 || c.Discovery.Static == nil || len(c.Discovery.Static.Workers) == 0 {
		t.Fatalf("no models or no engines: %+v", c)
	}
	for _, w := range c.Discovery.Static.Workers {
		if w.ID == "" || !strings.HasPrefix(strings.ToLower(w.URL), "http") || strings.HasSuffix(w.URL, "/") {
			t.Errorf("worker %+v", w)
		}
	}
	for _, m := range c.Models {
		if m.ID == "" || m.Sampling.Conflict == "" || len(m.Buckets) == 0 {
			t.Errorf("model %+v", m)
		}
		for _, b := range m.Buckets {
			if b.ID == "" || (b.Plain == nil) == (b.PD == nil) {
				t.Errorf("bucket %+v", b)
			}
			if b.MaxInputTokens != nil && *b.MaxInputTokens < b.MinInputTokens {
				t.Errorf("bucket %+v", b)
			}
			if b.Plain != nil && b.Plain.Policy.Name == "" || b.PD != nil && (b.PD.Prefill.Policy.Name == "" || b.PD.Decode.Policy.Name == "") {
				t.Errorf("a group of bucket %s has no policy", b.ID)
			}
			if b.PD != nil && b.PD.Decode.Policy.Name == config.CacheAware {
				t.Errorf("cache_aware serves decode in bucket %s", b.ID)
			}
		}
	}
}

// FuzzFlags holds on any command line: no panic, either a config or an error, and every fault names a flag.
func FuzzFlags(f *testing.F) {
	script, err := os.ReadFile("testdata/flags.txt")
	if err != nil {
		f.Fatal(err)
	}
	for line := range strings.Lines(string(script)) {
		if strings.HasPrefix(line, "--model-id") {
			f.Add(strings.TrimSpace(line))
		}
	}
	f.Fuzz(func(t *testing.T, line string) {
		if strings.Contains(line, "--config") {
			t.Skip("it would read files")
		}
		flags, err := tryFlags(splitWords(line)...)
		if err != nil {
			return
		}
		cfg, faults := flags.Config()
		if (cfg == nil) != (len(faults.Errors()) > 0) {
			t.Fatalf("config %v with errors %v", cfg, faults.Errors())
		}
		for _, fault := range faults {
			if fault.What == "" || fault.Flag == "" || strings.ContainsAny(fault.String(), "\n\r") {
				t.Errorf("fault %q (%+v)", fault, fault)
			}
		}
		if cfg != nil {
			mustBeComplete(t, cfg)
		}
	})
}
