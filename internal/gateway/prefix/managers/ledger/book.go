package ledger

import (
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/wire"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
	"github.com/perigee-llm/perigee/internal/managerwire"
)

// book is what one incarnation of a Manager has said. It is hidden until it is marked.
type book struct {
	l     *Ledger
	trust index.State
	cut   Excess
	// manager is what it calls itself.
	manager string
	spaces  map[managerwire.Namespace]map[local.Domain]*shelf
	// engines are registrations by the engine's URL, without a trailing slash.
	engines map[string][]registration
	// prices are the last ones, by URL and tier; they are told to prefix.Costs, and costed are the engines that have them from here, while live.
	prices map[string]*[prefix.Tiers]prefix.CostRecord
	costed map[uint32]struct{}
	source uint64 // of its prices
	live   bool   // it is the book that counts, and not one that is being made of a snapshot

	shelves, attached, claims int
	events                    uint64 // all, also those of no use
	dec                       wire.ManagerDecoder
	batch                     []index.Claim // scratch
	hashes                    []prefix.Hash // scratch
}

// shelf counts what is on one.
type shelf struct {
	*local.Shelf
	claims int
}

func (l *Ledger) newBook() *book {
	b := &book{l: l, source: l.costs.Source()}
	b.begin()
	return b
}

func (b *book) begin() {
	b.spaces, b.engines = map[managerwire.Namespace]map[local.Domain]*shelf{}, map[string][]registration{}
	b.prices, b.costed = map[string]*[prefix.Tiers]prefix.CostRecord{}, map[uint32]struct{}{}
	b.shelves, b.attached, b.claims = 0, 0, 0
}

// clear drops everything, and so does drop, after which a Manager that was cut off still is.
func (b *book) clear() {
	b.drop()
	b.cut = NoExcess
}

func (b *book) drop() {
	for _, of := range b.spaces {
		for _, s := range of {
			s.Close()
		}
	}
	for no := range b.costed {
		b.l.costs.Withdraw(b.source, no)
	}
	b.begin()
}

// exceed cuts the Manager off.
func (b *book) exceed(of Excess) {
	b.drop()
	b.cut = of
}

func (b *book) mark(trust index.State) {
	if b.trust == trust {
		return
	}
	b.trust = trust
	for _, of := range b.spaces {
		for _, s := range of {
			s.Mark(trust)
		}
	}
}

// apply applies a batch's events. It returns false if some may have taken something away that could not be read: then everything before
// that place is dropped.
func (b *book) apply(now time.Time, payload []byte) (head managerwire.Head, ok bool) {
	c := &b.l.counts
	if b.dec.Begin(payload) != nil {
		c.BadBatches++
		b.drop()
		return head, false
	}
	b.manager = b.dec.Head.Manager
	b.events += uint64(b.dec.Len())
	before := b.dec.Bad
	for ok = true; ; {
		switch b.dec.Next() {
		case wire.Event:
			b.event(now, &b.dec.Event)
			continue
		case wire.Lost, wire.Broken:
			b.drop()
			ok = false
			continue
		case wire.End:
		}
		for i := range b.dec.Bad {
			c.Bad[i] += b.dec.Bad[i] - before[i]
		}
		return b.dec.Head, ok
	}
}

func (b *book) event(now time.Time, e *managerwire.Event) {
	c := &b.l.counts
	if b.cut != NoExcess {
		return
	}
	switch e.Kind {
	case managerwire.BlockStored:
		c.Stored++
		b.stored(e)
	case managerwire.BlockRemoved:
		c.Removed++
		b.removed(e)
	case managerwire.AllBlocksCleared:
		c.Cleared++
		b.cleared(e.Namespace)
	case managerwire.Attached:
		c.Attached++
		b.attach(e)
	case managerwire.Detached:
		c.Detached++
		b.detach(e)
	case managerwire.Cost:
		c.Costs++
		b.cost(now, e)
	}
}

// pasted is how many claims are told to the index at once: a millisecond in which no engine's event is applied.
const pasted = 1024

// stored puts blocks on their shelf. A block's name is also what the index knows it by, so that a removal by name finds it.
func (b *book) stored(e *managerwire.Event) {
	s := b.shelf(e.Namespace, local.Domain{Base: e.Model, BlockSize: e.BlockSize})
	if s == nil {
		return
	}
	tier, before := prefix.Tier(e.Medium), e.Parent
	for chain := e.Chain; len(chain) > 0; {
		b.batch = b.batch[:0]
		for _, k := range chain[:min(len(chain), pasted)] {
			b.batch = append(b.batch, index.Claim{Name: k, Before: before.Lo, Hash: prefix.Hash(k.Lo), Bits: 1 << tier})
			before = k
		}
		chain = chain[len(b.batch):]
		o := s.Put(tier, b.batch)
		s.claims += o.Blocks
		b.claims += o.Blocks
		b.l.counts.Blocks += uint64(o.Blocks)
		switch {
		case o.Result == index.Exceeded || b.claims > b.l.lim.Claims:
			b.exceed(TooManyClaims)
			return
		case o.Result == index.Full:
			b.l.counts.Full += uint64(len(b.batch) - o.Blocks + len(chain))
			return // what is behind counts for nobody without it
		}
	}
}

// shelf returns a namespace's, which is made when the first block comes.
func (b *book) shelf(ns managerwire.Namespace, d local.Domain) *shelf {
	if s := b.spaces[ns][d]; s != nil {
		return s
	}
	if b.shelves >= b.l.lim.Namespaces {
		b.exceed(TooManySpaces)
		return nil
	}
	if b.spaces[ns] == nil {
		b.spaces[ns] = map[local.Domain]*shelf{}
	}
	s := &shelf{Shelf: b.l.store.OpenShelf(d, b.l.lim.Claims)}
	s.Mark(b.trust)
	b.spaces[ns][d] = s
	b.shelves++
	for url, all := range b.engines {
		s.Attach(url, attachments(all, ns))
	}
	return s
}

func (b *book) removed(e *managerwire.Event) {
	b.hashes = b.hashes[:0]
	for _, k := range e.Chain {
		b.hashes = append(b.hashes, prefix.Hash(k.Lo))
	}
	first, last := prefix.Tier(e.Medium), prefix.Tier(e.Medium)
	if e.Medium == managerwire.NoMedium {
		first, last = prefix.Host, prefix.External
	}
	for _, s := range b.spaces[e.Namespace] {
		for t := first; t <= last; t++ {
			n := s.Remove(t, b.hashes)
			s.claims -= n
			b.claims -= n
			b.l.counts.Blocks += uint64(n)
		}
	}
}

// cleared takes a namespace's shelves away, or all of them. Who is attached stays so.
func (b *book) cleared(ns managerwire.Namespace) {
	for at, of := range b.spaces {
		if ns != (managerwire.Namespace{}) && at != ns {
			continue
		}
		for _, s := range of {
			b.claims -= s.claims
			b.l.counts.Blocks += uint64(s.claims)
			b.shelves--
			s.Close()
		}
		delete(b.spaces, at)
	}
}
