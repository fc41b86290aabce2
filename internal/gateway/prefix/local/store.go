// Package local is the prefix source of a gateway that follows its engines itself: one index for each base model and block size, found by
// the names that engines serve.
//
// It promises that an engine which is known here ([Store.Know]) is, in every match of a model that it serves, either credited with what it claims or
// listed as blind; that block sizes are learnt from what engines publish, never assumed; and that what belongs to an engine is gone when
// its last rank is closed.
//
// Look-ups take no lock. The package is pure: whoever owns a [Store] calls Sweep now and then.
package local

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
)

// Options bound a store. The zero value has the index's defaults.
type Options struct {
	// Limit is the most claims of one rank whose KV pool's size is not known; see index.Config. An engine may have four times as many with all
	// its ranks.
	Limit int
	// MaxBlocks is the most blocks of each index.
	MaxBlocks int
}

// Store holds the indexes. All methods may be called at once; a [Rank]'s belong to one goroutine.
type Store struct {
	opt  Options
	seen atomic.Pointer[directory]
	// dirty says that what seen was made from has changed since.
	dirty atomic.Bool

	mu struct {
		sync.Mutex // order: before an index's own
		ranks      map[*Rank]struct{}
		ranksOf    map[uint32]int    // by engine: how many they are
		known      map[uint32]Engine // by number
		domains    map[domain]*opened
		shelves    map[*Shelf]struct{}
		guests     map[guest]index.Holder
		swept      int
	}
}

// domain is what an index is for.
type domain struct {
	base      string
	blockSize int
}

type opened struct {
	*index.Index
	domain domain
	users  int // ranks, guests and shelves
}

// directory is what look-ups find things by. It never changes.
type directory struct {
	names map[string]served
}

// served is what a name stands for.
type served struct {
	lora    string // the adapter of that name, empty for the base model itself
	indexes []*opened
	// blind are the engines that serve the name and of which no index knows yet, sorted.
	blind []uint32
}

// New returns a store without engines.
func New(o Options) *Store {
	s := &Store{opt: o}
	s.mu.ranks, s.mu.domains, s.mu.known = map[*Rank]struct{}{}, map[domain]*opened{}, map[uint32]Engine{}
	s.mu.ranksOf = map[uint32]int{}
	s.mu.shelves, s.mu.guests = map[*Shelf]struct{}{}, map[guest]index.Holder{}
	s.seen.Store(&directory{})
	return s
}

// Engine is what the store has to know of one.
type Engine struct {
	// No is fleet.Worker.No.
	No uint32
	// URL is its base without a trailing slash, by which Managers know it; empty: they do not.
	URL string
	// Base is the id of the base model whose blocks it publishes; Names are all ids that clients may use for it, Base among them.
	Base  string
	Names []string
	// Adapters are further ids: each is an adapter of Base, and the name of its LoRA in the engine's events.
	Adapters []string
}

// each calls f with each name that the engine goes by, and the adapter that it stands for.
func (e *Engine) each(f func(name, lora string)) {
	f(e.Base, "")
	for _, name := range e.Names {
		if name != e.Base {
			f(name, "")
		}
	}
	for _, name := range e.Adapters {
		f(name, name)
	}
}

var _ prefix.Source = (*Store)(nil)

// Name implements prefix.Source.
func (s *Store) Name() string { return "local" }

// Lookup implements prefix.Source. The query's model may be any name that an engine serves; one that none serves is a miss. A query
// with a LoRA of its own keeps it.
func (s *Store) Lookup(_ context.Context, q *prefix.Query, into *prefix.Match) error {
	n := s.current().names[q.Model]
	if n.lora != "" && q.LoRA == "" {
		with := *q
		with.LoRA = n.lora
		q = &with
	}
	switch len(n.indexes) {
	case 0:
	case 1:
		n.indexes[0].Lookup(q, into)
	default:
		lookupAll(n.indexes, q, into)
	}
	if len(n.blind) > 0 {
		into.Blind = append(into.Blind, n.blind...)
		slices.Sort(into.Blind)
		into.Blind = slices.Compact(into.Blind)
	}
	return nil
}

// lookupAll asks several indexes, as while engines of two block sizes serve one model, and merges their answers: an engine's ranks
// may be of both.
func lookupAll(all []*opened, q *prefix.Query, into *prefix.Match) {
	var one prefix.Match
	for _, ix := range all {
		one.Reset()
		ix.Lookup(q, &one)
		into.Held = append(into.Held, one.Held...)
		into.Blind = append(into.Blind, one.Blind...)
	}
	slices.SortFunc(into.Held, func(a, b prefix.Held) int {
		return cmp.Or(cmp.Compare(a.Engine, b.Engine), cmp.Compare(a.Rank, b.Rank))
	})
	slices.Sort(into.Blind)
	into.Blind = slices.Compact(into.Blind)
}

// Know makes engines known, with the names that they have now, and forgets those that are not listed. One without an open rank is blind: it publishes nothing that we could
// find.
func (s *Store) Know(engines []Engine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.mu.known)
	for _, e := range engines {
		e.Names, e.Adapters = slices.Clone(e.Names), slices.Clone(e.Adapters)
		s.mu.known[e.No] = e
	}
	s.dirty.Store(true)
	s.bindLocked()
}

// Open makes one rank of an engine known: blind, until its events say otherwise. The caller closes it.
func (s *Store) Open(e Engine, rank int32) *Rank {
	e.Names, e.Adapters = slices.Clone(e.Names), slices.Clone(e.Adapters)
	r := &Rank{store: s, engine: e, no: rank}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.ranks[r] = struct{}{}
	s.countLocked(e.No, 1)
	s.dirty.Store(true)
	s.bindLocked(e.URL)
	return r
}

