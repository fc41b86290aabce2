//go:build !(amd64 || arm64) || race

package index

import "unsafe"

// prefetch is for speed alone.
func prefetch(unsafe.Pointer) {}
