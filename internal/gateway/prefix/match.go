package prefix

import (
	"cmp"
	"slices"
)

// Query is what a source needs to know of a request.
type Query struct {
	// Model is the base model's id.
	Model string
	// LoRA names the adapter, Salt is the cache salt that the engine will get; empty for none.
	LoRA, Salt string
	// Tokens are the ids that the engine will see, from the first on, as far as that is certain: up to the first image, say.
	Tokens []uint32
}

// Depth is the leading tokens of a prompt that an engine can have without computing them, cumulated over the tiers: Depth[t] counts
// blocks that are on tier t or on a faster one, up to the first that is on none of these. So Depth[Device] needs no restore,
// Depth[Host]-Depth[Device] comes from host memory, and Depth[External] is all that is held anywhere.
type Depth [Tiers]int32

// Any is the depth over all tiers.
func (d Depth) Any() int32 { return d[External] }

// Deeper returns the better of both, tier by tier.
func (d Depth) Deeper(o Depth) Depth {
	for t := range d {
		d[t] = max(d[t], o[t])
	}
	return d
}

// Held is what one data-parallel rank of an engine holds of a prompt.
type Held struct {
	Engine uint32 // fleet.Worker.No
	Rank   int32
	Depth  Depth // Any is above zero
}

// Match is a source's answer. The zero value is a miss: a source that knows and found nothing. It can be filled again and again, and
// keeps its memory.
type Match struct {
	// Held is sorted by engine, then rank; who holds nothing is not in it.
	Held []Held
	// Blind are the engines of which the source cannot say all that they hold, sorted: events of theirs were lost, or none has come yet.
	// One that is in Held too holds that for certain, and maybe more: what it has stored since, say, or what its other ranks
	// have. An engine that is neither here nor in Held holds nothing.
	Blind []uint32
}

// Reset makes m a miss.
func (m *Match) Reset() { m.Held, m.Blind = m.Held[:0], m.Blind[:0] }

// Ranks returns what the ranks of an engine hold, part of m.
func (m *Match) Ranks(engine uint32) []Held {
	i, there := slices.BinarySearchFunc(m.Held, engine, func(h Held, e uint32) int { return cmp.Compare(h.Engine, e) })
	if !there {
		return nil
	}
	j := i + 1
	for j < len(m.Held) && m.Held[j].Engine == engine {
		j++
	}
	return m.Held[i:j]
}

// Of returns the best that a rank of the engine holds, tier by tier; zero if it is known to hold nothing, or
// is blind and nothing is known of it.
func (m *Match) Of(engine uint32) (d Depth) {
	for _, h := range m.Ranks(engine) {
		d = d.Deeper(h.Depth)
	}
	return d
}

// IsBlind tells whether the engine may hold more than the match says.
func (m *Match) IsBlind(engine uint32) bool {
	_, there := slices.BinarySearch(m.Blind, engine)
	return there
}
