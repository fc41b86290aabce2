package state

import (
	"fmt"
	"strings"
	"testing"

	"github.com/perigee-llm/perigee/internal/script"
)

// TestScripts runs the recovery rules through scripts; contractScript.do lists the commands.
func TestScripts(t *testing.T) {
	script.Run(t, "testdata/scripts/*.txt", func(*testing.T) script.Interpreter { return new(contractScript).do })
}

type contractScript struct{ c *Contract }

// ours is the scripts' namespace; ns=other is another one.
var ours, other = NamespaceID{1}, NamespaceID{2}

// do runs one command:
//
//	compile [page=64] [ns=ours|other|none] GROUP:RULE:COMPONENTS[:WINDOW]…
//	ranges FROM:TO [ns=other]                     what each group needs
//	boundaries FROM:TO [ns=other] GROUP:END,END…  where a request can be resumed, END may be FIRST-LAST by pages
//	demand FROM:TO                                the demand for a boundary
//	validate FROM:TO [page=N] group=N hashes=N GROUP:FROM:TO…
//	intersect END,END… …
//	longest END,END… prompt=N                     the longest boundary of a prompt
//	publishable computed=N accepted=N
//	past WINDOW
func (s *contractScript) do(c *script.Command) bool {
	switch c.Name {
	case "compile":
		s.compile(c)
	case "ranges":
		got, err := s.c.RequiredRanges(namespace(c), span(c, c.Word()))
		answer(c, rangesText(got), err)
	case "boundaries":
		cov := Coverage{Namespace: namespace(c), Span: span(c, c.Word())}
		for _, w := range c.Words() {
			group, ends, _ := strings.Cut(w, ":")
			cov.Groups = append(cov.Groups, GroupCoverage{uint32(c.ParseInt(group)), s.ends(c, ends)})
		}
		got, err := s.c.RestorableBoundaries(&cov)
		answer(c, fmt.Sprint(got), err)
	case "demand":
		d, err := s.c.Demand(span(c, c.Word()))
		answer(c, fmt.Sprintf("pages of %d, %v: %s", d.PageTokens, d.Span, rangesText(d.Ranges)), err)
	case "validate":
		d := RecoveryDemand{PageTokens: uint64(c.Int("page", 64)), Span: span(c, c.Word())}
		for _, w := range c.Words() {
			group, rest, _ := strings.Cut(w, ":")
			d.Ranges = append(d.Ranges, GroupRange{uint32(c.ParseInt(group)), span(c, rest)})
		}
		answer(c, "good", s.c.Validate(&d, uint32(c.Int("group", 0)), int(c.Int("hashes", 0))))
	default:
		return s.small(c)
	}
	return true
}

func (s *contractScript) small(c *script.Command) bool {
	switch c.Name {
	case "intersect":
		var sets []Boundaries
		for _, w := range c.Words() {
			sets = append(sets, s.ends(c, strings.Trim(w, "-")))
		}
		c.Print(fmt.Sprint(Intersect(sets...)))
	case "longest":
		if b, ok := Boundaries(s.ends(c, c.Word())).AtMost(uint64(c.Int("prompt", 0)) - 1); ok {
			c.Print(fmt.Sprint(b))
		} else {
			c.Print("none")
		}
	case "publishable":
		c.Print(fmt.Sprint(Publishable(uint64(c.Int("computed", 0)), uint64(c.Int("accepted", 0)), 64)))
	case "past":
		n, err := PastWindow(uint64(c.ParseInt(c.Word())))
		answer(c, fmt.Sprint(n), err)
	default:
		return false
	}
	return true
}

func (s *contractScript) compile(c *script.Command) {
	var reqs []Requirement
	for _, w := range c.Words() {
		parts := strings.Split(w+"::", ":")
		r := Requirement{Group: uint32(c.ParseInt(parts[0]))}
		for _, rule := range []Rule{RulePrefix, RuleWindow, RuleCheckpoint} {
			if rule.String() == parts[1] {
				r.Rule = rule
			}
		}
		var err error
		if r.Components, err = ParseComponents(parts[2]); err != nil {
			c.Fatalf("%v", err)
		}
		if parts[3] != "" {
			r.Window = uint64(c.ParseInt(parts[3]))
		}
		reqs = append(reqs, r)
	}
	got, err := Compile(namespace(c), uint32(c.Int("page", 64)), reqs)
	if s.c = got; err != nil {
		s.c = new(Contract)
	}
	answer(c, fmt.Sprintf("%d groups", len(s.c.groups)), err)
}

func (s *contractScript) ends(c *script.Command, text string) (ends []uint64) {
	if text == "" {
		return nil
	}
	for w := range strings.SplitSeq(text, ",") {
		first, last, isRun := strings.Cut(w, "-")
		from := uint64(c.ParseInt(first))
		to := from
		if isRun {
			to = uint64(c.ParseInt(last))
		}
		for e := from; e <= to; e += 64 {
			ends = append(ends, e)
		}
	}
	return ends
}

func namespace(c *script.Command) NamespaceID {
	return map[string]NamespaceID{"ours": ours, "other": other}[c.Arg("ns", "ours")]
}

func span(c *script.Command, text string) Span {
	from, to, _ := strings.Cut(text, ":")
	return Span{uint64(c.ParseInt(from)), uint64(c.ParseInt(to))}
}

func rangesText(ranges []GroupRange) string {
	var words []string
	for _, r := range ranges {
		words = append(words, fmt.Sprintf("%d%v", r.Group, r.Span))
	}
	return strings.Join(words, " ")
}

func answer(c *script.Command, text string, err error) {
	if err != nil {
		text = err.Error()
	}
	c.Print(text)
}
