package hostpool

import "unsafe"

// streamLines copies n bytes, a multiple of 64, by stores that pass the caches by; dst is a multiple of 16. Every amd64 has them.
//
//go:noescape
func streamLines(dst, src *byte, n int)

// storeFence has what was streamed arrive before whatever this goroutine stores next.
func storeFence()

// stream is copy for a dst that is as long as src and that nobody here reads: a store to memory that is not in the cache reads it first, which is a third of what
// a copy moves.
func stream(dst, src []byte) {
	head := min(int(-uintptr(unsafe.Pointer(unsafe.SliceData(dst)))&63), len(src))
	copy(dst[:head], src)
	dst, src = dst[head:], src[head:]
	if lines := len(src) &^ 63; lines > 0 {
		streamLines(&dst[0], &src[0], lines)
		dst, src = dst[lines:], src[lines:]
	}
	copy(dst, src)
}
