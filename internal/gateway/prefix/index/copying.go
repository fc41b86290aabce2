package index

import (
	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// Claim is one claim of a holder, on its way to another index of the same domain.
type Claim struct {
	Name chain.Key
	// Before is what leads to the block before it, 0 for the first of a prompt: of the low half of that block's name the upper 38 and
	// the lower 10 bits, the rest being 0. Where it comes from elsewhere it may be the whole half. It leads nowhere where nothing may be made of it.
	Before uint64
	Hash   prefix.Hash
	// Bits are the tiers, from bit 0; bit 4 is the window's group on the device, bit 5 the recurrent one.
	Bits uint8
}

// Groups are the KV cache groups of an engine that an index follows, each its number + 1, 0 for none; Window is the widest window in tokens.
type Groups struct {
	Full, Sliding, Recurrent int32
	Window                   int
	// Missed says that something of the groups could not be followed, so that the holder is not exact. It does not travel with a snapshot,
	// which says itself whether its claims are all there is.
	Missed bool
}

// Groups returns what the index has seen of the holder's.
func (ix *Index) Groups(h Holder) (g Groups) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if int(h) < len(ix.holders) {
		x := &ix.holders[h].groups
		g = Groups{int32(x.full), int32(x.window), int32(x.recurrent), x.tokens, x.missed || x.uneven}
	}
	return g
}

// SetGroups tells an index what another has seen.
func (ix *Index) SetGroups(h Holder, g Groups) {
	ix.change(h, func(x *holder) {
		x.groups = groups{
			full: group(g.Full), window: group(g.Sliding), recurrent: group(g.Recurrent), tokens: max(0, min(g.Window, prefix.Boundless)), missed: g.Missed,
		}
	})
}

// Cursor is where a copy has come to; the zero value is its beginning.
type Cursor struct {
	// Done says that all was copied. Void says that the holder's claims ended meanwhile: what was copied is good for nothing.
	Done, Void bool

	tenure *tenure
	next   uint32
	rest   []prefix.Hash // of the block before next, not yet copied
}

// copyLook is the blocks that one call of Copy looks at: a quarter of a millisecond in which no event is applied.
const copyLook = 1 << 14

// Copy fills into with the holder's next claims and returns how many: maybe none, though there are more. It is called until the cursor
// is done or void. Each claim that the holder has from the first call to the last is copied once; one that comes or goes in between
// may be copied or not. Doubted claims are not copied.
func (ix *Index) Copy(h Holder, at *Cursor, into []Claim) (n int) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if int(h) >= len(ix.holders) || !ix.holders[h].open || at.tenure != nil && at.tenure != ix.holders[h].cur {
		at.Void = true
		return 0
	}
	t := ix.holders[h].cur
	if at.tenure == nil {
		at.tenure, t.byBlock = t, nil
	}
	dir := *ix.blocks.dir.Load()
	for look := 0; look < copyLook && n < len(into); look++ {
		if len(at.rest) > 0 {
			n += ix.copyAliases(t, at, into[n:])
			continue
		}
		if at.Done = at.next>>chunkBits >= uint32(len(dir)); at.Done {
			t.byBlock = nil
			return n
		}
		id := at.next
		c := dir[id>>chunkBits]
		if c == nil {
			at.next += chunkSize
			continue
		}
		at.next++
		switch has := ix.sets.bits(c.set[id%chunkSize], t.no); {
		case has&aliased != 0:
			at.rest = ix.hashes(t, id)
		case has != 0:
			into[n] = ix.claimOf(t, id, c.hash[id%chunkSize], has)
			n++
		}
	}
	return n
}

// copyAliases copies what is left of the block before the cursor.
func (ix *Index) copyAliases(t *tenure, at *Cursor, into []Claim) (n int) {
	for ; n < len(into) && len(at.rest) > 0; at.rest = at.rest[1:] {
		if a, there := t.private[at.rest[0]]; there && a.id == at.next-1 {
			into[n] = ix.claimOf(t, a.id, at.rest[0], a.bits)
			n++
		}
	}
	return n
}

// nowhere leads to no block.
const nowhere = ^ref(0)

func (ix *Index) claimOf(t *tenure, id uint32, hash prefix.Hash, bits uint8) Claim {
	c, i := ix.blocks.at(id)
	before := c.parentOf(i)
	if t.loose && before != 0 {
		before = nowhere // whoever has the copy shall not prove more by it than we do
	}
	return Claim{Name: c.name[i], Before: before.hash(), Hash: hash, Bits: bits}
}

// Paste adds claims that were copied from an index of the same domain to what the holder claims. Where the holder has said itself what one
// of the hashes means, that stands. The outcome is as of Apply.
func (ix *Index) Paste(h Holder, claims []Claim) (out Outcome) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.epochs.reclaim(ix.give)
	if int(h) >= len(ix.holders) || !ix.holders[h].open || ix.holders[h].state == CutOff {
		return Outcome{Result: Refused}
	}
	x := &ix.holders[h]
	for i := range claims {
		c := &claims[i]
		bits := c.Bits & (tierBits | window | recurrent)
		if x.store {
			bits &= tierBits &^ (1 << prefix.Device)
		}
		if bits == 0 || bits != c.Bits {
			out.Result = Malformed
			return out
		}
		if ix.paste(x, c, &out); out.Result != Applied {
			return out
		}
	}
	return out
}

func (ix *Index) paste(x *holder, c *Claim, out *Outcome) {
	id, set := ix.find(c.Name, 0)
	if was := ix.resolve(x.cur, c.Hash); was != 0 && was != id {
		return
	}
	if id = ix.makeRoom(x, c.Hash, id, set, out); out.Result != Applied {
		return
	}
	if id == 0 {
		id = ix.create(c.Name, refTo(chain.Key{Lo: c.Before}), c.Hash)
	}
	if ix.add(x.cur, c.Hash, id, c.Bits) {
		out.Blocks++
	}
}
