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

// prove credits the doubted block of that hash, and all before it, with being on the device again, and returns it. If one of them is not
// among what is remembered, nothing is credited: what an engine calls it is then unknown, and its removal could not be followed.
func (ix *Index) prove(x *holder, parent prefix.Hash, out *Outcome) uint32 {
	first := ix.resolve(x.old, parent)
	if first == 0 || !ix.remembered(x, first) {
		return 0
	}
	if x.cur.claims+len(ix.path) > ix.limitOf(x) {
		return 0
	}
	for _, id := range ix.path {
		for _, hash := range ix.hashes(x.old, id) {
			ix.add(x.cur, hash, id, 1<<prefix.Device) // first: a block that nobody claims goes
			ix.drop(x.old, hash, id, 0xff)
		}
	}
	out.Proven += len(ix.path)
	return first
}

// remembered fills the path with a block and those before it, up to the root or to one that counts already, and tells whether all are
// claims of the doubted tenure, under hashes that mean nothing else since.
func (ix *Index) remembered(x *holder, id uint32) bool {
	ix.path = ix.path[:0]
	for {
		c, i := ix.blocks.at(id)
		if ix.sets.bits(c.set[i], x.cur.no)&(1<<prefix.Device) != 0 {
			return true
		}
		for _, hash := range ix.hashes(x.old, id) {
			if now := ix.resolve(x.cur, hash); now != 0 && now != id {
				return false
			}
		}
		ix.path = append(ix.path, id)
		parent := c.parentOf(i)
		if parent == 0 {
			return true
		}
		if id = ix.follow(x, parent); id == 0 || len(ix.path) > maxPath {
			return false
		}
	}
}

// maxPath is the longest prefix that is proven: at 16 tokens a block a million tokens. It also ends a walk in a circle, into
// which a wrong ref could lead.
const maxPath = 1 << 16

// follow returns the block of that ref which counts already or is remembered, or 0.
func (ix *Index) follow(x *holder, r ref) uint32 {
	s := ix.names.search(r.hash())
	for id := s.next(); id != 0; id = s.next() {
		c, i := ix.blocks.at(id)
		if refTo(c.name[i]) == r && (ix.sets.bits(c.set[i], x.old.no) != 0 || ix.sets.bits(c.set[i], x.cur.no)&(1<<prefix.Device) != 0) {
			return id
		}
	}
	return 0
}

// hashes returns what the doubted tenure calls a block that it claims.
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
	return found
}
