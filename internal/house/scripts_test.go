package house

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestReadmeScript holds what the README's checker promises: it is the only proof that the commands of the README work,
// so a block that it passes over in silence would be a lie that nobody sees.
func TestReadmeScript(t *testing.T) {
	root, err := repositoryRoot()
	if err != nil {
		t.Fatal(err)
	}
	block := func(mark, code string) string { return mark + "\n```sh\n" + code + "\n```\n" }
	for _, c := range []struct{ name, text, want string }{
		{"runs", block("<!-- run 9s: hello -->", "echo hello") + block("<!-- not run: no GPU -->", "false"), ""},
		{"runs from the root", block("<!-- run 9s -->", "grep -q perigee go.mod"), ""},
		{"no block", "Some words.\n", "no sh block"},
		{"only blocks that are not run", block("<!-- not run: no GPU -->", "true"), "no sh block"},
		{"a block without a mark", block("<!-- run 9s -->", "true") + block("", "true"), "needs a line above it"},
		{"a mark with words between", block("<!-- run 9s -->\nWords.", "true"), "needs a line above it"},
		{"not run without a reason", block("<!-- not run: -->", "true"), "needs a line above it"},
		{"fails", block("<!-- run 9s -->", "false\necho later"), "exit code 1"},
		{"other output", block("<!-- run 9s: bye -->", "echo hello"), "the output does not hold: bye"},
		{"too slow", block("<!-- run 1s -->", "sleep 60"), "limit 1s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "README.md")
			if err := os.WriteFile(file, []byte("# Title\n\n"+c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command(filepath.Join(root, "scripts", "readme.sh"), file).CombinedOutput()
			if (err == nil) != (c.want == "") || !strings.Contains(string(out), c.want) {
				t.Errorf("error %v, output %q, want %q in it", err, out, c.want)
			}
		})
	}
}

// TestAgainScript: what fetches is run again in CI, and only there, until it succeeds or its tries are used up; the last one's exit code is told.
func TestAgainScript(t *testing.T) {
	root, err := repositoryRoot()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, ci          string
		fails, runs, code int
	}{
		{"at once", "true", 0, 1, 0},
		{"at last", "true", 3, 4, 0},
		{"never", "true", 9, 4, 7},
		{"not in CI", "", 1, 1, 7},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "runs")
			cmd := exec.Command(filepath.Join(root, "scripts", "again.sh"), "bash", "-c", `echo >>"$0"; (($(wc -l <"$0") > $1)) || exit 7`, file, strconv.Itoa(c.fails))
			cmd.Env = append(os.Environ(), "CI="+c.ci, "AGAIN_S=0")
			out, _ := cmd.CombinedOutput() // its error is the exit code
			runs, err := os.ReadFile(file)
			if err != nil || len(runs) != c.runs || cmd.ProcessState.ExitCode() != c.code {
				t.Errorf("%d runs, exit code %d, %v: %s", len(runs), cmd.ProcessState.ExitCode(), err, out)
			}
		})
	}
}
