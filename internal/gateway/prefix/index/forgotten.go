package index

import (
	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// mostForgotten is how many hashes are remembered that a holder has let go of. A step of an engine evicts some hundred blocks, and what it offloads
// is there some steps later.
const mostForgotten = 4096

// forgotten are the hashes that a holder claims for nothing any more, the last ones: an engine that stores on a slower tier without tokens may say so
// when it has told of the eviction from the device already (vLLM puts what its connector did behind what its pool did). It is kept for holders that
// do store so, and takes 32 bytes a hash and an entry of a map.
type forgotten struct {
	at   map[prefix.Hash]int // the last place of a hash in what
	what []remains           // as a ring, once it is full
	next int
}

// remains is what has to be known of a block to claim it again.
type remains struct {
	name   chain.Key
	before ref
	hash   prefix.Hash
}

func (f *forgotten) add(r remains, most int) {
	if len(f.what) < most {
		f.what = append(f.what, r)
	} else {
		if was := f.what[f.next].hash; f.at[was] == f.next {
			delete(f.at, was)
		}
		f.what[f.next] = r
	}
	f.at[r.hash] = f.next
	f.next = (f.next + 1) % most
}

// forget drops what a tenure claims of such bits under a hash.
func (ix *Index) forget(t *tenure, hash prefix.Hash, bits uint8) (known, news bool) {
	id := ix.resolve(t, hash)
	if id == 0 {
		return false, false
	}
	if t.gone != nil && ix.claimed(t, hash, id)&^bits == 0 {
		c, i := ix.blocks.at(id)
		t.gone.add(remains{c.name[i], c.parentOf(i), hash}, ix.recall)
	}
	return true, ix.drop(t, hash, id, bits)
}

// recalled claims the block that a hash meant before the holder let go of it, on a slower tier. It returns false if nobody remembers, or sets the
// result.
func (ix *Index) recalled(x *holder, hash prefix.Hash, bits uint8, out *Outcome) bool {
	place, there := x.cur.gone.at[hash]
	if !there {
		return false
	}
	r := x.cur.gone.what[place]
	id, set := ix.find(r.name, 0)
	if id = ix.makeRoom(x, hash, id, set, out); out.Result != Applied {
		return false
	}
	if id == 0 {
		id = ix.create(r.name, r.before, hash)
	}
	if ix.add(x.cur, hash, id, bits) {
		out.Blocks++
	}
	return true
}
