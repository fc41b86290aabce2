package hostpool

import (
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/perigee-llm/perigee/internal/cache/copysum"
)

// Pool is mapped memory of another process. Read and Write may be called at once, by anybody, until Close.
type Pool struct {
	// Memory tells it from other memory, for as long as anybody has it: the device and inode of its file.
	Memory [2]uint64

	mem  []byte
	stop atomic.Bool
	warm atomic.Uint64
	wg   sync.WaitGroup // the prefaulting
}

// Open maps the first so many bytes of what f is of. f stays the caller's, and is not needed any more. Errors are those of this package, or
// the kernel's.
func Open(f *os.File, bytes uint64) (*Pool, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	p := &Pool{}
	bad := raw.Control(func(fd uintptr) { err = p.open(int(fd), bytes) })
	if bad != nil {
		return nil, bad
	}
	if err != nil {
		return nil, err
	}
	p.wg.Go(p.prefault)
	return p, nil
}

func (p *Pool) open(fd int, bytes uint64) error {
	// The kernel knows seals of memory only, so that this is the question whether it is some.
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return ErrNotMemory
	}
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("fstat: %w", err)
	}
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return fmt.Errorf("fstatfs: %w", err)
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return fmt.Errorf("fcntl: %w", err)
	}
	block := uint64(max(fs.Bsize, 4096))
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return ErrNotMemory
	case flags&unix.O_ACCMODE != unix.O_RDWR || seals&(unix.F_SEAL_WRITE|unix.F_SEAL_FUTURE_WRITE) != 0:
		return ErrAccess
	case bytes == 0 || bytes > math.MaxInt64-block || int64(bytes) > st.Size:
		return ErrSize
	case !touched(fd, &st, bytes):
		return ErrHoles
	}
	// To whole pages, which are 2 MiB or more in a hugetlbfs.
	p.mem, err = unix.Mmap(fd, 0, int((bytes+block-1)/block*block), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mmap: %w", err)
	}
	// Prompts are in it: it is not for core dumps, nor for children.
	unix.Madvise(p.mem, unix.MADV_DONTDUMP)
	unix.Madvise(p.mem, unix.MADV_DONTFORK)
	p.Memory = [2]uint64{uint64(st.Dev), st.Ino}
	return nil
}

// touched says that the first so many bytes of a file are there: without that, looking at them makes them, at our expense. A file that has as many
// blocks as it is long is whole. In one that has not, the blocks may be others than those; only what was written counts then, since the kernel
// calls a hole, too, what was allocated and never written. Blocks behind the file's end would deceive this: whoever puts them there can
// as well punch holes later, and the bound on what is mapped holds for both.
func touched(fd int, st *unix.Stat_t, bytes uint64) bool {
	have := uint64(st.Blocks) * 512
	if have < bytes {
		return false
	}
	if have >= uint64(st.Size) {
		return true
	}
	at, err := unix.Seek(fd, 0, unix.SEEK_CUR)
	if err != nil {
		return false
	}
	hole, err := unix.Seek(fd, 0, unix.SEEK_HOLE)
	unix.Seek(fd, at, unix.SEEK_SET) // the place is its owner's as well
	return err == nil && uint64(hole) >= bytes
}

// prefaultPiece is how much is mapped by one call: some milliseconds, after which Close is heard.
const prefaultPiece = 32 << 20

// prefault fills our page table, so that a copy does not take a fault each 4 KiB. The pages are there, and nothing is written. What is
// gone meanwhile ends it, and whoever copies there will see.
func (p *Pool) prefault() {
	for at := 0; at < len(p.mem) && !p.stop.Load(); {
		n := min(prefaultPiece, len(p.mem)-at)
		if unix.Madvise(p.mem[at:at+n], unix.MADV_POPULATE_READ) != nil {
			return
		}
		at += n
		p.warm.Store(uint64(at))
	}
}

// Warm is how many bytes were mapped ahead.
func (p *Pool) Warm() uint64 { return p.warm.Load() }

// Runs says of n runs of a pool's memory where each begins, and how long it is.
type Runs func(i int) (at uint64, length int)

