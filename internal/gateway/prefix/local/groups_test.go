package local

import (
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
)

// TestGroupsOfOtherSizes: an engine whose KV cache groups have blocks of different sizes is credited with what is proven, whichever of its groups
// stores first, and is not held for empty.
func TestGroupsOfOtherSizes(t *testing.T) {
	full := func(size, n int) *prefix.Event { return stored(size, n, 100, "", "") }
	state := func(size, n int) *prefix.Event {
		e := stored(size, n, 500, "", "")
		e.Group, e.Recurrent = 1, true
		return e
	}
	// partial is the last block of the first n tokens, and of another size.
	partial := func(size, n int) *prefix.Event {
		e := stored(size, size, 900, "", "")
		e.Tokens = sequence(n)[n-size:]
		e.HasParent, e.Parent = n > size, 800
		return e
	}
	removed := &prefix.Event{Kind: prefix.Removed, Hashes: []prefix.Hash{100}, AnyTier: true}
	for name, c := range map[string]struct {
		events []*prefix.Event
		size   int
		want   string
	}{
		"full attention first":           {[]*prefix.Event{full(16, 128), state(64, 128)}, 16, "1 blind"},
		"states first":                   {[]*prefix.Event{state(64, 128), full(16, 128)}, 16, "1 blind"},
		"states first, in smaller ones":  {[]*prefix.Event{state(8, 128), full(16, 128)}, 16, "1 blind"},
		"states first, of the same size": {[]*prefix.Event{state(16, 128), full(16, 128)}, 16, "1/0:128"},
		"states alone":                   {[]*prefix.Event{state(64, 128)}, 64, "1 blind"},
		"a partial block later":          {[]*prefix.Event{full(16, 64), partial(4, 68)}, 16, "1/0:64"},
		"a partial block first":          {[]*prefix.Event{partial(4, 4), full(16, 64), partial(8, 72)}, 16, "1/0:64"},
		"a partial block before states":  {[]*prefix.Event{partial(4, 4), state(16, 64), full(16, 64), state(16, 64)}, 16, "1/0:64, 1 blind"},
		"a further group":                {[]*prefix.Event{full(16, 64), {Kind: prefix.Stored, Group: 3, BlockSize: 32, Tokens: sequence(32), Hashes: []prefix.Hash{1}}}, 16, "1/0:64"},
		"removed":                        {[]*prefix.Event{partial(4, 4), full(16, 64), removed}, 16, ""},
		"no size":                        {[]*prefix.Event{full(16, 64), {Kind: prefix.Stored, BlockSize: -3, Tokens: sequence(3), Hashes: []prefix.Hash{1}}}, 16, "1/0:64"},
	} {
		s := New(Options{})
		r := s.Open(Engine{No: 1, Base: "m"}, 0)
		r.Mark(index.Exact)
		for _, e := range c.events {
			r.Apply(e)
		}
		if got := look(t, s, prefix.Query{Model: "m", Tokens: sequence(256)}); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if _, size := r.About(); size != c.size {
			t.Errorf("%s: blocks of %d, want %d", name, size, c.size)
		}
		if n := len(s.Stats()); n != 1 {
			t.Errorf("%s: %d indexes", name, n)
		}
		r.Withdraw()
		r.Mark(index.Exact)
		r.Apply(full(32, 64)) // it was restarted
		wantLook(t, s, prefix.Query{Model: "m", Tokens: sequence(256)}, "1/0:64")
		r.Close()
	}
}

// TestAdoptedSizeStays: an engine that stores in another size than adopted claims are of contradicts them.
func TestAdoptedSizeStays(t *testing.T) {
	r := New(Options{}).Open(Engine{No: 1, Base: "m"}, 0)
	r.AdoptGroups(16, index.Groups{Full: 1})
	if o := r.Apply(stored(8, 8, 1, "", "")); o.Result != index.PartialBlock {
		t.Errorf("%+v", o)
	}
	for _, size := range []int{8, 32} {
		if o := r.Apply(stored(size, 64, 1, "", "")); o.Result != index.OtherSize {
			t.Errorf("%d: %+v", size, o)
		}
	}
	r.Withdraw()
	if o := r.Apply(stored(32, 64, 1, "", "")); o.Result != index.Applied {
		t.Errorf("%+v", o)
	}
}
