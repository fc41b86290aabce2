package config_test

import (
	"os"
	"strings"
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/config"
)

// TestDiffScript runs testdata/diff.txt: each block is edits of one configuration, "text => text" a line, "----", and what Diff tells of
// the result, "!" before what needs a restart.
func TestDiffScript(t *testing.T) {
	const name = "testdata/diff.txt"
	script, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(strings.TrimSpace(string(script)), "\n\n")
	base := blocks[0] + "\n"
	old, faults := config.Parse("base", []byte(base))
	if old == nil {
		t.Fatal(faults)
	}
	var out strings.Builder
	out.WriteString(base)
	for _, block := range blocks[1:] {
		head, _, _ := strings.Cut(block, "\n----")
		text := base
		for line := range strings.SplitSeq(head, "\n") {
			from, to, ok := strings.Cut(line, " => ")
			if to = strings.ReplaceAll(to, `\n`, "\n"); !ok || !strings.Contains(text, from) {
				t.Fatalf("edit %q finds nothing", line)
			}
			text = strings.Replace(text, from, to, 1)
		}
		next, faults := config.Parse("edited", []byte(text))
		if next == nil {
			t.Fatalf("%s\n%v", head, faults)
		}
		out.WriteString("\n" + head + "\n----\n")
		for _, c := range config.Diff(old, next) {
			if c.NeedsRestart {
				out.WriteString("! ")
			}
			out.WriteString(c.String() + "\n")
		}
		if n, m := len(config.Diff(old, next)), len(config.Diff(next, old)); n != m {
			t.Errorf("%s: %d changes there, %d back", head, n, m)
		}
	}
	golden(t, name, out.String())
}

func TestDiffOfTheSame(t *testing.T) {
	for _, file := range []string{"buckets", "minimal", "pd", "secure"} {
		a, _ := config.ParseFile("../../../examples/" + file + ".yaml")
		b, _ := config.ParseFile("../../../examples/" + file + ".yaml")
		if changes := config.Diff(a, b); len(changes) > 0 {
			t.Errorf("%s: %v", file, changes)
		}
	}
}