// Read fills dst with n runs, one behind the other, whose lengths add up to dst's, and returns XXH3-64 of what has arrived. The error is ErrGone, also for what was
// never offered. Fence comes before anybody is told.
func (p *Pool) Read(dst []byte, n int, runs Runs) (sum uint64, err error) {
	defer p.faulted(&err)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	if p.sums(len(dst), n, runs) {
		var s copysum.Sum
		to := dst
		err = p.each(n, runs, func(part []byte, last bool) {
			if last {
				sum = s.End(to, part)
			} else {
				s.Past(to, part)
			}
			to = to[len(part):]
		})
		return sum, err
	}
	if err = p.ReadPart(dst, n, runs); err == nil {
		sum = xxh3.Hash(dst)
	}
	return sum, err
}

// ReadPart is Read without the sum: of a page that comes from several pools.
func (p *Pool) ReadPart(dst []byte, n int, runs Runs) (err error) {
	defer p.faulted(&err)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	return p.each(n, runs, func(part []byte, _ bool) { dst = dst[copy(dst, part):] })
}

// Write writes src into n runs, as Read reads them, and returns XXH3-64 of what was written. It passes this processor's caches by where it can: as Read, it
// leaves the Fence to its caller.
func (p *Pool) Write(src []byte, n int, runs Runs) (sum uint64, err error) {
	defer p.faulted(&err)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	if p.sums(len(src), n, runs) {
		var s copysum.Sum
		from := src
		err = p.each(n, runs, func(part []byte, last bool) {
			if last {
				sum = s.End(part, from[:len(part)])
			} else {
				s.Past(part, from[:len(part)])
			}
			from = from[len(part):]
		})
		return sum, err
	}
	if err = p.WritePart(src, n, runs); err == nil {
		sum = xxh3.Hash(src) // after the copy: what is changed behind it has been copied already
	}
	return sum, err
}

// WritePart is Write without the sum: of a page that goes to several pools.
func (p *Pool) WritePart(src []byte, n int, runs Runs) (err error) {
	defer p.faulted(&err)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	return p.each(n, runs, func(part []byte, _ bool) {
		stream(part, src[:len(part)])
		src = src[len(part):]
	})
}

// Fence has all that this goroutine has read and written arrive before whatever it does next. One is enough for many copies.
func Fence() { storeFence() }

// sums says whether copying can make the sum as it goes.
func (p *Pool) sums(total, n int, runs Runs) bool {
	for i := range n - 1 {
		if _, length := runs(i); length%copysum.Block != 0 {
			return false
		}
	}
	if n == 0 {
		return false
	}
	_, last := runs(n - 1)
	return copysum.CanSum(total, last)
}

// each hands out the runs in parts of moveAtOnce bytes at most; the last one has 64 if its run has.
func (p *Pool) each(n int, runs Runs, do func(part []byte, last bool)) error {
	for i := range n {
		run, ok := p.piece(runs(i))
		if !ok {
			return ErrGone
		}
		for len(run) > moveAtOnce {
			part := moveAtOnce
			if len(run)-part < 64 {
				part -= copysum.Block
			}
			do(run[:part], false)
			run = run[part:]
		}
		do(run, i == n-1)
	}
	return nil
}

func (p *Pool) piece(at uint64, n int) ([]byte, bool) {
	if size := uint64(len(p.mem)); at > size || uint64(n) > size-at {
		return nil, false
	}
	return p.mem[at : at+uint64(n)], true
}

// faulted, deferred, makes a fault within the map an error; any other is our own mistake and stays a panic.
func (p *Pool) faulted(err *error) {
	fault := recover()
	if fault == nil {
		return
	}
	if a, ok := fault.(interface{ Addr() uintptr }); !ok || !p.has(a.Addr()) {
		panic(fault)
	}
	*err = ErrGone
}

// moveAtOnce is how much one copy moves: the runtime cannot stop a goroutine in the middle of one, and 1 MiB holds a collection of garbage up
// for a tenth of a millisecond.
const moveAtOnce = 1 << 20

func (p *Pool) has(addr uintptr) bool {
	from := uintptr(unsafe.Pointer(unsafe.SliceData(p.mem)))
	return addr >= from && addr-from < uintptr(len(p.mem))
}

// Close unmaps the memory. Nobody may be in Read or Write. Calling it again does nothing.
func (p *Pool) Close() {
	p.stop.Store(true)
	p.wg.Wait()
	if p.mem != nil {
		unix.Munmap(p.mem)
		p.mem = nil
	}
}
