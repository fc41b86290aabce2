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
// It consists of shards that grow each for itself, and never many at once: the load of all together is 71 percent at any number of blocks, see larger,
// and growing holds up the writer for the time of one shard, 0.4 ms at a million blocks. One that is worn is made anew, see wornAway. See quotient
// for how entries move without asking their blocks for hashes, which would be a cache miss each.
//
// Linear probing was not taken: without tombstones a deletion moves entries under the readers' eyes. Neither was chaining: it costs
// 4 bytes a block more.
type table struct {
	shards [1 << shardBits]shard
	used   []uint8 // scratch of resize
	none   uint64  // what where says of a shard that is empty
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

const (
	shardBits = 4  // with more of them a shard of a table of a million would be few of the allocator's pages, and its steps uneven
	idBits    = 26 // the most
	maxID     = 1<<idBits - 1

	batch = 60 // hashes that are asked for at once
)

// Where a hash's block is in an array is decided by the 23 bits behind the shard's, its quotient; more bits than these a table does not know
// of a hash. With n buckets quotient·n/2²³ is the bucket, and the first bits of the rest are the tag, as many as the block's number leaves.
// Where n·2^(tag's bits) ≥ 2²³ no two quotients have both in common, so that the quotient of each entry in its own bucket follows from them, and
// growing reads the old buckets and writes the new ones, both from the first to the last.
//
// 23 bits are as many as that allows: an array has room for as many blocks as half its numbers name, at least, so that
// n ≥ 2^(bits of numbers) / (2 · 16 shards · 15 slots · 0.9). Where numbers are sparse, as after much was removed, hashes are asked for.
const quotientBits = 23

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
	slots   uint32 // in it, with candidates not yet seen
	passed  bool   // there may be some in the next one
	tag     uint32 // in its place in an entry
	ids     uint32 // the bits of an entry that are the number
	left    int    // buckets not yet seen
}

// search begins a search at the hash's own bucket, and returns the first candidate, 0 if there is none. Most find nothing, and return before s is
// filled, which the caller has on its stack: to return it would be to copy it.
func (t *table) search(s *search, hash uint64) uint32 {
	a := t.shards[hash>>(64-shardBits)].store.Load()
	if a == nil {
		return 0
	}
	at, tag := a.home(hash)
	ids := uint32(1)<<(a.idBits&31) - 1
	slots, word := look(&a.buckets[at], tag, ids)
	if slots == 0 && word&manyPassed == 0 {
		return 0
	}
	*s = search{buckets: a.buckets, at: at, slots: slots, passed: word&manyPassed != 0, tag: tag, ids: ids, left: len(a.buckets) - 1}
	return s.next()
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
			slot := bits.TrailingZeros32(s.slots)
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
		s.slots, word = look(&s.buckets[s.at], s.tag, s.ids)
		s.passed = word&manyPassed != 0
	}
}

// first is search without what comes after the first candidate.
func (t *table) first(hash uint64) uint32 {
	var s search
	return t.search(&s, hash)
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
		a = t.resize(sh, larger(int(hash>>(64-shardBits)), n), id, hashes)
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

// place adds an entry, and tells whether it had to go behind its bucket.
func (a *array) place(hash uint64, id uint32) (away bool) {
	first, tag := a.home(hash)
	for at := first; ; {
		b := &a.buckets[at]
		if f := free(b); f != 0 {
			slot := bits.TrailingZeros32(f)
			if away = at != first; away {
				b.set(0, b.word()|awayBit(slot))
			}
			b.set(slot, tag|id)
			return away
		}
		b.pass()
		if at++; at == len(a.buckets) {
			at = 0
		}
	}
}

// remove takes out a block that is in the table.
func (t *table) remove(hash uint64, id uint32, hashes hashes) {
	sh := &t.shards[hash>>(64-shardBits)]
	a := sh.store.Load()
	first, tag := a.home(hash)
	at, slot := a.find(first, tag, id)
	b := &a.buckets[at]
	b.set(slot, 0)
	if at != first {
		b.set(0, b.word()&^awayBit(slot))
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
		for slots, _ := look(b, tag, ids); slots != 0; slots &= slots - 1 {
			if slot := bits.TrailingZeros32(slots); b.at(slot) == tag|id {
				return at, slot
			}
		}
		if at++; at == len(a.buckets) {
			at = 0
		}
	}
}
