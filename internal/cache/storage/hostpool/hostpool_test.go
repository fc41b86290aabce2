//go:build linux

package hostpool

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/zeebo/xxh3"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/perigee-llm/perigee/internal/script"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a memfd as SGLang makes it: not to be sealed, and all of it touched.
func memory(t testing.TB, size int64, flags int) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("pool", unix.MFD_CLOEXEC|flags)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "pool")
	t.Cleanup(func() { f.Close() })
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fallocate(fd, 0, 0, size); err != nil {
		t.Fatal(err)
	}
	return f
}

func open(t testing.TB, f *os.File, size uint64) *Pool {
	t.Helper()
	p, err := Open(f, size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// read and write copy one run.
func read(p *Pool) func(dst []byte, at uint64) error {
	return func(dst []byte, at uint64) error {
		_, err := p.Read(dst, 1, func(int) (uint64, int) { return at, len(dst) })
		return err
	}
}

func write(p *Pool) func(src []byte, at uint64) error {
	return func(src []byte, at uint64) error {
		_, err := p.Write(src, 1, func(int) (uint64, int) { return at, len(src) })
		return err
	}
}

// TestPart offers a part of memory of which the rest is not there; and its owner's place in it stays what it was.
func TestPart(t *testing.T) {
	f := memory(t, 16384, 0)
	unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 16384)
	f.WriteAt(make([]byte, 8192), 0)
	f.Seek(77, io.SeekStart)
	open(t, f, 8192)
	if at, err := f.Seek(0, io.SeekCurrent); at != 77 || err != nil {
		t.Errorf("the place in the file is %d: %v", at, err)
	}
}

func TestCopies(t *testing.T) {
	const size = 100_000 // no multiple of a page
	f := memory(t, size, 0)
	p := open(t, f, size)
	page := bytes.Repeat([]byte("page"), 3000)
	if _, err := f.WriteAt(page, 4001); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(page))
	if err := read(p)(got, 4001); err != nil || !bytes.Equal(got, page) {
		t.Errorf("read: %v", err)
	}
	if err := write(p)(page, size-uint64(len(page))); err != nil {
		t.Error(err)
	}
	if _, err := f.ReadAt(got, size-int64(len(page))); err != nil || !bytes.Equal(got, page) {
		t.Errorf("written: %v", err)
	}
	for _, at := range []uint64{size + 4096, 1 << 63, ^uint64(0), ^uint64(0) - 100} {
		if err := read(p)(got, at); !errors.Is(err, ErrGone) {
			t.Errorf("read at %d: %v", at, err)
		}
		if err := write(p)(got, at); !errors.Is(err, ErrGone) {
			t.Errorf("write at %d: %v", at, err)
		}
	}
	p.wg.Wait()
	if p.Warm() < size {
		t.Errorf("%d bytes of %d were mapped ahead", p.Warm(), size)
	}
	p.Close()
	p.Close()
}

