package state

import (
	"cmp"
	"slices"
	"strconv"
)

// Requirement is what one group needs to resume.
type Requirement struct {
	Group      uint32
	Components Components
	Rule       Rule
	// Window is the number of past tokens under RuleWindow; it must be 0 under other rules.
	Window uint64
}

// Contract says which pages a model needs to resume at a boundary. It is compiled once for a namespace and never changes. The zero value
// refuses everything, as of another namespace.
//
// All groups have one page length. A model whose groups have several is not supported: its boundaries would have to be aligned to all
// of them, and no engine registers one today.
type Contract struct {
	namespace NamespaceID
	page      uint64
	groups    []groupRule // sorted by group; the first is group 0
}

// groupRule is the normal form of a requirement: a group needs its last pages before a boundary, as many as there are or this many.
type groupRule struct {
	group uint32
	pages uint64 // allPages: the whole tail
}

const allPages = 1<<64 - 1

// Requirements are what the namespace's groups need, by number.
func (n *Namespace) Requirements() []Requirement {
	reqs := make([]Requirement, 0, len(n.Layout.Groups))
	for i := range n.Layout.Groups {
		g := &n.Layout.Groups[i]
		reqs = append(reqs, Requirement{uint32(i), g.Components, g.Rule, g.Window})
	}
	return reqs
}

// Compile makes the contract of a namespace whose pages have pageTokens tokens. The order of requirements does not matter. It returns
// ErrContract if there is no namespace, no page, no requirement or more than MaxGroups; if a group is beyond MaxGroups, given
// twice, holds nothing or what its rule cannot restore, or has a window of 0 or beyond MaxTokens; and if group 0 is missing or no prefix: its pages are what boundaries
// are counted by.
func Compile(ns NamespaceID, pageTokens uint32, reqs []Requirement) (*Contract, error) {
	if ns.IsZero() {
		return nil, fail(ErrContract, "there is no namespace")
	}
	if pageTokens == 0 {
		return nil, fail(ErrContract, "a page has no tokens")
	}
	if err := checkRequirements(reqs); err != nil {
		return nil, err
	}
	c := &Contract{namespace: ns, page: uint64(pageTokens)}
	for _, r := range reqs {
		c.groups = append(c.groups, groupRule{r.Group, r.pages(c.page)})
	}
	slices.SortFunc(c.groups, func(a, b groupRule) int { return cmp.Compare(a.group, b.group) })
	return c, nil
}

// pages is the rule's normal form.
func (r *Requirement) pages(page uint64) uint64 {
	switch r.Rule {
	case RuleWindow:
		return (r.Window + page - 1) / page // no overflow: both are below MaxTokens
	case RuleCheckpoint:
		return 1
	default:
		return allPages
	}
}

func checkRequirements(reqs []Requirement) error {
	if len(reqs) == 0 || len(reqs) > MaxGroups {
		return fail(ErrContract, "there are no groups, or too many")
	}
	seen := make(map[uint32]bool, len(reqs))
	for i := range reqs {
		r := &reqs[i]
		if seen[r.Group] {
			return r.refuse("is given twice")
		}
		seen[r.Group] = true
		if err := r.check(); err != nil {
			return err
		}
	}
	if !seen[0] {
		return fail(ErrContract, "there is no group 0")
	}
	return nil
}

func (r *Requirement) check() error {
	switch {
	case r.Group >= MaxGroups:
		return r.refuse("is beyond MaxGroups")
	case r.Components == 0:
		return r.refuse("has no components")
	case r.Components.Has(DraftKV):
		return r.refuse("is a draft model's: its state is never published as the target's")
	case int(r.Rule) >= len(allowed) || allowed[r.Rule] == 0:
		return r.refuse("has no rule")
	case r.Components&^allowed[r.Rule] != 0:
		return r.refuse("cannot restore " + (r.Components &^ allowed[r.Rule]).String() + " by a " + r.Rule.String())
	case r.Group == 0 && r.Rule != RulePrefix:
		return r.refuse("must be a prefix")
	case r.Rule == RuleWindow && (r.Window == 0 || r.Window > MaxTokens):
		return r.refuse("has a window of 0 or beyond MaxTokens")
	case r.Rule != RuleWindow && r.Window != 0:
		return r.refuse("has a window without the rule")
	default:
		return nil
	}
}

func (r *Requirement) refuse(what string) error {
	return fail(ErrContract, "group ", strconv.FormatUint(uint64(r.Group), 10), " ", what)
}

// PageTokens is the length of a page in tokens.
func (c *Contract) PageTokens() uint64 { return c.page }

// Namespace is whose contract it is.
func (c *Contract) Namespace() NamespaceID { return c.namespace }

// GroupRange is the tokens that one group needs pages for.
type GroupRange struct {
	Group uint32
	Span  Span
}

// RequiredRanges is what each group needs to resume at span.End, in an engine that has a valid prefix of span.Start tokens: one range a
// group, sorted by group, each ending at span.End. An empty span needs nothing: its ranges are empty, and it is no boundary.
//
// That all groups can go on from span.Start is the engine's claim. Nothing before it is asked for, not even by a window that would
// reach there.
func (c *Contract) RequiredRanges(ns NamespaceID, span Span) ([]GroupRange, error) {
	if c.page == 0 || ns != c.namespace {
		return nil, fail(ErrForeign, "ranges of ", ns.String())
	}
	if err := span.check(c.page); err != nil {
		return nil, err
	}
	out := make([]GroupRange, 0, len(c.groups))
	for _, g := range c.groups {
		out = append(out, GroupRange{g.group, c.tail(g, span)})
	}
	return out, nil
}

// tail is the part of a span that a group needs.
func (c *Contract) tail(g groupRule, span Span) Span {
	n := min(span.Len()/c.page, g.pages)
	return Span{span.End - n*c.page, span.End}
}
