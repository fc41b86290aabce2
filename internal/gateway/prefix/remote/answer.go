package remote

import (
	"cmp"
	"math"
	"slices"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/indexer/indexpb"
)

// answer reads what a service said, and believes of it what can be.
type answer struct {
	model   *model
	engines map[string]uint32 // the gateway's, by URL
	prompt  int               // tokens

	prices     []price  // that it said
	distrusted []uint32 // engines of which its prices cannot be, sorted
}

// number returns the gateway's number of an engine by its place in the model's list.
func (a *answer) number(place uint32) (no uint32, there bool) {
	if int64(place) >= int64(len(a.model.engines)) {
		return 0, false
	}
	no, there = a.engines[a.model.engines[place]]
	return no, there
}

// read fills the match, and returns how many engines it made blind because the answer said of them what cannot be.
func (a *answer) read(r *indexpb.LookupResponse, into *prefix.Match) (distrusted int, err error) {
	if len(r.Ranks) != len(r.Engines) || len(r.Depths) != prefix.Tiers*len(r.Engines) {
		return 0, contradiction("its columns differ in length")
	}
	if err := a.readPrices(r.Prices); err != nil {
		return 0, err
	}
	distrusted = len(a.distrusted)
	into.Blind = append(into.Blind, a.distrusted...)
	for i, place := range r.Engines {
		no, there := a.number(place)
		if !there || a.distrusts(no) {
			continue // it has come or gone in one of both fleets, or is blind
		}
		d, ok := a.depth(r.Depths[i*prefix.Tiers:])
		if !ok || r.Ranks[i] < 0 {
			distrusted++
			into.Blind = append(into.Blind, no)
			continue
		}
		into.Held = append(into.Held, prefix.Held{Engine: no, Rank: r.Ranks[i], Depth: d})
	}
	for _, place := range r.Blind {
		if no, there := a.number(place); there {
			into.Blind = append(into.Blind, no)
		}
	}
	a.unfollowed(into)
	return distrusted + order(into), nil
}

// depth reads four depths, which never fall and stay within the prompt.
func (a *answer) depth(w []uint32) (d prefix.Depth, ok bool) {
	least := uint32(0)
	for t := range d {
		if w[t] < least || int64(w[t]) > int64(min(a.prompt, math.MaxInt32)) {
			return d, false
		}
		least = w[t]
		d[t] = int32(w[t])
	}
	return d, d.Any() > 0
}

// unfollowed makes the engines blind of which the service knows nothing.
func (a *answer) unfollowed(into *prefix.Match) {
	for url, no := range a.engines {
		if _, there := a.model.followed[url]; !there {
			into.Blind = append(into.Blind, no)
		}
	}
}

// order brings a match into the order that it must have. What was said twice is not believed: such engines become blind, and are counted.
func order(m *prefix.Match) (twice int) {
	slices.SortFunc(m.Held, func(a, b prefix.Held) int {
		return cmp.Or(cmp.Compare(a.Engine, b.Engine), cmp.Compare(a.Rank, b.Rank))
	})
	kept := m.Held[:0]
	for i := 0; i < len(m.Held); {
		j := i + 1
		for j < len(m.Held) && m.Held[j].Engine == m.Held[i].Engine && m.Held[j].Rank == m.Held[i].Rank {
			j++
		}
		if j == i+1 {
			kept = append(kept, m.Held[i])
		} else {
			twice++
			m.Blind = append(m.Blind, m.Held[i].Engine)
		}
		i = j
	}
	m.Held = kept
	slices.Sort(m.Blind)
	m.Blind = slices.Compact(m.Blind)
	return twice
}
