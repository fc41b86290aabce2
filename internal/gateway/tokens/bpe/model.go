package bpe

import (
	"hash/maphash"
	"math"
	"slices"
	"sync/atomic"
	"unicode/utf8"
)

// A model is what the file calls by the same name: it turns one word into tokens, by merging pairs of neighbours, the
// one of the lowest rank first, the leftmost first among equals.
type model struct {
	vocab        *vocabulary
	merges       *mergeTable
	byteLevel    bool // symbols start as bytes; else as characters
	ignoreMerges bool // a word that is a token is that token, whether merges lead to it or not
	byteFallback bool
	fuseUnknown  bool
	hasUnknown   bool
	unknown      uint32

	symbols  [256]uint32     // byte-level: the token of each byte; else of each ASCII character; noToken: none
	fallback [256]uint32     // the token <0xNN> of each byte; noToken: none
	pairs    []uint32        // byte-level: the rank of the pair of bytes a, b at a<<8|b
	reach    []atomic.Uint32 // two bits for each id: known, and merges lead to it from its own text
	cross    *crossings      // nil: a word may not be cut before merging
}

const noToken = math.MaxUint32

// finish fills the tables that follow from vocab, merges and the settings.
func (m *model) finish() {
	var one [utf8.UTFMax]byte
	for b := range 256 {
		m.symbols[b], m.fallback[b] = noToken, noToken
		one[0] = byte(b)
		if id, ok := m.vocab.find(string(one[:1])); ok && (m.byteLevel || b < utf8.RuneSelf) {
			m.symbols[b] = id
		}
		const hex = "0123456789ABCDEF"
		if id, ok := m.vocab.find("<0x" + string(hex[b>>4]) + string(hex[b&15]) + ">"); ok {
			m.fallback[b] = id
		}
	}
	m.reach = make([]atomic.Uint32, len(m.vocab.spans)/16+1)
	if !m.byteLevel {
		m.cross = newCrossings(m)
		return
	}
	m.pairs = make([]uint32, 1<<16)
	for i := range m.pairs {
		m.pairs[i] = noRank
		if l, r := m.symbols[i>>8], m.symbols[i&0xff]; l != noToken && r != noToken {
			m.pairs[i] = m.merges.rank(l, r)
		}
	}
}

// word appends the tokens of w, which is not empty.
func (m *model) word(dst []uint32, w string, s *scratch) []uint32 {
	if s.tooLong || s.maxWord > 0 && len(w) > s.maxWord {
		s.tooLong = true
		return dst
	}
	if len(w) == 1 && m.byteLevel {
		if id := m.symbols[w[0]]; id != noToken {
			return append(dst, id)
		}
	}
	h := maphash.String(m.vocab.seed, w)
	line := s.words.line(w, h)
	if line != nil && line.holds(w) {
		return append(dst, line.ids[:line.n]...)
	}
	n := len(dst)
	if id, ok := m.vocab.findHash(w, h); ok && (m.ignoreMerges || m.reachable(id, w, s)) {
		dst = append(dst, id)
	} else {
		dst = m.merge(dst, w, s)
	}
	if line != nil {
		line.put(w, dst[n:])
	}
	return dst
}

// reachable tells whether merging the text of token id gives the token itself. Each answer is worked out once, on the
// first use of the token as a word: at load it would be most of the time that loading takes.
func (m *model) reachable(id uint32, w string, s *scratch) bool {
	word, shift := &m.reach[id/16], id%16*2
	switch word.Load() >> shift & 3 {
	case 1:
		return false
	case 3:
		return true
	}
	s.own = m.merge(s.own[:0], w, s)
	if len(s.own) == 1 && s.own[0] == id {
		word.Or(3 << shift)
		return true
	}
	word.Or(1 << shift)
	return false
}

// smallWord is where looking through all ranks for the lowest becomes dearer than keeping a heap. Words of prose are
// shorter; measured, the two meet between 40 and 100 symbols.
const smallWord = 64

