package core

import (
	"cmp"
	"math/bits"
	"slices"
)

// Piece is bytes of memory that a session has offered: Length bytes from Offset on of its pool of that number. A page in one piece may leave
// the length 0: then it is the page's.
type Piece struct {
	Pool, Length uint32
	Offset       uint64
}

// Pages says where pages lie in offered memory. Page i is the next Counts[i] pieces, which are its bytes in their order: keys and values of
// a page lie apart, and in some layouts every layer.
type Pages struct {
	Counts []uint32
	Pieces []Piece
}

// MaxPieces bounds the pieces of one message: 128 pages of 256 layers' keys and values. They are a mebibyte.
const MaxPieces = 1 << 16

// Page returns the pieces of page i, which begin at place at, and the place where the next page's begin.
func (p *Pages) Page(i, at int) (pieces []Piece, next int) {
	next = at + int(p.Counts[i])
	return p.Pieces[at:next:next], next
}

// first is the first n pages.
func (p *Pages) first(n int) Pages {
	at := 0
	for _, k := range p.Counts[:n] {
		at += int(k)
	}
	return Pages{p.Counts[:n], p.Pieces[:at]}
}

// Line is where pages that lie at equal distances have one of their pieces: that of the page at n is Length bytes at Offset + n × Distance.
type Line struct {
	Pool     uint32
	Offset   uint64
	Distance uint32
	Length   uint32
}

// Lines says where pages lie at equal distances: for the page at each place a piece of each line, line by line. Places are what the client counts in, pages
// or an engine's slots.
type Lines struct {
	Lines  []Line
	Places []uint64
}

// Pages spells the pieces out. It is false for more than MaxPieces, and for offsets that no memory has.
func (l *Lines) Pages() (p Pages, ok bool) {
	if uint64(len(l.Lines))*uint64(len(l.Places)) > MaxPieces {
		return Pages{}, false
	}
	p = Pages{Counts: make([]uint32, len(l.Places)), Pieces: make([]Piece, 0, len(l.Lines)*len(l.Places))}
	for i, n := range l.Places {
		p.Counts[i] = uint32(len(l.Lines))
		for j := range l.Lines {
			x := &l.Lines[j]
			over, on := bits.Mul64(uint64(x.Distance), n)
			at, carry := bits.Add64(x.Offset, on, 0)
			if over != 0 || carry != 0 {
				return Pages{}, false
			}
			p.Pieces = append(p.Pieces, Piece{Pool: x.Pool, Offset: at, Length: x.Length})
		}
	}
	return p, true
}

// fit says that the pages are as many as the slots, that each is as long as its slot's part (a slot of 0 bytes has no say), and that every
// piece lies in a pool of the session. Nothing in it can overflow: a piece is compared with what is left behind its offset, and the
// sum of 2^16 lengths of 32 bits has 48.
func (s *session) fit(p *Pages, slots []PlanSlot) bool {
	if len(p.Counts) != len(slots) || len(p.Pieces) > MaxPieces {
		return false
	}
	at := 0
	var pool offered // of the last piece: mostly there is but one
	number, known := uint32(0), false
	for i, n := range p.Counts {
		if n == 0 || uint64(n) > uint64(len(p.Pieces)-at) {
			return false
		}
		pieces, next := p.Page(i, at)
		want := uint64(slots[i].Bytes)
		if n == 1 && pieces[0].Length == 0 {
			pieces[0].Length = uint32(want)
		}
		sum := uint64(0)
		for _, x := range pieces {
			if !known || x.Pool != number {
				pool, known = s.pools[x.Pool]
				number = x.Pool
			}
			if !known || x.Length == 0 && want != 0 || x.Offset > pool.bytes || uint64(x.Length) > pool.bytes-x.Offset {
				return false
			}
			sum += uint64(x.Length)
		}
		if want != 0 && sum != want {
			return false
		}
		at = next
	}
	return at == len(p.Pieces)
}

// region is bytes from to to of a pool.
type region struct {
	pool     uint32
	from, to uint64
}

// regionsOf is the memory that pieces cover, in order and without overlap, in all's memory if it has room; twice says that some of it was named more than once.
func regionsOf(all []region, pieces []Piece, stride int) (out []region, twice bool) {
	all = slices.Grow(all[:0], len(pieces))
	// Of pages that follow each other the first pieces are in order, and the second, and so on: so these are put in the order of their first ones, and then there is
	// often nothing to sort, which would take as long as copying a tenth of small pages.
	firsts := make([]int, min(stride, len(pieces)))
	for i := range firsts {
		firsts[i] = i
	}
	slices.SortFunc(firsts, func(a, b int) int {
		x, y := &pieces[a], &pieces[b]
		return cmp.Or(cmp.Compare(x.Pool, y.Pool), cmp.Compare(x.Offset, y.Offset))
	})
	for _, first := range firsts {
		for i := first; i < len(pieces); i += stride {
			if x := &pieces[i]; x.Length > 0 {
				all = append(all, region{x.Pool, x.Offset, x.Offset + uint64(x.Length)})
			}
		}
	}
	order := func(a, b region) int { return cmp.Or(cmp.Compare(a.pool, b.pool), cmp.Compare(a.from, b.from)) }
	if !slices.IsSortedFunc(all, order) {
		slices.SortFunc(all, order)
	}
	out = all[:0]
	for _, r := range all {
		if n := len(out); n > 0 && out[n-1].pool == r.pool && r.from <= out[n-1].to {
			twice = twice || r.from < out[n-1].to
			out[n-1].to = max(out[n-1].to, r.to)
			continue
		}
		out = append(out, r)
	}
	return out, twice
}

// meet says that two lists of regionsOf have a byte in common.
func meet(a, b []region) bool {
	for len(a) > 0 && len(b) > 0 {
		x, y := a[0], b[0]
		switch {
		case x.pool < y.pool || x.pool == y.pool && x.to <= y.from:
			a = a[1:]
		case y.pool < x.pool || y.to <= x.from:
			b = b[1:]
		default:
			return true
		}
	}
	return false
}
