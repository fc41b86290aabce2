//go:build !race

package index

// reveal stores a word that readers load atomically. Whoever sees the new value sees all that the writer stored before it.
//
// An atomic store of Go's promises more, that the store is everywhere before the writer goes on, and takes an exchange for it, which waits until
// everything stored before has arrived: of new blocks that are a few lines of far memory each, one after the other. Nothing here needs that but
// epochs.reclaim, which adds to the epoch before it looks at readers, and that waits too. On amd64 stores arrive in their order, so a plain one
// is enough. The compiler might move one of its own and sees nothing of one in assembly.
//
//go:noescape
func reveal(at *uint32, v uint32)

// reveal64 is reveal for two words.
//
//go:noescape
func reveal64(at *uint64, v uint64)
