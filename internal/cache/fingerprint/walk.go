package fingerprint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// extensions are what artifacts end with: weights, configurations, tokenizers, templates, and code that comes with a model. Whatever an
// engine loads has to be among them; other files may come and go without making another model.
var extensions = []string{
	".safetensors", ".bin", ".pt", ".pth", ".gguf",
	".json", ".model", ".tiktoken", ".txt", ".py", ".jinja", ".vocab", ".merges",
}

// Limits bound a directory. A zero is the default.
type Limits struct {
	// Files bounds artifacts; 10,000, ten times what the most finely cut checkpoints have.
	Files int
	// Entries bounds everything that is looked at, artifacts or not; 100,000, which is a second or so on a slow disk.
	Entries int
	// Depth bounds levels of directories below the first; 8, where models use one or two.
	Depth int
	// Bytes bounds artifacts together; 8 TiB, several times the largest checkpoint. Sparse files are long for nothing.
	Bytes int64
}

func (l Limits) orDefaults() Limits {
	if l.Files == 0 {
		l.Files = 10_000
	}
	if l.Entries == 0 {
		l.Entries = 100_000
	}
	if l.Depth == 0 {
		l.Depth = 8
	}
	if l.Bytes == 0 {
		l.Bytes = 8 << 40
	}
	return l
}

// artifact is a file that counts: its path below the directory with slashes, where it is, and which file that was.
type artifact struct {
	rel, path string
	id        identity
}

// walker looks for artifacts.
type walker struct {
	limits  Limits
	found   []artifact
	entries int
	bytes   int64
}

// walk returns the artifacts below root, sorted by path as bytes. If root is a file, it is the only one, as name: GGUF models
// are one file, which a hub keeps under another name.
//
// Links are followed, to files and to directories, wherever they lead: a hub's snapshot is nothing but links to its blobs, and people
// link tokenizers in. Following discloses nothing, since all that comes out is a digest. What could hurt is a way without an end: depth
// and entries are bounded, and a directory that is its own ancestor is refused at once, to have a better word for it.
func walk(root, name string, limits Limits) ([]artifact, error) {
	info, err := os.Stat(root)
	if err != nil {
		return nil, err
	}
	w := &walker{limits: limits}
	if !info.IsDir() {
		err := w.entry(root, name, nil)
		return w.found, err
	}
	if err := w.directory(root, "", []fs.FileInfo{info}); err != nil {
		return nil, err
	}
	if len(w.found) == 0 {
		return nil, fmt.Errorf("%s: %w", root, ErrEmpty)
	}
	slices.SortFunc(w.found, func(a, b artifact) int { return strings.Compare(a.rel, b.rel) })
	return w.found, nil
}

// directory adds what is in path, the last of whose ancestors it is.
func (w *walker) directory(path, rel string, ancestors []fs.FileInfo) error {
	names, err := w.names(path)
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasPrefix(name, ".") {
			continue // version control, a hub's own bookkeeping
		}
		if err := w.entry(filepath.Join(path, name), rel+name, ancestors); err != nil {
			return err
		}
	}
	return nil
}

// names lists a directory, and no more of it than the limits allow.
func (w *walker) names(path string) ([]string, error) {
	d, err := os.OpenFile(path, os.O_RDONLY|readFlags, 0)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(w.limits.Entries - w.entries + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if w.entries += len(names); w.entries > w.limits.Entries {
		return nil, fmt.Errorf("%s: %w: more than %d entries", path, ErrLimits, w.limits.Entries)
	}
	return names, nil
}

func (w *walker) entry(path, rel string, ancestors []fs.FileInfo) error {
	isArtifact := slices.Contains(extensions, filepath.Ext(path))
	info, err := os.Stat(path)
	switch {
	case err != nil && !isArtifact:
		return nil // a dangling link to what does not count
	case err != nil:
		return err
	case info.IsDir():
		return w.below(path, rel, append(slices.Clip(ancestors), info))
	case !isArtifact && ancestors != nil:
		return nil
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s: %w: it is no regular file", path, ErrUnsafe)
	}
	w.found = append(w.found, artifact{rel, path, identify(info)})
	w.bytes += info.Size()
	if len(w.found) > w.limits.Files || w.bytes > w.limits.Bytes || w.bytes < 0 {
		return fmt.Errorf("%s: %w: more than %d files or %d bytes", path, ErrLimits, w.limits.Files, w.limits.Bytes)
	}
	return nil
}

// below goes into a directory, the last of its ancestors.
func (w *walker) below(path, rel string, ancestors []fs.FileInfo) error {
	self := ancestors[len(ancestors)-1]
	for _, a := range ancestors[:len(ancestors)-1] {
		if os.SameFile(a, self) {
			return fmt.Errorf("%s: %w: it leads back to where it came from", path, ErrUnsafe)
		}
	}
	if len(ancestors)-1 > w.limits.Depth {
		return fmt.Errorf("%s: %w: more than %d levels", path, ErrLimits, w.limits.Depth)
	}
	return w.directory(path, rel+"/", ancestors)
}
