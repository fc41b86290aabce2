package state

import (
	"cmp"
	"slices"
	"strconv"
)

// Coverage is which pages exist, somewhere: evidence, and no grant.
type Coverage struct {
	Namespace NamespaceID
	// Span starts where the engine's own valid prefix ends, and ends where it has looked to.
	Span Span
	// Groups is every group of the contract, once, in any order.
	Groups []GroupCoverage
}

// GroupCoverage is the pages that exist of one group: Ends are their last tokens' positions plus one, strictly increasing.
type GroupCoverage struct {
	Group uint32
	Ends  []uint64
}

// Boundaries is a set of positions at which a request can be resumed, strictly increasing. It is the whole set: a rank that reported only
// its longest would lose what it shares with others.
type Boundaries []uint64

// RestorableBoundaries returns every boundary b within the coverage's span at which all groups have all pages of their required range for
// [Span.Start, b). Span.Start itself is not in the set: nothing is restored there. It returns ErrForeign, ErrSpan or ErrCoverage.
//
// A boundary needs group 0 without a gap from the start, so that the walk ends at group 0's first gap. Its time is linear in the number
// of pages.
func (c *Contract) RestorableBoundaries(cov *Coverage) (Boundaries, error) {
	groups, err := c.checkCoverage(cov)
	if err != nil {
		return nil, err
	}
	var out Boundaries
	walks := make([]walk, len(groups))
	for b := cov.Span.Start + c.page; b <= cov.Span.End; b += c.page {
		legal := true
		for i, g := range c.groups {
			run := walks[i].to(b, c.page, groups[i])
			legal = legal && run >= min((b-cov.Span.Start)/c.page, g.pages)
		}
		if walks[0].run == 0 {
			break
		}
		if legal {
			out = append(out, b)
		}
	}
	return out, nil
}

// walk goes along one group's page ends.
type walk struct {
	next int    // the first end that is not passed
	run  uint64 // pages without a gap up to the present boundary
}

// to goes on to the page that ends at b, one page after the last call, and returns the run of pages that ends there.
func (w *walk) to(b, page uint64, ends []uint64) uint64 {
	if w.next == len(ends) || ends[w.next] != b {
		w.run = 0
		return 0
	}
	w.next++
	w.run++
	return w.run
}

// checkCoverage returns the groups' ends in the order of the contract's groups.
func (c *Contract) checkCoverage(cov *Coverage) ([][]uint64, error) {
	if c.page == 0 || cov.Namespace != c.namespace {
		return nil, fail(ErrForeign, "coverage of ", cov.Namespace.String())
	}
	if err := cov.Span.check(c.page); err != nil {
		return nil, err
	}
	if len(cov.Groups) != len(c.groups) {
		return nil, fail(ErrCoverage, "of ", strconv.Itoa(len(cov.Groups)), " groups; the contract has ", strconv.Itoa(len(c.groups)))
	}
	ends, seen := make([][]uint64, len(c.groups)), make([]bool, len(c.groups))
	for _, g := range cov.Groups {
		i, ok := c.find(g.Group)
		if !ok || seen[i] {
			return nil, fail(ErrCoverage, "group ", strconv.FormatUint(uint64(g.Group), 10), " is unknown or given twice")
		}
		if err := c.checkEnds(g, cov.Span); err != nil {
			return nil, err
		}
		ends[i], seen[i] = g.Ends, true
	}
	return ends, nil
}

func (c *Contract) checkEnds(g GroupCoverage, span Span) error {
	last := span.Start
	for _, e := range g.Ends {
		if e <= last || e > span.End || e%c.page != 0 {
			return fail(ErrCoverage, "group ", strconv.FormatUint(uint64(g.Group), 10), " has a page end at ", strconv.FormatUint(e, 10),
				": not increasing, not on a page end, or out of ", span.String())
		}
		last = e
	}
	return nil
}

// find returns the place of a group in the contract.
func (c *Contract) find(group uint32) (int, bool) {
	return slices.BinarySearchFunc(c.groups, group, func(g groupRule, want uint32) int { return cmp.Compare(g.group, want) })
}

// Intersect returns the boundaries that all ranks or shards have. Of no sets it is empty: nobody has vouched for anything.
//
// Rejected: the least of the ranks' longest boundaries. Ranks with {512, 1024} and {512, 2048} share 512; the least of the longest is
// 1024, which the second cannot restore.
func Intersect(sets ...Boundaries) Boundaries {
	if len(sets) == 0 {
		return nil
	}
	out := slices.Clone(sets[0])
	for _, s := range sets[1:] {
		at := 0
		out = slices.DeleteFunc(out, func(b uint64) bool {
			for at < len(s) && s[at] < b {
				at++
			}
			return at == len(s) || s[at] != b
		})
	}
	return out
}

// AtMost returns the longest boundary of at most limit tokens, or false if there is none. For a prompt of n tokens the limit is n-1: the
// last token's logits still have to be computed, so that a prompt of 513 tokens can use a checkpoint at 512, and one of 512 cannot.
func (b Boundaries) AtMost(limit uint64) (uint64, bool) {
	i, found := slices.BinarySearch(b, limit)
	if found {
		return b[i], true
	}
	if i == 0 {
		return 0, false
	}
	return b[i-1], true
}
