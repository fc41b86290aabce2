package gateway

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestSettling: a change counts at the second look that finds it, and one that is undone does not count.
func TestSettling(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	clock := time.Unix(1000, 0)
	write := func(name, text string) {
		t.Helper()
		clock = clock.Add(time.Millisecond)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(name, clock, clock); err != nil {
			t.Fatal(err)
		}
	}
	look := func() sight { return lookAt(a, []string{b, ""}) }
	write(a, "1")
	var s settling
	seen := look()
	step := func(what string, want bool) {
		t.Helper()
		now := look()
		if got := s.changed(seen, now); got != want {
			t.Errorf("%s: changed is %v", what, got)
		}
		if want {
			seen = now
		}
	}
	step("nothing", false)
	write(a, "2")
	step("one file, first look", false)
	write(b, "2")
	step("the other file, first look", false)
	step("both, second look", true)
	step("nothing more", false)
	write(a, "3")
	step("the same size", false)
	step("the same size, second look", true)
	if err := os.Remove(b); err != nil {
		t.Fatal(err)
	}
	step("gone", false)
	step("gone, second look", true)
	write(b, "2")
	step("back", false)
	if err := os.Remove(b); err != nil {
		t.Fatal(err)
	}
	step("back and gone", false)
	step("nothing, after all", false)
	// A link that leads elsewhere is another file, as when a mounted ConfigMap changes.
	if err := os.Symlink(a, b); err != nil {
		t.Fatal(err)
	}
	step("a link", false)
	step("a link, second look", true)
	c := filepath.Join(dir, "c")
	write(c, "3")
	if err := os.Chtimes(c, time.Unix(1000, 0), time.Unix(1000, 0)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(a, time.Unix(1000, 0), time.Unix(1000, 0)); err != nil {
		t.Fatal(err)
	}
	seen = look()
	if err := os.Remove(b); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(c, b); err != nil {
		t.Fatal(err)
	}
	step("a link elsewhere, to a file that looks alike", false)
	step("a link elsewhere, second look", true)
}
