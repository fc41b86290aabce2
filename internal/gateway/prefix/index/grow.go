package index

import (
	"math"
	"math/bits"
)

// growth is how much larger a shard is made that is full. So its load is between 56 and 90 percent, and each entry has moved twice on the average.
const growth = 1.6

// larger is the buckets that a full shard of n buckets gets. All shards are full at about the same time, and would be half empty at the same time
// if they grew by the same steps. So each has steps of its own, evenly between those of the others: with however many blocks some shards
// have just grown and others are about to, and the table has 1.28 times the buckets that it needs, give or take two percent.
func larger(shard, n int) int {
	phase := float64(shard) / (1 << shardBits)
	least := max(n+1, n*5/4) // a shard that was made anew may be just below one of its steps
	step := math.Ceil(math.Log(float64(least))/math.Log(growth) - phase)
	return max(least, int(math.Pow(growth, step+phase)))
}

// resize puts all entries into n new buckets, or some more: all that fit into the memory that n take, since Go's allocator rounds up what it is asked
// for. The block id is to fit in.
func (t *table) resize(sh *shard, n int, id uint32, hashes hashes) *array {
	old := sh.store.Load()
	a := &array{buckets: append([]bucket(nil), make([]bucket, n)...)}
	a.buckets = a.buckets[:cap(a.buckets)]
	n = len(a.buckets)
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
// processor then waits for all at once. Those are few, and the loop calls nothing for them, so that it keeps in registers what it needs for the rest.
func (f *fresh) move(old *array, hashes hashes) {
	n, m := uint64(len(old.buckets)), uint64(len(f.buckets))
	// The quotient of an entry of bucket i is the smallest for which quotient·n is at least i·2²³ + tag. To multiply by this and to take the
	// upper 64 bits is to divide by n, as long as what is divided is below 2⁶⁴/n, and it is below n·2²³.
	inverse := ^uint64(0)/n + 1
	ids, tags := uint32(1)<<(old.idBits&31)-1, ^(uint32(1)<<(f.idBits&31) - 1)
	every := uint32(0)
	if !old.recovers() {
		every = 1<<slots - 1
	}
	into, used := f.buckets, f.used[:len(f.buckets)]
	for at := range old.buckets {
		if f.n > batch-slots {
			f.ask(hashes)
		}
		b := &old.buckets[at]
		ask := b.word()>>awayShift | every
		least := uint64(at)<<quotientBits + n - 1
		for i := 1; i <= slots; i, ask = i+1, ask>>1 {
			e := b.at(i)
			if e == 0 {
				continue
			}
			if ask&1 == 0 {
				q, _ := bits.Mul64(least+uint64(e&^ids>>(32-quotientBits)), inverse)
				x := q * m // as in home
				to, entry := x>>quotientBits, uint32(x<<(64-quotientBits)>>32)&tags|e&ids
				if slot := used[to] + 1; slot <= slots {
					used[to] = slot
					into[to][slot>>1&7] |= uint64(entry) << (slot & 1 * 32)
					continue
				}
			}
			f.ids[f.n] = e & ids
			f.n++
		}
	}
	f.ask(hashes)
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
