package index

import (
	"math/bits"
	"sync/atomic"
)

// table finds blocks by a hash of theirs. It stores 32 bits a block, the block's number and a tag, in buckets of a cache line. One writer,
// any readers: a reader sees an entry or does not, and never one half written, since an entry is one word and never moves. What does
// not fit into its bucket goes to the next with room, and each full bucket that it passes counts it, so that a search knows where to end
// and a deletion leaves no tombstone.
//
// It consists of shards that grow by a quarter, each for itself: load stays between 72 and 90 percent, and growing holds up the writer for
// a moment only. One that is worn is made anew, see wornAway. Where more blocks are expected they double; see next. See quotient for how entries move without asking their blocks for
// hashes, which would be a cache miss each.
//
// Linear probing was not taken: without tombstones a deletion moves entries under the readers' eyes. Neither was chaining: it costs
// 4 bytes a block more.
type table struct {
	shards   [1 << shardBits]shard
	expected func() int // the blocks that it will have soon, see next; nil: nobody knows
	used     []uint8    // scratch of resize
	none     uint64     // what where says of a shard that is empty
}

type shard struct {
	store atomic.Pointer[array]

	// The writer's.
	live int
	away int // of these, which lie behind their bucket
	news int // entries that came since the array was made
}

// array is a shard's buckets. It is replaced as a whole.
type array struct {
	buckets []bucket
	idBits  uint // of an entry; the others are its tag
}

// bucket is a word and 15 slots, 32 bits each, two in each number: a search compares two at a time. A free slot is 0, and no block has that
// number. The word, which is the lower half of the first number, has three parts:
//
//	13 bits   how many entries passed by for want of room, up to manyPassed, which means that many or more and stays so
//	 4 bits   so many slots, from the first on, are taken
//	15 bits   which slots hold an entry of a bucket before this one
//
// Readers look at the first part alone, whether it is 0.
type bucket [(1 + slots) / 2]uint64

const (
	shardBits = 6
	slots     = 15
	idBits    = 26 // the most
	maxID     = 1<<idBits - 1

	takenShift = 13
	awayShift  = 17
	manyPassed = 1<<takenShift - 1
	takenMask  = 1<<awayShift - 1<<takenShift

	batch = 60 // hashes that are asked for at once
)

// Where a hash's block is in an array is decided by the 21 bits behind the shard's, its quotient; more bits than these a table does not know
// of a hash. With n buckets quotient·n/2²¹ is the bucket, and the first bits of the rest are the tag, as many as the block's number leaves.
// Where n·2^(tag's bits) ≥ 2²¹ no two quotients have both in common, so that the quotient of each entry in its own bucket follows from them, and
// growing reads the old buckets and writes the new ones, both from the first to the last.
//
// 21 bits are as many as that allows: an array is made for as many blocks as half its numbers name, at least, so that
// n ≥ 2^(bits of numbers) / (2.5 · 64 shards · 15 slots · 0.9). Where numbers are sparse, as after much was removed, hashes are asked for.
const quotientBits = 21

func quotient(hash uint64) uint64 { return hash << shardBits >> (64 - quotientBits) }

// home is the bucket in which an entry belongs, and its tag, in its place.
func (a *array) home(hash uint64) (at int, tag uint32) {
	x := quotient(hash) * uint64(len(a.buckets))
	return int(x >> quotientBits), a.tag(x)
}

func (a *array) tag(x uint64) uint32 {
	// The number of bits is at most 26; to say so spares the processor to look.
	return uint32(x<<(64-quotientBits)>>32) &^ (1<<(a.idBits&31) - 1)
}

// recovers tells whether quotients follow from where entries are.
func (a *array) recovers() bool {
	n := uint64(len(a.buckets))
	return n > 1 && n<<(32-a.idBits) >= 1<<quotientBits // move divides by more than 1 only
}

// word is the bucket's word; like at it is the writer's.
func (b *bucket) word() uint32 { return uint32(b[0]) }

// at returns what a slot holds.
func (b *bucket) at(slot int) uint32 { return uint32(b[slot>>1&7] >> (slot & 1 * 32)) }

// set changes a slot, and the word as slot 0. Readers see that and all that was stored before it.
func (b *bucket) set(slot int, v uint32) {
	at, shift := slot>>1&7, slot&1*32
	reveal64(&b[at], b[at]&^(0xffffffff<<shift)|uint64(v)<<shift)
}

// both is a number with the same 32 bits twice; tops are the highest bits of its halves.
const (
	both = 1<<32 | 1
	tops = 1 << 31 * both
)

