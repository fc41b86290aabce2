package index

import "sync/atomic"

// table finds blocks by a hash of theirs. It stores no hashes: 32 bits a block, a tag of 6 bits and the block's number, in buckets
// of a cache line. One writer, any readers: a reader sees an entry or does not, and never one half written, since an entry is one
// word and never moves. What does not fit into its bucket goes to the next with room, and each full bucket that it passes counts
// it, so that a search knows where to end and a deletion leaves no tombstone.
//
// It consists of shards that grow by a quarter, each for itself: load stays between 72 and 90 percent, and growing holds up
// the writer for a moment only, 2 ms at 10 million blocks.
//
// Linear probing was not taken: without tombstones a deletion moves entries under the readers' eyes. Neither was chaining: it costs
// 4 bytes a block more.
type table struct {
	shards [1 << shardBits]shard
}

type shard struct {
	buckets atomic.Pointer[[]bucket]
	live    int // the writer's
}

// bucket holds the entries that passed by it, for want of room, and 15 slots. A free slot is 0, and no block has that number.
type bucket [1 + slots]uint32

const (
	shardBits = 6
	slots     = 15
	idBits    = 26
	maxID     = 1<<idBits - 1

	batchBuckets = 4 // what is moved at once
	batch        = batchBuckets * slots
)

// A search goes through the candidates: blocks whose hash may be the one that is looked for. The caller compares.
type search struct {
	buckets []bucket
	at      int    // the bucket
	slot    int    // in it, the one looked at last
	tag     uint32 // in its place in an entry
	left    int    // buckets not yet seen
}

// search begins at the hash's own bucket.
func (t *table) search(hash uint64) (s search) {
	b := t.shards[hash>>(64-shardBits)].buckets.Load()
	if b == nil {
		return s
	}
	s.buckets, s.tag, s.left = *b, uint32(hash)<<idBits, len(*b)
	s.at = home(hash, len(*b))
	return s
}

// home is the bucket in which a hash's block belongs. It depends on the 32 bits behind the shard's, and rises with them: see ref.
func home(hash uint64, buckets int) int {
	return int(hash << shardBits >> 32 * uint64(buckets) >> 32)
}

// touch reads the hash's bucket, so that it is near when it is needed. Buckets lie far apart: where several are touched in a row, the
// processor waits for all of them at once. What it returns means nothing, and must be used, or the compiler drops the read.
func (t *table) touch(hash uint64) uint32 {
	if b := t.shards[hash>>(64-shardBits)].buckets.Load(); b != nil {
		return atomic.LoadUint32(&(*b)[home(hash, len(*b))][0])
	}
	return 0
}

// next returns the next candidate, 0 if there is none.
func (s *search) next() uint32 {
	for s.left > 0 {
		b := &s.buckets[s.at]
		for s.slot < slots {
			s.slot++
			if e := atomic.LoadUint32(&b[s.slot]); e&^maxID == s.tag && e != s.tag {
				return e & maxID
			}
		}
		if atomic.LoadUint32(&b[0]) == 0 {
			s.left = 0
			break
		}
		s.slot, s.left = 0, s.left-1
		if s.at++; s.at == len(s.buckets) {
			s.at = 0
		}
	}
	return 0
}

// hashes puts the hashes of blocks where they belong; zeros are no blocks.
type hashes func(ids *[batch]uint32, into *[batch]uint64)

// insert adds a block, whose hash is given. hashes tells that of any other.
func (t *table) insert(hash uint64, id uint32, hashes hashes) {
	sh := &t.shards[hash>>(64-shardBits)]
	n := 0
	if b := sh.buckets.Load(); b != nil {
		n = len(*b)
	}
	if (sh.live+1)*10 > n*slots*9 {
		sh.resize(max(n+1, n*5/4), hashes)
	}
	place(*sh.buckets.Load(), hash, id)
	sh.live++
}

func place(buckets []bucket, hash uint64, id uint32) {
	for at := home(hash, len(buckets)); ; {
		b := &buckets[at]
		for i := 1; i <= slots; i++ {
			if b[i] == 0 {
				atomic.StoreUint32(&b[i], uint32(hash)<<idBits|id)
				return
			}
		}
		atomic.StoreUint32(&b[0], b[0]+1)
		if at++; at == len(buckets) {
			at = 0
		}
	}
}

// remove takes out a block that is in the table.
func (t *table) remove(hash uint64, id uint32, hashes hashes) {
	sh := &t.shards[hash>>(64-shardBits)]
	buckets := *sh.buckets.Load()
	first := home(hash, len(buckets))
	entry := uint32(hash)<<idBits | id
	at, slot := find(buckets, first, entry)
	atomic.StoreUint32(&buckets[at][slot], 0)
	for b := first; b != at; b = (b + 1) % len(buckets) {
		atomic.StoreUint32(&buckets[b][0], buckets[b][0]-1)
	}
	sh.live--
	if n := len(buckets); n > 1 && sh.live*3 < n*slots {
		sh.resize(max(1, n/2), hashes)
	}
}

// find returns where an entry is that is there.
func find(buckets []bucket, at int, entry uint32) (int, int) {
	for {
		for i := 1; i <= slots; i++ {
			if buckets[at][i] == entry {
				return at, i
			}
		}
		if at++; at == len(buckets) {
			at = 0
		}
	}
}

// resize puts all entries into n new buckets, or a few more: above the largest size class of Go's allocator memory comes in pages
// of 8 KiB, and what is left of the last one would lie idle.
func (sh *shard) resize(n int, hashes hashes) {
	const largest, page = 32 << 10 / 64, 8 << 10 / 64
	if n > largest {
		n = (n + page - 1) &^ (page - 1)
	}
	f := fresh{make([]bucket, n), make([]uint8, n)}
	if old := sh.buckets.Load(); old != nil {
		for rest := *old; len(rest) > 0; rest = rest[min(batchBuckets, len(rest)):] {
			f.move(rest[:min(batchBuckets, len(rest))], hashes)
		}
	}
	sh.buckets.Store(&f.buckets)
}

// fresh are buckets that no reader sees yet, filled from the first slot on.
type fresh struct {
	buckets []bucket
	used    []uint8 // slots of each
}

// move puts the entries of a few buckets into fresh ones. It asks for all hashes before it uses any: they lie far apart, and the processor
// then waits for all at once.
func (f *fresh) move(few []bucket, hashes hashes) {
	var ids [batch]uint32
	var of [batch]uint64
	n := 0
	for i := range few {
		for _, e := range few[i][1:] {
			if e != 0 {
				ids[n] = e & maxID
				n++
			}
		}
	}
	hashes(&ids, &of)
	for i, id := range ids[:n] {
		f.place(of[i], id)
	}
}

func (f *fresh) place(hash uint64, id uint32) {
	at := home(hash, len(f.buckets))
	for f.used[at] == slots {
		f.buckets[at][0]++
		if at++; at == len(f.buckets) {
			at = 0
		}
	}
	f.used[at]++
	f.buckets[at][f.used[at]] = uint32(hash)<<idBits | id
}
