package index

import (
	"cmp"
	"slices"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

type blockHash struct {
	id   uint32
	hash prefix.Hash
}

// prove credits what a store on the device proves that stands on the doubted block of that hash: this block and all before it, on the device
// again. It returns the block, or 0 if that is not credited itself.
//
// Only the hash that was named is known to be there. Of a block before it that had several hashes on the device (an engine tells blocks apart that
// we cannot) nobody knows which is, and whoever credits it under another never hears that it goes. So such a block is not credited, nor what
// is behind it; what is before it is before it under each of its hashes, and proven as ever.
//
// That rests on this: if a tenure claims a block on the device, under a hash, it claims the one before it there too, under the hash that the
// engine has for it. So no block is credited here without those before it, and a tenure of which it is not so is loose, and proves nothing.
func (ix *Index) prove(x *holder, parent prefix.Hash, out *Outcome) (id uint32) {
	first := ix.resolve(x.old, parent)
	if x.old.loose || first == 0 || ix.claimed(x.old, parent, first)&(1<<prefix.Device) == 0 {
		return 0
	}
	if now := ix.resolve(x.cur, parent); now != 0 && now != first {
		return 0
	}
	ix.path = append(ix.path[:0], blockHash{first, parent})
	if !ix.remembered(x, first) || x.cur.claims+len(ix.path) > ix.limitOf(x) {
		return 0
	}
	for _, p := range ix.path {
		if ix.add(x.cur, p.hash, p.id, 1<<prefix.Device); p.id == first { // first: a block that nobody claims goes
			id = first
		}
		ix.drop(x.old, p.hash, p.id, 0xff)
	}
	out.Proven += len(ix.path)
	return id
}

// remembered adds to the path, which has the block that was named, those before it, up to the root or to one that counts already. Where one of
// them had several hashes, what was added so far goes again. It returns false where one had none, or one that means another block since: the
// engine contradicts itself then.
func (ix *Index) remembered(x *holder, id uint32) bool {
	for range maxPath {
		c, i := ix.blocks.at(id)
		parent := c.parentOf(i)
		if parent == 0 {
			return true
		}
		if id = ix.follow(x, parent); id == 0 {
			return false
		}
		hash, n := ix.onDevice(x.old, id)
		counts := ix.countOnDevice(x.cur, id)
		now := ix.resolve(x.cur, hash)
		switch same := n == 1 && now == id && ix.claimed(x.cur, hash, id)&(1<<prefix.Device) != 0; {
		case n+counts > 1 && !(same && counts == 1):
			ix.path = ix.path[:0]
		case counts > 0:
		case n == 0 || now != 0 && now != id:
			return false
		default:
			ix.path = append(ix.path, blockHash{id, hash})
		}
		if counts > 0 {
			return true
		}
	}
	return false
}

// onDevice returns how many hashes the doubted tenure has for a block on the device, and one of them.
func (ix *Index) onDevice(old *tenure, id uint32) (hash prefix.Hash, n int) {
	if n = ix.countOnDevice(old, id); n == 0 {
		return 0, 0
	}
	for _, h := range ix.hashes(old, id) {
		if ix.claimed(old, h, id)&(1<<prefix.Device) != 0 {
			hash = h
		}
	}
	return hash, n
}

func (ix *Index) countOnDevice(t *tenure, id uint32) int {
	c, i := ix.blocks.at(id)
	bits := ix.sets.bits(c.set[i], t.no)
	if bits&(1<<prefix.Device) == 0 {
		return 0
	}
	if n, several := t.several[id]; several {
		return int(n.bits[prefix.Device])
	}
	return 1
}

// claimed returns what a tenure claims of the block that the hash resolved to, under this hash.
func (ix *Index) claimed(t *tenure, hash prefix.Hash, id uint32) uint8 {
	c, i := ix.blocks.at(id)
	bits := ix.sets.bits(c.set[i], t.no)
	if bits&aliased != 0 {
		bits = t.private[hash].bits
	}
	return bits
}

// maxPath is the longest prefix that is proven: at 16 tokens a block a million tokens. It also ends a walk in a circle, into
// which a wrong ref could lead.
const maxPath = 1 << 16

// follow returns the block of that ref which counts already or is remembered, or 0.
func (ix *Index) follow(x *holder, r ref) uint32 {
	var s search
	for id := ix.names.search(&s, r.hash()); id != 0; id = s.next() {
		c, i := ix.blocks.at(id)
		if refTo(c.name[i]) == r && (ix.sets.bits(c.set[i], x.old.no) != 0 || ix.sets.bits(c.set[i], x.cur.no)&(1<<prefix.Device) != 0) {
			return id
		}
	}
	return 0
}

// hashes returns what a tenure calls a block that it claims, unless it has called it so only since byBlock was made.
func (ix *Index) hashes(t *tenure, id uint32) []prefix.Hash {
	c, i := ix.blocks.at(id)
	if ix.sets.bits(c.set[i], t.no)&aliased == 0 {
		return []prefix.Hash{c.hash[i]}
	}
	if t.byBlock == nil {
		for hash, a := range t.private {
			t.byBlock = append(t.byBlock, blockHash{a.id, hash})
		}
		slices.SortFunc(t.byBlock, func(a, b blockHash) int {
			return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.hash, b.hash))
		})
	}
	n, _ := slices.BinarySearchFunc(t.byBlock, id, func(b blockHash, id uint32) int { return cmp.Compare(b.id, id) })
	var found []prefix.Hash
	for ; n < len(t.byBlock) && t.byBlock[n].id == id; n++ {
		if a, there := t.private[t.byBlock[n].hash]; there && a.id == id { // not removed meanwhile
			found = append(found, t.byBlock[n].hash)
		}
	}
	// The block's own hash became an alias when the second came, which may be since.
	if own, there := t.private[c.hash[i]]; there && own.id == id && !slices.Contains(found, c.hash[i]) {
		found = append(found, c.hash[i])
	}
	return found
}
