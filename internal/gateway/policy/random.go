package policy

import (
	"context"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
)

// Random picks uniformly among the candidates that admission lets in; if it lets in none the pick fails with NoAdmissibleEngine.
type Random struct {
	limits Limits
	seed   uint64
}

// NewRandom returns a policy whose choices are fixed by the seed and each request's key.
func NewRandom(seed uint64, l Limits) *Random { return &Random{limits: l, seed: seed} }

var _ Policy = (*Random)(nil)

// Name implements Policy.
func (p *Random) Name() string { return "random" }

// Pick implements Policy. It draws until admission agrees, without drawing an engine twice: that is uniform over the
// admitted ones, where going on to the next in order would favour the neighbour of a full engine.
func (p *Random) Pick(_ context.Context, c *fleet.Set, r *Request) (Pick, error) {
	if c.Len() == 0 {
		return Pick{}, &PickError{Class: NoCandidates, Stage: r.Stage}
	}
	d := newDraw(p.seed, r.Key, r.Stage)
	w := c.At(d.intN(c.Len()))
	limit := p.limits.Check(w, observe(w, r).report)
	if limit == NoLimit {
		return Pick{Engine: w, Rank: NoRank, Reason: ReasonUniform}, nil
	}
	return p.pickAmongOthers(c, r, &d, Rejection{Engine: w, Limit: limit})
}

// pickAmongOthers goes on after the first draw was refused: it shuffles the rest as it goes (Fisher and Yates).
func (p *Random) pickAmongOthers(c *fleet.Set, r *Request, d *draw, first Rejection) (Pick, error) {
	refused := []Rejection{first}
	rest := make([]*fleet.Worker, 0, c.Len())
	for w := range c.All() {
		if w != first.Engine {
			rest = append(rest, w)
		}
	}
	for len(rest) > 0 {
		i := d.intN(len(rest))
		w := rest[i]
		rest[i] = rest[len(rest)-1]
		rest = rest[:len(rest)-1]
		o := observe(w, r)
		limit := p.limits.Check(w, o.report)
		if limit == NoLimit {
			r.Trace.picked(o.considered())
			return Pick{Engine: w, Rank: NoRank, Reason: ReasonUniform}, nil
		}
		refused = append(refused, Rejection{Engine: w, Limit: limit})
	}
	return Pick{}, &PickError{Class: NoAdmissibleEngine, Stage: r.Stage, Rejections: refused}
}
