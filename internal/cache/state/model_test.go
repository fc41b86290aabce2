package state

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/perigee-llm/perigee/internal/script"
)

// naive is the recovery rules, token by token and set by set: what a reader would write down from the definition.
type naive struct {
	page uint64
	reqs []Requirement
}

// needs says whether the group's page that ends at end must be there to resume at b after start.
func (m *naive) needs(r Requirement, start, b, end uint64) bool {
	if end <= start || end > b {
		return false
	}
	switch r.Rule {
	case RulePrefix:
		return true
	case RuleCheckpoint:
		return end == b
	default:
		// The page holds one of the window's last tokens: those from b-Window up to b.
		for token := end - m.page; token < end; token++ {
			if token+r.Window >= b {
				return true
			}
		}
		return false
	}
}

func (m *naive) boundaries(cov *Coverage) (out Boundaries) {
	for b := cov.Span.Start + m.page; b <= cov.Span.End; b += m.page {
		legal := true
		for _, r := range m.reqs {
			for end := cov.Span.Start + m.page; end <= b; end += m.page {
				if m.needs(r, cov.Span.Start, b, end) && !m.has(cov, r.Group, end) {
					legal = false
				}
			}
		}
		if legal {
			out = append(out, b)
		}
	}
	return out
}

func (m *naive) has(cov *Coverage, group uint32, end uint64) bool {
	for _, g := range cov.Groups {
		if g.Group == group && slices.Contains(g.Ends, end) {
			return true
		}
	}
	return false
}

func randomRequirements(rng *rand.Rand) []Requirement {
	reqs := []Requirement{{0, []Components{Of(AttentionKV), Of(LatentKV, IndexerState)}[rng.IntN(2)], RulePrefix, 0}}
	for g := range rng.Uint32N(4) {
		r := Requirement{Group: g + 1 + rng.Uint32N(2)*10}
		switch rng.IntN(3) {
		case 0:
			r.Rule, r.Components = RulePrefix, Of(AttentionKV)
		case 1:
			r.Rule, r.Components, r.Window = RuleWindow, Of(WindowKV), 1+rng.Uint64N(20)
		default:
			r.Rule, r.Components = RuleCheckpoint, Of(RecurrentState, ConvState)
		}
		reqs = append(reqs, r)
	}
	rng.Shuffle(len(reqs), func(i, j int) { reqs[i], reqs[j] = reqs[j], reqs[i] })
	return reqs
}

func randomCoverage(rng *rand.Rand, m *naive) *Coverage {
	start := rng.Uint64N(4) * m.page
	cov := &Coverage{Namespace: ours, Span: Span{start, start + rng.Uint64N(12)*m.page}}
	for _, r := range m.reqs {
		g, density := GroupCoverage{Group: r.Group}, rng.IntN(10)
		if rng.IntN(2) == 0 {
			density = 9 // else long runs never come
		}
		for e := start + m.page; e <= cov.Span.End; e += m.page {
			if rng.IntN(10) <= density {
				g.Ends = append(g.Ends, e)
			}
		}
		cov.Groups = append(cov.Groups, g)
	}
	rng.Shuffle(len(cov.Groups), func(i, j int) { cov.Groups[i], cov.Groups[j] = cov.Groups[j], cov.Groups[i] })
	return cov
}

// TestAgainstNaiveModel compares ranges, boundaries and demands of random contracts with the definition.
func TestAgainstNaiveModel(t *testing.T) {
	rng := script.Rand(t)
	found, none := 0, 0
	for range 4000 {
		m := &naive{1 + rng.Uint64N(5), randomRequirements(rng)}
		c, err := Compile(ours, uint32(m.page), m.reqs)
		if err != nil {
			if !errors.Is(err, ErrContract) || !hasDuplicate(m.reqs) {
				t.Fatalf("%+v: %v", m.reqs, err)
			}
			continue
		}
		cov := randomCoverage(rng, m)
		got, err := c.RestorableBoundaries(cov)
		want := m.boundaries(cov)
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("page %d, %+v, %+v: %v, %v; want %v", m.page, m.reqs, cov, got, err, want)
		}
		checkRanges(t, c, m, cov.Span)
		for _, b := range got {
			found++
			checkRanges(t, c, m, Span{cov.Span.Start, b})
		}
		if len(got) == 0 {
			none++
		}
	}
	if found < 2000 || none < 200 {
		t.Errorf("%d boundaries, and %d times none: the test does not test much", found, none)
	}
}

func hasDuplicate(reqs []Requirement) bool {
	groups := map[uint32]bool{}
	for _, r := range reqs {
		groups[r.Group] = true
	}
	return len(groups) < len(reqs)
}

// checkRanges wants each group's range to be exactly the pages that the definition needs, and a demand made from them to be good.
func checkRanges(t *testing.T, c *Contract, m *naive, span Span) {
	t.Helper()
	ranges, err := c.RequiredRanges(ours, span)
	if err != nil || len(ranges) != len(m.reqs) {
		t.Fatalf("%v of %v: %v", ranges, span, err)
	}
	for i, r := range ranges {
		req := m.reqs[slices.IndexFunc(m.reqs, func(q Requirement) bool { return q.Group == r.Group })]
		for end := span.Start + m.page; end <= span.End; end += m.page {
			if in := end > r.Span.Start && end <= r.Span.End; in != m.needs(req, span.Start, span.End, end) {
				t.Fatalf("page %d, %+v, %v: range %v has the page that ends at %d: %v", m.page, req, span, r.Span, end, in)
			}
		}
		if span.IsEmpty() {
			continue
		}
		d, err := c.Demand(span)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Validate(&d, r.Group, int(r.Span.Len()/m.page)); err != nil {
			t.Fatalf("our own demand: %v", err)
		}
		d.Ranges[i].Span.Start += m.page
		if err := c.Validate(&d, r.Group, int(r.Span.Len()/m.page)); !errors.Is(err, ErrDemand) {
			t.Fatalf("a range that is a page short: %v", err)
		}
	}
}

