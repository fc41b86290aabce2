package local

import (
	"math"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
)

// Rank is one data-parallel rank of an engine, and what its events are told to. It joins the index of its block size with the first store
// that says one, and leaves it when its claims are withdrawn: a restarted engine may have another. Of an engine with several KV cache groups
// the size is that of the one with full attention, whichever stores first. Its methods belong to one goroutine.
type Rank struct {
	store  *Store
	engine Engine
	no     int32

	// Changed with the store's mutex held.
	limit  int     // that was set; 0: see limitLocked
	pool   int64   // of the engine's KV memory, in tokens; 0: not known
	in     *opened // nil: no block size is known yet
	holder index.Holder
	trust  index.State
	closed bool

	adopted bool // somebody else said what the block size is, and maybe claims; the rank's goroutine's
}

// Apply tells the index what the rank published. Before the first store that has a block size there is nothing to remove, and no block has a name.
func (r *Rank) Apply(e *prefix.Event) index.Outcome {
	if r.in == nil {
		if r.closed || e.Kind != prefix.Stored || e.BlockSize <= 0 {
			return index.Outcome{Unknown: len(e.Hashes)}
		}
		r.join(e.BlockSize)
	} else if e.Kind == prefix.Stored && e.BlockSize != r.in.domain.blockSize {
		r.resize(e)
	}
	return r.in.Apply(r.holder, e)
}

// resize goes over to the index of a store's block size, if that is the rank's and another was taken for it: that of a group without full
// attention, or of a partial block, as some engines publish them, whose size divides the whole one's. What was claimed then goes. Claims
// that were adopted stay: who stores in another size than they are of is not the engine that they are of. The first of these is done once,
// and then sizes only double and more, so no engine can have it done for ever.
func (r *Rank) resize(e *prefix.Event) {
	if r.adopted || len(e.Tokens) == 0 || e.BlockSize <= 0 || e.Recurrent || e.Window > 0 || e.Group < 0 || e.Group >= math.MaxInt32 {
		return
	}
	g, group := r.in.Groups(r.holder), int32(e.Group)+1
	switch {
	case group == g.Sliding, group == g.Recurrent: // it says that a group is what it is not
		return
	case g.Full == 0:
	case g.Full != group, e.BlockSize%r.in.domain.blockSize != 0: // a further group; or a partial block of this size
		return
	}
	g.Full, g.Missed = group, g.Missed || g.Sliding != 0 || g.Recurrent != 0
	r.leave()
	r.join(e.BlockSize)
	r.in.SetGroups(r.holder, g)
}

func (r *Rank) join(blockSize int) {
	s := r.store
	s.mu.Lock()
	defer s.mu.Unlock()
	r.in = s.joinLocked(domain{r.engine.Base, blockSize})
	r.holder = r.in.Open(r.engine.No, r.no)
	s.boundLocked(r)
	r.in.Mark(r.holder, r.trust)
	s.dirty.Store(true)
	s.bindLocked(r.engine.URL)
}

// Expect says how large the rank's KV pool is, in tokens, as its engine reports it; 0 or less: not known. The rank's claims are bounded by a
// multiple of as many blocks (see limits.go).
func (r *Rank) Expect(tokens int64) {
	s := r.store
	s.mu.Lock()
	defer s.mu.Unlock()
	r.pool = max(0, tokens)
	s.boundLocked(r)
}

// SetLimit bounds the rank's claims, whatever its pool is; 0: as follows from its pool and the store's options.
func (r *Rank) SetLimit(claims int) {
	s := r.store
	s.mu.Lock()
	defer s.mu.Unlock()
	r.limit = max(0, claims)
	s.boundLocked(r)
}

// Mark says how far the rank is to be believed from now on.
func (r *Rank) Mark(trust index.State) {
	if r.trust == trust {
		return
	}
	s := r.store
	s.mu.Lock()
	defer s.mu.Unlock()
	r.trust = trust
	if r.in != nil {
		r.in.Mark(r.holder, trust)
	} else {
		s.dirty.Store(true)
		s.bindLocked(r.engine.URL)
	}
}

// Withdraw drops all that the rank claimed, and hides it.
func (r *Rank) Withdraw() {
	s := r.store
	s.mu.Lock()
	defer s.mu.Unlock()
	r.trust, r.adopted = index.Hidden, false
	if !r.closed {
		r.leaveLocked()
		s.dirty.Store(true)
		s.bindLocked(r.engine.URL)
	}
}

func (r *Rank) leave() {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	r.leaveLocked()
}

func (r *Rank) leaveLocked() {
	if r.in != nil {
		r.in.Close(r.holder)
		r.store.leaveLocked(r.in)
		r.in = nil
	}
}

// Doubt says that events were lost for good; see index.Index.Doubt.
func (r *Rank) Doubt() {
	s := r.store
	s.mu.Lock()
	defer s.mu.Unlock()
	r.trust = index.Partial
	if r.in != nil {
		r.in.Doubt(r.holder)
	} else if !r.closed {
		s.dirty.Store(true)
		s.bindLocked(r.engine.URL)
	}
}

// Settle forgets the claims that Doubt remembers.
func (r *Rank) Settle() {
	if r.in != nil {
		r.in.Settle(r.holder)
	}
}

// About describes what the rank claims, and its block size, 0 while that is unknown.
func (r *Rank) About() (a index.About, blockSize int) {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	return r.aboutLocked()
}

func (r *Rank) aboutLocked() (a index.About, blockSize int) {
	if r.in == nil {
		return index.About{State: r.trust}, 0
	}
	return r.in.About(r.holder), r.in.domain.blockSize
}

// Close takes the rank out. Closing twice does nothing.
func (r *Rank) Close() {
	s := r.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.closed {
		return
	}
	r.closed = true
	r.leaveLocked()
	delete(s.mu.ranks, r)
	s.countLocked(r.engine.No, -1)
	s.dirty.Store(true)
	s.bindLocked(r.engine.URL)
}
