package bucket

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
)

// Resolver is a model's buckets in the order in which they are tried. It looks at lengths alone, never at engines.
type Resolver struct {
	buckets []*Bucket // by capacity, rank, id: none depends on the request, so they are sorted once
}

// NewResolver returns the resolver of these buckets, smallest sufficient capacity first, then lower rank, then id. It fails
// when there is no bucket, an id is empty or used twice, or a group has another role than its place in the bucket asks for.
func NewResolver(buckets []*Bucket) (*Resolver, error) {
	if len(buckets) == 0 {
		return nil, errors.New("a model needs at least one bucket")
	}
	sorted := slices.Clone(buckets)
	slices.SortFunc(sorted, func(a, b *Bucket) int {
		return cmp.Or(cmp.Compare(a.limit.Capacity(), b.limit.Capacity()), cmp.Compare(a.rank, b.rank), strings.Compare(a.id, b.id))
	})
	ids := map[string]bool{}
	for _, b := range sorted {
		if b.id == "" || ids[b.id] {
			return nil, errors.New("bucket id " + strconv.Quote(b.id) + " is empty or used twice")
		}
		ids[b.id] = true
		if !b.complete() {
			return nil, errors.New("bucket " + strconv.Quote(b.id) + " needs one plain group, or a prefill and a decode group")
		}
	}
	return &Resolver{buckets: sorted}, nil
}

// Buckets returns all buckets in their order.
func (r *Resolver) Buckets() []*Bucket { return slices.Clone(r.buckets) }

// Resolve appends the buckets that take a request of this length to dst, in order, and returns it; none is no error here.
// The error is a *policy.PickError of class InvalidSignal: a known peak is never below the input.
func (r *Resolver) Resolve(dst []*Bucket, input int64, peak load.Count) ([]*Bucket, error) {
	if p, ok := peak.Get(); ok && p < input {
		return dst, &policy.PickError{
			Class: policy.InvalidSignal, Stage: policy.NoStage,
			Detail: "the expected peak of " + peak.String() + " tokens is below the input of " + strconv.FormatInt(input, 10),
		}
	}
	for _, b := range r.buckets {
		if b.limit.fits(input, peak) {
			dst = append(dst, b)
		}
	}
	return dst, nil
}

// ErrNoMatchingBucket means that no bucket takes a request of this length, whatever the engines do.
var ErrNoMatchingBucket = errors.New("no bucket takes a request of this length")

// ExhaustedError means that every bucket which takes the length was tried and none supplied its engines.
type ExhaustedError struct {
	// Rejections are all admission refusals, bucket by bucket. If there is one the fleet is full rather than missing.
	Rejections []policy.Rejection
	// Missing is the stage that had no candidates in the last bucket that failed so, of those that have engines at all: who runs none in pairs is not to
	// be told of prefill engines. Where no bucket has any it is of the last plain one, and else of the last.
	Missing fleet.Stage
}

// Error says what is missing or which limits refused how many engines. It names no engine, so a client may see it.
func (e *ExhaustedError) Error() string {
	if len(e.Rejections) == 0 {
		return "no " + e.Missing.String() + " engine is available"
	}
	parts := make([]string, 0, len(e.ByLimit()))
	for _, l := range e.ByLimit() {
		parts = append(parts, l.Limit.String()+" rejected "+strconv.Itoa(l.Engines)+plural(l.Engines, " engine"))
	}
	return strings.Join(parts, ", ")
}

// LimitCount is how many engines one limit refused.
type LimitCount struct {
	Limit   policy.Limit
	Engines int
}

// ByLimit counts the distinct engines that each limit refused, in the order of the limits.
func (e *ExhaustedError) ByLimit() []LimitCount {
	type refusal struct {
		limit  policy.Limit
		engine string
	}
	seen := map[refusal]bool{}
	var counts []LimitCount
	for l := policy.MaxRunningRequests; l <= policy.MaxInflightRequests; l++ {
		n := 0
		for _, r := range e.Rejections {
			k := refusal{limit: r.Limit, engine: r.Engine.ID}
			if r.Limit == l && !seen[k] {
				seen[k] = true
				n++
			}
		}
		if n > 0 {
			counts = append(counts, LimitCount{Limit: l, Engines: n})
		}
	}
	return counts
}

func plural(n int, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}

// Select tries the buckets that take the request, in order, until one supplies its whole selection; each picks all its
// engines anew. The errors:
//
//	ErrNoMatchingBucket    the length fits no bucket
//	*ExhaustedError        buckets fit, but engines are missing or full
//	*policy.PickError      a class that stops the request: InvalidSignal, InvalidConfiguration, OutsideCandidates
//	the context's error    it ended while a policy waited
func (r *Resolver) Select(ctx context.Context, v *fleet.View, req *Request) (Selection, error) {
	var room [8]*Bucket // more buckets than a model has in practice; append grows it where one has
	fit, err := r.Resolve(room[:0], req.InputTokens, req.PeakTokens)
	if err != nil {
		return Selection{}, err
	}
	if len(fit) == 0 {
		return Selection{}, ErrNoMatchingBucket
	}
	var refused []policy.Rejection
	var missing fleet.Stage
	has := nothing
	for _, b := range fit {
		s, err := b.Pick(ctx, v, req)
		if err == nil {
			return s, nil
		}
		var pe *policy.PickError
		if !errors.As(err, &pe) || !pe.Class.NextBucket() {
			return Selection{}, err
		}
		refused = append(refused, pe.Rejections...)
		if pe.Class == policy.NoCandidates {
			if s := b.staffed(v); s >= has {
				has, missing = s, pe.Stage
			}
		}
	}
	return Selection{}, &ExhaustedError{Rejections: refused, Missing: missing}
}

// staff is what a bucket that lacks candidates has: how much it says of why a request cannot be served.
type staff uint8

const (
	nothing staff = iota // no engine, and it wants pairs
	plain                // no engine
	some                 // engines, but none that can be used
)

func (b *Bucket) staffed(v *fleet.View) staff {
	for _, g := range b.Groups() {
		if g.Members(v) > 0 {
			return some
		}
	}
	if b.plain != nil {
		return plain
	}
	return nothing
}
