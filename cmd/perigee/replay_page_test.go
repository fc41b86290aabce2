//go:build !race

package main

import (
	"os"
	"strings"
	"testing"
)

// TestReplayPage runs the commands of docs/replay.md that are followed by their output, and the page must show what they print.
// The race detector makes its 25 runs of the trace take a minute, and learns nothing from them that shorter tests do not show.
func TestReplayPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/replay.md")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	checked, commands := 0, ""
	for block := range fencedBlocks(string(page)) {
		switch {
		case block.lang == "yaml":
			if err := os.WriteFile("buckets.yaml", []byte(block.text), 0o600); err != nil {
				t.Fatal(err)
			}
		case block.lang == "sh":
			commands = block.text
		case block.lang == "" && commands != "":
			var printed strings.Builder
			for line := range strings.Lines(commands) {
				words := strings.Fields(line)
				code, out, stderr := command(append(words[1:], "--quiet")...)
				if words[0] != "perigee" || code != exitDone {
					t.Fatalf("%s: exit code %d: %s", line, code, stderr)
				}
				printed.WriteString(out)
			}
			commands = ""
			for line := range strings.Lines(block.text) {
				if checked++; !strings.Contains(printed.String(), line) {
					t.Errorf("the page shows\n%sbut the commands print\n%s", line, printed.String())
				}
			}
		}
	}
	if checked < 20 {
		t.Errorf("only %d lines of output were found on the page", checked)
	}
}

type fenced struct{ lang, text string }

// fencedBlocks yields the code blocks of a page.
func fencedBlocks(page string) func(yield func(fenced) bool) {
	return func(yield func(fenced) bool) {
		var b *fenced
		for line := range strings.Lines(page) {
			fence, isFence := strings.CutPrefix(strings.TrimSpace(line), "```")
			switch {
			case isFence && b == nil:
				b = &fenced{lang: fence}
			case isFence:
				if !yield(*b) {
					return
				}
				b = nil
			case b != nil:
				b.text += line
			}
		}
	}
}
