package state

import (
	"slices"
	"strconv"
)

// RecoveryDemand asks for the pages that a boundary needs. It carries no namespace: that is the registered instance's, since a message
// could name another's.
type RecoveryDemand struct {
	// PageTokens is the length of a page as the asker knows it.
	PageTokens uint64
	// Span starts at the end of the prefix that the engine holds and vouches for, and ends at the boundary that it has chosen.
	Span Span
	// Ranges is every group's required range, sorted by group.
	Ranges []GroupRange
}

// Demand makes the demand that resumes at span.End: what an adapter sends, and Validate accepts. It returns ErrSpan also for an empty
// span, since nothing is demanded by it.
func (c *Contract) Demand(span Span) (RecoveryDemand, error) {
	ranges, err := c.RequiredRanges(c.namespace, span)
	if err != nil {
		return RecoveryDemand{}, err
	}
	if span.IsEmpty() {
		return RecoveryDemand{}, fail(ErrSpan, span.String(), " is empty")
	}
	return RecoveryDemand{c.page, span, ranges}, nil
}

// Validate checks a demand before anything is admitted or reserved for it. The demand must be what the contract requires for its span, for
// every group and no other, even though one query reads one group: the groups of one boundary are read one after another, and a wrong
// range of a later one would show only when the first is already held. group is the one that this query reads, with as many hashes.
//
// It returns ErrSpan for a span that is no boundary and ErrDemand for everything else, a namespace apart: comparing that is the
// caller's part, who has it from the registration.
func (c *Contract) Validate(d *RecoveryDemand, group uint32, hashes int) error {
	if c.page == 0 || d.PageTokens != c.page {
		return fail(ErrDemand, "pages of ", strconv.FormatUint(d.PageTokens, 10), " tokens; they have ", strconv.FormatUint(c.page, 10))
	}
	want, err := c.Demand(d.Span)
	if err != nil {
		return err
	}
	if !slices.Equal(d.Ranges, want.Ranges) {
		return fail(ErrDemand, c.firstDifference(d.Ranges, want.Ranges))
	}
	i, ok := c.find(group)
	if !ok {
		return fail(ErrDemand, "group ", strconv.FormatUint(uint64(group), 10), " is unknown")
	}
	if pages := want.Ranges[i].Span.Len() / c.page; hashes < 0 || uint64(hashes) != pages {
		return fail(ErrDemand, strconv.Itoa(hashes), " hashes for ", strconv.FormatUint(pages, 10), " pages")
	}
	return nil
}

// firstDifference says where ranges leave what is required.
func (c *Contract) firstDifference(got, want []GroupRange) string {
	for i, w := range want {
		if i == len(got) {
			return "group " + strconv.FormatUint(uint64(w.Group), 10) + " is missing"
		}
		if g := got[i]; g.Group != w.Group {
			return "group " + strconv.FormatUint(uint64(g.Group), 10) + " where group " + strconv.FormatUint(uint64(w.Group), 10) + " belongs"
		}
		if got[i].Span != w.Span {
			return "group " + strconv.FormatUint(uint64(w.Group), 10) + " asks for " + got[i].Span.String() + " and needs " + w.Span.String()
		}
	}
	return "group " + strconv.FormatUint(uint64(got[len(want)].Group), 10) + " is one too many"
}
