package index

import (
	"slices"
	"sync/atomic"
)

// member is a tenure's place in a set: its number and, in the lower 8 bits, what it claims.
type member uint32

// The bits of a member. The first four are tiers.
const (
	tierBits  = 1<<4 - 1
	window    = 1 << 4 // a sliding-window group holds it on the device
	recurrent = 1 << 5 // a recurrent group holds a state behind it on the device
	aliased   = 1 << 7 // not claimed under the block's own hash, or not only: see tenure.private
)

func (m member) tenure() uint32 { return uint32(m >> 8) }
func (m member) bits() uint8    { return uint8(m) }

// sets holds the sets of members that blocks have, each once: the blocks of a chain mostly share one, so that a block needs its number
// only, and a walk along a chain compares numbers. A set never changes; a block changes its set.
//
// A set lies in an arena of words: how many members, how many blocks, hash, next with that hash, members by rising tenure. Its number is
// where it begins.
type sets struct {
	dir   atomic.Pointer[[]*setChunk]
	fresh uint32              // where the arena was never used
	free  map[uint32][]uint32 // by size in words
	heads []uint32            // by hash, a power of two of them
	live  int

	last struct { // the last change: the blocks of one event mostly make the same
		from, to uint32
		as       member
	}
	scratch []uint32
}

const (
	setBits   = 15 // 128 KiB
	setHeader = 4
	// maxMembers is what fits into a chunk. No block is claimed by more.
	maxMembers = 1<<setBits - setHeader
	// maxSetChunks leaves a sixteenth of the numbers for the sets that removals need.
	maxSetChunks = 1 << (32 - setBits) * 15 / 16
)

type setChunk [1 << setBits]uint32

func (x *sets) init() {
	x.dir.Store(&[]*setChunk{})
	x.free = map[uint32][]uint32{}
	x.heads = make([]uint32, 64)
	x.fresh = setHeader // set 0 is none
	x.grow()
}

func (x *sets) grow() {
	dir := append(append([]*setChunk(nil), *x.dir.Load()...), new(setChunk))
	x.dir.Store(&dir)
}

// words returns a set's header and what is behind it in its chunk.
func (x *sets) words(s uint32) []uint32 { return (*x.dir.Load())[s>>setBits][s&(1<<setBits-1):] }

// members returns a set's members. Readers may keep them until they leave their epoch. Each word is a member.
func (x *sets) members(s uint32) []uint32 {
	w := x.words(s)
	return w[setHeader : setHeader+w[0]]
}

// bits returns what the tenure claims, 0 for nothing.
func (x *sets) bits(s, tenure uint32) uint8 {
	if s == 0 {
		return 0
	}
	m := x.members(s)
	if i, there := seek(m, tenure); there {
		return member(m[i]).bits()
	}
	return 0
}

// seek finds a tenure among members, or where it would be.
func seek(m []uint32, tenure uint32) (int, bool) {
	i, j := 0, len(m)
	for i < j {
		if mid := (i + j) / 2; member(m[mid]).tenure() < tenure {
			i = mid + 1
		} else {
			j = mid
		}
	}
	return i, i < len(m) && member(m[i]).tenure() == tenure
}

// with returns the set that differs from s in that the tenure claims just these bits; 0 if it is empty. It counts no block.
func (x *sets) with(s, tenure uint32, bits uint8) uint32 {
	as := member(tenure<<8 | uint32(bits))
	if x.last.from == s && x.last.as == as {
		return x.last.to
	}
	m := x.scratch[:0]
	if s != 0 {
		m = append(m, x.members(s)...)
	}
	i, there := seek(m, tenure)
	switch {
	case there && bits == 0:
		m = slices.Delete(m, i, i+1)
	case there:
		m[i] = uint32(as)
	case bits != 0:
		m = slices.Insert(m, i, uint32(as))
	}
	x.scratch = m
	to := x.intern(m)
	x.last.from, x.last.as, x.last.to = s, as, to
	return to
}

// intern returns the set of these members.
func (x *sets) intern(m []uint32) uint32 {
	if len(m) == 0 {
		return 0
	}
	var hash uint32
	for _, m := range m {
		hash += uint32(mix(uint64(m)) >> 32)
	}
	for s := *x.head(hash); s != 0; s = x.words(s)[3] {
		if x.words(s)[2] == hash && slices.Equal(x.members(s), m) {
			return s
		}
	}
	return x.create(m, hash)
}

func (x *sets) head(hash uint32) *uint32 { return &x.heads[hash&uint32(len(x.heads)-1)] }

func (x *sets) create(m []uint32, hash uint32) uint32 {
	s, head := x.take(size(len(m))), x.head(hash)
	w := x.words(s)
	w[0], w[1], w[2], w[3] = uint32(len(m)), 0, hash, *head
	copy(w[setHeader:], m)
	*head = s
	if x.live++; x.live > len(x.heads) {
		x.rehash()
	}
	return s
}

// size is the words that a set of n members takes: rounded up by at most a quarter, so that few sizes are in use.
func size(n int) uint32 {
	w := uint32(setHeader + n)
	step := uint32(4)
	for step*8 < w {
		step *= 2
	}
	return min((w+step-1)&^(step-1), 1<<setBits)
}

func (x *sets) take(size uint32) uint32 {
	if f := x.free[size]; len(f) > 0 {
		x.free[size] = f[:len(f)-1]
		return f[len(f)-1]
	}
	if rest := 1<<setBits - x.fresh&(1<<setBits-1); rest < size {
		x.fresh += rest // at most a set's size is lost at the end of a chunk
	}
	if int(x.fresh>>setBits) == len(*x.dir.Load()) {
		x.grow()
	}
	s := x.fresh
	x.fresh += size
	return s
}

func (x *sets) rehash() {
	old := x.heads
	x.heads = make([]uint32, 2*len(old))
	for _, s := range old {
		for s != 0 {
			w := x.words(s)
			next, head := w[3], x.head(w[2])
			w[3], *head = *head, s
			s = next
		}
	}
}

// use counts a block.
func (x *sets) use(s uint32) { x.words(s)[1]++ }

// leave counts a block less, and tells whether the set is to be given when no reader sees it any more.
func (x *sets) leave(s uint32) bool {
	w := x.words(s)
	if w[1]--; w[1] > 0 {
		return false
	}
	for p := x.head(w[2]); ; p = &x.words(*p)[3] {
		if *p == s {
			*p = w[3]
			break
		}
	}
	if x.last.from == s || x.last.to == s {
		x.last.from, x.last.to, x.last.as = 0, 0, 0
	}
	x.live--
	return true
}

// give frees a set.
func (x *sets) give(s uint32) {
	n := size(int(x.words(s)[0]))
	x.free[n] = append(x.free[n], s)
}

// crowded tells whether there is no room for another member of a set.
func (x *sets) crowded(s uint32) bool {
	return s != 0 && len(x.members(s)) >= maxMembers || len(*x.dir.Load()) >= maxSetChunks
}
