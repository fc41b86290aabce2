package index

import (
	"math/bits"

	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// Lookup fills the match with what is held of the query's tokens. The query's model is the caller's matter.
func (ix *Index) Lookup(q *prefix.Query, into *prefix.Match) {
	r := ix.epochs.enter()
	defer ix.epochs.leave(r)
	r.begin(ix)
	at := chain.Root{Model: ix.model, BlockSize: ix.blockSize, LoRA: q.LoRA, Salt: q.Salt}.Key()
	tokens := q.Tokens
	// Names are made in growing batches: most misses are seen in the first, and few are made in vain behind the last block that is held.
	for n := 8; len(tokens) >= ix.blockSize; n = min(2*n, len(r.keys)) {
		part := tokens[:min(len(tokens)/ix.blockSize, n)*ix.blockSize]
		keys := at.Append(r.keys[:0], part, ix.blockSize)
		if !r.walk.along(ix, keys) {
			break
		}
		at, tokens = keys[len(keys)-1], tokens[len(part):]
	}
	r.finish(ix.blockSize, into)
}

// LookupKeys is Lookup for a prompt that is known by the names of its full blocks.
func (ix *Index) LookupKeys(keys []chain.Key, into *prefix.Match) {
	r := ix.epochs.enter()
	defer ix.epochs.leave(r)
	r.begin(ix)
	r.walk.along(ix, keys)
	r.finish(ix.blockSize, into)
}

// walk is a look-up on its way along a chain.
type walk struct {
	keys   [64]chain.Key
	ahead  [16]uint32 // the blocks that the next keys may name; used from the end
	roster *roster
	id     uint32 // the block it is at
	set    uint32 // whose set this is
	n      int32  // blocks so far
	alive  []alive
	eff    []uint8        // by target: what it claims of the present set; zeros between steps
	depth  []prefix.Depth // by target, in blocks
	found  []uint64       // a bit for each target whose depth is set
}

// alive is a target that the walk has not lost.
type alive struct {
	target uint32
	tiers  uint8 // cumulated tiers on which it held all blocks so far
	side   uint8 // side groups that hold the present blocks
	since  int32 // the block since which the window's group does
	good   int32 // the farthest boundary at which the side groups hold what they need
}

func (w *walk) begin(ix *Index) {
	w.roster = ix.roster.Load()
	w.id, w.set, w.n, w.alive = 0, 0, 0, w.alive[:0]
	if n := len(w.roster.targets); n > len(w.eff) {
		w.eff, w.depth = make([]uint8, n), make([]prefix.Depth, n)
		w.found = make([]uint64, (n+63)/64)
	}
}

// along walks on, and returns false when nobody holds more.
func (w *walk) along(ix *Index, keys []chain.Key) bool {
	strays, seen := 0, 0 // blocks not behind the one before them; keys that are foreseen
	for i, k := range keys {
		id := w.id + 1
		set := ix.blocks.see(id, k)
		if set == 0 {
			guess := uint32(0)
			if strays++; strays > 1 {
				if i >= seen {
					seen = min(i+len(w.ahead), len(keys))
					w.foresee(ix, keys[i:seen])
				}
				guess = w.ahead[len(w.ahead)-(seen-i)]
			}
			if id, set = ix.find(k, guess); set == 0 {
				return false
			}
		}
		w.id = id
		if set != w.set && !w.step(ix.sets.members(set)) {
			return false
		}
		w.set = set
		w.n++
	}
	return true
}

// foresee guesses the blocks of the next keys. Where a chain's blocks lie apart, each costs three reads of far memory, one after the
// other; here all first ones are made in a row, then all second ones, so that the processor waits for many at once.
func (w *walk) foresee(ix *Index, keys []chain.Key) {
	ahead := w.ahead[len(w.ahead)-len(keys):]
	for _, k := range keys {
		near(ix.names.where(k.Lo))
	}
	for i, k := range keys {
		ahead[i] = ix.names.first(k.Lo)
	}
	for _, id := range ahead {
		ix.blocks.near(id)
	}
}

// cumulated[b] has the bit of each tier for which b has the tier or a faster one.
var cumulated = [1 + tierBits]uint8{
	0, 0b1111, 0b1110, 0b1111, 0b1100, 0b1111, 0b1110, 0b1111, 0b1000, 0b1111, 0b1110, 0b1111, 0b1100, 0b1111, 0b1110, 0b1111,
}

// step goes over to a block with other members, and returns false if none that is alive is among them.
func (w *walk) step(members []uint32) bool {
	for _, m := range members {
		m := member(m)
		if int(m.tenure()) >= len(w.roster.seats) {
			continue // began after us
		}
		s := w.roster.seats[m.tenure()]
		for _, target := range w.roster.counts[s.from:s.to] {
			if w.n == 0 && w.eff[target] == 0 {
				w.alive = append(w.alive, alive{target: uint32(target), tiers: tierBits})
				w.depth[target] = prefix.Depth{}
			}
			w.eff[target] |= m.bits()
		}
	}
	kept := w.alive[:0]
	for _, a := range w.alive {
		if w.keep(&a, w.eff[a.target]) {
			kept = append(kept, a)
		}
	}
	w.alive = kept
	w.clear(members)
	return len(kept) > 0
}

func (w *walk) clear(members []uint32) {
	for _, m := range members {
		if t := member(m).tenure(); int(t) < len(w.roster.seats) {
			s := w.roster.seats[t]
			for _, target := range w.roster.counts[s.from:s.to] {
				w.eff[target] = 0
			}
		}
	}
}

// keep takes down what the target loses, which claims these bits from now on, and tells whether it is still there.
func (w *walk) keep(a *alive, bits uint8) bool {
	now := a.tiers & cumulated[bits&tierBits]
	t := &w.roster.targets[a.target]
	if t.side != 0 {
		w.boundary(a, t)
		if bits&^a.side&window != 0 {
			a.since = w.n
		}
		a.side = bits & t.side
	}
	w.lose(a, t, a.tiers&^now)
	a.tiers = now
	return now != 0
}

// boundary moves the farthest good boundary here, if the blocks since the last step allow it: a state behind the last of them, and
// a window that reaches back far enough or to the beginning.
func (w *walk) boundary(a *alive, t *target) {
	if w.n == 0 || a.side != t.side {
		return
	}
	if t.side&window == 0 || a.since == 0 || w.n-a.since >= t.window {
		a.good = w.n
	}
}

func (w *walk) lose(a *alive, t *target, tiers uint8) {
	n := w.n
	if t.side != 0 {
		n = a.good
	}
	if tiers == 0 || n == 0 {
		return
	}
	for i := range prefix.Tiers {
		if tiers>>i&1 != 0 {
			w.depth[a.target][i] = n
		}
	}
	w.found[a.target/64] |= 1 << (a.target % 64)
}

// finish fills the match, in its order.
func (w *walk) finish(blockSize int, into *prefix.Match) {
	for i := range w.alive {
		a := &w.alive[i]
		t := &w.roster.targets[a.target]
		w.boundary(a, t)
		w.lose(a, t, a.tiers)
	}
	into.Reset()
	into.Blind = append(into.Blind, w.roster.blind...)
	for i, word := range w.found {
		for ; word != 0; word &= word - 1 {
			n := i*64 + bits.TrailingZeros64(word)
			t, d := &w.roster.targets[n], w.depth[n]
			for tier := range d {
				d[tier] *= int32(blockSize)
			}
			into.Held = append(into.Held, prefix.Held{Engine: t.engine, Rank: t.rank, Depth: d})
		}
		w.found[i] = 0
	}
	w.roster = nil
}
