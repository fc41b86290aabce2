package index

// Sweep frees the memory of claims that were dropped, looking at so many blocks at most, and tells whether there is more to do.
// Looking at one takes a few nanoseconds, freeing one up to a microsecond, and events wait meanwhile; readers do not. 4,096 are a good slice.
func (ix *Index) Sweep(blocks int) (more bool) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	return ix.sweep(blocks)
}

// What ends claims, and what makes new ones, sweeps a part itself while there is much to be swept: a holder that begins anew all the time
// would leave more behind than whoever calls Sweep takes away, up to all the memory that there is, and each change of a holder costs what
// there are of tenures.
const (
	muchDead   = 64      // tenures; a fleet that is restarted has one for each rank, and is swept at leisure
	muchLitter = 1 << 20 // claims, 50 MB
	helpEnd    = 1024    // blocks, 50 µs, for a tenure that ends
	helpStore  = 4       // blocks for one that is stored: so no more is left behind than half of what the index holds
)

func (ix *Index) help(blocks int) {
	if ix.dead > muchDead || ix.litter > muchLitter {
		ix.sweep(blocks)
	}
}

func (ix *Index) sweep(blocks int) (more bool) {
	ix.epochs.reclaim(ix.give)
	end := uint32(len(*ix.blocks.dir.Load())) << chunkBits
	for ; blocks > 0 && ix.dead > 0; blocks-- {
		if ix.sweepAt >= end {
			ix.sweepAt = 0
		}
		dir := *ix.blocks.dir.Load()
		c := dir[ix.sweepAt>>chunkBits]
		if c == nil {
			ix.sweepAt += chunkSize
			continue
		}
		if set := c.set[ix.sweepAt%chunkSize]; set != 0 {
			ix.sweepBlock(ix.sweepAt, set)
		}
		ix.sweepAt++
	}
	return ix.dead > 0
}

// sweepBlock takes those that have ended out of a block's set.
func (ix *Index) sweepBlock(id, set uint32) {
	for {
		t := ix.deadIn(set)
		if t == nil {
			return
		}
		set = ix.sets.with(set, t.no, 0)
		ix.put(id, set)
		ix.litter--
		if t.blocks--; t.blocks == 0 {
			ix.bury(t)
		}
		if set == 0 {
			return
		}
	}
}

// deadIn returns a tenure of the set that has ended, or nil.
func (ix *Index) deadIn(set uint32) *tenure {
	for _, m := range ix.sets.members(set) {
		if t := ix.tenures[member(m).tenure()]; t.dead {
			return t
		}
	}
	return nil
}
