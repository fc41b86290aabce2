package copysum

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/zeebo/xxh3"
)

// ways are the two, and what they are called.
var ways = map[string]func(dst, src []byte) uint64{"through": Through, "past": Past}

// guard surrounds what is copied to, and has to stay as it is.
const guard = 0xa5

// check copies n bytes of b from one offset to another, and compares the copy, the sum and what is around it.
func check(t *testing.T, name string, b []byte, from, to, n int) {
	t.Helper()
	room := bytes.Repeat([]byte{guard}, to+n+64)
	src := b[from : from+n]
	if got, want := ways[name](room[to:to+n], src), xxh3.Hash(src); got != want {
		t.Fatalf("%s, %d bytes from %d to %d: the sum is %x, want %x", name, n, from, to, got, want)
	}
	Fence()
	if !bytes.Equal(room[to:to+n], src) {
		t.Fatalf("%s, %d bytes from %d to %d: another content", name, n, from, to)
	}
	if bytes.Count(room[:to], []byte{guard})+bytes.Count(room[to+n:], []byte{guard}) != to+64 {
		t.Fatalf("%s, %d bytes from %d to %d: written outside", name, n, from, to)
	}
}

// noise is bytes that repeat nowhere.
func noise(n int) []byte {
	b, x := make([]byte, n), uint64(88172645463325252)
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return b
}

// TestSizes: every length up to four blocks, wherever it lies, and those of pages.
func TestSizes(t *testing.T) {
	b := noise(4<<20 + 128)
	for name := range ways {
		for n := range 4200 {
			check(t, name, b, n%67, n%3*(n%41), n)
		}
		for _, n := range []int{16 << 10, 64<<10 - 1, 64 << 10, 64<<10 + 1, 100_000, 1 << 20, 4<<20 + 63} {
			for _, to := range []int{0, 1, 32} {
				check(t, name, b, to, to, n)
			}
		}
	}
}

// TestLonger: a destination that is longer than the source keeps its rest.
func TestLonger(t *testing.T) {
	b := noise(2048)
	for name, way := range ways {
		dst := bytes.Repeat([]byte{guard}, 4096)
		if way(dst, b) != xxh3.Hash(b) || !bytes.Equal(dst[:2048], b) || dst[2048] != guard {
			t.Errorf("%s: %x", name, dst[2040:2056])
		}
	}
}

// TestNoAllocation: what is copied page by page allocates nothing.
func TestNoAllocation(t *testing.T) {
	b, dst := noise(5000), make([]byte, 5000)
	for name, way := range ways {
		if n := testing.AllocsPerRun(100, func() { way(dst, b) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func FuzzCopy(f *testing.F) {
	f.Add([]byte("perigee"), uint8(0), uint8(0))
	f.Add(noise(1024), uint8(0), uint8(32))
	f.Add(noise(1025), uint8(7), uint8(1))
	f.Add(noise(5000), uint8(63), uint8(64))
	f.Fuzz(func(t *testing.T, b []byte, from, to uint8) {
		at := min(int(from), len(b))
		for name := range ways {
			check(t, name, b, at, int(to), len(b)-at)
		}
	})
}

// BenchmarkPages copies and sums 64 MiB in pages of several sizes, in the three ways.
func BenchmarkPages(b *testing.B) {
	src, dst := noise(64<<20), make([]byte, 64<<20)
	for _, page := range []int{16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20} {
		for _, way := range []struct {
			name string
			f    func(dst, src []byte) uint64
		}{{"copy-then-sum", plain}, {"through", Through}, {"past", Past}} {
			b.Run(fmt.Sprintf("%dKiB/%s", page>>10, way.name), func(b *testing.B) {
				b.SetBytes(int64(page))
				at := 0
				for b.Loop() {
					way.f(dst[at:at+page], src[at:at+page])
					at = (at + page) % len(src)
				}
			})
		}
	}
}

// TestSum copies pieces from and to all kinds of places, and compares them with the whole.
func TestSum(t *testing.T) {
	b := noise(1 << 16)
	for n, lengths := range [][]int{{1024, 64}, {0, 2048, 1024}, {1024, 1024, 1023}, {5 << 10, 3 << 10, 65}, {4096, 4096}, {1025}, {1024}, {2048, 16 << 10, 1 << 10, 100}} {
		for _, off := range []int{0, 1, 32, 64} {
			total := 0
			for _, l := range lengths {
				total += l
			}
			if !CanSum(total, lengths[len(lengths)-1]) {
				if quick {
					t.Fatal(lengths)
				}
				continue
			}
			src, to, at := b[n:n+total], make([]byte, total+200*len(lengths)), 0
			var s Sum
			var got []byte
			for i, l := range lengths {
				dst := to[at+200*i+off:][:l]
				if i < len(lengths)-1 {
					s.Past(dst, src[at:at+l])
				} else if sum, want := s.End(dst, src[at:at+l]), xxh3.Hash(src); sum != want {
					t.Errorf("%v: the sum is %x, want %x", lengths, sum, want)
				}
				at += l
				got = append(got, dst...)
			}
			if !bytes.Equal(got, src) {
				t.Errorf("%v: another content", lengths)
			}
		}
	}
}
