package local

import (
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
)

// TestCopying brings the claims of two ranks to another store, and compares what both say.
func TestCopying(t *testing.T) {
	from, to := New(Options{}), New(Options{})
	ranks := []*Rank{from.Open(Engine{No: 1, Base: "m", Adapters: []string{"tuned"}}, 0), from.Open(Engine{No: 1, Base: "m"}, 1), from.Open(Engine{No: 2, Base: "other"}, 0)}
	for i, r := range ranks {
		r.Mark(index.Exact)
		r.Apply(stored(4+4*i, 40, prefix.Hash(100*i), "", ""))
	}
	from.Open(Engine{No: 4, Base: "m"}, 0) // has stored nothing
	all := from.Copyings("m")
	if len(all) != 2 || all[1].Rank != 1 || all[1].Domain != (Domain{"m", 8}) {
		t.Fatalf("%+v", all)
	}
	for _, c := range all {
		r := to.Open(Engine{No: c.Engine, Base: "m"}, c.Rank)
		r.AdoptGroups(c.Domain.BlockSize, c.Groups())
		var claims [3]index.Claim
		for done := false; !done; {
			n, end, void := c.Next(claims[:])
			if o := r.Adopt(c.Domain.BlockSize, claims[:n]); void || o.Result != index.Applied {
				t.Fatalf("%+v, void %v", o, void)
			}
			done = end
		}
		if o := r.Adopt(3, claims[:1]); o.Result != index.OtherSize {
			t.Errorf("%+v", o)
		}
		q := prefix.Query{Model: "m", Tokens: sequence(50)}
		if c.Rank == 0 {
			wantLook(t, to, q, "1 blind")
		}
		r.Mark(index.Exact)
	}
	wantLook(t, to, prefix.Query{Model: "m", Tokens: sequence(50)}, "1/0:40, 1/1:40")
}

// TestCopyingEnds: a rank whose claims end while they are copied has no copy.
func TestCopyingEnds(t *testing.T) {
	for name, end := range map[string]func(*Rank){
		"withdrawn": (*Rank).Withdraw, "closed": (*Rank).Close, "doubted": (*Rank).Doubt,
		"withdrawn and begun anew": func(r *Rank) { r.Withdraw(); r.Apply(stored(4, 8, 7, "", "")) },
	} {
		s := New(Options{})
		r := s.Open(Engine{No: 1, Base: "m"}, 0)
		r.Apply(stored(4, 40, 1, "", ""))
		c := s.Copyings("m")[0]
		var claims [2]index.Claim
		if n, done, void := c.Next(claims[:]); n != 2 || done || void {
			t.Fatalf("%d, %v, %v", n, done, void)
		}
		end(r)
		done, void := false, false
		for !done && !void {
			_, done, void = c.Next(claims[:])
		}
		if !void {
			t.Errorf("%s: it is not void", name)
		}
	}
}

// TestCopyingOfAnother: a rank that closed before its copy began is not taken for the one that has its place in the index now.
func TestCopyingOfAnother(t *testing.T) {
	s := New(Options{})
	stays, goes := s.Open(Engine{No: 1, Base: "m"}, 0), s.Open(Engine{No: 2, Base: "m"}, 0)
	stays.Apply(stored(4, 8, 1, "", ""))
	goes.Apply(stored(4, 8, 1, "", ""))
	c := s.Copyings("m")[1]
	goes.Close()
	s.Open(Engine{No: 3, Base: "m"}, 0).Apply(stored(4, 16, 1, "", ""))
	var claims [100]index.Claim
	if n, done, void := c.Next(claims[:]); n != 4 || !done || !void {
		t.Errorf("%d claims of another (4 if the place was given again), done %v, void %v", n, done, void)
	}
}
