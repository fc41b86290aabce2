package index

import (
	"cmp"
	"slices"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// holder is what the writer knows of one.
type holder struct {
	open   bool
	store  bool
	engine uint32
	rank   int32
	state  State
	short  bool // since its claims began the index had no room for some
	limit  int  // 0: the index's

	cur *tenure
	old *tenure // what Doubt remembers, or nil

	attached []Holder // a store's
	groups   groups
}

// tenure is a holder's claims from one beginning to the next. Readers know which tenure counts, so that ending one is ending all its claims.
type tenure struct {
	no     uint32
	dead   bool
	blocks int    // sets that it is in
	claims int    // pairs of a hash and a block: what the limit bounds
	last   uint32 // the block that was stored last, 0 if none was: mostly the next one's parent; it may be gone

	// private has the claims that are not under the block's own hash, and all of a block's that has several; mostly there are none.
	private map[prefix.Hash]alias
	// several counts the claims of blocks that the holder claims under several hashes at once: it tells blocks apart that we cannot.
	several map[uint32]tally

	// loose says that the tenure may claim a block on the device without the one before it, so that it proves nothing when it is doubted: see prove.
	loose bool

	gone *forgotten // nil: the holder has not stored without tokens

	byBlock []blockHash // of a doubted tenure, or one that is copied: private the other way round, sorted; made when first needed
}

type alias struct {
	id   uint32
	bits uint8
}

// tally counts hashes, and for each bit those that claim it.
type tally struct {
	hashes int32
	bits   [8]int32
}

// Open makes a rank of an engine (fleet.Worker.No) a holder. It is hidden.
func (ix *Index) Open(engine uint32, rank int32) Holder {
	return ix.open(holder{engine: engine, rank: rank})
}

// OpenStore makes a Cache Manager's namespace, in one incarnation of the Manager, a holder. What it claims, on lower tiers only,
// counts for the holders that are attached to it. It is hidden.
func (ix *Index) OpenStore() Holder { return ix.open(holder{store: true}) }

func (ix *Index) open(h holder) Holder {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	h.open, h.cur = true, ix.begin()
	var no Holder
	if n := len(ix.freed); n > 0 {
		no, ix.freed = ix.freed[n-1], ix.freed[:n-1]
		ix.holders[no] = h
	} else {
		no = Holder(len(ix.holders))
		ix.holders = append(ix.holders, h)
	}
	if !h.store {
		i, _ := slices.BinarySearchFunc(ix.order, no, ix.compare)
		ix.order = slices.Insert(ix.order, i, no)
	}
	ix.publish()
	return no
}

// compare orders holders as a match has them.
func (ix *Index) compare(a, b Holder) int {
	x, y := &ix.holders[a], &ix.holders[b]
	return cmp.Or(cmp.Compare(x.engine, y.engine), cmp.Compare(x.rank, y.rank), cmp.Compare(a, b))
}

// change calls do for an open holder, and publishes what it did.
func (ix *Index) change(h Holder, do func(*holder)) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if int(h) < len(ix.holders) && ix.holders[h].open {
		do(&ix.holders[h])
		ix.publish()
	}
}

// Close ends a holder: its claims go, and its number may be given again.
func (ix *Index) Close(h Holder) {
	ix.change(h, func(x *holder) {
		ix.end(x.cur)
		ix.end(x.old)
		if i := slices.Index(ix.order, h); i >= 0 {
			ix.order = slices.Delete(ix.order, i, i+1)
		}
		for i := range ix.holders {
			ix.holders[i].detach(h)
		}
		*x = holder{}
		ix.freed = append(ix.freed, h)
	})
}

// SetLimit bounds the holder's claims: the blocks of its pools, say, all tiers together, with some room. 0 is the index's limit.
func (ix *Index) SetLimit(h Holder, claims int) {
	ix.set(h, func(x *holder) { x.limit = max(0, claims) })
}

// set changes of an open holder what readers do not see.
func (ix *Index) set(h Holder, do func(*holder)) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if int(h) < len(ix.holders) && ix.holders[h].open {
		do(&ix.holders[h])
	}
}

// Mark says how far the holder is to be believed from now on. A holder that is cut off stays so until Withdraw.
func (ix *Index) Mark(h Holder, s State) {
	ix.change(h, func(x *holder) {
		if x.state != CutOff && s < CutOff {
			x.state = s
		}
	})
}

