package index

import (
	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// Apply tells the index what a holder published. The event is not kept.
func (ix *Index) Apply(h Holder, e *prefix.Event) (out Outcome) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.epochs.reclaim(ix.give)
	if int(h) >= len(ix.holders) || !ix.holders[h].open || ix.holders[h].state == CutOff {
		return Outcome{Result: Refused}
	}
	x := &ix.holders[h]
	switch e.Kind {
	case prefix.Stored:
		ix.help(helpStore * len(e.Hashes))
		ix.stored(x, e, &out)
	case prefix.Removed:
		ix.removed(x, e, &out)
	case prefix.Cleared:
		if out.Blocks = x.cur.blocks; out.Blocks > 0 || x.old != nil || x.short || x.groups.missed || x.cur.loose || x.cur.gone != nil {
			ix.clear(x)
			x.groups.missed = false // of nothing there is nothing that we missed
			ix.publish()
		}
	default:
		out.Result = Malformed
	}
	return out
}

// bits returns what an event is about, or 0 and sets the result.
func (ix *Index) bits(x *holder, e *prefix.Event, out *Outcome) uint8 {
	if e.Tier >= prefix.Tiers {
		out.Result = Malformed
		return 0
	}
	bits, news := x.groups.bits(e)
	if news {
		ix.publish()
	}
	if x.store {
		bits &= tierBits &^ (1 << prefix.Device)
	}
	if bits == 0 {
		out.Result = OtherGroup
		if x.store {
			out.Result = Malformed
		}
	}
	return bits
}

// removed drops claims, of the time before a doubt too: what was removed is not proven later.
func (ix *Index) removed(x *holder, e *prefix.Event, out *Outcome) {
	bits := ix.bits(x, e, out)
	if bits == 0 {
		return
	}
	for i, hash := range e.Hashes {
		if i%len(ix.ahead) == 0 {
			ix.foreseeRemoved(e.Hashes[i:min(i+len(ix.ahead), len(e.Hashes))])
		}
		known, news := ix.forget(x.cur, hash, bits)
		if x.old != nil {
			k, n := ix.forget(x.old, hash, bits)
			known, news = known || k, news || n
		}
		if news {
			out.Blocks++
		}
		if !known {
			out.Unknown++
		}
	}
}

// foreseeRemoved has what the removal of these hashes will look at brought near: the aliases' buckets, the blocks, and the names' buckets.
func (ix *Index) foreseeRemoved(hashes []prefix.Hash) {
	if len(hashes) < 4 {
		return // the first misses are not avoided, only those that can be waited for together
	}
	var ids [len(ix.ahead)]uint32
	for _, hash := range hashes {
		near(ix.aliases.where(mix(uint64(hash))))
	}
	for i, hash := range hashes {
		if ids[i] = ix.aliases.first(mix(uint64(hash))); ids[i] != 0 {
			c, at := ix.blocks.at(ids[i])
			near(&c.name[at])
			near(&c.hash[at])
			near(&c.set[at])
		}
	}
	for _, id := range ids[:len(hashes)] {
		if id != 0 {
			c, i := ix.blocks.at(id)
			near(ix.names.where(c.name[i].Lo))
		}
	}
}

func (ix *Index) stored(x *holder, e *prefix.Event, out *Outcome) {
	if e.AnyTier || e.Tier >= prefix.Tiers {
		out.Result = Malformed
		return
	}
	bits := ix.bits(x, e, out) // first: that there is such a group counts, also where its blocks cannot be followed
	if bits == 0 {
		return
	}
	if out.Result = ix.check(e); out.Result != Applied {
		ix.missed(x, bits, out)
		return
	}
	if len(e.Tokens) == 0 {
		ix.storedKnown(x, e, bits, out)
		return
	}
	at, ok := ix.parent(x, e, out)
	if !ok {
		return
	}
	for first := 0; first < len(e.Hashes) && out.Result == Applied; first += len(ix.ahead) {
		n := min(len(e.Hashes)-first, len(ix.ahead))
		ix.foresee(e, at.name, first, n)
		for i := range n {
			if !ix.store(x, ix.ahead[i], e.Hashes[first+i], bits, &at, out) {
				return
			}
		}
	}
	x.cur.last = at.id
}

// foresee names the n blocks of a store from the first on, which follow at, and has the tables' buckets for them brought near.
func (ix *Index) foresee(e *prefix.Event, at chain.Key, first, n int) {
	for _, hash := range e.Hashes[first : first+n] {
		near(ix.aliases.where(mix(uint64(hash))))
	}
	for i := range n {
		var extra []byte
		if e.Extras != nil {
			extra = e.Extras[first+i]
		}
		at = at.Next(e.Tokens[(first+i)*ix.blockSize:(first+i+1)*ix.blockSize], extra)
		near(ix.names.where(at.Lo))
		ix.ahead[i] = at
	}
}

// check tells whether a store fits together and belongs here.
func (ix *Index) check(e *prefix.Event) Result {
	switch {
	case len(e.Tokens) == 0:
		return Applied
	case e.BlockSize != ix.blockSize:
		if e.BlockSize > 0 && ix.blockSize%e.BlockSize == 0 && len(e.Hashes) == 1 {
			return PartialBlock
		}
		return OtherSize
	case len(e.Tokens)/e.BlockSize != len(e.Hashes) || len(e.Tokens)%e.BlockSize != 0:
		return Malformed
	case e.Extras != nil && len(e.Extras) != len(e.Hashes):
		return Malformed
	}
	return Applied
}

