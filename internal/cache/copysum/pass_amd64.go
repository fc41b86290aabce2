//go:build !race

package copysum

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// quick says that the processor has what the assembly needs.
var quick = cpu.X86.HasAVX2

// through is a pass by plain stores.
func through(sums *[8]uint64, dst, src *byte, stripes int) {
	passThrough(sums, dst, src, stripes, &secret[0])
}

// past is a pass by stores past the cache, which dst has to be aligned for. They are ordered before all that follows.
func past(sums *[8]uint64, dst, src *byte, stripes int) {
	passPast(sums, dst, src, stripes, &secret[0])
}

//go:noescape
func passThrough(sums *[8]uint64, dst, src *byte, stripes int, secret *byte)

//go:noescape
func passPast(sums *[8]uint64, dst, src *byte, stripes int, secret *byte)

// aligned says that dst may be written past the cache.
func aligned(dst []byte) bool { return uintptr(unsafe.Pointer(unsafe.SliceData(dst)))%32 == 0 }
