//go:build (amd64 || arm64) && !race

package index

import "unsafe"

// prefetch does not look at what is there, which others may be changing.
//
//go:noescape
func prefetch(at unsafe.Pointer)