func (m *model) merge(dst []uint32, w string, s *scratch) []uint32 {
	if m.byteLevel {
		return m.mergeBytes(dst, w, s)
	}
	s.syms = m.characters(s.syms[:0], w)
	s.ranks = s.ranks[:0]
	for i := 1; i < len(s.syms); i++ {
		s.ranks = append(s.ranks, m.merges.rank(s.syms[i-1], s.syms[i]))
	}
	return m.mergeSymbols(dst, s)
}

func (m *model) mergeBytes(dst []uint32, w string, s *scratch) []uint32 {
	syms, ranks := slices.Grow(s.syms[:0], len(w)), slices.Grow(s.ranks[:0], len(w))
	whole := true
	for i := range len(w) {
		id := m.symbols[w[i]]
		if id == noToken {
			whole = false
			break
		}
		syms = append(syms, id)
		if i > 0 {
			ranks = append(ranks, m.pairs[int(w[i-1])<<8|int(w[i])])
		}
	}
	s.syms, s.ranks = syms, ranks
	if !whole {
		m.bytesUnknown(w, s)
	}
	return m.mergeSymbols(dst, s)
}

// bytesUnknown is mergeBytes' start for a vocabulary that lacks bytes: what the reference implementation sees is one
// character for each byte, and it deals with them as with any other that it does not know.
func (m *model) bytesUnknown(w string, s *scratch) {
	s.syms, s.ranks = s.syms[:0], s.ranks[:0]
	var u unknowns
	for i := range len(w) {
		if id := m.symbols[w[i]]; id != noToken {
			s.syms = append(u.flush(m, s.syms), id)
		} else {
			s.syms = u.add(m, s.syms, string(byteChars[w[i]]))
		}
	}
	s.syms = u.flush(m, s.syms)
	for i := 1; i < len(s.syms); i++ {
		s.ranks = append(s.ranks, m.merges.rank(s.syms[i-1], s.syms[i]))
	}
}

// characters appends the token of each character of w, or what stands for one that has none.
func (m *model) characters(syms []uint32, w string) []uint32 {
	var u unknowns
	for i := 0; i < len(w); {
		n := 1
		id := uint32(noToken)
		if w[i] < utf8.RuneSelf {
			id = m.symbols[w[i]]
		} else {
			_, n = utf8.DecodeRuneInString(w[i:])
			if found, ok := m.vocab.find(w[i : i+n]); ok {
				id = found
			}
		}
		if id != noToken {
			syms = append(u.flush(m, syms), id)
		} else {
			syms = u.add(m, syms, w[i:i+n])
		}
		i += n
	}
	return u.flush(m, syms)
}

// unknowns deals with characters that the vocabulary lacks, in the reference implementation's order: an unknown token
// that waits is not put before bytes that fall back, but before the next known character.
type unknowns struct{ waiting bool }

func (u *unknowns) add(m *model, syms []uint32, char string) []uint32 {
	if m.byteFallback {
		n := len(syms)
		for i := range len(char) {
			if m.fallback[char[i]] == noToken {
				syms = syms[:n]
				break
			}
			syms = append(syms, m.fallback[char[i]])
		}
		if len(syms) > n {
			return syms
		}
	}
	if !m.hasUnknown {
		return syms // nothing stands for it
	}
	if u.waiting && !m.fuseUnknown {
		syms = append(syms, m.unknown)
	}
	u.waiting = true
	return syms
}

func (u *unknowns) flush(m *model, syms []uint32) []uint32 {
	if u.waiting {
		u.waiting = false
		syms = append(syms, m.unknown)
	}
	return syms
}

