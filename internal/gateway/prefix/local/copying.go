package local

import (
	"cmp"
	"slices"

	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
)

// Copying is what a rank claims, on its way to somebody else. It belongs to one goroutine, which need not be the rank's.
type Copying struct {
	Engine uint32
	Rank   int32
	Domain Domain

	rank   *Rank
	in     *opened
	holder index.Holder
	at     index.Cursor
}

// Copyings begins a copy of each rank whose engine serves the model and has stored something, sorted by engine and rank.
func (s *Store) Copyings(model string) (all []*Copying) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := range s.mu.ranks {
		serves := false
		r.engine.each(func(name, _ string) { serves = serves || name == model })
		if r.in == nil || !serves {
			continue
		}
		all = append(all, &Copying{
			Engine: r.engine.No, Rank: r.no, Domain: Domain{r.in.domain.base, r.in.domain.blockSize},
			rank: r, in: r.in, holder: r.holder,
		})
	}
	slices.SortFunc(all, func(a, b *Copying) int {
		return cmp.Or(cmp.Compare(a.Engine, b.Engine), cmp.Compare(a.Rank, b.Rank))
	})
	return all
}

// Groups returns the KV cache groups that the rank's engine has shown by now. Whoever says that the copy has all that the engine published before some
// batch asks after that batch is applied: a group that is not known asks for nothing, and whoever has the copy credits too much.
func (c *Copying) Groups() index.Groups { return c.in.Groups(c.holder) }

// Next fills into with further claims and returns how many, maybe none though there are more. It is called until done or void; void says
// that the rank's claims ended meanwhile, so that what was copied is good for nothing.
func (c *Copying) Next(into []index.Claim) (n int, done, void bool) {
	n = c.in.Copy(c.holder, &c.at, into)
	if c.at.Done && !c.in.holds(c.rank, c.holder) {
		return n, true, true // its number is another's now
	}
	return n, c.at.Done, c.at.Void
}

// holds tells whether the rank is in the index under that number.
func (o *opened) holds(r *Rank, h index.Holder) bool {
	s := r.store
	s.mu.Lock()
	defer s.mu.Unlock()
	return !r.closed && r.in == o && r.holder == h
}

// Adopt takes in claims that were copied from the same rank elsewhere: the first of a rank that has none yet say of which block size they
// are. They are seen when the rank is marked. The outcome is as of Apply.
func (r *Rank) Adopt(blockSize int, claims []index.Claim) index.Outcome {
	if r.in == nil {
		if r.closed || blockSize <= 0 {
			return index.Outcome{Result: index.Refused}
		}
		r.join(blockSize)
		r.adopted = true
	}
	if r.in.domain.blockSize != blockSize {
		return index.Outcome{Result: index.OtherSize}
	}
	return r.in.Paste(r.holder, claims)
}

// AdoptGroups says what KV cache groups adopted claims speak of; it comes before them, with their block size.
func (r *Rank) AdoptGroups(blockSize int, g index.Groups) {
	if r.Adopt(blockSize, nil).Result == index.Applied {
		r.in.SetGroups(r.holder, g)
	}
}