// matches returns the slots whose entries have a tag, and the bucket's word. The tag is in its place, ids are the other bits. Free slots have
// the tag 0. A slot's bit says where it is: see slotOf.
func (b *bucket) matches(tag, ids uint32) (slots uint64, word uint32) {
	t, m := uint64(tag)*both, uint64(^ids)*both
	first := atomic.LoadUint64(&b[0])
	slots = equal(first, t, m) >> 7 &^ (1 << 24)
	slots |= equal(atomic.LoadUint64(&b[1]), t, m) >> 6
	slots |= equal(atomic.LoadUint64(&b[2]), t, m) >> 5
	slots |= equal(atomic.LoadUint64(&b[3]), t, m) >> 4
	slots |= equal(atomic.LoadUint64(&b[4]), t, m) >> 3
	slots |= equal(atomic.LoadUint64(&b[5]), t, m) >> 2
	slots |= equal(atomic.LoadUint64(&b[6]), t, m) >> 1
	slots |= equal(atomic.LoadUint64(&b[7]), t, m)
	return slots, uint32(first)
}

// equal returns the top of each half of v that is t where m has bits. The lowest bit of each half is none of these, so that there is one to spare.
func equal(v, t, m uint64) uint64 { return (tops - (v^t)&m>>1) & tops }

// slotOf is the slot of the lowest bit of matches: of the even slots they are the bits 24 to 31, of the odd ones 56 to 63.
func slotOf(slots uint64) int {
	n := bits.TrailingZeros64(slots)
	return n&7<<1 | n>>5
}

// A search goes through the candidates: blocks whose hash may be the one that is looked for. The caller compares.
type search struct {
	buckets []bucket
	at      int    // the bucket
	slots   uint64 // in it, with candidates not yet seen
	passed  bool   // there may be some in the next one
	tag     uint32 // in its place in an entry
	ids     uint32 // the bits of an entry that are the number
	left    int    // buckets not yet seen
}

// search begins at the hash's own bucket.
func (t *table) search(hash uint64) (s search) {
	a := t.shards[hash>>(64-shardBits)].store.Load()
	if a == nil {
		return s
	}
	s.buckets, s.left, s.ids = a.buckets, len(a.buckets)-1, 1<<(a.idBits&31)-1
	s.at, s.tag = a.home(hash)
	var word uint32
	s.slots, word = s.buckets[s.at].matches(s.tag, s.ids)
	s.passed = word&manyPassed != 0
	return s
}

// where is a word of the hash's bucket, for ahead.
func (t *table) where(hash uint64) *uint64 {
	a := t.shards[hash>>(64-shardBits)].store.Load()
	if a == nil {
		return &t.none
	}
	return &a.buckets[quotient(hash)*uint64(len(a.buckets))>>quotientBits][0]
}

// next returns the next candidate, 0 if there is none.
func (s *search) next() uint32 {
	for {
		for s.slots != 0 {
			slot := slotOf(s.slots)
			s.slots &= s.slots - 1
			// It may have changed meanwhile, for a reader; what it is now is as good a candidate as any.
			if id := uint32(atomic.LoadUint64(&s.buckets[s.at][slot>>1&7])>>(slot&1*32)) & s.ids; id != 0 {
				return id
			}
		}
		if !s.passed || s.left == 0 {
			return 0
		}
		s.left--
		if s.at++; s.at == len(s.buckets) {
			s.at = 0
		}
		var word uint32
		s.slots, word = s.buckets[s.at].matches(s.tag, s.ids)
		s.passed = word&manyPassed != 0
	}
}

// first returns the first candidate, 0 if there is none.
func (t *table) first(hash uint64) uint32 {
	s := t.search(hash)
	if s.slots == 0 && !s.passed {
		return 0
	}
	return s.next()
}

// hashes puts the hashes of blocks where they belong; zeros are no blocks.
type hashes func(ids *[batch]uint32, into *[batch]uint64)

// insert adds a block, whose hash is given. hashes tells that of any other.
func (t *table) insert(hash uint64, id uint32, hashes hashes) {
	sh := &t.shards[hash>>(64-shardBits)]
	a, n := sh.store.Load(), 0
	if a != nil {
		n = len(a.buckets)
	}
	switch {
	case (sh.live+1)*10 > n*slots*9:
		a = t.resize(sh, t.next(n), id, hashes)
	case id>>a.idBits != 0:
		a = t.resize(sh, n, id, hashes)
	case n >= wornLeast && sh.away*wornAway > sh.live && sh.news*wornEvery >= sh.live:
		a = t.resize(sh, max(n, sh.live/wornFill), id, hashes)
	}
	if a.place(hash, id) {
		sh.away++
	}
	sh.live++
	sh.news++
}

