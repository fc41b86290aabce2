package index

import "sync/atomic"

// bucket is a word and 15 slots, 32 bits each, two in each number. A free slot is 0, and no block has that number. The word, which is the lower
// half of the first number, has two parts:
//
//	13 bits   how many entries passed by for want of room, up to manyPassed, which means that many or more and stays so
//	15 bits   the highest: which slots hold an entry of a bucket before this one
//
// Readers look at the first part alone, whether it is 0.
type bucket [(1 + slots) / 2]uint64

const (
	slots      = 15
	manyPassed = 1<<13 - 1
	awayShift  = 32 - slots
)

// word is the bucket's word; like at it is the writer's.
func (b *bucket) word() uint32 { return uint32(b[0]) }

// at returns what a slot holds.
func (b *bucket) at(slot int) uint32 { return uint32(b[slot>>1&7] >> (slot & 1 * 32)) }

// set changes a slot, and the word as slot 0. Readers see that and all that was stored before it.
func (b *bucket) set(slot int, v uint32) {
	at, shift := slot>>1&7, slot&1*32
	reveal64(&b[at], b[at]&^(0xffffffff<<shift)|uint64(v)<<shift)
}

// pass counts an entry for which there is no room.
func (b *bucket) pass() {
	if b.word()&manyPassed != manyPassed {
		b.set(0, b.word()+1)
	}
}

// awayBit is the bit of a bucket's word that says that what the slot holds belongs elsewhere.
func awayBit(slot int) uint32 { return 1 << (awayShift - 1 + slot) }

// both is a number with the same 32 bits twice; tops are the highest bits of its halves.
const (
	both = 1<<32 | 1
	tops = 1 << 31 * both
)

// matches is look without assembly: two slots at a time, and without branches until one is found.
func (b *bucket) matches(tag, ids uint32) (slots, word uint32) {
	t, m := uint64(tag)*both, uint64(^ids)*both
	first := atomic.LoadUint64(&b[0])
	found := equal(first, t, m) >> 7 &^ (1 << 24)
	found |= equal(atomic.LoadUint64(&b[1]), t, m) >> 6
	found |= equal(atomic.LoadUint64(&b[2]), t, m) >> 5
	found |= equal(atomic.LoadUint64(&b[3]), t, m) >> 4
	found |= equal(atomic.LoadUint64(&b[4]), t, m) >> 3
	found |= equal(atomic.LoadUint64(&b[5]), t, m) >> 2
	found |= equal(atomic.LoadUint64(&b[6]), t, m) >> 1
	found |= equal(atomic.LoadUint64(&b[7]), t, m)
	if found != 0 { // bits 24 to 31 are the even slots, bits 56 to 63 the odd ones
		for i := range 8 {
			slots |= uint32(found>>(24+i)&1)<<(2*i) | uint32(found>>(56+i)&1)<<(2*i+1)
		}
	}
	return slots, uint32(first)
}

// equal returns the top of each half of v that is t where m has bits. The lowest bit of each half is none of these, so that there is one to spare.
func equal(v, t, m uint64) uint64 { return (tops - (v^t)&m>>1) & tops }
