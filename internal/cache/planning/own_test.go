package planning

import (
	"slices"
	"testing"

	"github.com/perigee-llm/perigee/internal/cache/state"
	"github.com/perigee-llm/perigee/internal/script"
)

func TestChooseOwn(t *testing.T) {
	memory, disk := InMemory, OnDisk
	both, built, all := memory|disk, Built(), Only(FromMemory, FromDisk)
	for _, c := range []struct {
		name   string
		routes Routes
		held   []Held
		want   []Run
		why    Reason
	}{
		{"nothing is asked", all, nil, nil, Chosen},
		{"all in memory is one run", built, []Held{memory, memory, memory}, []Run{{0, 3, FromMemory}}, Chosen},
		{"the first is nowhere", all, []Held{0, memory}, nil, NotFound},
		{"none behind a gap", all, []Held{memory, 0, memory}, []Run{{0, 1, FromMemory}}, NotFound},
		{"a disk that cannot be read ends it", built, []Held{memory, disk, memory}, []Run{{0, 1, FromMemory}}, NoRoute},
		{"a disk that can does not", all, []Held{memory, disk, disk, both, memory}, []Run{{0, 1, FromMemory}, {1, 2, FromDisk}, {3, 2, FromMemory}}, Chosen},
		{"memory before disk", all, []Held{both, both}, []Run{{0, 2, FromMemory}}, Chosen},
		{"from disk where memory may not be used", Only(FromDisk), []Held{both, memory}, []Run{{0, 1, FromDisk}}, NoRoute},
	} {
		before := []Run{{7, 7, FromMemory}}
		got, why := ChooseOwn(before, c.routes, len(c.held), func(i int) Held { return c.held[i] })
		if !slices.Equal(got, append(before, c.want...)) || why != c.why {
			t.Errorf("%s: %+v, %v, want %+v, %v", c.name, got[1:], why, c.want, c.why)
		}
	}
}

// TestOwnAsChosen compares the plan by runs with the plan by pages, for the same evidence.
func TestOwnAsChosen(t *testing.T) {
	rng := script.Rand(t)
	whys := map[Reason]int{}
	for range 5000 {
		held, routes := make([]Held, rng.IntN(7)), Routes(rng.IntN(4))
		sets := make([]Set, len(held))
		for i := range held {
			held[i], sets[i] = Held(min(rng.IntN(6), 3)), NewSet(key(i), self)
			for medium, bit := range map[state.Medium]Held{state.DRAM: InMemory, state.SSD: OnDisk} {
				if held[i]&bit != 0 {
					sets[i].Add(state.Replica{
						Key: key(i), Version: 1, Format: state.FormatRaw, Endpoint: state.Endpoint{Owner: self, Medium: medium},
						Coverage: state.Span{Start: 64 * uint64(i), End: 64 * uint64(i+1)},
					})
				}
			}
		}
		runs, why := ChooseOwn(nil, routes, len(held), func(i int) Held { return held[i] })
		var pages []Route
		for i, r := range runs {
			if r.First != len(pages) || r.Pages == 0 || i > 0 && runs[i-1].Route == r.Route {
				t.Fatalf("%v by %b: runs %+v", held, routes, runs)
			}
			pages = append(pages, slices.Repeat([]Route{r.Route}, r.Pages)...)
		}
		want := Choose(Question{Span: state.Span{End: 64 * uint64(len(held))}, PageTokens: 64, Format: state.FormatRaw, Routes: routes}, sets)
		same := slices.EqualFunc(pages, want.Steps, func(r Route, s Step) bool { return r == s.Route })
		if refused := want.Refused != nil; !same || refused != (why != Chosen) || refused && want.Refused[0].Reason != why {
			t.Fatalf("%v by %b: runs %+v, %v; by pages %+v, %+v", held, routes, runs, why, want.Steps, want.Refused)
		}
		whys[why]++
	}
	if whys[Chosen] < 100 || whys[NotFound] < 100 || whys[NoRoute] < 100 {
		t.Errorf("ends of plans: %v: the test does not test much", whys)
	}
}