// An entry that came when its bucket was full stays where it is when there is room again, so the longer blocks come and go, the more lie behind
// their buckets, and the more buckets a search that finds nothing goes through: of a shard filled to 7/8 two and a half when it is new, ten when
// a quarter of its blocks are others, and sixty in the end. So a shard of which more than one in wornAway lies so, which of a new one are one
// in twelve at the most, is made anew, and filled to wornFill of 15 slots: at that three are the worst that it comes to, and one in ten. It
// happens after each wornEvery-th of its blocks at the most, whatever hashes come. For a small shard it is luck what lies where.
const (
	wornAway  = 8
	wornFill  = 11
	wornEvery = 4
	wornLeast = 16
)

// perBucket is the blocks of a table that each of a shard's buckets stands for where the shard is filled to 3/4: fuller ones would be worn out
// soon, see wornAway.
const perBucket = (slots << shardBits) * 3 / 4

// next is the buckets that a full shard of n buckets gets: a quarter more, by which each entry moves four times until the table is full; or, as
// long as more blocks are expected than have room, twice as many, by which it moves once. Sizes are those that are expected at the end, halved
// again and again, so that the last one is just right. What is expected may never come: so no shard is made larger at once than 2.5 times.
func (t *table) next(n int) int {
	least := max(n+1, n*5/4)
	if t.expected == nil {
		return least
	}
	goal := (t.expected() + perBucket - 1) / perBucket
	for goal >= 2*least {
		goal /= 2
	}
	return max(least, goal)
}

// place adds an entry, and tells whether it had to go behind its bucket.
func (a *array) place(hash uint64, id uint32) (away bool) {
	first, tag := a.home(hash)
	for at := first; ; {
		b := &a.buckets[at]
		if slot := b.freeSlot(); slot > 0 {
			word := b.word()&^takenMask | uint32(slot)<<takenShift
			if at != first {
				word |= awayBit(slot)
			}
			b.set(0, word)
			b.set(slot, tag|id)
			return at != first
		}
		b.pass()
		if at++; at == len(a.buckets) {
			at = 0
		}
	}
}

// freeSlot returns the first one, 0 if there is none.
func (b *bucket) freeSlot() int {
	for i := int(b.word()&takenMask>>takenShift) + 1; i <= slots; i++ {
		if b.at(i) == 0 {
			return i
		}
	}
	return 0
}

func (b *bucket) pass() {
	if b.word()&manyPassed != manyPassed {
		b.set(0, b.word()+1)
	}
}

// awayBit is the bit of a bucket's word that says that what the slot holds belongs elsewhere.
func awayBit(slot int) uint32 { return 1 << (awayShift - 1 + slot) }

// remove takes out a block that is in the table.
func (t *table) remove(hash uint64, id uint32, hashes hashes) {
	sh := &t.shards[hash>>(64-shardBits)]
	a := sh.store.Load()
	first, tag := a.home(hash)
	at, slot := a.find(first, tag, id)
	b := &a.buckets[at]
	taken := min(b.word()&takenMask, uint32(slot-1)<<takenShift)
	b.set(slot, 0)
	b.set(0, b.word()&^(takenMask|awayBit(slot))|taken)
	if at != first {
		sh.away--
	}
	for i := first; i != at; i = (i + 1) % len(a.buckets) {
		if b := &a.buckets[i]; b.word()&manyPassed != manyPassed {
			b.set(0, b.word()-1)
		}
	}
	sh.live--
	if n := len(a.buckets); n > 1 && sh.live*3 < n*slots {
		t.resize(sh, max(1, n/2), 0, hashes)
	}
}

// find returns where an entry is that is there.
func (a *array) find(at int, tag, id uint32) (int, int) {
	ids := uint32(1)<<(a.idBits&31) - 1
	for {
		b := &a.buckets[at]
		for slots, _ := b.matches(tag, ids); slots != 0; slots &= slots - 1 {
			if slot := slotOf(slots); b.at(slot) == tag|id {
				return at, slot
			}
		}
		if at++; at == len(a.buckets) {
			at = 0
		}
	}
}

