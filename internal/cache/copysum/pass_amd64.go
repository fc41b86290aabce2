//go:build !race

package copysum

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// quick says that the processor has what the assembly needs.
var quick = cpu.X86.HasAVX2

// pass copies at least 64 bytes and sums them up to the end. Past the cache dst has to be aligned.
func pass(sums *[8]uint64, dst, src *byte, bytes int, past bool) {
	if past {
		passPast(sums, dst, src, bytes, &secret[0])
	} else {
		passThrough(sums, dst, src, bytes, &secret[0])
	}
}

// blocks is pass for whole blocks that others follow, one at least. Past the cache those stores are ordered by Fence.
func blocks(sums *[8]uint64, dst, src *byte, n int, past bool) {
	if past {
		blocksPast(sums, dst, src, n, &secret[0])
	} else {
		blocksThrough(sums, dst, src, n, &secret[0])
	}
}

// Fence has all that was stored past the cache stored before what follows.
func Fence()

//go:noescape
func passThrough(sums *[8]uint64, dst, src *byte, bytes int, secret *byte)

//go:noescape
func passPast(sums *[8]uint64, dst, src *byte, bytes int, secret *byte)

//go:noescape
func blocksThrough(sums *[8]uint64, dst, src *byte, blocks int, secret *byte)

//go:noescape
func blocksPast(sums *[8]uint64, dst, src *byte, blocks int, secret *byte)

// aligned says that dst may be written past the cache.
func aligned(dst []byte) bool { return uintptr(unsafe.Pointer(unsafe.SliceData(dst)))%32 == 0 }
