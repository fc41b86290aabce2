package bucket

import (
	"context"
	"math"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// Request is what selection may know of a request: facts that do not change while buckets are tried.
type Request struct {
	// Key identifies the request and its attempt, and with a policy's seed fixes its random choices.
	Key uint64
	// Now is the time of the selection.
	Now time.Time
	// InputTokens is the length of the longest prompt in tokens, at least 1.
	InputTokens int64
	// PeakTokens is input plus requested output; unknown where the request sets no bound.
	PeakTokens load.Count
	// Exclude are the ids of engines that an earlier attempt at this request failed on.
	Exclude []string
	// Prefix remembers what prefix sources said of the request. Hand in the same one with each attempt; nil: there are no token facts.
	Prefix *prefix.Memo
	// Trace takes down what was tried; nil: nobody wants to know.
	Trace *Trace
}

// Range is a bucket's limits. The zero value takes every length.
type Range struct {
	// MinInput and MaxInput bound the input tokens, both inclusive. MaxInput 0 means no bound.
	MinInput, MaxInput int64
	// MaxContext bounds input plus requested output where that is known, else the input. 0 means no bound.
	MaxContext int64
}

// Capacity is the input that surely fits: the lesser of the input bound and the context. Without a bound it is the largest int64.
func (r Range) Capacity() int64 { return min(orUnbounded(r.MaxInput), orUnbounded(r.MaxContext)) }

func orUnbounded(n int64) int64 {
	if n == 0 {
		return math.MaxInt64
	}
	return n
}

// fits tells whether a request of that length belongs here.
func (r Range) fits(input int64, peak load.Count) bool {
	need := input
	if p, ok := peak.Get(); ok {
		need = p
	}
	return input >= r.MinInput && input <= orUnbounded(r.MaxInput) && need <= orUnbounded(r.MaxContext)
}

// Bucket is one length class of a model. It serves plain requests or P/D pairs, never both, and a pair never half: the two
// constructors are the only ways to make one.
type Bucket struct {
	id    string
	rank  int64
	limit Range

	plain, prefill, decode *Group // plain alone, or the two others
}

// NewPlain returns a bucket whose requests go to one engine.
func NewPlain(id string, rank int64, limit Range, plain *Group) *Bucket {
	return &Bucket{id: id, rank: rank, limit: limit, plain: plain}
}

// NewPD returns a bucket whose requests go to a prefill and a decode engine.
func NewPD(id string, rank int64, limit Range, prefill, decode *Group) *Bucket {
	return &Bucket{id: id, rank: rank, limit: limit, prefill: prefill, decode: decode}
}

// complete tells whether the groups are there and have the roles of their places.
func (b *Bucket) complete() bool {
	has := func(g *Group, role fleet.Stage) bool { return g != nil && g.stage == role }
	if b.plain != nil {
		return has(b.plain, fleet.Plain)
	}
	return has(b.prefill, fleet.Prefill) && has(b.decode, fleet.Decode)
}

// ID returns the bucket's id.
func (b *Bucket) ID() string { return b.id }

// Limits returns the bucket's limits.
func (b *Bucket) Limits() Range { return b.limit }

// Groups returns the bucket's groups: one, or the prefill and the decode group.
func (b *Bucket) Groups() []*Group {
	if b.plain != nil {
		return []*Group{b.plain}
	}
	return []*Group{b.prefill, b.decode}
}

// Selection is a complete answer: a plain engine, or a pair from one bucket. The zero value is none.
type Selection struct {
	Bucket *Bucket
	// Plain is set in a plain bucket, Prefill and Decode in a P/D bucket.
	Plain, Prefill, Decode policy.Pick
}

// PD tells whether the selection is a pair.
func (s *Selection) PD() bool { return s.Plain.Engine == nil }

// Pick picks every engine that the bucket's kind needs, or none. The error is a *policy.PickError that names the stage, or
// what else a policy returns.
func (b *Bucket) Pick(ctx context.Context, v *fleet.View, r *Request) (Selection, error) {
	if b.plain != nil {
		p, err := b.plain.Pick(ctx, v, b.id, r)
		if err != nil {
			return Selection{}, err
		}
		return Selection{Bucket: b, Plain: p}, nil
	}
	p, err := b.prefill.Pick(ctx, v, b.id, r)
	if err != nil {
		return Selection{}, err
	}
	d, err := b.decode.Pick(ctx, v, b.id, r)
	if err != nil {
		return Selection{}, err // the prefill pick goes with it
	}
	return Selection{Bucket: b, Prefill: p, Decode: d}, nil
}
