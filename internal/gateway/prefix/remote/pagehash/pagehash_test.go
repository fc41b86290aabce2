package pagehash

import (
	"math"
	"slices"
	"testing"
)

func run(from, to, step uint32) (t []uint32) {
	for i := from; i <= to; i += step {
		t = append(t, i)
	}
	return t
}

// TestVectors has numbers that an independent implementation gave (Python's hashlib, over upstream's description).
func TestVectors(t *testing.T) {
	for _, c := range []struct {
		scheme Scheme
		tokens []uint32
		salt   string
		want   []int64
	}{
		{Scheme{4, false}, run(1, 4, 1), "", []int64{-3488128144981237669}},
		{Scheme{4, false}, run(1, 5, 1), "", []int64{-3488128144981237669, -3787494577174227566}},
		{Scheme{2, false}, run(10, 80, 10), "", []int64{978178666101069530, -895308556211281782, -8033692805846017938, 835415944263129316}},
		{Scheme{4, true}, run(10, 40, 10), "", []int64{-2735951481331064195}},
		{Scheme{2, true}, run(10, 50, 10), "", []int64{-8847804484166691499, 4989791362144317498}},
		{Scheme{4, true}, run(1, 6, 1), "", []int64{-638950109823820341, 3604587133525381017}},
		{Scheme{4, true}, run(5, 13, 1), "", []int64{-2900568514773989563, -322435596280658912}},
		{Scheme{4, false}, run(1, 4, 1), "tenant-a", []int64{3718046898735569995}},
		{Scheme{4, true}, []uint32{1}, "", nil},
		{Scheme{4, false}, nil, "salt", nil},
	} {
		if got := c.scheme.Append(nil, c.tokens, c.salt, math.MaxInt); !slices.Equal(got, c.want) {
			t.Errorf("%+v %v %q: %d, want %d", c.scheme, c.tokens, c.salt, got, c.want)
		}
		if len(c.want) > 1 {
			if got := c.scheme.Append(nil, c.tokens, c.salt, 1); !slices.Equal(got, c.want[:1]) {
				t.Errorf("%+v %v: the first alone is %d", c.scheme, c.tokens, got)
			}
		}
	}
}

func TestPages(t *testing.T) {
	for _, c := range []struct {
		scheme       Scheme
		tokens, want int
	}{
		{Scheme{4, false}, 0, 0}, {Scheme{4, false}, 3, 0}, {Scheme{4, false}, 4, 1}, {Scheme{4, false}, 9, 2},
		{Scheme{4, true}, 0, 0}, {Scheme{4, true}, 1, 0}, {Scheme{4, true}, 4, 0}, {Scheme{4, true}, 5, 1}, {Scheme{1, true}, 5, 4},
	} {
		if got := c.scheme.Pages(c.tokens); got != c.want {
			t.Errorf("%+v: %d pages of %d tokens, want %d", c.scheme, got, c.tokens, c.want)
		}
	}
}
