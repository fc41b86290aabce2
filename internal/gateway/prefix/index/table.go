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
// a moment only. Where more blocks are expected they double; see next. See quotient for how entries move without asking their blocks for
// hashes, which would be a cache miss each.
//
// Linear probing was not taken: without tombstones a deletion moves entries under the readers' eyes. Neither was chaining: it costs
// 4 bytes a block more.
type table struct {
	shards   [1 << shardBits]shard
	expected func() int // the blocks that it will have soon, see next; nil: nobody knows
	used     []uint8    // scratch of resize
	none     uint32     // what where says of a shard that is empty
}

type shard struct {
	store atomic.Pointer[array]
	live  int // the writer's
}

// array is a shard's buckets. It is replaced as a whole.
type array struct {
	buckets []bucket
	idBits  uint // of an entry; the others are its tag
}

// bucket is a word and 15 slots. A free slot is 0, and no block has that number. The word has three parts:
//
//	13 bits   how many entries passed by for want of room, up to manyPassed, which means that many or more and stays so
//	 4 bits   so many slots, from the first on, are taken
//	15 bits   which slots hold an entry of a bucket before this one
//
// Readers look at the first part alone, whether it is 0.
type bucket [1 + slots]uint32

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

// A search goes through the candidates: blocks whose hash may be the one that is looked for. The caller compares.
type search struct {
	buckets []bucket
	at      int    // the bucket
	slot    int    // in it, the one looked at last
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
	s.buckets, s.left, s.ids = a.buckets, len(a.buckets), 1<<a.idBits-1
	s.at, s.tag = a.home(hash)
	return s
}

// where is a word of the hash's bucket, for touch.
func (t *table) where(hash uint64) *uint32 {
	a := t.shards[hash>>(64-shardBits)].store.Load()
	if a == nil {
		return &t.none
	}
	return &a.buckets[quotient(hash)*uint64(len(a.buckets))>>quotientBits][0]
}

// touch reads words that will be needed, so that they are near then. They lie far apart: where all that is done in between is to read, the
// processor waits for many at once. What it returns means nothing, and must be used, or the compiler drops the reads.
func touch(words []*uint32) (sum uint32) {
	for _, w := range words {
		sum += atomic.LoadUint32(w)
	}
	return sum
}

// touch is touch for one.
func (t *table) touch(hash uint64) uint32 { return atomic.LoadUint32(t.where(hash)) }

// next returns the next candidate, 0 if there is none.
func (s *search) next() uint32 {
	at, tag, ids := s.slot, s.tag, s.ids
	for s.left > 0 {
		b := &s.buckets[s.at]
		for at++; at <= slots; at++ {
			// What is left of an entry with this tag is a number, from 1 on; of a free slot it may be 0.
			if id := atomic.LoadUint32(&b[at]) ^ tag; id-1 < ids {
				s.slot = at
				return id
			}
		}
		if atomic.LoadUint32(&b[0])&manyPassed == 0 {
			s.left = 0
			break
		}
		at, s.left = 0, s.left-1
		if s.at++; s.at == len(s.buckets) {
			s.at = 0
		}
	}
	return 0
}

// first returns the first candidate, 0 if there is none. It is next of a new search, for where many are looked for and mostly found: it
// keeps nothing in memory, so that the processor gets to the reads of the one after it.
func (t *table) first(hash uint64) uint32 {
	a := t.shards[hash>>(64-shardBits)].store.Load()
	if a == nil {
		return 0
	}
	at, tag := a.home(hash)
	b, ids := &a.buckets[at], uint32(1)<<(a.idBits&31)-1
	for i := 1; i <= slots; i++ {
		if id := atomic.LoadUint32(&b[i]) ^ tag; id-1 < ids {
			return id
		}
	}
	if atomic.LoadUint32(&b[0])&manyPassed == 0 {
		return 0
	}
	s := t.search(hash)
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
	}
	a.place(hash, id)
	sh.live++
}

// perBucket is the blocks of a table that each of a shard's buckets stands for where the shard is filled to 7/8: of a million blocks hardly
// a shard has 3 percent more than its part, which is where it would grow again.
const perBucket = (slots << shardBits) * 7 / 8

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

func (a *array) place(hash uint64, id uint32) {
	first, tag := a.home(hash)
	for at := first; ; {
		b := &a.buckets[at]
		if slot := b.freeSlot(); slot > 0 {
			word := b[0]&^takenMask | uint32(slot)<<takenShift
			if at != first {
				word |= away(slot)
			}
			atomic.StoreUint32(&b[0], word)
			atomic.StoreUint32(&b[slot], tag|id)
			return
		}
		b.pass()
		if at++; at == len(a.buckets) {
			at = 0
		}
	}
}

// freeSlot returns the first one, 0 if there is none.
func (b *bucket) freeSlot() int {
	for i := b[0]&takenMask>>takenShift + 1; i <= slots; i++ {
		if b[i] == 0 {
			return int(i)
		}
	}
	return 0
}

func (b *bucket) pass() {
	if b[0]&manyPassed != manyPassed {
		atomic.StoreUint32(&b[0], b[0]+1)
	}
}

// away is the bit of a bucket's word that says that what the slot holds belongs elsewhere.
func away(slot int) uint32 { return 1 << (awayShift - 1 + slot) }

// remove takes out a block that is in the table.
func (t *table) remove(hash uint64, id uint32, hashes hashes) {
	sh := &t.shards[hash>>(64-shardBits)]
	a := sh.store.Load()
	first, tag := a.home(hash)
	at, slot := a.find(first, tag|id)
	b := &a.buckets[at]
	taken := min(b[0]&takenMask, uint32(slot-1)<<takenShift)
	atomic.StoreUint32(&b[slot], 0)
	atomic.StoreUint32(&b[0], b[0]&^(takenMask|away(slot))|taken)
	for i := first; i != at; i = (i + 1) % len(a.buckets) {
		if b := &a.buckets[i]; b[0]&manyPassed != manyPassed {
			atomic.StoreUint32(&b[0], b[0]-1)
		}
	}
	sh.live--
	if n := len(a.buckets); n > 1 && sh.live*3 < n*slots {
		t.resize(sh, max(1, n/2), 0, hashes)
	}
}

// find returns where an entry is that is there.
func (a *array) find(at int, entry uint32) (int, int) {
	for {
		for i := 1; i <= slots; i++ {
			if a.buckets[at][i] == entry {
				return at, i
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
	return a
}

// highest is the highest number of a block.
func (a *array) highest() (most uint32) {
	if a == nil {
		return 0
	}
	ids := uint32(1)<<a.idBits - 1
	for i := range a.buckets {
		for _, e := range a.buckets[i][1:] {
			most = max(most, e&ids)
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
		ask := b[0] >> awayShift
		if all {
			ask = 1<<slots - 1
		}
		least := uint64(at)<<quotientBits + n - 1
		for i := 1; i <= slots; i, ask = i+1, ask>>1 {
			e := b[i]
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
	first := int(x >> quotientBits)
	tag := f.tag(x)
	at := first
	for f.used[at] == slots {
		f.buckets[at].pass()
		if at++; at == len(f.buckets) {
			at = 0
		}
	}
	f.used[at]++
	b, slot := &f.buckets[at], int(f.used[at])
	b[slot] = tag | id
	if at != first {
		b[0] |= away(slot)
	}
	b[0] = b[0]&^takenMask | uint32(slot)<<takenShift
}
