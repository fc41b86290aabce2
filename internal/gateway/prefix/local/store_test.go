package local

import (
	"fmt"
	"strings"
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
)

// store is an event that stores the blocks of the first n tokens of the sequence 0, 1, 2 …, under hashes that begin at hash.
func stored(blockSize, n int, hash prefix.Hash, lora, salt string) *prefix.Event {
	e := &prefix.Event{Kind: prefix.Stored, BlockSize: blockSize, LoRA: lora, Salt: salt, Tokens: sequence(n)}
	for i := range n / blockSize {
		e.Hashes = append(e.Hashes, hash+prefix.Hash(i))
	}
	return e
}

func sequence(n int) []uint32 {
	t := make([]uint32, n)
	for i := range t {
		t[i] = uint32(i)
	}
	return t
}

// look writes what is known of the first n tokens under a name.
func look(t *testing.T, s *Store, q prefix.Query) string {
	t.Helper()
	var m prefix.Match
	if err := s.Lookup(t.Context(), &q, &m); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, h := range m.Held {
		out = append(out, fmt.Sprintf("%d/%d:%d", h.Engine, h.Rank, h.Depth[prefix.Device]))
	}
	for _, b := range m.Blind {
		out = append(out, fmt.Sprintf("%d blind", b))
	}
	return strings.Join(out, ", ")
}

func wantLook(t *testing.T, s *Store, q prefix.Query, want string) {
	t.Helper()
	if got := look(t, s, q); got != want {
		t.Errorf("%s lora=%q salt=%q: %s; want %s", q.Model, q.LoRA, q.Salt, got, want)
	}
}

func TestNames(t *testing.T) {
	s := New(Options{})
	one := s.Open(Engine{No: 1, Base: "m", Names: []string{"m", "m-alias"}, Adapters: []string{"tuned"}}, 0)
	two := s.Open(Engine{No: 2, Base: "m"}, 0)
	other := s.Open(Engine{No: 3, Base: "other"}, 0)
	q := prefix.Query{Model: "m", Tokens: sequence(20)}
	wantLook(t, s, q, "1 blind, 2 blind")

	for _, r := range []*Rank{one, two, other} {
		r.Mark(index.Exact)
	}
	wantLook(t, s, q, "") // they say that they hold nothing
	one.Apply(stored(4, 12, 100, "", ""))
	two.Apply(stored(4, 16, 200, "tuned", ""))
	other.Apply(stored(4, 20, 100, "", ""))
	wantLook(t, s, q, "1/0:12")
	q.Model = "m-alias"
	wantLook(t, s, q, "1/0:12")
	q.Model = "tuned"
	wantLook(t, s, q, "2/0:16") // whoever holds it, whether or not it serves the name
	q.Model = "other"
	wantLook(t, s, q, "3/0:20")
	q.Model = "nobody's"
	wantLook(t, s, q, "")

	one.Apply(stored(4, 8, 300, "", "secret"))
	q.Model, q.Salt = "m", "secret"
	wantLook(t, s, q, "1/0:8")
	one.Close()
	one.Close()
	wantLook(t, s, q, "")
	q.Model = "m-alias"
	wantLook(t, s, q, "") // nobody serves it any more
}

// TestKnown holds that an engine of which nothing can be had is blind, and not empty.
func TestKnown(t *testing.T) {
	s := New(Options{})
	q := prefix.Query{Model: "m", Tokens: sequence(20)}
	s.Know([]Engine{{No: 1, Base: "m"}, {No: 2, Base: "other", Names: []string{"m"}}, {No: 3, Base: "other"}})
	wantLook(t, s, q, "1 blind, 2 blind")
	r := s.Open(Engine{No: 1, Base: "m"}, 0)
	r.Mark(index.Exact)
	wantLook(t, s, q, "2 blind")
	r.Close()
	wantLook(t, s, q, "1 blind, 2 blind")
	s.Know(nil)
	wantLook(t, s, q, "")
}

// TestBlockSizes has engines of two block sizes behind one name, and one that changes its own.
func TestBlockSizes(t *testing.T) {
	s := New(Options{})
	small, large := s.Open(Engine{No: 1, Base: "m"}, 1), s.Open(Engine{No: 1, Base: "m"}, 0)
	small.Mark(index.Exact)
	large.Mark(index.Exact)
	if o := small.Apply(&prefix.Event{Kind: prefix.Removed, Hashes: []prefix.Hash{1, 2}}); o.Unknown != 2 {
		t.Errorf("a removal before any store: %+v", o)
	}
	small.Apply(stored(4, 20, 1, "", ""))
	large.Apply(stored(8, 16, 1, "", ""))
	q := prefix.Query{Model: "m", Tokens: sequence(40)}
	wantLook(t, s, q, "1/0:16, 1/1:20")
	if o := large.Apply(stored(4, 20, 50, "", "")); o.Result != index.OtherSize {
		t.Errorf("a store of another size: %+v", o)
	}
	large.Doubt()
	wantLook(t, s, q, "1/1:20, 1 blind")
	large.Withdraw()
	wantLook(t, s, q, "1/1:20, 1 blind")
	large.Mark(index.Exact)
	large.Apply(stored(4, 8, 50, "", ""))
	wantLook(t, s, q, "1/0:8, 1/1:20")
	if st := s.Stats(); len(st) != 1 || st[0].BlockSize != 4 || st[0].Blocks != 5 {
		t.Errorf("%+v", st)
	}
	small.Close()
	large.Close()
	for s.Sweep(100) {
	}
	if st := s.Stats(); len(st) != 0 {
		t.Errorf("left behind: %+v", st)
	}
}

// TestSweep frees what a withdrawn rank held while another stays.
func TestSweep(t *testing.T) {
	s := New(Options{})
	a, b := s.Open(Engine{No: 1, Base: "m"}, 0), s.Open(Engine{No: 2, Base: "m"}, 0)
	a.Mark(index.Exact)
	b.Mark(index.Exact)
	a.Apply(stored(4, 400, 1, "", ""))
	b.Apply(stored(4, 40, 1, "", ""))
	a.Withdraw()
	if !s.Sweep(1) {
		t.Error("one block was all there was")
	}
	for range 1000 {
		if !s.Sweep(10) {
			break
		}
	}
	if st := s.Stats(); len(st) != 1 || st[0].Blocks != 10 || st[0].Dead != 0 {
		t.Errorf("%+v", st)
	}
}

func TestLimit(t *testing.T) {
	s := New(Options{})
	a := s.Open(Engine{No: 1, Base: "m"}, 0)
	a.Mark(index.Exact)
	a.SetLimit(4)
	if o := a.Apply(stored(4, 40, 1, "", "")); o.Result != index.Exceeded {
		t.Errorf("%+v", o)
	}
	if about, size := a.About(); about.State != index.CutOff || size != 4 {
		t.Errorf("%+v, block size %d", about, size)
	}
	wantLook(t, s, prefix.Query{Model: "m", Tokens: sequence(40)}, "1 blind")
}

func TestLookupAllocatesNothing(t *testing.T) {
	s := New(Options{})
	a := s.Open(Engine{No: 1, Base: "m", Adapters: []string{"l"}}, 0)
	a.Mark(index.Exact)
	a.Apply(stored(4, 40, 1, "", ""))
	q := prefix.Query{Model: "l", Tokens: sequence(40)}
	var m prefix.Match
	if n := testing.AllocsPerRun(100, func() {
		m.Reset()
		_ = s.Lookup(t.Context(), &q, &m)
	}); n > 1 { // the query with its adapter's name
		t.Errorf("%v allocations", n)
	}
}