// mergeSymbols merges s.syms, where s.ranks[i] is the rank of symbols i and i+1, and appends what is left.
func (m *model) mergeSymbols(dst []uint32, s *scratch) []uint32 {
	if len(s.syms) > smallWord {
		return m.mergeLong(dst, s)
	}
	syms, ranks := s.syms, s.ranks
	for len(ranks) > 0 {
		best, at := ranks[0], 0
		for i, r := range ranks {
			if r < best {
				best, at = r, i
			}
		}
		if best == noRank {
			break
		}
		syms[at] = m.merges.made[best]
		copy(syms[at+1:], syms[at+2:])
		syms = syms[:len(syms)-1]
		copy(ranks[at:], ranks[at+1:])
		ranks = ranks[:len(ranks)-1]
		if at > 0 {
			ranks[at-1] = m.merges.rank(syms[at-1], syms[at])
		}
		if at < len(ranks) {
			ranks[at] = m.merges.rank(syms[at], syms[at+1])
		}
	}
	return append(dst, syms...)
}

// mergeLong is mergeSymbols for long words: a heap of ranks and places over a linked list, n log n where looking through
// all ranks would take n². A place's entries go stale when its pair changes; they are passed over when they come up.
func (m *model) mergeLong(dst []uint32, s *scratch) []uint32 {
	n := len(s.syms)
	s.ranks = append(s.ranks, noRank) // the last symbol has no right neighbour
	s.links = slices.Grow(s.links[:0], n)
	s.heap = slices.Grow(s.heap[:0], n)
	for i := range n {
		s.links = append(s.links, link{int32(i - 1), int32(i + 1)})
		if r := s.ranks[i]; r != noRank {
			s.heap = append(s.heap, uint64(r)<<32|uint64(i))
		}
	}
	s.heap.build()
	for len(s.heap) > 0 {
		e := s.heap.pop()
		at := int(uint32(e))
		if s.ranks[at] != uint32(e>>32) {
			continue // stale; a symbol that was merged away has no rank
		}
		right := int(s.links[at].next)
		s.syms[at] = m.merges.made[e>>32]
		after := int(s.links[right].next)
		s.links[at].next = int32(after)
		s.ranks[right], s.syms[right] = noRank, noToken
		s.ranks[at] = noRank
		if after < n {
			s.links[after].prev = int32(at)
			m.renew(s, at, after)
		}
		if before := int(s.links[at].prev); before >= 0 {
			m.renew(s, before, at)
		}
	}
	for i := 0; i < n; i = int(s.links[i].next) {
		dst = append(dst, s.syms[i])
	}
	return dst
}

// renew sets the rank of the neighbours at and right.
func (m *model) renew(s *scratch, at, right int) {
	s.ranks[at] = m.merges.rank(s.syms[at], s.syms[right])
	if s.ranks[at] != noRank {
		s.heap.push(uint64(s.ranks[at])<<32 | uint64(at))
	}
}

// A heap of four children a node: half the depth of two, and its children share a cache line or two.
type heap []uint64

func (h heap) build() {
	for i := (len(h) - 2) / 4; i >= 0 && len(h) > 1; i-- {
		h.down(i)
	}
}

func (h *heap) push(e uint64) {
	*h = append(*h, e)
	q := *h
	i := len(q) - 1
	for i > 0 {
		up := (i - 1) / 4
		if q[up] <= e {
			break
		}
		q[i] = q[up]
		i = up
	}
	q[i] = e
}

func (h *heap) pop() uint64 {
	q := *h
	top, last := q[0], len(q)-1
	q[0] = q[last]
	*h = q[:last]
	if last > 1 {
		(*h).down(0)
	}
	return top
}

func (h heap) down(i int) {
	e := h[i]
	for {
		first := 4*i + 1
		if first >= len(h) {
			break
		}
		least := first
		for c := first + 1; c < min(first+4, len(h)); c++ {
			if h[c] < h[least] {
				least = c
			}
		}
		if e <= h[least] {
			break
		}
		h[i] = h[least]
		i = least
	}
	h[i] = e
}
