package fingerprint

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/perigee-llm/perigee/internal/cache/state"
)

// What is digested begins with one of these. Version history: 1 is the first of both.
const (
	filesMagic    = "perigee/model-files\x00\x01"
	revisionMagic = "perigee/model-revision\x00\x01"
)

// identity is a file as the file system knows it: as long as it is equal, the content is.
type identity struct {
	device, inode uint64
	size          int64
	mtime, ctime  int64 // nanoseconds since 1970
	sure          bool  // whether all of the above is known
}

// Options of a Hasher. The zero value works.
type Options struct {
	Limits Limits
	// Now is the clock; time.Now by default.
	Now func() time.Time
}

// Hasher takes fingerprints, and keeps the digests of files. Make it with New; its methods may be called at once. There is nothing to close.
type Hasher struct {
	limits Limits
	now    func() time.Time
	// turn has one place: fingerprints are taken one after another. The ranks of an instance ask for the same files at once, and all but
	// the first then find them cached instead of reading them once more beside each other.
	turn  chan struct{}
	files struct {
		sync.Mutex
		digests map[identity]state.Digest
	}
	// reading is called with each file that is read, before it is looked at once more. For tests.
	reading func(path string)
}

// maxCached bounds the files whose digests are kept: 16,384 of 100 bytes, a hundred models' worth. Beyond it some are forgotten.
const maxCached = 1 << 14

// New makes a Hasher.
func New(o Options) *Hasher {
	h := &Hasher{limits: o.Limits.orDefaults(), now: o.Now, turn: make(chan struct{}, 1), reading: func(string) {}}
	if h.now == nil {
		h.now = time.Now
	}
	h.files.digests = map[identity]state.Digest{}
	return h
}

// Fingerprint is what a path holds.
type Fingerprint struct {
	// Digest goes into a namespace as the model's content, or into a request as its adapter.
	Digest state.Digest
	// Files and Bytes are of the artifacts, Read the bytes that had to be read this time.
	Files       int
	Bytes, Read int64
}

// Path takes the fingerprint of a model's or an adapter's directory, or of a model that is one file, by its name. It reads what it does not know yet, which takes as long as
// that takes; ctx ends it within a megabyte. Errors: the classes of this package, those of the file system, and ctx's.
func (h *Hasher) Path(ctx context.Context, path string) (Fingerprint, error) {
	select {
	case h.turn <- struct{}{}:
		defer func() { <-h.turn }()
	case <-ctx.Done():
		return Fingerprint{}, ctx.Err()
	}
	// One place for the whole of it: should path be a link that is turned to another model, we go on with the old one.
	root, err := filepath.EvalSymlinks(path)
	if err != nil {
		return Fingerprint{}, err
	}
	found, err := walk(root, filepath.Base(path), h.limits)
	if err != nil {
		return Fingerprint{}, err
	}
	f, err := h.digest(ctx, found)
	if err != nil {
		return Fingerprint{}, err
	}
	// A file that came, went or was replaced after it was read makes a mixture of two models.
	again, err := walk(root, filepath.Base(path), h.limits)
	if err != nil {
		return Fingerprint{}, err
	}
	if !slices.Equal(found, again) {
		return Fingerprint{}, fmt.Errorf("%s: %w", path, ErrChanged)
	}
	return f, nil
}

// digest reads what has to be read of the artifacts, and joins them.
func (h *Hasher) digest(ctx context.Context, found []artifact) (Fingerprint, error) {
	f := Fingerprint{Files: len(found)}
	sum := sha256.New()
	sum.Write(binary.BigEndian.AppendUint32([]byte(filesMagic), uint32(len(found))))
	for _, a := range found {
		d, read, err := h.file(ctx, a)
		if err != nil {
			return Fingerprint{}, err
		}
		sum.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(a.rel))), a.rel...))
		sum.Write(d[:])
		f.Bytes, f.Read = f.Bytes+a.id.size, f.Read+read
	}
	sum.Sum(f.Digest[:0])
	return f, nil
}

// file returns an artifact's digest, and how many bytes were read for it.
func (h *Hasher) file(ctx context.Context, a artifact) (state.Digest, int64, error) {
	h.files.Lock()
	d, known := h.files.digests[a.id]
	h.files.Unlock()
	if known {
		return d, 0, ctx.Err()
	}
	before := h.now()
	d, err := h.read(ctx, a)
	if err != nil {
		return state.Digest{}, 0, fmt.Errorf("%s: %w", a.path, err)
	}
	if a.id.settled(before) {
		h.keep(a.id, d)
	}
	return d, a.id.size, nil
}

// settleTime is twice the coarsest clock among file systems that keep time at all (a second). Within one tick two writes leave one
// ctime, so that a file which was written just now may change once more without a trace: its digest is used and not kept.
const settleTime = 2 * time.Second

func (id identity) settled(now time.Time) bool {
	return id.sure && now.UnixNano()-id.ctime >= int64(settleTime)
}

func (h *Hasher) keep(id identity, d state.Digest) {
	h.files.Lock()
	defer h.files.Unlock()
	for old := range h.files.digests {
		if len(h.files.digests) < maxCached {
			break
		}
		delete(h.files.digests, old) // any: which one it is decides only who reads again
	}
	h.files.digests[id] = d
}

// read digests a file that must be, before and after, the one that was found.
func (h *Hasher) read(ctx context.Context, a artifact) (state.Digest, error) {
	f, err := os.OpenFile(a.path, os.O_RDONLY|readFlags, 0)
	if err != nil {
		return state.Digest{}, err
	}
	defer f.Close()
	if err := same(f, a.id); err != nil {
		return state.Digest{}, err
	}
	sum := sha256.New()
	n, err := copyUntil(ctx, sum, io.LimitReader(f, a.id.size+1)) // one that grows for ever ends here
	if err != nil {
		return state.Digest{}, err
	}
	h.reading(a.path)
	if n != a.id.size {
		return state.Digest{}, ErrChanged
	}
	if err := same(f, a.id); err != nil {
		return state.Digest{}, err
	}
	return state.Digest(sum.Sum(nil)), nil
}

func same(f *os.File, want identity) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || identify(info) != want {
		return ErrChanged
	}
	return nil
}

// copyUntil copies in pieces of a megabyte, between which it sees that ctx has ended.
func copyUntil(ctx context.Context, w io.Writer, r io.Reader) (n int64, err error) {
	buf := make([]byte, 1<<20)
	for {
		if err := ctx.Err(); err != nil {
			return n, err
		}
		k, err := io.ReadFull(r, buf)
		w.Write(buf[:k])
		n += int64(k)
		switch err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF:
			return n, nil
		default:
			return n, err
		}
	}
}

// Revision is the fingerprint of a model that a hub names: its repository and the full commit. It is not equal to the Path of the same
// files, so that all engines which are to share pages have to be introduced in the same way.
func Revision(repository, commit string) (state.Digest, error) {
	raw, err := hex.DecodeString(commit)
	if err != nil || len(raw) != 20 {
		return state.Digest{}, fmt.Errorf("%w: %q", ErrRevision, commit)
	}
	const maxRepository = 1 << 10 // hubs allow some hundred bytes
	if repository == "" || len(repository) > maxRepository {
		return state.Digest{}, fmt.Errorf("%w: of repository %.100q", ErrRevision, repository)
	}
	b := binary.BigEndian.AppendUint16([]byte(revisionMagic), uint16(len(repository)))
	return sha256.Sum256(append(append(b, repository...), raw...)), nil
}
