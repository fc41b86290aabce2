package local

import (
	"maps"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
)

// guest is a rank of an engine that claims nothing in an index itself, and stands in it because it is attached to a shelf there: its events
// have not told a block size yet, as after a restart, which is when a Manager's memory is worth most; or it publishes none at all.
type guest struct {
	engine uint32
	rank   int32
	in     *opened
}

// site is an engine, as far as shelves are concerned: its ranks, or none where it publishes nothing.
type site struct {
	Engine
	ranks []*Rank
}

// sitesLocked returns the engines at some URLs; without any, of all URLs that shelves know.
func (s *Store) sitesLocked(urls map[string]bool) map[uint32]*site {
	sites := map[uint32]*site{}
	for no, e := range s.mu.known {
		if urls[e.URL] {
			sites[no] = &site{Engine: e}
		}
	}
	for r := range s.mu.ranks {
		if !urls[r.engine.URL] {
			continue
		}
		if sites[r.engine.No] == nil {
			sites[r.engine.No] = &site{Engine: r.engine}
		}
		at := sites[r.engine.No]
		at.ranks = append(at.ranks, r)
	}
	return sites
}

// bindLocked makes the engines at a URL, or at every one that a shelf knows, attached to shelves as these say. Whoever changes one of both
// calls it. What is so already stays; it costs some microseconds for each pair, at registrations.
func (s *Store) bindLocked(urls ...string) {
	if len(s.mu.shelves) == 0 && len(s.mu.guests) == 0 {
		return
	}
	of := map[string]bool{}
	for _, url := range urls {
		of[url] = true
	}
	if len(urls) == 0 {
		for h := range s.mu.shelves {
			for url := range h.attached {
				of[url] = true
			}
		}
	}
	delete(of, "")
	sites := s.sitesLocked(of)
	before := maps.Clone(s.mu.guests)
	wanted := map[guest]bool{}
	for h := range s.mu.shelves {
		for _, at := range sites {
			s.bindSiteLocked(h, at, wanted)
		}
	}
	for g, no := range before {
		if _, gone := s.mu.guests[g]; gone && !wanted[g] && (sites[g.engine] != nil || !s.thereLocked(g.engine)) {
			g.in.Close(no)
			delete(s.mu.guests, g)
			s.leaveLocked(g.in)
		}
	}
	if !maps.Equal(before, s.mu.guests) {
		s.dirty.Store(true)
	}
}

// thereLocked tells whether somebody knows the engine.
func (s *Store) thereLocked(no uint32) bool {
	if _, known := s.mu.known[no]; known {
		return true
	}
	for r := range s.mu.ranks {
		if r.engine.No == no {
			return true
		}
	}
	return false
}

// bindSiteLocked attaches an engine's ranks to a shelf, or takes them off it.
func (s *Store) bindSiteLocked(h *Shelf, at *site, wanted map[guest]bool) {
	if at.Base != h.in.domain.base {
		return
	}
	as := h.attached[at.URL]
	for g, no := range s.mu.guests {
		if g.engine == at.No && g.in == h.in && tiersOf(as, g.rank) == 0 {
			h.bindLocked(no, 0) // it may be here for another shelf's sake
		}
	}
	if len(at.ranks) == 0 {
		for _, a := range as {
			rank := max(a.Rank, 0)
			h.bindLocked(s.guestLocked(guest{at.No, rank, h.in}, index.Hidden, wanted), tiersOf(as, rank))
		}
		return
	}
	for _, r := range at.ranks {
		tiers := tiersOf(as, r.no)
		switch {
		case r.in == h.in:
			h.bindLocked(r.holder, tiers)
		case r.in == nil && tiers != 0:
			h.bindLocked(s.guestLocked(guest{at.No, r.no, h.in}, r.trust, wanted), tiers)
		}
	}
}

// tiersOf are the tiers that a rank can restore from.
func tiersOf(as []Attachment, rank int32) (tiers uint8) {
	for _, a := range as {
		if a.Rank < 0 || a.Rank == rank {
			tiers |= a.Tiers
		}
	}
	return tiers
}

// guestLocked returns the guest's number, which it gets if it has none.
func (s *Store) guestLocked(g guest, trust index.State, wanted map[guest]bool) index.Holder {
	wanted[g] = true
	no, there := s.mu.guests[g]
	if !there {
		s.joinLocked(domain{g.in.domain.base, g.in.domain.blockSize})
		no = g.in.Open(g.engine, g.rank)
		s.mu.guests[g] = no
	}
	g.in.Mark(no, trust)
	return no
}

// bindLocked attaches a holder to these tiers of the shelf and to no others.
func (h *Shelf) bindLocked(to index.Holder, tiers uint8) {
	for t, has := range h.has {
		switch {
		case !has:
		case tiers>>prefix.Tier(t)&1 != 0:
			h.in.Attach(h.tiers[t], to)
		default:
			h.in.Detach(h.tiers[t], to)
		}
	}
}
