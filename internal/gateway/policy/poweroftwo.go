package policy

import (
	"context"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
)

// PowerOfTwo samples two distinct candidates and takes the one under less pressure at the request's stage (see comparePressure);
// a complete tie keeps the first sampled. Admission is asked once, of the engine chosen, with the report that was
// compared; a refusal is AdmissionRejected and nothing else is tried here: another bucket may serve the request.
type PowerOfTwo struct {
	limits Limits
	seed   uint64
}

// NewPowerOfTwo returns a policy whose samples are fixed by the seed and each request's key.
func NewPowerOfTwo(seed uint64, l Limits) *PowerOfTwo { return &PowerOfTwo{limits: l, seed: seed} }

var _ Policy = (*PowerOfTwo)(nil)

// Name implements Policy.
func (p *PowerOfTwo) Name() string { return "power_of_two" }

// Pick implements Policy.
func (p *PowerOfTwo) Pick(_ context.Context, c *fleet.Set, r *Request) (Pick, error) {
	n := c.Len()
	if n == 0 {
		return Pick{}, &PickError{Class: NoCandidates, Stage: r.Stage}
	}
	if n == 1 {
		return p.admit(observe(c.At(0), r), r, ReasonOnly)
	}
	d := newDraw(p.seed, r.Key, r.Stage)
	i, j := d.intN(n), d.intN(n-1)
	if j >= i {
		j++
	}
	a, b := observe(c.At(i), r), observe(c.At(j), r)
	order, native := comparePressure(r.Stage, &a, &b)
	if order > 0 {
		a = b
	}
	switch {
	case order == 0:
		return p.admit(a, r, ReasonTie)
	case native:
		return p.admit(a, r, ReasonPressure)
	default:
		return p.admit(a, r, ReasonInflight)
	}
}

func (p *PowerOfTwo) admit(o observed, r *Request, why Reason) (Pick, error) {
	if limit := p.limits.Check(o.engine, o.report); limit != NoLimit {
		return Pick{}, &PickError{
			Class: AdmissionRejected, Stage: r.Stage,
			Rejections: []Rejection{{Engine: o.engine, Limit: limit}},
		}
	}
	r.Trace.picked(o.considered())
	return Pick{Engine: o.engine, Rank: NoRank, Reason: why}, nil
}
