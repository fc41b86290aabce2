package dram

import (
	"math"
	"time"
)

// Time is the time since the owner started.
type Time = time.Duration

// History is what is known of a block when it is used, or comes in.
type History struct {
	// Score is what the policy gave it at its last use, if Uses is not 0.
	Score float64
	// Last is when that was.
	Last Time
	// Uses counts them: how often it came in or was asked for. It saturates at 65,535. That of a block which has come back counts
	// what is remembered of it.
	Uses int
}

// Policy puts blocks in an order: the leaf with the lowest score goes first. A score is worked out when a block is used and stands
// until its next use, so what ranks two blocks must not depend on when it is asked.
type Policy interface {
	Score(h History, now Time) float64
}

// LRU evicts what was used longest ago.
type LRU struct{}

// Score is the time of use.
func (LRU) Score(_ History, now Time) float64 { return float64(now) }

// Decayed evicts what was used least, each use counting half as much after every HalfLife (LRFU: Lee and others, "LRFU: a spectrum
// of policies that subsumes the LRU and LFU policies", IEEE Transactions on Computers 50(12), 2001). A short half-life is LRU, an
// endless one LFU.
//
// The score is the logarithm to base 2 of the decayed count, in a unit that falls with time as the counts do: so all counts decay without being touched.
type Decayed struct {
	// HalfLife is more than 0.
	HalfLife time.Duration
}

// Score is log2(Σ 2^(tᵢ/HalfLife)) over the uses' times tᵢ.
func (d Decayed) Score(h History, now Time) float64 {
	t := float64(now) / float64(d.HalfLife)
	if h.Uses == 0 {
		return t
	}
	hi, lo := max(t, h.Score), min(t, h.Score)
	return hi + math.Log1p(math.Exp2(lo-hi))/math.Ln2
}

var (
	_ Policy = LRU{}
	_ Policy = Decayed{}
)

// DefaultPolicy is what the Manager uses. docs/cache-eviction.md has what was measured.
func DefaultPolicy() Policy { return Decayed{HalfLife: 10 * time.Minute} }
