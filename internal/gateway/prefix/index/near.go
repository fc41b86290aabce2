package index

import "unsafe"

// near has the processor bring near what will be read soon, without waiting for it. What is asked for in a row comes at once.
//
// To read it was not kept: the processor gets no further than some hundred instructions beyond a read that waits.
func near[T any](at *T) { prefetch(unsafe.Pointer(at)) }
