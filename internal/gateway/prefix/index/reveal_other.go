//go:build !amd64 || race

package index

import "sync/atomic"

// reveal stores a word that readers load atomically. Whoever sees the new value sees all that the writer stored before it.
func reveal(at *uint32, v uint32) { atomic.StoreUint32(at, v) }

// reveal64 is reveal for two words.
func reveal64(at *uint64, v uint64) { atomic.StoreUint64(at, v) }