// current returns the directory as it is now. The first look-up after a change writes it anew, unless somebody changes more just then: a
// fleet that registers a thousand ranks would otherwise write it a thousand times. No look-up waits.
func (s *Store) current() *directory {
	if s.dirty.Load() && s.mu.TryLock() {
		s.currentLocked()
		s.mu.Unlock()
	}
	return s.seen.Load()
}

func (s *Store) currentLocked() *directory {
	if s.dirty.Swap(false) {
		s.writeLocked()
	}
	return s.seen.Load()
}

// writeLocked writes the directory anew.
func (s *Store) writeLocked() {
	d := &directory{names: map[string]served{}}
	open := map[uint32]bool{}
	for r := range s.mu.ranks {
		open[r.engine.No] = true
		e, there := s.mu.known[r.engine.No]
		if !there || e.Base != r.engine.Base {
			e = r.engine // what it said when it was opened; adapters come and go
		}
		e.each(func(name, lora string) {
			n := d.names[name]
			n.lora = lora
			switch {
			case r.in == nil && r.trust != index.Exact: // an exact one without an index has stored nothing yet
				n.blind = append(n.blind, r.engine.No)
			case r.in != nil && !slices.Contains(n.indexes, r.in):
				n.indexes = append(n.indexes, r.in)
			}
			d.names[name] = n
		})
	}
	for no, e := range s.mu.known {
		if open[no] {
			continue
		}
		e.each(func(name, lora string) {
			n := d.names[name]
			n.lora, n.blind = lora, append(n.blind, no)
			d.names[name] = n
		})
	}
	s.publishGuestsLocked(d)
	for name, n := range d.names {
		slices.Sort(n.blind)
		n.blind = slices.Compact(n.blind)
		slices.SortFunc(n.indexes, func(a, b *opened) int { return cmp.Compare(a.domain.blockSize, b.domain.blockSize) })
		d.names[name] = n
	}
	s.seen.Store(d)
}

// publishGuestsLocked adds the indexes in which engines are guests to what their names stand for.
func (s *Store) publishGuestsLocked(d *directory) {
	if len(s.mu.guests) == 0 {
		return
	}
	add := func(e *Engine) {
		for g := range s.mu.guests {
			if g.engine != e.No {
				continue
			}
			e.each(func(name, _ string) {
				if n, there := d.names[name]; there && !slices.Contains(n.indexes, g.in) {
					n.indexes = append(n.indexes, g.in)
					d.names[name] = n
				}
			})
		}
	}
	for r := range s.mu.ranks {
		add(&r.engine)
	}
	for _, e := range s.mu.known {
		add(&e)
	}
}

// At returns the numbers of the engines at a URL.
func (s *Store) At(url string) (nos []uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if url == "" {
		return nil
	}
	for no := range s.sitesLocked(map[string]bool{url: true}) {
		nos = append(nos, no)
	}
	slices.Sort(nos)
	return nos
}

// joinLocked returns the index of a domain.
func (s *Store) joinLocked(d domain) *opened {
	o := s.mu.domains[d]
	if o == nil {
		o = &opened{domain: d, Index: index.New(index.Config{
			Model: d.base, BlockSize: d.blockSize, Limit: s.opt.Limit, MaxBlocks: s.opt.MaxBlocks,
		})}
		s.mu.domains[d] = o
	}
	o.users++
	return o
}

// leaveLocked lets go of an index, which goes when nobody uses it.
func (s *Store) leaveLocked(o *opened) {
	if o.users--; o.users == 0 {
		delete(s.mu.domains, o.domain)
	}
}

// Sweep frees memory of claims that were dropped, looking at so many blocks at most in one index, the next in turn, and tells whether
// any has more. A millisecond is good for about 20,000 blocks.
func (s *Store) Sweep(blocks int) (more bool) {
	s.mu.Lock()
	all := make([]*opened, 0, len(s.mu.domains))
	for _, o := range s.mu.domains {
		all = append(all, o)
	}
	s.mu.swept++
	turn := s.mu.swept
	s.mu.Unlock()
	if len(all) == 0 {
		return false
	}
	slices.SortFunc(all, func(a, b *opened) int {
		return cmp.Or(cmp.Compare(a.domain.base, b.domain.base), cmp.Compare(a.domain.blockSize, b.domain.blockSize))
	})
	for i := range all {
		if all[(turn+i)%len(all)].Sweep(blocks) {
			return true
		}
	}
	return false
}

// About describes what a rank of an engine claims, and its block size, 0 while that is unknown; false where no such rank is open.
func (s *Store) About(engine uint32, rank int32) (a index.About, blockSize int, there bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := range s.mu.ranks {
		if r.engine.No == engine && r.no == rank {
			a, blockSize = r.aboutLocked()
			return a, blockSize, true
		}
	}
	return a, 0, false
}

// DomainStats are figures of one index.
type DomainStats struct {
	Base      string
	BlockSize int
	index.Stats
}

// Stats returns figures of each index, sorted.
func (s *Store) Stats() []DomainStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []DomainStats
	for d, o := range s.mu.domains {
		out = append(out, DomainStats{d.base, d.blockSize, o.Stats()})
	}
	slices.SortFunc(out, func(a, b DomainStats) int {
		return cmp.Or(cmp.Compare(a.Base, b.Base), cmp.Compare(a.BlockSize, b.BlockSize))
	})
	return out
}