// resize puts all entries into n new buckets, or a few more: above the largest size class of Go's allocator memory comes in pages
// of 8 KiB, and what is left of the last one would lie idle. The block id is to fit in.
func (t *table) resize(sh *shard, n int, id uint32, hashes hashes) *array {
	const largest, page = 32 << 10 / 64, 8 << 10 / 64
	if n > largest {
		n = (n + page - 1) &^ (page - 1)
	}
	old := sh.store.Load()
	a := &array{buckets: make([]bucket, n)}
	a.idBits = a.bitsFor(max(old.highest(), id))
	if cap(t.used) < n {
		t.used = make([]uint8, n+n/4)
	}
	f := fresh{array: a, used: t.used[:n]}
	clear(f.used)
	if old != nil {
		f.move(old, hashes)
	}
	sh.store.Store(a)
	sh.away, sh.news = f.away, 0
	return a
}

// highest is the highest number of a block.
func (a *array) highest() (most uint32) {
	if a == nil {
		return 0
	}
	ids := uint32(1)<<a.idBits - 1
	for at := range a.buckets {
		b := &a.buckets[at]
		most = max(most, uint32(b[0]>>32)&ids)
		for _, two := range b[1:] {
			most = max(most, uint32(two)&ids, uint32(two>>32)&ids)
		}
	}
	return most
}

// bitsFor is how many bits of an entry are the number, with room for a quarter more blocks than have them now, or for as many as fill the table
// if its other shards are like this one, if quotients still follow then.
func (a *array) bitsFor(highest uint32) uint {
	const (
		least = 32 - quotientBits             // a tag has no use for more
		full  = (slots << shardBits) * 9 / 10 // blocks for each bucket of a shard
	)
	room := max(highest+highest/4, uint32(min(len(a.buckets)*full, maxID)))
	if a.idBits = min(uint(max(bits.Len32(room), least)), idBits); a.recovers() {
		return a.idBits
	}
	return uint(max(bits.Len32(highest), least))
}

// fresh is an array that no reader sees yet, filled from the first slot on.
type fresh struct {
	*array
	used []uint8 // slots of each bucket
	ids  [batch]uint32
	n    int // of ids, which wait for their hashes
	away int // entries that lie behind their bucket
}

// move puts the entries of an array into a fresh one. Where it needs hashes it asks for many before it uses any: they lie far apart, and the
// processor then waits for all at once.
func (f *fresh) move(old *array, hashes hashes) {
	n := uint64(len(old.buckets))
	// The quotient of an entry of bucket i is the smallest for which quotient·n is at least i·2²¹ + tag. To multiply by this and to take the
	// upper 64 bits is to divide by n, as long as what is divided is below 2⁶⁴/n, and it is below n·2²¹.
	inverse := ^uint64(0)/n + 1
	ids, all := uint32(1)<<old.idBits-1, !old.recovers()
	for at := range old.buckets {
		b := &old.buckets[at]
		ask := b.word() >> awayShift
		if all {
			ask = 1<<slots - 1
		}
		least := uint64(at)<<quotientBits + n - 1
		for i := 1; i <= slots; i, ask = i+1, ask>>1 {
			e := b.at(i)
			if e == 0 {
				continue
			}
			if ask&1 != 0 {
				f.await(e&ids, hashes)
				continue
			}
			q, _ := bits.Mul64(least+uint64(e&^ids>>(32-quotientBits)), inverse)
			f.place(q, e&ids)
		}
	}
	f.ask(hashes)
	for at, used := range f.used {
		f.buckets[at][0] |= uint64(used) << takenShift
	}
}

// await moves a block when its hash is known.
func (f *fresh) await(id uint32, hashes hashes) {
	f.ids[f.n] = id
	if f.n++; f.n == batch {
		f.ask(hashes)
	}
}

// ask moves what waits.
func (f *fresh) ask(hashes hashes) {
	clear(f.ids[f.n:])
	var of [batch]uint64
	hashes(&f.ids, &of)
	for i, id := range f.ids[:f.n] {
		f.place(quotient(of[i]), id)
	}
	f.n = 0
}

func (f *fresh) place(quotient uint64, id uint32) {
	x := quotient * uint64(len(f.buckets))
	at, entry := int(x>>quotientBits), f.tag(x)|id
	if f.used[at] == slots {
		f.placeAway(at, entry)
		return
	}
	f.put(at, entry)
}

// put fills the bucket's next slot, and returns which that was.
func (f *fresh) put(at int, entry uint32) (slot int) {
	f.used[at]++
	slot = int(f.used[at])
	f.buckets[at][slot>>1&7] |= uint64(entry) << (slot & 1 * 32)
	return slot
}

// placeAway puts an entry behind its bucket, which is full.
func (f *fresh) placeAway(at int, entry uint32) {
	for f.used[at] == slots {
		f.buckets[at].pass()
		if at++; at == len(f.buckets) {
			at = 0
		}
	}
	f.buckets[at][0] |= uint64(awayBit(f.put(at, entry)))
	f.away++
}
