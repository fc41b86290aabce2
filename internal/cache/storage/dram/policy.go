package dram

import (
	"math"
	"time"
)

// Time is the time since the owner started.
type Time = time.Duration

// History is what is known of a block when it is used, or comes in.
type History struct {
	// Score is what the policy gave it at its last use, if Uses is not 0, with 24 bits: a time of use is exact to a hundredth of a second after a
	// day, and to half a second after a hundred.
	Score float64
	// Uses counts them: how often it came in or was asked for, this time not included. It saturates, at 255. That of a block which has
	// come back counts what is remembered of it, at most 7.
	Uses int
	// Incoming says that it was not in memory.
	Incoming bool
}

// Policy puts blocks in an order. Each use puts a block in one of a few classes with a score; in a class the leaf with the lowest
// score goes first, and among the classes the one whose first leaf ranks lowest. So what is compared within a class is fixed at the
// use, and a heap can hold it; what changes with time alone is compared between the classes.
//
// A policy learns from the uses that it is told of. It belongs to one Store.
type Policy interface {
	// Classes is how many there are; at least 1.
	Classes() int
	// Use is told of each use, and returns the block's class from 0 on, and its score.
	Use(h History, now Time) (class int, score float64)
	// Rank is the place of a class's first leaf, with that score. blocks is how many there are in memory.
	Rank(class int, score float64, blocks int, now Time) float64
}

// LRU evicts what was used longest ago.
type LRU struct{}

// Classes is 1.
func (LRU) Classes() int { return 1 }

// Use scores by the time of use, in seconds.
func (LRU) Use(_ History, now Time) (int, float64) { return 0, now.Seconds() }

// Rank is the score.
func (LRU) Rank(_ int, score float64, _ int, _ Time) float64 { return score }

// Decayed evicts what was used least, each use counting half as much after every HalfLife (LRFU: Lee and others, "LRFU: a spectrum
// of policies that subsumes the LRU and LFU policies", IEEE Transactions on Computers 50(12), 2001). A short half-life is LRU, an
// endless one LFU.
//
// The score is the logarithm to base 2 of the decayed count, in a unit that falls with time as the counts do: so all counts decay
// without being touched.
type Decayed struct {
	// HalfLife is more than 0.
	HalfLife time.Duration
}

// Classes is 1.
func (Decayed) Classes() int { return 1 }

// Use scores by log2(Σ 2^(tᵢ/HalfLife)) over the uses' times tᵢ.
func (d Decayed) Use(h History, now Time) (int, float64) {
	t := float64(now) / float64(d.HalfLife)
	if h.Uses == 0 {
		return 0, t
	}
	hi, lo := max(t, h.Score), min(t, h.Score)
	return 0, hi + math.Log1p(math.Exp2(lo-hi))/math.Ln2
}

// Rank is the score.
func (Decayed) Rank(_ int, score float64, _ int, _ Time) float64 { return score }

// DefaultPolicy is what the Manager uses; docs/cache-eviction.md has what was measured.
func DefaultPolicy() Policy { return new(Learned) }

var (
	_ Policy = LRU{}
	_ Policy = Decayed{}
	_ Policy = (*Learned)(nil)
)
