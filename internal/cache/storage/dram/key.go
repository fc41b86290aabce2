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
// a client chooses it: so every bit goes through a multiplication, and what it begins with is a secret, or a client could make all of its blocks
// meet in one place, and each look at one of them would go over all.
func (s *Store) digest(k *Key) uint64 { return s.digestOf(k.Space, k.Group, &k.Hash) }

func (s *Store) digestOf(space, group uint32, hash *Hash) uint64 {
	const m = 0x9e3779b97f4a7c15
	h := s.seed ^ (uint64(space)<<32 | uint64(group))
	h = (h ^ binary.LittleEndian.Uint64(hash[0:])) * m
	h = (h ^ h>>32 ^ binary.LittleEndian.Uint64(hash[8:])) * m
	h = (h ^ h>>32 ^ binary.LittleEndian.Uint64(hash[16:])) * m
	h = (h ^ h>>32 ^ binary.LittleEndian.Uint64(hash[24:])) * m
	return h ^ h>>32
}

// index finds pages by key: open addressing with linear probing, without tombstones (a deletion moves later entries up).
type index struct {
	entries []indexEntry
	used    int
}

// indexEntry has enough of the digest that neither a probe nor a deletion looks at pages, but for the one that is meant.
type indexEntry struct {
	tag  uint32
	page Page // page+1; 0: empty
}

func tagOf(digest uint64) uint32 { return uint32(digest >> 32) }

// grow makes room for n pages at a load of at most two thirds: 12 bytes a page. At seven eighths a miss looks at 32 entries instead
// of 5.
func (x *index) grow(n int) {
	size := n + n/2 + 8
	if size <= len(x.entries) {
		return
	}
	old := x.entries
	x.entries, x.used = make([]indexEntry, size), 0
	for _, e := range old {
		if e.page != 0 {
			x.put(e.tag, e.page-1)
		}
	}
}

// home is where a tag's entry would be if there were no others. The size is no power of two, which would waste up to half of it.
func (x *index) home(tag uint32) int { return int(uint64(tag) * uint64(len(x.entries)) >> 32) }

func (x *index) put(tag uint32, p Page) {
	i := x.home(tag)
	for x.entries[i].page != 0 {
		if i++; i == len(x.entries) {
			i = 0
		}
	}
	x.entries[i] = indexEntry{tag, p + 1}
	x.used++
}

// find returns the place of the entry, or -1.
func (x *index) find(tag uint32, same func(Page) bool) int {
	if len(x.entries) == 0 {
		return -1
	}
	for i := x.home(tag); ; {
		e := x.entries[i]
		if e.page == 0 {
			return -1
		}
		if e.tag == tag && same(e.page-1) {
			return i
		}
		if i++; i == len(x.entries) {
			i = 0
		}
	}
}

// remove empties the place i, and moves up what a probe would no longer reach.
func (x *index) remove(i int) {
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
		if back(j-x.home(e.tag), n) >= back(j-i, n) {
			x.entries[i] = e
			i = j
		}
	}
	x.entries[i] = indexEntry{}
	x.used--
}

// back is a distance in a ring of n, from -n to n-1, as one from 0 on. A remainder would cost as much as all the rest of a step.
func back(d, n int) int {
	if d < 0 {
		return d + n
	}
	return d
}
