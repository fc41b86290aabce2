package trace

import (
	"math/bits"
	"slices"

	"github.com/perigee-llm/perigee/internal/splitmix"
)

// Tokens appends the prompt of r to dst and returns it: r.InputTokens token ids, each below vocabulary, or as many of them as
// r.Blocks stand for where a log tells fewer. A trace does not tell its prompts, so they are made up such that equal block ids
// give equal tokens, and different ids different ones. It panics if vocabulary is 0.
//
// Token i of a block comes from SplitMix64 seeded with the block's id: one step gives two tokens, from its upper and then its lower 32 bits, each scaled to the
// vocabulary by multiplication. That will not change: recorded results depend on it.
func Tokens(dst []uint32, r Request, vocabulary uint32) []uint32 {
	if vocabulary == 0 {
		panic("trace: Tokens needs a vocabulary")
	}
	dst = slices.Grow(dst, r.InputTokens)
	left := r.InputTokens
	for _, id := range r.Blocks {
		n := min(left, r.BlockTokens())
		left -= n
		state := id
		for ; n > 0; n -= 2 {
			var x uint64
			state, x = splitmix.Step(state)
			dst = append(dst, scale(uint32(x>>32), vocabulary))
			if n > 1 {
				dst = append(dst, scale(uint32(x), vocabulary))
			}
		}
	}
	return dst
}

// scale maps a uniform x to [0, n). The bias of n/2^32 does not matter here.
func scale(x, n uint32) uint32 {
	hi, _ := bits.Mul32(x, n)
	return hi
}
