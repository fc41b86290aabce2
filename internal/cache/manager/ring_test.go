//go:build linux

package manager

import (
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sharedRing is the alternative to the socket that docs/design-notes/cache-channel.md weighs: two words and 16 KiB in shared memory, each
// side spinning for a bounded time and then waiting on a futex.
type sharedRing struct{ mem []byte }

const ringSpins = 2000 // about 20 µs on a core of one's own

func openRing(path string) (*sharedRing, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(64 << 10); err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, 64<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return &sharedRing{mem}, err
}

func (r *sharedRing) word(i int) *uint32 { return (*uint32)(unsafe.Pointer(&r.mem[64*i])) }

// wait waits until word i is n; futex says that it waits in the kernel after the spinning.
func (r *sharedRing) wait(i int, n uint32, spins int) {
	w := r.word(i)
	for {
		for range spins {
			if atomic.LoadUint32(w) == n {
				return
			}
		}
		v := atomic.LoadUint32(w)
		if v == n {
			return
		}
		syscall.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w)), 0 /* FUTEX_WAIT */, uintptr(v), 0, 0, 0)
	}
}

func (r *sharedRing) post(i int, n uint32) {
	w := r.word(i)
	atomic.StoreUint32(w, n)
	syscall.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w)), 1 /* FUTEX_WAKE */, 1, 0, 0, 0)
}

// serveRing answers for ever.
func serveRing(path string, spins int) {
	r, err := openRing(path)
	if err != nil {
		return
	}
	for n := uint32(1); ; n++ {
		r.wait(0, n, spins)
		r.post(1, n)
	}
}

// BenchmarkRing is a round trip of 16 KiB and an answer over the ring, with and without spinning, in the same two processes as
// BenchmarkQuery512's ping.
func BenchmarkRing(b *testing.B) {
	for name, spins := range map[string]int{"futex": 0, "spin-then-futex": ringSpins} {
		b.Run(name, func(b *testing.B) {
			path := b.TempDir() + "/ring"
			r, err := openRing(path)
			if err != nil {
				b.Fatal(err)
			}
			step := "ring"
			if spins == 0 {
				step = "futex"
			}
			cmd, err := start(step, path)
			if err != nil {
				b.Fatal(err)
			}
			defer func() { cmd.Process.Kill(); cmd.Wait() }()
			body := make([]byte, 16<<10)
			var took []time.Duration
			n := uint32(0)
			for b.Loop() {
				n++
				t := time.Now()
				copy(r.mem[1024:], body)
				r.post(0, n)
				r.wait(1, n, spins)
				took = append(took, time.Since(t))
			}
			b.ReportMetric(float64(median(took).Nanoseconds())/1e3, "p50-µs")
		})
	}
}
