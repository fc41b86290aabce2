package pool

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/perigee-llm/perigee/internal/cache/storage/pool/layout"
)

// Pool owns arenas. Its methods may be called at once.
type Pool struct {
	opt Options
	mu  struct {
		sync.Mutex
		used   uint64
		arenas map[*Arena]bool
		closed bool
	}
	wg sync.WaitGroup // prefaulting
}

// New returns an empty pool. Close it.
func New(o Options) (*Pool, error) {
	p := &Pool{opt: o}
	p.mu.arenas = map[*Arena]bool{}
	return p, nil
}

// Arena is shared memory of one shape. Its bytes may be read and written at once by anybody who maps it; who may is the core's word.
type Arena struct {
	// Shape is as it was asked for; MapBytes is the memfd's size, which huge pages may make larger.
	Shape    layout.Shape
	MapBytes uint64
	// Huge says that it lies in huge pages.
	Huge bool

	pool   *Pool
	mem    []byte
	rw, ro *os.File
	warm   atomic.Uint64 // bytes that were faulted in
	stop   atomic.Bool
	idle   chan struct{} // closed when prefaulting has ended
}

const hugeBytes = 2 << 20

// Open makes an arena, all zeros. Errors are ErrFull, or the kernel's.
func (p *Pool) Open(s layout.Shape) (*Arena, error) {
	size := s.Bytes()
	if err := p.reserve(size); err != nil {
		return nil, err
	}
	a, err := p.open(s)
	if err != nil {
		p.mu.Lock()
		p.mu.used -= size
		p.mu.Unlock()
		return nil, err
	}
	a.idle = make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.arenas[a] = true
	if p.opt.NoPrefault || p.mu.closed {
		close(a.idle)
		return a, nil
	}
	p.wg.Go(a.prefault)
	return a, nil
}

func (p *Pool) reserve(size uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if size == 0 || size > p.opt.Bytes-p.mu.used {
		return ErrFull
	}
	p.mu.used += size
	return nil
}

func (p *Pool) open(s layout.Shape) (*Arena, error) {
	if p.opt.Huge == HugeTry {
		if a, err := p.make(s, true); err == nil {
			return a, nil
		}
	}
	return p.make(s, false)
}

func (p *Pool) fail(step string) error {
	if p.opt.FailForTesting == nil {
		return nil
	}
	return p.opt.FailForTesting(step)
}

// make makes the memfd and maps it.
func (p *Pool) make(s layout.Shape, huge bool) (*Arena, error) {
	flags, size := unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING, s.Bytes()
	if huge {
		flags |= unix.MFD_HUGETLB | unix.MFD_HUGE_2MB
		size = (size + hugeBytes - 1) / hugeBytes * hugeBytes
	}
	if err := p.fail("memfd"); err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("perigee-arena", flags)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	a := &Arena{Shape: s, MapBytes: size, Huge: huge, pool: p, rw: os.NewFile(uintptr(fd), "perigee-arena")}
	steps := []struct {
		name string
		do   func() error
	}{
		{"ftruncate", func() error { return unix.Ftruncate(fd, int64(size)) }},
		{"seal", func() error {
			_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
			return err
		}},
		{"reopen", func() (err error) { a.ro, err = os.Open("/proc/self/fd/" + strconv.Itoa(fd)); return err }},
		{"chmod", func() error { return unix.Fchmod(fd, 0) }},
		{"mmap", func() (err error) {
			a.mem, err = unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			return err
		}},
	}
	for _, step := range steps {
		err := p.fail(step.name)
		if err == nil {
			err = step.do()
		}
		if err != nil {
			a.release()
			return nil, fmt.Errorf("an arena of %d bytes: %s: %w", size, step.name, err)
		}
	}
	// The pool is as large as it is told to be, and prompts are in it: it is not for core dumps, nor for children.
	unix.Madvise(a.mem, unix.MADV_DONTDUMP)
	unix.Madvise(a.mem, unix.MADV_DONTFORK)
	unix.Madvise(a.mem, unix.MADV_HUGEPAGE) // where shmem may have them
	return a, nil
}

// prefaultPiece is how much is faulted in by one call: some ten milliseconds, after which Close is heard.
const prefaultPiece = 32 << 20

// prefault faults the arena in, piece by piece. It changes no byte, so slots may be in use already.
func (a *Arena) prefault() {
	defer close(a.idle)
	for at := uint64(0); at < a.MapBytes && !a.stop.Load(); {
		n := min(prefaultPiece, a.MapBytes-at)
		if err := unix.Madvise(a.mem[at:at+n], unix.MADV_POPULATE_WRITE); err != nil {
			return // an old kernel, or no memory now: whoever touches it will see
		}
		at += n
		a.warm.Store(at)
	}
}

// Slot returns the bytes of slot i, without its padding: n is at most the slot's size. They are good until Close.
func (a *Arena) Slot(i, n uint32) []byte {
	at := uint64(i) * uint64(a.Shape.SlotBytes)
	return a.mem[at : at+uint64(n) : at+uint64(n)]
}

// Writable is the descriptor for the arena's own instance, and ReadOnly that for others. They belong to the arena.
func (a *Arena) Writable() *os.File { return a.rw }

// ReadOnly is the descriptor for other instances; see Writable.
func (a *Arena) ReadOnly() *os.File { return a.ro }

// Warm is how many bytes were faulted in.
func (a *Arena) Warm() uint64 { return a.warm.Load() }

// Close gives the memory back to the kernel, even if clients still map it: they read zeros from then on. Nobody may be in Slot's bytes.
// Calling it again does nothing.
func (a *Arena) Close() {
	a.pool.mu.Lock()
	there := a.pool.mu.arenas[a]
	delete(a.pool.mu.arenas, a)
	a.pool.mu.Unlock()
	if !there {
		return
	}
	a.stop.Store(true)
	a.pool.fail("close")
	<-a.idle
	a.release()
	a.pool.mu.Lock()
	a.pool.mu.used -= a.Shape.Bytes()
	a.pool.mu.Unlock()
}

func (a *Arena) release() {
	if a.mem != nil {
		unix.Munmap(a.mem)
		unix.Fallocate(int(a.rw.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(a.MapBytes))
	}
	a.rw.Close()
	if a.ro != nil {
		a.ro.Close()
	}
}

// Usage is a pool's state, in bytes.
type Usage struct{ Bytes, Used, Warm uint64 }

// Usage returns what is in use.
func (p *Pool) Usage() Usage {
	p.mu.Lock()
	defer p.mu.Unlock()
	u := Usage{Bytes: p.opt.Bytes, Used: p.mu.used}
	for a := range p.mu.arenas {
		u.Warm += a.Warm()
	}
	return u
}

// Free is how many bytes are left for arenas.
func (p *Pool) Free() uint64 {
	u := p.Usage()
	return u.Bytes - u.Used
}

// Close closes all arenas.
func (p *Pool) Close() {
	p.mu.Lock()
	p.mu.closed = true
	var all []*Arena
	for a := range p.mu.arenas {
		all = append(all, a)
	}
	p.mu.Unlock()
	for _, a := range all {
		a.Close()
	}
	p.wg.Wait()
}
