package config_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/perigee-llm/perigee/internal/gateway/config"
)

var update = flag.Bool("update", false, "rewrite the expected answers in testdata")

// golden compares got with the file, or rewrites the file under -update.
func golden(t *testing.T, name, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s: expected (-) and found (+) differ; -update rewrites it:\n%s", name, diff)
	}
}

// TestFaultScripts parses each testdata/*.yaml and compares its faults with the .faults file beside it.
func TestFaultScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			cfg, faults := config.Parse(filepath.Base(file), data)
			if (cfg == nil) != (len(faults.Errors()) > 0) {
				t.Errorf("config %v with errors %v", cfg, faults.Errors())
			}
			if (faults.Err() == nil) != (cfg != nil) {
				t.Errorf("Err is %v", faults.Err())
			}
			var out strings.Builder
			for _, f := range faults {
				out.WriteString(f.String() + "\n")
			}
			golden(t, strings.TrimSuffix(file, ".yaml")+".faults", out.String())
		})
	}
}

// TestExamples holds that every example is accepted without a warning.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../../../examples/*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("examples: %v, %v", files, err)
	}
	for _, file := range files {
		if _, faults := config.ParseFile(file); len(faults) > 0 {
			t.Errorf("%s: %v", file, faults)
		}
	}
}