// TestRefused: what is no memory, or not as it is said to be, is not mapped.
func TestRefused(t *testing.T) {
	dir := t.TempDir()
	file, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	file.Truncate(8192)
	var isMemory bool // of the test's folder: then a file in it is one
	if _, err := unix.FcntlInt(file.Fd(), unix.F_GET_SEALS, 0); err == nil {
		isMemory = true
	}
	folder, _ := os.Open(dir)
	defer folder.Close()
	null, _ := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	defer null.Close()
	r, w, _ := os.Pipe()
	defer r.Close()
	defer w.Close()
	sparse := memory(t, 8192, 0)
	unix.Fallocate(int(sparse.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 4096, 4096)
	half := memory(t, 16384, 0)
	unix.Fallocate(int(half.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 16384)
	half.WriteAt(make([]byte, 8192), 8192)
	sealed := memory(t, 8192, unix.MFD_ALLOW_SEALING)
	unix.FcntlInt(sealed.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE)
	later := memory(t, 8192, unix.MFD_ALLOW_SEALING)
	unix.FcntlInt(later.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE)
	good := memory(t, 8192, 0)
	reader, err := os.Open("/proc/self/fd/" + strconv.Itoa(int(good.Fd())))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	for what, c := range map[string]struct {
		f    *os.File
		size uint64
		want error
	}{
		"a folder":         {folder, 4096, ErrNotMemory},
		"a pipe":           {w, 4096, ErrNotMemory},
		"a device":         {null, 4096, ErrNotMemory},
		"nothing of it":    {good, 0, ErrSize},
		"more than it has": {good, 8193, ErrSize},
		"all there is":     {good, ^uint64(0), ErrSize},
		"almost all":       {good, 1<<63 - 1, ErrSize},
		"a hole":           {sparse, 8192, ErrHoles},
		"another's pages":  {half, 8192, ErrHoles},
		"sealed":           {sealed, 8192, ErrAccess},
		"sealed for later": {later, 8192, ErrAccess},
		"a reader's":       {reader, 8192, ErrAccess},
	} {
		if p, err := Open(c.f, c.size); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
			if err == nil {
				p.Close()
			}
		}
	}
	if p, err := Open(file, 8192); !isMemory && !errors.Is(err, ErrNotMemory) {
		t.Errorf("a file: %v", err)
		if err == nil {
			p.Close()
		}
	}
}

// TestCutShort takes the memory away under copies in both directions: they fail, and the process lives. What is there again is copied again.
func TestCutShort(t *testing.T) {
	const size = 1 << 20
	f := memory(t, size, 0)
	p := open(t, f, size)
	buf := make([]byte, size/2)
	if err := f.Truncate(size / 4); err != nil {
		t.Fatal(err)
	}
	for name, copy := range map[string]func([]byte, uint64) error{"read": read(p), "write": write(p)} {
		if err := copy(buf[:size/4], 0); err != nil {
			t.Errorf("%s of what is there: %v", name, err)
		}
		if err := copy(buf, 0); !errors.Is(err, ErrGone) {
			t.Errorf("%s across the end: %v", name, err)
		}
		if err := copy(buf, size/2); !errors.Is(err, ErrGone) {
			t.Errorf("%s behind the end: %v", name, err)
		}
	}
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	if err := read(p)(buf, size/2); err != nil || !bytes.Equal(buf, make([]byte, len(buf))) {
		t.Errorf("grown again: %v", err)
	}
}

// TestCutWhileCopying does so in the middle of copies that run at once.
func TestCutWhileCopying(t *testing.T) {
	const size = 4 << 20
	f := memory(t, size, 0)
	p := open(t, f, size)
	var wg sync.WaitGroup
	faults := make([]int, 4)
	for k := range faults {
		wg.Go(func() {
			buf := make([]byte, size)
			for range 30 {
				copy := read(p)
				if k%2 == 1 {
					copy = write(p)
				}
				if err := copy(buf, 0); errors.Is(err, ErrGone) {
					faults[k]++
				} else if err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for {
		select {
		case <-done:
			t.Logf("faults: %v", faults)
			return
		default:
			f.Truncate(0)
			f.Truncate(size)
		}
	}
}

// TestOtherFaults: a fault that is not in the map is no error of a copy but a panic, as without the map.
func TestOtherFaults(t *testing.T) {
	p := open(t, memory(t, 8192, 0), 8192)
	other := memory(t, 4096, 0)
	mem, err := unix.Mmap(int(other.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	other.Truncate(0)
	defer func() {
		if recover() == nil {
			t.Error("a fault elsewhere was swallowed")
		}
	}()
	write(p)(mem, 0)
}

// TestRuns copies to and from runs of all kinds of beginnings and lengths: what is summed is what was copied, and nothing beside it is touched.
func TestRuns(t *testing.T) {
	const size = 1 << 16
	r := script.Rand(t)
	p := open(t, memory(t, size, 0), size)
	want, src, back := make([]byte, size), make([]byte, size), make([]byte, size)
	for i := range want {
		want[i], src[i] = byte(r.Uint32()), byte(r.Uint32())
	}
	copy(p.mem, want)
	for range 1000 {
		begin, unit := r.IntN(64), []int{1, 1, 64, 1024}[r.IntN(4)]
		var at []uint64
		var lengths []int
		total, rest := 0, size
		for range 1 + r.IntN(4) {
			n := r.IntN(1+[]int{20, 300, 6000}[r.IntN(3)]) / unit * unit
			from := size - rest + r.IntN(rest/2-n)/unit*unit // none meets another
			at, lengths, total, rest = append(at, uint64(from)), append(lengths, n), total+n, size-from-n
			if rest < 16000 {
				break
			}
		}
		runs := func(i int) (uint64, int) { return at[i], lengths[i] }
		from := src[begin:][:total]
		sum, err := p.Write(from, len(at), runs)
		if err != nil || sum != xxh3.Hash(from) {
			t.Fatalf("%x, %v", sum, err)
		}
		for i, done := 0, 0; i < len(at); i++ {
			copy(want[at[i]:][:lengths[i]], from[done:])
			done += lengths[i]
		}
		if !bytes.Equal(p.mem, want) {
			t.Fatalf("written from %d to %v, %v", begin, at, lengths)
		}
		got := back[r.IntN(64):][:total]
		if sum, err = p.Read(got, len(at), runs); err != nil || sum != xxh3.Hash(from) || !bytes.Equal(got, from) {
			t.Fatalf("read from %v, %v: %v", at, lengths, err)
		}
		clear(got)
		if err = p.ReadPart(got, len(at), runs); err != nil || !bytes.Equal(got, from) {
			t.Fatalf("read without a sum from %v, %v: %v", at, lengths, err)
		}
		for i := range got {
			got[i] ^= 0x55
		}
		if err = p.WritePart(got, len(at), runs); err != nil {
			t.Fatal(err)
		}
		for i := range at {
			for k := range want[at[i]:][:lengths[i]] {
				want[int(at[i])+k] ^= 0x55
			}
		}
		if !bytes.Equal(p.mem, want) {
			t.Fatalf("written without a sum to %v, %v", at, lengths)
		}
	}
	beyond := func(i int) (uint64, int) { return uint64(i) * (size - 49), 50 }
	if p.WritePart(src[:100], 2, beyond) != ErrGone || p.ReadPart(back[:100], 2, beyond) != ErrGone {
		t.Error("beyond the end, without a sum")
	}
	if _, err := p.Write(src[:100], 2, func(i int) (uint64, int) { return uint64(i) * (size - 49), 50 }); err != ErrGone {
		t.Error("beyond the end")
	}
}

// TestLong copies what is longer than one piece of work, with ends of all kinds.
func TestLong(t *testing.T) {
	const size = 4 << 20
	p := open(t, memory(t, size, 0), size)
	src := make([]byte, size)
	for i := range src {
		src[i] = byte(i * 7 >> 3)
	}
	for _, n := range []int{1<<20 - 1, 1 << 20, 1<<20 + 1, 1<<20 + 63, 1<<20 + 64, 2<<20 + 63, 3<<20 + 1024, size} {
		runs := func(int) (uint64, int) { return uint64(size - n), n }
		back := make([]byte, n)
		if sum, err := p.Write(src[:n], 1, runs); err != nil || sum != xxh3.Hash(src[:n]) || !bytes.Equal(p.mem[size-n:], src[:n]) {
			t.Errorf("%d bytes written: %v", n, err)
		}
		if sum, err := p.Read(back, 1, runs); err != nil || sum != xxh3.Hash(src[:n]) || !bytes.Equal(back, src[:n]) {
			t.Errorf("%d bytes read: %v", n, err)
		}
	}
}
