package manager

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// tables is memory of the kernel's, outside of Go's heap, for what the core keeps of each block. The zero value is ready; its owner serialises the calls.
//
// Large tables have mappings of their own. Small ones, of which each engine has one, lie in chunks behind each other: a page of the kernel's that is touched in part is
// memory all the same. A chunk goes with its last table.
type tables struct {
	of   map[*byte]*chunk // by where a table begins
	last *chunk           // that is begun; nil: none is
}

// chunk is a mapping.
type chunk struct {
	mem    []byte
	used   int
	tables int
}

// chunkBytes is a chunk's, and largeTable what has a mapping of its own. tableAlign keeps two tables from sharing a line of a cache.
const chunkBytes, largeTable, tableAlign = 1 << 20, 128 << 10, 64

// Make implements dram.Memory. It panics if the kernel has none.
func (t *tables) Make(n int) []byte {
	c := t.last
	switch {
	case n >= largeTable:
		c = newChunk(n)
	case c == nil || len(c.mem)-c.used < n:
		c = newChunk(chunkBytes)
		t.last = c
	}
	b := c.mem[c.used : c.used+n : c.used+n]
	c.used = min(len(c.mem), (c.used+n+tableAlign-1)/tableAlign*tableAlign)
	c.tables++
	if t.of == nil {
		t.of = map[*byte]*chunk{}
	}
	t.of[&b[0]] = c
	return b
}

func newChunk(n int) *chunk {
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		panic(fmt.Sprintf("manager: no memory for a table of %d bytes: %v", n, err))
	}
	return &chunk{mem: mem}
}

// Free implements dram.Memory.
func (t *tables) Free(b []byte) {
	c := t.of[&b[0]]
	delete(t.of, &b[0])
	if c.tables--; c.tables == 0 {
		if t.last == c {
			t.last = nil
		}
		unix.Munmap(c.mem)
		return
	}
	// What nobody else has a part of is the kernel's again, though its place is not: nothing is put there any more.
	const page = 4096
	at := int(uintptr(unsafe.Pointer(&b[0])) - uintptr(unsafe.Pointer(&c.mem[0])))
	if from, to := (at+page-1)/page*page, (at+len(b))/page*page; from < to {
		unix.Madvise(c.mem[from:to], unix.MADV_DONTNEED)
	}
}

// close frees what is left. Nobody looks at it any more.
func (t *tables) close() {
	for _, c := range t.of {
		if c.mem != nil {
			unix.Munmap(c.mem)
			c.mem = nil
		}
	}
	*t = tables{}
}
