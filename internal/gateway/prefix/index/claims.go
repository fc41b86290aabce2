package index

import (
	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// resolve returns the block that the tenure claims under a hash, or 0.
//
// A block has the hash of its first holder, and who claims it under that one, and no other, is just a member of its set. This is
// unambiguous: of all blocks with one hash a tenure is a plain member of one, since claiming another moves the claim.
func (ix *Index) resolve(t *tenure, hash prefix.Hash) uint32 {
	if len(t.private) > 0 {
		if a, there := t.private[hash]; there {
			return a.id
		}
	}
	var s search
	for id := ix.aliases.search(&s, mix(uint64(hash))); id != 0; id = s.next() {
		c, i := ix.blocks.at(id)
		if c.hash[i] != hash {
			continue
		}
		if b := ix.sets.bits(c.set[i], t.no); b != 0 && b&aliased == 0 {
			return id
		}
	}
	return 0
}

// add claims bits of a block under a hash. The hash means this block to the tenure, or nothing. It tells whether that is news.
func (ix *Index) add(t *tenure, hash prefix.Hash, id uint32, bits uint8) bool {
	c, i := ix.blocks.at(id)
	set, own := c.set[i], c.hash[i] == hash
	has := ix.sets.bits(set, t.no)
	var now uint8
	switch {
	case has&aliased == 0 && (own || has == 0):
		if now = has | bits; has == 0 {
			t.claims++
		}
		if !own {
			now |= aliased
			t.alias(hash, alias{id, bits})
		}
	default:
		now = t.addSeveral(c.hash[i], hash, alias{id, bits}, has)
	}
	if now == has {
		return false
	}
	if has == 0 {
		t.blocks++
	}
	ix.put(id, ix.sets.with(set, t.no, now))
	return (now^has)&^aliased != 0
}

// claimNew makes a block with one claim. There is room, and the hash means nothing to the tenure.
func (ix *Index) claimNew(t *tenure, name chain.Key, parent ref, hash prefix.Hash, bits uint8) uint32 {
	id := ix.create(name, parent, hash)
	set := ix.sets.with(0, t.no, bits)
	ix.sets.use(set)
	c, i := ix.blocks.at(id)
	reveal(&c.set[i], set)
	t.claims++
	t.blocks++
	return id
}

func (t *tenure) alias(hash prefix.Hash, a alias) {
	if t.private == nil {
		t.private = map[prefix.Hash]alias{}
	}
	t.private[hash] = a
}

// addSeveral claims bits of a block that has claims already, of which some are private from now on. own is the block's own hash.
func (t *tenure) addSeveral(own, hash prefix.Hash, a alias, has uint8) uint8 {
	if has&aliased == 0 {
		t.alias(own, alias{a.id, has})
	}
	was, there := t.private[hash]
	n, several := t.several[a.id]
	switch {
	case there && !several: // it stays the only one
		a.bits |= was.bits
		t.private[hash] = a
		return a.bits | aliased
	case !several:
		n.add(has&^aliased, 1)
		n.hashes = 1
	}
	if !there {
		n.hashes++
		t.claims++
	}
	n.add(a.bits&^was.bits, 1)
	a.bits |= was.bits
	t.alias(hash, a)
	if t.several == nil {
		t.several = map[uint32]tally{}
	}
	t.several[a.id] = n
	return n.union() | aliased
}

// drop ends the claim of bits of the block that the hash resolved to. It tells whether that is news.
func (ix *Index) drop(t *tenure, hash prefix.Hash, id uint32, bits uint8) bool {
	c, i := ix.blocks.at(id)
	set := c.set[i]
	has := ix.sets.bits(set, t.no)
	now := has &^ bits
	if has&aliased != 0 {
		now = t.dropAlias(hash, bits)
	} else if now == 0 {
		t.claims--
	}
	if now == has {
		return false
	}
	if now == 0 {
		t.blocks--
	}
	ix.put(id, ix.sets.with(set, t.no, now))
	return (now^has)&^aliased != 0
}

// dropAlias returns what is left of the block's claims.
func (t *tenure) dropAlias(hash prefix.Hash, bits uint8) uint8 {
	a := t.private[hash]
	lost := a.bits & bits
	a.bits &^= bits
	if a.bits == 0 {
		delete(t.private, hash)
		t.claims--
	} else {
		t.private[hash] = a
	}
	n, several := t.several[a.id]
	if !several {
		if a.bits == 0 {
			return 0
		}
		return a.bits | aliased
	}
	n.add(lost, -1)
	if a.bits == 0 {
		n.hashes--
	}
	if n.hashes > 1 {
		t.several[a.id] = n
	} else {
		delete(t.several, a.id) // the one that is left claims just what the union says
	}
	return n.union() | aliased
}

func (n *tally) add(bits uint8, by int32) {
	for b := range n.bits {
		if bits>>b&1 != 0 {
			n.bits[b] += by
		}
	}
}

func (n *tally) union() (bits uint8) {
	for b, c := range n.bits {
		if c > 0 {
			bits |= 1 << b
		}
	}
	return bits
}
