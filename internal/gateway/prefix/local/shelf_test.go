package local

import (
	"fmt"
	"strings"
	"testing"

	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
)

// shelved are the claims of the blocks from to to of the sequence 0, 1, 2 …, as a Manager names them.
func shelved(t prefix.Tier, from, to int) (claims []index.Claim) {
	keys := chain.Root{Model: "m", BlockSize: 4}.Key().Append(nil, sequence(4*to), 4)
	for i := from; i < to; i++ {
		claims = append(claims, index.Claim{Name: keys[i], Hash: prefix.Hash(keys[i].Lo), Bits: 1 << t})
	}
	return claims
}

func put(t *testing.T, h *Shelf, tier prefix.Tier, from, to int) {
	t.Helper()
	if o := h.Put(tier, shelved(tier, from, to)); o.Result != index.Applied || o.Blocks != to-from {
		t.Fatalf("%+v", o)
	}
}

// depths writes the whole depth of everybody who holds something of the first n tokens.
func depths(t *testing.T, s *Store, n int) string {
	t.Helper()
	var m prefix.Match
	if err := s.Lookup(t.Context(), &prefix.Query{Model: "m", Tokens: sequence(n)}, &m); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, h := range m.Held {
		out = append(out, fmt.Sprintf("%d/%d:%v", h.Engine, h.Rank, h.Depth))
	}
	for _, b := range m.Blind {
		out = append(out, fmt.Sprintf("%d blind", b))
	}
	return strings.Join(out, ", ")
}

func wantDepths(t *testing.T, s *Store, want string) {
	t.Helper()
	if got := depths(t, s, 80); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

const all = 0b1110

// TestShelf: what an engine has on its device and what a shelf has together make its depth, for the engines that are attached and the tiers
// that they can use.
func TestShelf(t *testing.T) {
	s := New(Options{})
	one := s.Open(Engine{No: 1, URL: "http://one", Base: "m"}, 0)
	two := s.Open(Engine{No: 2, URL: "http://two", Base: "m"}, 0)
	for _, r := range []*Rank{one, two} {
		r.Mark(index.Exact)
	}
	one.Apply(stored(4, 8, 100, "", ""))
	h := s.OpenShelf(Domain{"m", 4}, 0)
	put(t, h, prefix.Host, 2, 5)
	put(t, h, prefix.Disk, 5, 6)
	wantDepths(t, s, "1/0:[8 8 8 8]")
	h.Attach("http://one", []Attachment{{-1, all}})
	wantDepths(t, s, "1/0:[8 8 8 8]") // hidden
	h.Mark(index.Exact)
	wantDepths(t, s, "1/0:[8 20 24 24]")
	h.Attach("http://one", []Attachment{{0, 1 << prefix.Host}, {1, all}})
	wantDepths(t, s, "1/0:[8 20 20 20]")

	// The second has stored nothing, so that nobody knows its block size but the Manager.
	put(t, h, prefix.Host, 0, 2)
	h.Attach("http://two", []Attachment{{-1, all}})
	wantDepths(t, s, "1/0:[8 20 20 20], 2/0:[0 20 24 24]")
	two.Apply(stored(4, 12, 200, "", ""))
	wantDepths(t, s, "1/0:[8 20 20 20], 2/0:[12 20 24 24]")
	two.Withdraw() // it was restarted: the Manager was not
	wantDepths(t, s, "1/0:[8 20 20 20], 2/0:[0 20 24 24], 2 blind")
	two.Mark(index.Exact)
	wantDepths(t, s, "1/0:[8 20 20 20], 2/0:[0 20 24 24]")
	two.Apply(stored(8, 16, 300, "", "")) // with another block size: nothing of the shelf is for it
	wantDepths(t, s, "1/0:[8 20 20 20], 2/0:[16 16 16 16]")

	if n := h.Remove(prefix.Host, []prefix.Hash{shelved(1, 3, 4)[0].Hash}); n != 1 {
		t.Error(n)
	}
	wantDepths(t, s, "1/0:[8 12 12 12], 2/0:[16 16 16 16]")
	h.Attach("http://one", nil)
	wantDepths(t, s, "1/0:[8 8 8 8], 2/0:[16 16 16 16]")
	if n := h.Clear(); n != 5 {
		t.Error(n)
	}
	h.Close()
	h.Close()
	h.Attach("http://one", []Attachment{{-1, all}})
	if o := h.Put(prefix.Host, nil); o.Result != index.Refused {
		t.Errorf("%+v", o)
	}
	one.Close()
	two.Close()
	for s.Sweep(100) {
	}
	if st := s.Stats(); len(st) != 0 || len(s.mu.guests) != 0 {
		t.Errorf("left behind: %+v, %d guests", st, len(s.mu.guests))
	}
}

// TestShelfLateEngines: an engine that is known after its attachment is attached, also one that publishes nothing.
func TestShelfLateEngines(t *testing.T) {
	s := New(Options{})
	h := s.OpenShelf(Domain{"m", 4}, 0)
	put(t, h, prefix.Host, 0, 5)
	h.Mark(index.Exact)
	h.Attach("http://one", []Attachment{{1, all}})
	wantDepths(t, s, "")
	e := Engine{No: 1, URL: "http://one", Base: "m"}
	s.Know([]Engine{e, {No: 2, URL: "http://two", Base: "m"}, {No: 3, URL: "http://one", Base: "other"}})
	wantDepths(t, s, "1/1:[0 20 20 20], 1 blind, 2 blind")
	if nos := s.At("http://one"); fmt.Sprint(nos) != "[1 3]" {
		t.Error(nos)
	}
	zero, other := s.Open(e, 0), s.Open(e, 1)
	zero.Mark(index.Exact)
	other.Mark(index.Exact)
	wantDepths(t, s, "1/1:[0 20 20 20], 2 blind")
	zero.Apply(stored(4, 8, 1, "", ""))
	wantDepths(t, s, "1/0:[8 8 8 8], 1/1:[0 20 20 20], 2 blind")
	s.Know(nil)
	zero.Close()
	other.Close()
	wantDepths(t, s, "")
	if len(s.mu.guests) != 0 {
		t.Errorf("%d guests", len(s.mu.guests))
	}
	h.Close()
}

// TestShelfLimit: one that has too much is cut off, and nobody else.
func TestShelfLimit(t *testing.T) {
	s := New(Options{})
	r := s.Open(Engine{No: 1, URL: "http://one", Base: "m"}, 0)
	r.Mark(index.Exact)
	h := s.OpenShelf(Domain{"m", 4}, 3)
	h.Mark(index.Exact)
	h.Attach("http://one", []Attachment{{-1, all}})
	if o := h.Put(prefix.Host, shelved(prefix.Host, 0, 4)); o.Result != index.Exceeded {
		t.Errorf("%+v", o)
	}
	wantDepths(t, s, "")
}
