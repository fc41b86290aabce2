package local

import (
	"cmp"
	"slices"

	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// Domain is what the names of blocks begin with, besides an adapter and a salt.
type Domain struct {
	Base      string
	BlockSize int
}

// Model is what somebody elsewhere has to know to ask for a model's prompts by the names of their blocks.
type Model struct {
	// LoRA is the adapter that the model's name stands for, empty for none.
	LoRA string
	// Domains are those that the model's blocks are in, in the order of the indexes.
	Domains []Domain
	// Engines are those that serve the name, sorted. None: nothing is known of the model.
	Engines []uint32
}

// Edition is one state of what is known of models. Editions compare equal if nothing has changed in between. The zero value is none.
type Edition struct{ d *directory }

// Edition returns the present one.
func (s *Store) Edition() Edition { return Edition{s.current()} }

// Model returns what is to be known of a model, and the edition in which it is so.
func (s *Store) Model(name string) (m Model, e Edition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e = Edition{s.currentLocked()} // it changes with the mutex held only
	n, there := e.d.names[name]
	if !there {
		return m, e
	}
	m.LoRA = n.lora
	for _, ix := range n.indexes {
		m.Domains = append(m.Domains, Domain{ix.domain.base, ix.domain.blockSize})
	}
	add := func(g *Engine) {
		g.each(func(other, _ string) {
			if other == name {
				m.Engines = append(m.Engines, g.No)
			}
		})
	}
	for r := range s.mu.ranks {
		if g, there := s.mu.known[r.engine.No]; !there || g.Base != r.engine.Base { // else it is added below, as it is now
			add(&r.engine)
		}
	}
	for _, g := range s.mu.known {
		add(&g)
	}
	slices.Sort(m.Engines)
	m.Engines = slices.Compact(m.Engines)
	return m, e
}

// Lookup fills the match as [Store.Lookup] does, for a prompt that is known by the names of its blocks in each of the model's domains;
// a domain without names is looked up without finding anything. The edition is one that [Store.Model] returned for the same model.
func (e Edition) Lookup(model string, names [][]chain.Key, into *prefix.Match) {
	n := e.d.names[model]
	var one prefix.Match
	for i, ix := range n.indexes {
		var keys []chain.Key
		if i < len(names) {
			keys = names[i]
		}
		one.Reset()
		ix.LookupKeys(keys, &one)
		into.Held = append(into.Held, one.Held...)
		into.Blind = append(into.Blind, one.Blind...)
	}
	into.Blind = append(into.Blind, n.blind...)
	slices.SortFunc(into.Held, func(a, b prefix.Held) int {
		return cmp.Or(cmp.Compare(a.Engine, b.Engine), cmp.Compare(a.Rank, b.Rank))
	})
	slices.Sort(into.Blind)
	into.Blind = slices.Compact(into.Blind)
}