// Attach says that the engine can restore what the store holds; Detach ends it. Both may be repeated.
func (ix *Index) Attach(store, engine Holder) {
	ix.change(store, func(x *holder) {
		if x.store && int(engine) < len(ix.holders) && ix.holders[engine].open && !ix.holders[engine].store && !slices.Contains(x.attached, engine) {
			x.attached = append(x.attached, engine)
		}
	})
}

// Detach ends what Attach said.
func (ix *Index) Detach(store, engine Holder) {
	ix.change(store, func(x *holder) { x.detach(engine) })
}

func (x *holder) detach(engine Holder) {
	if i := slices.Index(x.attached, engine); i >= 0 {
		x.attached = slices.Delete(x.attached, i, i+1)
	}
}

// Withdraw drops all that the holder claimed, at once for readers, and hides it: it was restarted, or its events cannot be followed.
// What comes next is a beginning. (An engine that says itself that it holds nothing, prefix.Cleared, loses its claims and keeps its state.)
func (ix *Index) Withdraw(h Holder) {
	ix.change(h, func(x *holder) {
		ix.clear(x)
		x.state, x.groups = Hidden, groups{}
	})
}

// Doubt says that events of the holder were lost for good. What it claimed so far is credited no more; but it is remembered, and
// where a later store on the device stands on such a block, that block and those before it count again: the engine has just proven
// that it holds them. (Not blocks before it that it called by several hashes, of which nobody knows which is there; and not for hybrid models.) The holder becomes partial. Settle forgets the doubted claims; so does the next Doubt.
func (ix *Index) Doubt(h Holder) {
	ix.change(h, func(x *holder) {
		ix.end(x.old)
		x.old, x.cur = x.cur, ix.begin()
		x.old.byBlock = nil                      // a copy may have left what is no longer true
		x.cur.gone, x.old.gone = x.old.gone, nil // what a hash means does not change
		if x.state != CutOff {
			x.state = Partial
		}
	})
}

// Settle forgets what Doubt remembers.
func (ix *Index) Settle(h Holder) {
	ix.change(h, func(x *holder) {
		ix.end(x.old)
		x.old = nil
	})
}

// clear ends the holder's claims.
func (ix *Index) clear(x *holder) {
	ix.end(x.cur)
	ix.end(x.old)
	x.cur, x.old, x.short = ix.begin(), nil, false
}

func (ix *Index) begin() *tenure {
	t := &tenure{}
	if n := len(ix.freeNos); n > 0 {
		t.no, ix.freeNos = ix.freeNos[n-1], ix.freeNos[:n-1]
		ix.tenures[t.no] = t
	} else {
		t.no = uint32(len(ix.tenures))
		ix.tenures = append(ix.tenures, t)
	}
	return t
}

// end leaves a tenure's claims to Sweep; nil is none.
func (ix *Index) end(t *tenure) {
	if t == nil {
		return
	}
	t.dead, t.private, t.several, t.byBlock, t.gone = true, nil, nil, nil, nil
	ix.dead++
	if ix.litter += t.blocks; t.blocks == 0 {
		ix.bury(t)
	}
	ix.help(helpEnd)
}

// bury frees the number of a tenure that is in no set any more.
func (ix *Index) bury(t *tenure) {
	ix.dead--
	ix.tenures[t.no] = nil
	ix.epochs.retire(aTenure, t.no)
}

// About is what the index says of a holder, for metrics and for people.
type About struct {
	State State
	// Claims are counted against Limit; Doubted ones wait to be proven.
	Claims, Doubted, Limit int
	// OwnHashes are claims under a hash that differs from other holders': they cost more memory, see the package's design note.
	OwnHashes int
	// Hybrid says that the engine has KV cache groups besides full attention.
	Hybrid bool
}

// About describes a holder; zero for one that is closed.
func (ix *Index) About(h Holder) (a About) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if int(h) >= len(ix.holders) || !ix.holders[h].open {
		return a
	}
	x := &ix.holders[h]
	a = About{State: x.believed(), Claims: x.cur.claims, Limit: ix.limitOf(x), OwnHashes: len(x.cur.private), Hybrid: x.groups.hybrid()}
	if x.old != nil {
		a.Doubted = x.old.claims
	}
	return a
}

func (ix *Index) limitOf(x *holder) int {
	if x.limit > 0 {
		return x.limit
	}
	return ix.limit
}
