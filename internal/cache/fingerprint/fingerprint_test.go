//go:build linux

package fingerprint

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/cache/state"
)

// later is a clock by which all that a test writes is settled.
func later() time.Time { return time.Now().Add(time.Hour) }

// tree writes files by their paths and returns the directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for rel, content := range files {
		write(t, filepath.Join(dir, rel), content)
	}
	return dir
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// rewrite writes a file until the file system's clock has ticked, since before that nobody could know: see settled.
func rewrite(path, content string) error {
	before, err := os.Stat(path)
	for after := before; err == nil && identify(after).ctime == identify(before).ctime; {
		if err = os.WriteFile(path, []byte(content), 0o644); err == nil {
			after, err = os.Stat(path)
		}
	}
	return err
}

func link(t *testing.T, to, path string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(to, path)); err != nil {
		t.Fatal(err)
	}
}

func take(t *testing.T, h *Hasher, path string) Fingerprint {
	t.Helper()
	f, err := h.Path(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

var model = map[string]string{
	"config.json": "{}", "model-00001.safetensors": "weights", "sub/tokenizer.model": "words",
	"README.md": "no artifact", ".cache/x.json": "hidden", "sub/.y.json": "hidden",
}

// TestDigest computes the digest from its definition.
func TestDigest(t *testing.T) {
	f := take(t, New(Options{}), tree(t, model))
	b := binary.BigEndian.AppendUint32([]byte("perigee/model-files\x00\x01"), 3)
	for _, rel := range []string{"config.json", "model-00001.safetensors", "sub/tokenizer.model"} {
		d := sha256.Sum256([]byte(model[rel]))
		b = append(append(append(b, 0, byte(len(rel))), rel...), d[:]...)
	}
	if want := state.Digest(sha256.Sum256(b)); f.Digest != want {
		t.Errorf("%v, want %v", f.Digest, want)
	}
	if f.Files != 3 || f.Bytes != 14 || f.Read != 14 {
		t.Errorf("%+v", f)
	}
}

// TestWhatMatters changes a directory, and says whether it is another model then.
func TestWhatMatters(t *testing.T) {
	base := take(t, New(Options{}), tree(t, model)).Digest
	for name, c := range map[string]struct {
		change func(t *testing.T, dir string)
		same   bool
	}{
		"nothing":            {func(*testing.T, string) {}, true},
		"no artifact":        {func(t *testing.T, dir string) { write(t, filepath.Join(dir, "README.md"), "new") }, true},
		"hidden":             {func(t *testing.T, dir string) { write(t, filepath.Join(dir, ".cache/x.json"), "new") }, true},
		"an empty directory": {func(t *testing.T, dir string) { os.Mkdir(filepath.Join(dir, "empty.json"), 0o755) }, true},
		"a dangling note":    {func(t *testing.T, dir string) { link(t, "nowhere", filepath.Join(dir, "note")) }, true},
		"content":            {func(t *testing.T, dir string) { write(t, filepath.Join(dir, "config.json"), "[]") }, false},
		"another file":       {func(t *testing.T, dir string) { write(t, filepath.Join(dir, "a.py"), "") }, false},
		"a file less":        {func(t *testing.T, dir string) { os.Remove(filepath.Join(dir, "config.json")) }, false},
		"another name": {func(t *testing.T, dir string) {
			os.Rename(filepath.Join(dir, "config.json"), filepath.Join(dir, "config2.json"))
		}, false},
		"another place": {func(t *testing.T, dir string) {
			os.Rename(filepath.Join(dir, "sub/tokenizer.model"), filepath.Join(dir, "tokenizer.model"))
		}, false},
		"contents swapped": {func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "config.json"), "weights")
			write(t, filepath.Join(dir, "model-00001.safetensors"), "{}")
		}, false},
	} {
		dir := tree(t, model)
		c.change(t, dir)
		if got := take(t, New(Options{}), dir).Digest; (got == base) != c.same {
			t.Errorf("%s: equal is %v, want %v", name, got == base, c.same)
		}
	}
}

