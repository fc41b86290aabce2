package index

import (
	"sync"
	"sync/atomic"

	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// Index is one domain's index. Make it with New.
type Index struct {
	model     string
	blockSize int
	limit     int
	recall    int // hashes that are remembered of a holder that has let go of them

	blocks  blocks
	sets    sets
	names   table // blocks by name
	aliases table // blocks by the hash that their first holder gave them; the writer's
	epochs  epochs
	roster  atomic.Pointer[roster]

	mu       sync.Mutex // all below, and what the fields above leave to the writer
	holders  []holder   // by number; those that are closed are free
	tenures  []*tenure  // by number; nil where free
	freeNos  []uint32   // tenures' numbers
	freed    []Holder
	order    []Holder      // the engines' holders, by engine and rank
	live     int           // blocks in sight
	dead     int           // tenures that have ended and still have claims
	litter   int           // claims of theirs, by block
	sweepAt  uint32        // the block that Sweep looks at next
	path     []blockHash   // scratch of prove
	ahead    [16]chain.Key // scratch of stored; for twice as many the processor has too few pages at hand
	hashName hashes
	hashHash hashes
}

// New returns an index that knows nothing.
func New(c Config) *Index {
	ix := &Index{model: c.Model, blockSize: c.BlockSize, limit: c.Limit, recall: mostForgotten}
	if ix.limit <= 0 {
		ix.limit = DefaultLimit
	}
	most := maxID
	if c.MaxBlocks > 0 {
		most = min(most, c.MaxBlocks)
	}
	ix.blocks.init(most)
	ix.sets.init()
	ix.epochs.init()
	ix.tenures = []*tenure{nil} // number 0 is nobody's
	ix.roster.Store(&roster{})
	ix.hashName = func(ids *[batch]uint32, into *[batch]uint64) {
		dir := *ix.blocks.dir.Load()
		for i, id := range ids {
			if id != 0 {
				into[i] = dir[id>>chunkBits].name[id%chunkSize].Lo
			}
		}
	}
	ix.hashHash = func(ids *[batch]uint32, into *[batch]uint64) {
		dir := *ix.blocks.dir.Load()
		for i, id := range ids {
			if id != 0 {
				into[i] = uint64(dir[id>>chunkBits].hash[id%chunkSize])
			}
		}
		for i := range into {
			into[i] = mix(into[i])
		}
	}
	return ix
}

// mix spreads a number over all bits: an engine's hashes may be anything.
func mix(x uint64) uint64 {
	x *= 0x9e3779b97f4a7c15
	x ^= x >> 32
	x *= 0xd6e8feb86659fd93
	return x ^ x>>32
}

// find returns the block of that name and its set, or zeros. It looks at the block guess first.
func (ix *Index) find(k chain.Key, guess uint32) (id, set uint32) {
	if set = ix.blocks.see(guess, k); set != 0 {
		return guess, set
	}
	var s search
	for id := ix.names.search(&s, k.Lo); id != 0; id = s.next() {
		if set = ix.blocks.see(id, k); set != 0 {
			return id, set
		}
	}
	return 0, 0
}

// create makes a block without claims. It is in both tables, and nobody sees it before it has a set. There is room.
func (ix *Index) create(k chain.Key, parent ref, hash prefix.Hash) uint32 {
	id := ix.blocks.take()
	ix.live++
	c, i := ix.blocks.at(id)
	c.name[i], c.hash[i] = k, hash
	c.setParent(i, parent)
	ix.names.insert(k.Lo, id, ix.hashName)
	ix.aliases.insert(mix(uint64(hash)), id, ix.hashHash)
	return id
}

// put changes a block's set. A block that nobody claims goes.
func (ix *Index) put(id, set uint32) {
	c, i := ix.blocks.at(id)
	old := c.set[i]
	if set != 0 {
		ix.sets.use(set)
	}
	reveal(&c.set[i], set)
	if old != 0 && ix.sets.leave(old) {
		ix.epochs.retire(aSet, old)
	}
	if set == 0 {
		ix.names.remove(c.name[i].Lo, id, ix.hashName)
		ix.aliases.remove(mix(uint64(c.hash[i])), id, ix.hashHash)
		ix.epochs.retire(aBlock, id)
		ix.live--
	}
}

// give frees what no reader can hold any more.
func (ix *Index) give(r retired) {
	switch r.kind {
	case aBlock:
		ix.blocks.give(r.no)
	case aSet:
		ix.sets.give(r.no)
	case aTenure:
		ix.freeNos = append(ix.freeNos, r.no)
	}
}

// Stats are figures of an index, for metrics.
type Stats struct {
	// Blocks are those that are claimed, or were and are not yet swept. Sets are the sets of holders that they have.
	Blocks, Sets int
	// Dead says how many withdrawn claims wait for Sweep, at least.
	Dead int
}

// Stats returns figures of the index as it is now.
func (ix *Index) Stats() (s Stats) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	s.Blocks, s.Sets = ix.live, ix.sets.live
	for _, t := range ix.tenures {
		if t != nil && t.dead {
			s.Dead += t.blocks
		}
	}
	return s
}
