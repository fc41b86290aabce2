package core

import (
	"math/big"
	"slices"
	"testing"

	"github.com/perigee-llm/perigee/internal/script"
)

// naive is the bytes that pieces cover, one by one, and whether one is covered twice.
func naive(pieces []Piece) (bytes map[[2]uint64]bool, twice bool) {
	bytes = map[[2]uint64]bool{}
	for _, x := range pieces {
		for i := range uint64(x.Length) {
			at := [2]uint64{uint64(x.Pool), x.Offset + i}
			twice = twice || bytes[at]
			bytes[at] = true
		}
	}
	return bytes, twice
}

// TestRegions compares what pieces cover, and whether two lists of them meet, with a byte-by-byte count.
func TestRegions(t *testing.T) {
	r := script.Rand(t)
	some := func() (out []Piece) {
		for range r.IntN(6) {
			out = append(out, Piece{Pool: uint32(r.IntN(2)), Offset: uint64(r.IntN(60)), Length: uint32(r.IntN(8))})
		}
		return out
	}
	for range 20_000 {
		a, b := some(), some()
		inA, twice := naive(a)
		inB, _ := naive(b)
		regions, got := regionsOf(nil, a, 1+r.IntN(3))
		if got != twice {
			t.Fatalf("%v: twice %v", a, got)
		}
		n := 0
		for i, x := range regions {
			for at := x.from; at < x.to; at++ {
				if n++; !inA[[2]uint64{uint64(x.pool), at}] {
					t.Fatalf("%v covers %v", a, regions)
				}
			}
			if i > 0 && !(regions[i-1].pool < x.pool || regions[i-1].to < x.from) {
				t.Fatalf("%v: %v are not in order, or touch", a, regions)
			}
		}
		if n != len(inA) {
			t.Fatalf("%v covers %d bytes, not %d", a, len(inA), n)
		}
		both := false
		for at := range inA {
			both = both || inB[at]
		}
		other, _ := regionsOf(nil, b, 1+r.IntN(3))
		if meet(regions, other) != both || meet(other, regions) != both {
			t.Fatalf("%v and %v meet: %v", a, b, both)
		}
	}
}

// TestPiecesFit compares fit with a rule that cannot overflow, at sizes that could.
func TestPiecesFit(t *testing.T) {
	r := script.Rand(t)
	edges := []uint64{0, 1, 99, 100, 101, 1 << 31, 1<<32 - 1, 1 << 32, 1<<56 - 100, 1 << 56, 1 << 63, 1<<64 - 100, 1<<64 - 1}
	s := &session{pools: map[uint32]offered{1: {bytes: 1000}, 2: {bytes: 1 << 56}}}
	fits := 0
	for range 200_000 {
		p, slots := Pages{}, []PlanSlot(nil)
		for range 1 + r.IntN(2) {
			n := r.IntN(3)
			p.Counts = append(p.Counts, uint32(n))
			for range n {
				p.Pieces = append(p.Pieces, Piece{Pool: uint32(r.IntN(3)), Offset: edges[r.IntN(len(edges))], Length: uint32(edges[r.IntN(8)])})
			}
			slots = append(slots, PlanSlot{Bytes: []uint32{0, 100, 200, 1<<32 - 1}[r.IntN(4)]})
		}
		switch r.IntN(10) {
		case 0:
			p.Counts[0] = ^uint32(0)
		case 1:
			slots = append(slots, PlanSlot{})
		case 2:
			p.Pieces = append(p.Pieces, Piece{Pool: 2, Length: 1})
		}
		want := naiveFit(s, p, slots)
		if got := s.fit(&p, slots); got != want {
			t.Fatalf("%+v for %v fits: %v", p, slots, got)
		}
		if want {
			fits++
			for _, x := range p.Pieces {
				if x.Length > 0 && (x.Offset+uint64(x.Length) < x.Offset || x.Offset+uint64(x.Length) > s.pools[x.Pool].bytes) {
					t.Fatalf("%+v fits", p)
				}
			}
		}
	}
	if fits < 1000 {
		t.Errorf("only %d fitted: the test leaves out something", fits)
	}
	long := Pages{Counts: []uint32{MaxPieces + 1}, Pieces: slices.Repeat([]Piece{{Pool: 2, Length: 1}}, MaxPieces+1)}
	if s.fit(&long, []PlanSlot{{Bytes: MaxPieces + 1}}) {
		t.Error("more pieces than a message may have")
	}
}

func naiveFit(s *session, p Pages, slots []PlanSlot) bool {
	all := 0
	for _, n := range p.Counts {
		all += int(n)
	}
	if len(p.Counts) != len(slots) || all != len(p.Pieces) {
		return false
	}
	rest := p.Pieces
	for i, n := range p.Counts {
		sum := 0
		for _, x := range rest[:n] {
			length := x.Length
			if n == 1 && length == 0 {
				length = slots[i].Bytes
			}
			pool, ok := s.pools[x.Pool]
			stale := n == 1 && x.Length == 0 && slots[i].Bytes == 0
			// Neither 2^56 nor 2^32 more overflows; an offset above it is refused first.
			if !ok || x.Offset > 1<<56 || length == 0 && !stale && slots[i].Bytes != 0 || x.Offset+uint64(length) > pool.bytes {
				return false
			}
			sum += int(length)
		}
		if n == 0 || slots[i].Bytes != 0 && sum != int(slots[i].Bytes) {
			return false
		}
		rest = rest[n:]
	}
	return true
}

// TestLines compares pages at equal distances with their definition, and wants no sum to go round.
func TestLines(t *testing.T) {
	r := script.Rand(t)
	for range 2000 {
		l := Lines{Lines: make([]Line, r.IntN(4)), Places: make([]uint64, r.IntN(5))}
		for i := range l.Lines {
			l.Lines[i] = Line{r.Uint32N(3), r.Uint64() >> r.IntN(64), r.Uint32() >> r.IntN(32), r.Uint32()}
		}
		for i := range l.Places {
			l.Places[i] = r.Uint64() >> r.IntN(64)
		}
		var want Pages
		fits := true
		for _, n := range l.Places {
			want.Counts = append(want.Counts, uint32(len(l.Lines)))
			for _, x := range l.Lines {
				at := new(big.Int).SetUint64(n)
				at.Mul(at, big.NewInt(int64(x.Distance))).Add(at, new(big.Int).SetUint64(x.Offset))
				fits = fits && at.IsUint64()
				want.Pieces = append(want.Pieces, Piece{x.Pool, x.Length, at.Uint64()})
			}
		}
		got, ok := l.Pages()
		if ok != fits || ok && (!slices.Equal(got.Counts, want.Counts) || !slices.Equal(got.Pieces, want.Pieces)) {
			t.Fatalf("%+v\n got %+v, %v\nwant %+v, %v", l, got, ok, want, fits)
		}
	}
	if _, ok := (&Lines{make([]Line, 257), make([]uint64, 256)}).Pages(); ok {
		t.Error("more pieces than a message may have")
	}
	many := &Lines{make([]Line, MaxPieces), make([]uint64, MaxPieces)}
	if n := testing.AllocsPerRun(1, func() { many.Pages() }); n > 0 {
		t.Errorf("%v allocations for what is too much", n)
	}
}
