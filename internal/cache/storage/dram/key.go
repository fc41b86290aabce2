package dram

import "encoding/binary"

// Hash is an engine's hash of a block.
type Hash = [32]byte

// Key names a block: the same key is the same bytes.
type Key struct {
	// Space is the owner's number for a namespace.
	Space uint32
	Group uint32
	Hash  Hash
}

// digest spreads keys over the index. An engine's hash is often no more than a counter in tests and one of 64 bits in production, and
// a client chooses it: so every bit goes through a multiplication, and a client that makes its own blocks collide slows down a
// probe sequence that is bounded by the blocks it can have.
func (k *Key) digest() uint64 {
	const m = 0x9e3779b97f4a7c15
	h := uint64(k.Space)<<32 | uint64(k.Group)
	for i := 0; i < 32; i += 8 {
		h = (h ^ binary.LittleEndian.Uint64(k.Hash[i:])) * m
		h ^= h >> 32
	}
	return h
}

// index finds pages by key: open addressing with linear probing, without tombstones (a deletion moves later entries up).
type index struct {
	entries []indexEntry
	used    int
}

type indexEntry struct {
	tag  uint32 // upper bits of the digest, so that a probe seldom looks at a page
	page Page   // page+1; 0: empty
}

// grow makes room for n pages at a load of at most 7/8.
func (x *index) grow(n int, digest func(Page) uint64) {
	size := n + n/7 + 8
	if size <= len(x.entries) {
		return
	}
	old := x.entries
	x.entries, x.used = make([]indexEntry, size), 0
	for _, e := range old {
		if e.page != 0 {
			x.put(digest(e.page-1), e.page-1)
		}
	}
}

// home is where a digest's entry would be if there were no others. The size is no power of two, which would waste half of it.
func (x *index) home(d uint64) int {
	return int((d & 0xffffffff) * uint64(len(x.entries)) >> 32)
}

func (x *index) put(d uint64, p Page) {
	i := x.home(d)
	for x.entries[i].page != 0 {
		if i++; i == len(x.entries) {
			i = 0
		}
	}
	x.entries[i] = indexEntry{uint32(d >> 32), p + 1}
	x.used++
}

// find returns the place of the entry, or -1.
func (x *index) find(d uint64, same func(Page) bool) int {
	if len(x.entries) == 0 {
		return -1
	}
	for i := x.home(d); ; {
		e := x.entries[i]
		if e.page == 0 {
			return -1
		}
		if e.tag == uint32(d>>32) && same(e.page-1) {
			return i
		}
		if i++; i == len(x.entries) {
			i = 0
		}
	}
}

// remove empties the place i, and moves up what a probe would no longer reach.
func (x *index) remove(i int, digest func(Page) uint64) {
	n := len(x.entries)
	for j := i; ; {
		if j++; j == n {
			j = 0
		}
		e := x.entries[j]
		if e.page == 0 {
			break
		}
		// The entry at j may move to i if its home is not in (i, j].
		home := x.home(digest(e.page - 1))
		if (j-home+n)%n >= (j-i+n)%n {
			x.entries[i] = e
			i = j
		}
	}
	x.entries[i] = indexEntry{}
	x.used--
}