func TestIntersectAgainstSets(t *testing.T) {
	rng := script.Rand(t)
	for range 2000 {
		sets, count := make([]Boundaries, 1+rng.IntN(4)), map[uint64]int{}
		for i := range sets {
			for b := range uint64(12) {
				if rng.IntN(3) > 0 {
					sets[i] = append(sets[i], b*64)
					count[b*64]++
				}
			}
		}
		maps.DeleteFunc(count, func(_ uint64, n int) bool { return n < len(sets) })
		before := slices.Clone(sets[0])
		got, want := Intersect(sets...), slices.Sorted(maps.Keys(count))
		if !slices.Equal(got, want) {
			t.Fatalf("%v: %v, want %v", sets, got, want)
		}
		if !slices.Equal(sets[0], before) {
			t.Fatal("it wrote to its argument")
		}
	}
}

// TestHostileSpanIsCheap lets a demand for 2^40 tokens with one page end early: what it costs goes by the evidence, not by the span.
func TestHostileSpanIsCheap(t *testing.T) {
	c, err := Compile(ours, 1, []Requirement{{0, Of(AttentionKV), RulePrefix, 0}})
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.RestorableBoundaries(&Coverage{ours, Span{0, MaxTokens}, []GroupCoverage{{0, []uint64{1, 2, 4}}}})
	if err != nil || !slices.Equal(got, Boundaries{1, 2}) {
		t.Errorf("%v, %v", got, err)
	}
}

// TestHostileDemands sends demands of random numbers, near to the right ones and far from them: exactly those are
// accepted that ask for what the definition needs. (Some are right again in another way.)
func TestHostileDemands(t *testing.T) {
	rng := script.Rand(t)
	good := 0
	for range 30000 {
		m := &naive{1 + rng.Uint64N(3), randomRequirements(rng)}
		c, err := Compile(ours, uint32(m.page), m.reqs)
		if err != nil {
			continue
		}
		start := rng.Uint64N(4) * m.page
		d, err := c.Demand(Span{start, start + (1+rng.Uint64N(4))*m.page})
		if err != nil {
			t.Fatal(err)
		}
		group := rng.IntN(len(d.Ranges))
		hashes, number := int(d.Ranges[group].Span.Len()/m.page), d.Ranges[group].Group
		for range rng.IntN(3) {
			spoil(rng, &d, &hashes)
		}
		right := m.right(&d, number, hashes)
		if err := c.Validate(&d, number, hashes); (err == nil) != right {
			t.Fatalf("page %d, %+v: %+v with %d hashes for group %d: %v", m.page, m.reqs, d, hashes, number, err)
		}
		if right {
			good++
		}
	}
	if good < 1000 {
		t.Errorf("only %d were good", good)
	}
}

// right says whether a demand has each page that the definition needs, for each group, and none besides.
func (m *naive) right(d *RecoveryDemand, group uint32, hashes int) bool {
	s := d.Span
	if d.PageTokens != m.page || s.Start >= s.End || s.End > MaxTokens || s.Start%m.page != 0 || s.End%m.page != 0 || len(d.Ranges) != len(m.reqs) {
		return false
	}
	last := -1
	for _, r := range d.Ranges {
		i := slices.IndexFunc(m.reqs, func(q Requirement) bool { return q.Group == r.Group })
		if i < 0 || int(r.Group) <= last || r.Span.Start < s.Start || r.Span.End != s.End || r.Span.Start%m.page != 0 {
			return false
		}
		last = int(r.Group)
		pages := 0
		for end := s.Start + m.page; end <= s.End; end += m.page {
			in := end > r.Span.Start
			if in != m.needs(m.reqs[i], s.Start, s.End, end) {
				return false
			}
			if in {
				pages++
			}
		}
		if r.Group == group && pages != hashes {
			return false
		}
	}
	return true
}

// spoil changes one number, to something near, to 0, or to the largest there is.
func spoil(rng *rand.Rand, d *RecoveryDemand, hashes *int) {
	r := &d.Ranges[rng.IntN(len(d.Ranges))]
	numbers := []*uint64{&d.PageTokens, &d.Span.Start, &d.Span.End, &r.Span.Start, &r.Span.End}
	n := numbers[rng.IntN(len(numbers))]
	switch rng.IntN(7) {
	case 0:
		*n++
	case 1:
		*n--
	case 2:
		*n = 0
	case 3:
		*n = 1<<64 - 1
	case 4:
		*hashes--
	case 5:
		r.Group += rng.Uint32N(3)
	default:
		d.Ranges = d.Ranges[:len(d.Ranges)-1+rng.IntN(2)]
		if len(d.Ranges) == 0 {
			d.Ranges = []GroupRange{{}}
		}
	}
}
