package dram

import (
	"encoding/binary"
	"slices"
)

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
//
// It becomes larger without anybody waiting for it: what was there stays in the old table, and each block that begins takes some of it along, until nothing is left.
type index struct {
	table
	old    []table // each has something
	memory Memory
}

type table struct {
	entries []indexEntry
	used    int
	at      int // of an old table: what was before it has been taken along
}

// indexEntry has enough of the digest that neither a probe nor a deletion looks at pages, but for the one that is meant.
type indexEntry struct {
	tag  uint32
	page Page // page+1; 0: empty
}

func tagOf(digest uint64) uint32 { return uint32(digest >> 32) }

// grow makes room for n pages at a load of at most two thirds: 12 bytes a page. At seven eighths a miss looks at 32 entries instead
// of 5; and at four fifths a query of 512 names takes a fifth longer.
func (x *index) grow(n int) {
	size := n + n/2 + 8
	if size <= len(x.entries) {
		return
	}
	if x.table.used > 0 {
		x.old = append(x.old, x.table)
	} else {
		freeTable(x.memory, x.entries)
	}
	x.table = table{entries: newTable[indexEntry](x.memory, size)}
}

// perPut is how many entries a block that begins takes along: some 0.3 µs. mostEmpty is how many places without one it passes over for each: a table that was nearly empty has
// millions, whose memory nobody has touched before.
const perPut, mostEmpty = 8, 64

func (x *index) put(tag uint32, p Page) {
	for i := 0; i < perPut && len(x.old) > 0; i++ {
		x.bring()
	}
	x.table.put(indexEntry{tag, p + 1})
}

// bring takes an entry of an old table along, or looks for one.
func (x *index) bring() {
	t := &x.old[0]
	for n := 0; t.entries[t.at].page == 0; n++ {
		if n == mostEmpty {
			return
		}
		t.at++ // never round the end: what has come round it goes first
	}
	x.table.put(t.entries[t.at])
	x.remove(t, t.at) // where another one may lie now
}

// remove empties a place of a table.
func (x *index) remove(t *table, i int) {
	if t.remove(i); t.used == 0 && t != &x.table {
		freeTable(x.memory, t.entries)
		x.old = slices.DeleteFunc(x.old, func(o table) bool { return o.used == 0 })
	}
}

// all is how many entries there are.
func (x *index) all() int {
	n := x.used
	for i := range x.old {
		n += x.old[i].used
	}
	return n
}

// home is where a tag's entry would be if there were no others. The size is no power of two, which would waste up to half of it.
func (t *table) home(tag uint32) int { return int(uint64(tag) * uint64(len(t.entries)) >> 32) }

func (t *table) put(e indexEntry) {
	i := t.home(e.tag)
	for t.entries[i].page != 0 {
		if i++; i == len(t.entries) {
			i = 0
		}
	}
	t.entries[i] = e
	t.used++
}

// find returns the table and the place of an entry, or -1.
func (x *index) find(tag uint32, same func(Page) bool) (*table, int) {
	t, i := &x.table, x.table.find(tag, same)
	for k := 0; i < 0 && k < len(x.old); k++ {
		t = &x.old[k]
		i = t.find(tag, same)
	}
	return t, i
}

// find returns the place of the entry, or -1.
func (t *table) find(tag uint32, same func(Page) bool) int {
	if len(t.entries) == 0 {
		return -1
	}
	for i := t.home(tag); ; {
		e := t.entries[i]
		if e.page == 0 {
			return -1
		}
		if e.tag == tag && same(e.page-1) {
			return i
		}
		if i++; i == len(t.entries) {
			i = 0
		}
	}
}

// remove empties the place i, and moves up what a probe would no longer reach.
func (t *table) remove(i int) {
	n := len(t.entries)
	for j := i; ; {
		if j++; j == n {
			j = 0
		}
		e := t.entries[j]
		if e.page == 0 {
			break
		}
		// The entry at j may move to i if its home is not in (i, j].
		if back(j-t.home(e.tag), n) >= back(j-i, n) {
			t.entries[i] = e
			i = j
		}
	}
	t.entries[i] = indexEntry{}
	t.used--
}

// back is a distance in a ring of n, from -n to n-1, as one from 0 on. A remainder would cost as much as all the rest of a step.
func back(d, n int) int {
	if d < 0 {
		return d + n
	}
	return d
}