// TestHubSnapshot has the layout of a hub's cache: a snapshot of links into blobs, reached through a link itself.
func TestHubSnapshot(t *testing.T) {
	dir := t.TempDir()
	snapshot := filepath.Join(dir, "models--a--b/snapshots/0123")
	for rel, content := range model {
		if strings.HasSuffix(rel, ".md") || strings.Contains(rel, "/.") || rel[0] == '.' {
			continue
		}
		blob := strings.ReplaceAll(rel, "/", "_") + "-blob"
		write(t, filepath.Join(dir, "models--a--b/blobs", blob), content)
		link(t, filepath.Join(dir, "models--a--b/blobs", blob), filepath.Join(snapshot, rel))
	}
	link(t, snapshot, filepath.Join(dir, "current"))
	h := New(Options{Now: later})
	want := take(t, New(Options{}), tree(t, model)).Digest
	if got := take(t, h, filepath.Join(dir, "current")); got.Digest != want {
		t.Error("links make it another model")
	}
	if again := take(t, h, snapshot); again.Digest != want || again.Read != 0 {
		t.Errorf("the same blobs by another way: %+v", again)
	}
	// A directory that is linked in counts as one that lies there.
	link(t, tree(t, map[string]string{"t.json": "1"}), filepath.Join(snapshot, "extra"))
	direct := tree(t, model)
	write(t, filepath.Join(direct, "extra/t.json"), "1")
	if take(t, h, snapshot).Digest != take(t, h, direct).Digest {
		t.Error("a linked directory is another")
	}
}

func TestSingleFile(t *testing.T) {
	dir := tree(t, map[string]string{"m.gguf": "g", "odd": "g"})
	alone := tree(t, map[string]string{"m.gguf": "g"})
	h := New(Options{})
	if take(t, h, filepath.Join(dir, "m.gguf")).Digest != take(t, h, alone).Digest {
		t.Error("one file is not the directory that has only it")
	}
	link(t, filepath.Join(dir, "odd"), filepath.Join(alone, "snapshot/m.gguf")) // as a hub has it
	if take(t, h, filepath.Join(alone, "snapshot/m.gguf")).Digest != take(t, h, filepath.Join(dir, "m.gguf")).Digest {
		t.Error("a link to a file has the name of the blob")
	}
	if f := take(t, h, filepath.Join(dir, "odd")); f.Files != 1 { // who names a file means it
		t.Errorf("%+v", f)
	}
}

// TestCache reads what it does not know, and nothing else.
func TestCache(t *testing.T) {
	dir := tree(t, model)
	config := filepath.Join(dir, "config.json")
	h := New(Options{Now: later})
	first := take(t, h, dir)
	if again := take(t, h, dir); again.Read != 0 || again.Digest != first.Digest {
		t.Errorf("read again: %+v", again)
	}
	// The same size and the same time of writing: the ctime tells.
	info, _ := os.Stat(config)
	if err := errors.Join(rewrite(config, "[]"), os.Chtimes(config, info.ModTime(), info.ModTime())); err != nil {
		t.Fatal(err)
	}
	changed := take(t, h, dir)
	if changed.Read != 2 || changed.Digest == first.Digest {
		t.Errorf("a changed file: %+v", changed)
	}
	// Another file in its place, with all times equal but its inode.
	write(t, config+".new", "{}")
	os.Rename(config+".new", config)
	if back := take(t, h, dir); back.Read != 2 || back.Digest != first.Digest {
		t.Errorf("a replaced file: %+v", back)
	}
}

