package hostpool

import (
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
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

// Read fills dst with the memory from offset at on. The error is ErrGone, also for what was never offered.
func (p *Pool) Read(dst []byte, at uint64) error {
	return p.ReadRuns(dst, 1, func(int) (uint64, int) { return at, len(dst) })
}

// Write writes src into the memory from offset at on. The error is as Read's. See WriteRuns.
func (p *Pool) Write(src []byte, at uint64) error {
	return p.WriteRuns(src, 1, func(int) (uint64, int) { return at, len(src) })
}

// ReadRuns fills dst with n runs of the memory, one behind the other: run says where each begins, and how long it is. Their lengths add up to dst's.
func (p *Pool) ReadRuns(dst []byte, n int, run func(i int) (at uint64, length int)) (err error) {
	defer p.faulted(&err)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	for i := range n {
		at, length := run(i)
		src, ok := p.piece(length, at)
		if !ok {
			return ErrGone
		}
		for to := dst[:length]; len(to) > 0; {
			n := copy(to, src[:min(len(src), moveAtOnce)])
			to, src = to[n:], src[n:]
		}
		dst = dst[length:]
	}
	return nil
}

// WriteRuns writes src into n runs of the memory, as ReadRuns. It passes this processor's caches by where it can: Fence comes before anybody is told of it.
func (p *Pool) WriteRuns(src []byte, n int, run func(i int) (at uint64, length int)) (err error) {
	defer p.faulted(&err)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	for i := range n {
		at, length := run(i)
		dst, ok := p.piece(length, at)
		if !ok {
			return ErrGone
		}
		for from := src[:length]; len(from) > 0; {
			n := min(len(from), moveAtOnce)
			stream(dst[:n], from[:n])
			dst, from = dst[n:], from[n:]
		}
		src = src[length:]
	}
	return nil
}

// Fence has all that this goroutine has written arrive before whatever it does next.
func Fence() { storeFence() }

func (p *Pool) piece(n int, at uint64) ([]byte, bool) {
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