// storedKnown is a store without tokens: what is moved to another tier, of blocks that the holder has named before.
func (ix *Index) storedKnown(x *holder, e *prefix.Event, bits uint8, out *Outcome) {
	t, slower := x.cur, e.Tier != prefix.Device && !x.store
	if slower && t.gone == nil {
		t.gone = &forgotten{at: map[prefix.Hash]int{}}
	}
	for _, hash := range e.Hashes {
		id := ix.resolve(t, hash)
		if id == 0 {
			if slower && ix.recalled(x, hash, bits, out) {
				continue
			}
			if out.Result != Applied {
				return
			}
			out.Unknown++
			continue
		}
		if bits&^ix.claimed(t, hash, id)&(1<<prefix.Device) != 0 {
			t.loose = true // nobody says that what it stands on is there
		}
		if ix.add(t, hash, id, bits) {
			out.Blocks++
		}
	}
}

// spot is where a chain has come to.
type spot struct {
	name chain.Key
	ref  ref    // to it; 0 at a root
	id   uint32 // the block, or 0
}

// parent returns where the event's blocks begin, or sets the result.
func (ix *Index) parent(x *holder, e *prefix.Event, out *Outcome) (at spot, ok bool) {
	if !e.HasParent {
		return spot{name: chain.Root{Model: ix.model, BlockSize: ix.blockSize, LoRA: e.LoRA, Salt: e.Salt}.Key()}, true
	}
	id := x.cur.last
	if !ix.stillKnows(x.cur, id, e.Parent) {
		id = ix.resolve(x.cur, e.Parent)
	}
	if e.Tier == prefix.Device && !x.groups.hybrid() && (id == 0 || ix.claimed(x.cur, e.Parent, id)&(1<<prefix.Device) == 0) {
		id = ix.beneath(x, e.Parent, id, out)
	}
	if id == 0 {
		if out.Result == Applied {
			out.Result = Orphan
		}
		return at, false
	}
	c, i := ix.blocks.at(id)
	return spot{name: c.name[i], ref: refTo(c.name[i]), id: id}, true
}

// beneath returns the block on which a store on the device stands, where that is not claimed there: id is 0, or is claimed on a slower tier.
func (ix *Index) beneath(x *holder, parent prefix.Hash, id uint32, out *Outcome) uint32 {
	if x.old != nil {
		if proven := ix.prove(x, parent, out); proven != 0 {
			return proven
		}
	}
	x.cur.loose = x.cur.loose || id != 0
	return id
}

// store claims the block of that name, which follows at, and moves at there. It returns false when the event ends here.
func (ix *Index) store(x *holder, name chain.Key, hash prefix.Hash, bits uint8, at *spot, out *Outcome) bool {
	t := x.cur
	id, set := ix.find(name, at.id+1)
	if id == 0 || !ix.knows(t, id, set, hash) {
		if id = ix.makeRoom(x, hash, id, set, out); out.Result != Applied {
			return false
		}
		if id == 0 {
			*at = spot{name: name, ref: refTo(name), id: ix.claimNew(t, name, at.ref, hash, bits)}
			out.Blocks++
			return true
		}
	}
	if ix.add(t, hash, id, bits) {
		out.Blocks++
	}
	*at = spot{name: name, ref: refTo(name), id: id}
	return true
}

// knows is a quick test whether the hash means this block to the tenure; no is no proof of the contrary.
func (ix *Index) knows(t *tenure, id, set uint32, hash prefix.Hash) bool {
	c, i := ix.blocks.at(id)
	has := ix.sets.bits(set, t.no)
	return c.hash[i] == hash && has != 0 && has&aliased == 0
}

// stillKnows is knows for a block that may be gone.
func (ix *Index) stillKnows(t *tenure, id uint32, hash prefix.Hash) bool {
	dir := *ix.blocks.dir.Load()
	if id == 0 || dir[id>>chunkBits] == nil {
		return false
	}
	return ix.knows(t, id, dir[id>>chunkBits].set[id%chunkSize], hash)
}

// makeRoom sees to it that the hash means the block id to the holder, or nothing, and that there is room for a claim of it. It returns
// id, or sets the result. A hash that meant another block is the engine's word that it does so no more: that claim could never be
// removed, and is dropped.
func (ix *Index) makeRoom(x *holder, hash prefix.Hash, id, set uint32, out *Outcome) uint32 {
	was := ix.resolve(x.cur, hash)
	if was != 0 && was != id {
		ix.drop(x.cur, hash, was, 0xff)
		out.Moved++
	}
	switch {
	case was != 0 && was == id:
	case x.cur.claims >= ix.limitOf(x):
		ix.clear(x)
		x.state, out.Result = CutOff, Exceeded
		ix.publish()
	case ix.sets.crowded(set) || id == 0 && ix.blocks.full():
		if out.Result = Full; !x.short {
			x.short = true
			ix.publish()
		}
	}
	return id
}