// TestFreshIsNotKept: a file that was written just now may change within the same tick of the clock.
func TestFreshIsNotKept(t *testing.T) {
	now := time.Now()
	h := New(Options{Now: func() time.Time { return now }})
	dir := tree(t, model)
	take(t, h, dir)
	if again := take(t, h, dir); again.Read != again.Bytes {
		t.Errorf("a fresh file was kept: %+v", again)
	}
	now = now.Add(time.Minute)
	take(t, h, dir)
	if again := take(t, h, dir); again.Read != 0 {
		t.Errorf("a settled file was not kept: %+v", again)
	}
	now = now.Add(-2 * time.Hour) // the file system's clock is ahead of ours
	fresh := New(Options{Now: func() time.Time { return now }})
	take(t, fresh, dir)
	if again := take(t, fresh, dir); again.Read == 0 {
		t.Errorf("a file of the future was kept: %+v", again)
	}
}

func TestCacheIsBounded(t *testing.T) {
	h := New(Options{})
	for i := range maxCached + 100 {
		h.keep(identity{inode: uint64(i)}, state.Digest{})
	}
	if n := len(h.files.digests); n != maxCached {
		t.Errorf("%d files are kept", n)
	}
}

// TestChangeWhileReading changes the directory when its first file has been read.
func TestChangeWhileReading(t *testing.T) {
	for name, change := range map[string]func(path, dir string) error{
		"written":   func(path, _ string) error { return os.WriteFile(path, []byte("longer than it was"), 0o644) },
		"same size": func(path, _ string) error { return rewrite(path, "[]") },
		"truncated": func(path, _ string) error { return os.Truncate(path, 0) },
		"replaced": func(path, dir string) error {
			return errors.Join(os.WriteFile(dir+"/new", []byte("{}"), 0o644), os.Rename(dir+"/new", path))
		},
		"removed":       func(path, _ string) error { return os.Remove(path) },
		"a pipe":        func(path, _ string) error { return errors.Join(os.Remove(path), fifo(path)) },
		"another comes": func(_, dir string) error { return os.WriteFile(dir+"/aaa.json", nil, 0o644) },
		"a later one": func(_, dir string) error {
			return os.WriteFile(dir+"/model-00001.safetensors", []byte("others!"), 0o644)
		},
		"later, a pipe": func(_, dir string) error {
			return errors.Join(os.Remove(dir+"/model-00001.safetensors"), fifo(dir+"/model-00001.safetensors"))
		},
	} {
		dir := tree(t, model)
		h, done := New(Options{Now: later}), false
		h.reading = func(path string) {
			if !done {
				done = true
				if err := change(path, dir); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			}
		}
		f, err := h.Path(t.Context(), dir)
		if !errors.Is(err, ErrChanged) && !errors.Is(err, ErrUnsafe) {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
		h.reading = func(string) {}
		if inPlace := name == "written" || name == "same size" || name == "truncated"; inPlace && len(h.files.digests) > 0 {
			t.Errorf("%s: a digest of neither content is kept", name)
		}
		if name == "a later one" { // what was read before the change must not be kept under the new file's name
			if got, want := take(t, h, dir).Digest, take(t, New(Options{}), dir).Digest; got != want {
				t.Errorf("%s: afterwards it is %v, want %v", name, got, want)
			}
		}
	}
}

// TestRefusals has directories that lead nowhere, round in circles, or too far.
func TestRefusals(t *testing.T) {
	small := Limits{Files: 3, Entries: 12, Depth: 2, Bytes: 100}
	for name, c := range map[string]struct {
		files map[string]string
		spoil func(t *testing.T, dir string)
		want  error
	}{
		"it fits":         {model, nil, nil},
		"empty":           {map[string]string{"README.md": "x"}, nil, ErrEmpty},
		"too many files":  {map[string]string{"a.json": "", "b.json": "", "c.json": "", "d.json": ""}, nil, ErrLimits},
		"too many bytes":  {map[string]string{"a.json": strings.Repeat("x", 101)}, nil, ErrLimits},
		"too deep":        {map[string]string{"a/b/c/d.json": ""}, nil, ErrLimits},
		"deep enough":     {map[string]string{"a/b/d.json": ""}, nil, nil},
		"too many others": {map[string]string{"a.json": ""}, func(t *testing.T, dir string) { manyNotes(t, dir) }, ErrLimits},
		"a circle":        {model, func(t *testing.T, dir string) { link(t, "..", filepath.Join(dir, "sub/up")) }, ErrUnsafe},
		"itself":          {model, func(t *testing.T, dir string) { link(t, ".", filepath.Join(dir, "self")) }, ErrUnsafe},
		"a looping link":  {model, func(t *testing.T, dir string) { link(t, "l.json", filepath.Join(dir, "l.json")) }, errAny},
		"a dangling one":  {model, func(t *testing.T, dir string) { link(t, "gone", filepath.Join(dir, "l.json")) }, fs.ErrNotExist},
		"a device":        {model, func(t *testing.T, dir string) { link(t, "/dev/zero", filepath.Join(dir, "l.bin")) }, ErrUnsafe},
		"a pipe": {model, func(t *testing.T, dir string) {
			if err := fifo(filepath.Join(dir, "p.bin")); err != nil {
				t.Fatal(err)
			}
		}, ErrUnsafe},
		"sparse": {model, func(t *testing.T, dir string) {
			if err := os.Truncate(filepath.Join(dir, "config.json"), 1<<40); err != nil {
				t.Skip(err)
			}
		}, ErrLimits},
	} {
		t.Run(name, func(t *testing.T) {
			dir := tree(t, c.files)
			if c.spoil != nil {
				c.spoil(t, dir)
			}
			_, err := New(Options{Limits: small}).Path(t.Context(), dir)
			if c.want == errAny && err != nil {
				return
			}
			if !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
	if _, err := New(Options{}).Path(t.Context(), filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}

var errAny = errors.New("any error")

func fifo(path string) error { return syscall.Mkfifo(path, 0o600) }

func manyNotes(t *testing.T, dir string) {
	for i := range 13 {
		write(t, filepath.Join(dir, strings.Repeat("n", i+1)), "")
	}
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	h := New(Options{})
	h.reading = func(string) { cancel() }
	if _, err := h.Path(ctx, tree(t, model)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	h.turn <- struct{}{} // somebody else's turn, for ever
	if _, err := h.Path(ctx, tree(t, model)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestRevision(t *testing.T) {
	commit := strings.Repeat("0a", 20)
	a, err := Revision("meta/llama", commit)
	if err != nil || a.IsZero() {
		t.Fatal(err)
	}
	b, _ := Revision("meta/llama2", commit)
	c, _ := Revision("meta/llama", strings.Repeat("0b", 20))
	if a == b || a == c {
		t.Error("two models have one fingerprint")
	}
	for _, bad := range [][2]string{{"m", "main"}, {"m", commit[1:]}, {"m", commit + "00"}, {"m", ""}, {"", commit}, {strings.Repeat("m", 2000), commit}} {
		if _, err := Revision(bad[0], bad[1]); !errors.Is(err, ErrRevision) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// BenchmarkFirstRead is what a model costs that nobody knows, from the page cache.
func BenchmarkFirstRead(b *testing.B) {
	path := filepath.Join(b.TempDir(), "m.safetensors")
	if err := os.WriteFile(path, make([]byte, 64<<20), 0o644); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(64 << 20)
	for b.Loop() {
		if _, err := New(Options{}).Path(b.Context(), path); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkKnown is what every later registration costs: a directory of 200 files that are known.
func BenchmarkKnown(b *testing.B) {
	dir := b.TempDir()
	for i := range 200 {
		if err := os.WriteFile(filepath.Join(dir, strings.Repeat("a", i+1)+".json"), nil, 0o644); err != nil {
			b.Fatal(err)
		}
	}
	h := New(Options{Now: later})
	for b.Loop() {
		if _, err := h.Path(b.Context(), dir); err != nil {
			b.Fatal(err)
		}
	}
}
