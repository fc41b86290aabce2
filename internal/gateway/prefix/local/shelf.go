package local

import (
	"slices"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
)

// Shelf is what a Cache Manager can restore in one namespace, of one domain: blocks below the device, which count for the engines that are
// attached. Its methods belong to one goroutine. It is hidden at first.
//
// In the index it is a holder for each tier, so that an engine can be attached to some of them.
type Shelf struct {
	store *Store
	in    *opened
	limit int

	// Changed with the store's mutex held.
	tiers    [prefix.Tiers]index.Holder
	has      [prefix.Tiers]bool
	trust    index.State
	attached map[string][]Attachment
}

// Attachment says what an engine can restore from a shelf.
type Attachment struct {
	// Rank is the data-parallel rank, below 0: all of them.
	Rank int32
	// Tiers has bit 1<<t for each tier that it can use.
	Tiers uint8
}

// OpenShelf returns an empty shelf that may have so many claims (0: as the store's options say) on each tier. The caller closes it.
func (s *Store) OpenShelf(d Domain, limit int) *Shelf {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := &Shelf{store: s, in: s.joinLocked(domain{d.Base, d.BlockSize}), limit: limit, attached: map[string][]Attachment{}}
	s.mu.shelves[h] = struct{}{}
	return h
}

// Attach says what all registrations of the engine at a URL can restore from the shelf, in place of what was said before; none: nothing. An
// engine that is not known yet is attached when it is.
func (h *Shelf) Attach(url string, as []Attachment) {
	s := h.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.openLocked(h) || slices.Equal(h.attached[url], as) {
		return
	}
	if h.attached[url] = slices.Clone(as); len(as) == 0 {
		delete(h.attached, url)
	}
	s.bindLocked(url)
}

// Put adds claims, all of them on one tier below the device. The outcome is as of index.Paste.
func (h *Shelf) Put(t prefix.Tier, claims []index.Claim) index.Outcome {
	if t == prefix.Device || t >= prefix.Tiers {
		return index.Outcome{Result: index.Malformed}
	}
	if !h.has[t] && !h.open(t) {
		return index.Outcome{Result: index.Refused}
	}
	return h.in.Paste(h.tiers[t], claims)
}

func (h *Shelf) open(t prefix.Tier) bool {
	s := h.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.openLocked(h) {
		return false
	}
	h.tiers[t], h.has[t] = h.in.OpenStore(), true
	h.in.SetLimit(h.tiers[t], h.limit)
	h.in.Mark(h.tiers[t], h.trust)
	for url := range h.attached {
		s.bindLocked(url)
	}
	return true
}

// Remove drops claims from one tier, and returns how many there were.
func (h *Shelf) Remove(t prefix.Tier, hashes []prefix.Hash) int {
	if t >= prefix.Tiers || !h.has[t] {
		return 0
	}
	return h.in.Apply(h.tiers[t], &prefix.Event{Kind: prefix.Removed, Tier: t, Hashes: hashes}).Blocks
}

// Clear drops all claims, and returns how many there were.
func (h *Shelf) Clear() (n int) {
	for t, has := range h.has {
		if has {
			n += h.in.Apply(h.tiers[t], &prefix.Event{Kind: prefix.Cleared}).Blocks
		}
	}
	return n
}

// Mark says how far the shelf is to be believed from now on.
func (h *Shelf) Mark(trust index.State) {
	s := h.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.trust = trust; !s.openLocked(h) {
		return
	}
	for t, has := range h.has {
		if has {
			h.in.Mark(h.tiers[t], trust)
		}
	}
}

// Close takes the shelf away, with all that it has. Closing twice does nothing.
func (h *Shelf) Close() {
	s := h.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.openLocked(h) {
		return
	}
	delete(s.mu.shelves, h)
	for t, has := range h.has {
		if has {
			h.in.Close(h.tiers[t])
		}
	}
	h.has = [prefix.Tiers]bool{}
	for url := range h.attached {
		s.bindLocked(url) // engines that were here as guests go
	}
	s.leaveLocked(h.in)
}

func (s *Store) openLocked(h *Shelf) bool {
	_, there := s.mu.shelves[h]
	return there
}
