package local

import (
	"cmp"

	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
)

// How many claims a rank may have follows from its engine's KV pool. The bound is the engine's, whose ranks have equal parts of it: an engine
// that says that it has a thousand ranks may cost no more memory than one that has four.
const (
	// slack is how many claims a rank may have for each block of its pool. Engines tell of what they offload too, and of host memory nobody
	// says the size: SGLang's is twice the pool by default, and a machine's memory is some four times that of its GPUs.
	slack = 8
	// leastClaims is what an engine may always have, all its ranks together: 50 MB in the index. A small pool can have much behind it.
	leastClaims = 1 << 20
	// mostRanks is how many ranks' worth of [Options.Limit] an engine may have at the most: 16 million claims, 800 MB, by default.
	mostRanks = 4
)

// limitLocked is the most claims of a rank that has a block size.
func (s *Store) limitLocked(r *Rank) int {
	if r.limit > 0 {
		return r.limit
	}
	limit := cmp.Or(max(0, s.opt.Limit), index.DefaultLimit)
	ranks := max(1, s.mu.ranksOf[r.engine.No])
	share := max(1, mostRanks*limit/ranks)
	if r.pool > 0 {
		limit = max(slack*r.blocksLocked(), leastClaims/ranks)
	}
	return min(limit, share)
}

// blocksLocked is the pool of a rank that has a block size; 0: not known.
func (r *Rank) blocksLocked() int {
	return int(min(r.pool/int64(r.in.domain.blockSize), maxPool))
}

// maxPool is as many blocks as an index can address: a pool that is said to have more has a wrong size.
const maxPool = 1 << 26

// boundLocked tells the index what the rank may have.
func (s *Store) boundLocked(r *Rank) {
	if r.in == nil {
		return
	}
	r.in.SetLimit(r.holder, s.limitLocked(r))
}

// countLocked counts a rank of an engine more or less, which changes the other ranks' parts.
func (s *Store) countLocked(engine uint32, by int) {
	before := s.mu.ranksOf[engine]
	if s.mu.ranksOf[engine] = before + by; before+by == 0 {
		delete(s.mu.ranksOf, engine)
	}
	if before == 0 || before+by == 0 {
		return // there are no others
	}
	for r := range s.mu.ranks {
		if r.engine.No == engine {
			s.boundLocked(r)
		}
	}
}
