//go:build linux

package pool

import (
	"errors"
	"os"
	"strconv"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/perigee-llm/perigee/internal/cache/storage/pool/layout"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, o Options, s layout.Shape) (*Pool, *Arena) {
	t.Helper()
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	a, err := p.Open(s)
	if err != nil {
		t.Fatal(err)
	}
	return p, a
}

func TestArena(t *testing.T) {
	p, a := open(t, Options{Bytes: 1 << 20}, layout.Shape{Slots: 16, SlotBytes: 8192})
	<-a.idle
	if a.Warm() != a.MapBytes {
		t.Errorf("%d of %d bytes were faulted in", a.Warm(), a.MapBytes)
	}
	// What is written through the descriptor is seen in the slot.
	mem, err := unix.Mmap(int(a.Writable().Fd()), 0, int(a.MapBytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	copy(mem[3*8192:], "page")
	if got := string(a.Slot(3, 4)); got != "page" {
		t.Errorf("slot 3 has %q", got)
	}
	if u := p.Usage(); u.Used != 16*8192 {
		t.Errorf("usage %+v", u)
	}
	if _, err := p.Open(layout.Shape{Slots: 1 << 10, SlotBytes: 4096}); !errors.Is(err, ErrFull) {
		t.Errorf("beyond the pool: %v", err)
	}
	a.Close()
	a.Close()
	if p.Free() != 1<<20 {
		t.Errorf("%d bytes free after Close", p.Free())
	}
	if mem[3*8192] != 0 {
		t.Error("a closed arena keeps its memory")
	}
}

// TestSealed: nobody changes an arena's size, and a reader cannot write.
func TestSealed(t *testing.T) {
	_, a := open(t, Options{Bytes: 1 << 20}, layout.Shape{Slots: 4, SlotBytes: 4096})
	fd := int(a.Writable().Fd())
	for _, size := range []int64{0, 4096, 1 << 20} {
		if err := unix.Ftruncate(fd, size); !errors.Is(err, unix.EPERM) {
			t.Errorf("truncated to %d: %v", size, err)
		}
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); !errors.Is(err, unix.EPERM) {
		t.Errorf("another seal: %v", err)
	}
	ro := int(a.ReadOnly().Fd())
	if _, err := unix.Mmap(ro, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); !errors.Is(err, unix.EACCES) {
		t.Errorf("a reader maps for writing: %v", err)
	}
	mem, err := unix.Mmap(ro, 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	if err := unix.Mprotect(mem, unix.PROT_READ|unix.PROT_WRITE); !errors.Is(err, unix.EACCES) {
		t.Errorf("a reader makes it writable: %v", err)
	}
	if _, err := unix.Write(ro, []byte("x")); err == nil {
		t.Error("a reader writes")
	}
	for _, f := range []*os.File{a.Writable(), a.ReadOnly()} { // 0: no other user opens it anew, and neither does this one if it is not root
		if info, err := f.Stat(); err != nil || info.Mode().Perm() != 0 {
			t.Errorf("the mode: %v, %v", info.Mode(), err)
		}
	}
	if os.Geteuid() != 0 {
		if _, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(ro), os.O_RDWR, 0); err == nil {
			t.Error("a reader opens it anew for writing")
		}
	}
}

// TestFailures breaks each step of making an arena: nothing is left, and the next one works.
func TestFailures(t *testing.T) {
	before := descriptors(t)
	for _, step := range []string{"memfd", "ftruncate", "seal", "reopen", "chmod", "mmap"} {
		broken := step
		p, _ := New(Options{Bytes: 1 << 20, FailForTesting: func(s string) error {
			if s == broken {
				return unix.ENOSPC
			}
			return nil
		}})
		if _, err := p.Open(layout.Shape{Slots: 4, SlotBytes: 4096}); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("%s: %v", step, err)
		}
		broken = ""
		if _, err := p.Open(layout.Shape{Slots: 4, SlotBytes: 4096}); err != nil {
			t.Errorf("after %s: %v", step, err)
		}
		p.Close()
		if p.Free() != 1<<20 {
			t.Errorf("after %s %d bytes are free", step, p.Free())
		}
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
}

func TestHugeFallsBack(t *testing.T) {
	_, a := open(t, Options{Bytes: 8 << 20, Huge: HugeTry}, layout.Shape{Slots: 3, SlotBytes: 1 << 20})
	a.Slot(2, 1<<20)[0] = 1 // whichever pages it lies in
	if a.Huge && a.MapBytes != 4<<20 {
		t.Errorf("huge pages and %d bytes", a.MapBytes)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}
