package local

import (
	"reflect"
	"testing"

	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
)

// TestNamed asks by names, as somebody elsewhere does, and compares with what a look-up by tokens says.
func TestNamed(t *testing.T) {
	s := New(Options{})
	if m, _ := s.Model("m"); len(m.Engines) > 0 {
		t.Errorf("of nothing: %+v", m)
	}
	one := s.Open(Engine{No: 1, Base: "m", Adapters: []string{"tuned"}}, 0)
	two := s.Open(Engine{No: 2, Base: "m", Adapters: []string{"tuned"}}, 1)
	s.Know([]Engine{{No: 3, Base: "m"}})
	m, e := s.Model("tuned")
	if want := (Model{LoRA: "tuned", Engines: []uint32{1, 2}}); !reflect.DeepEqual(m, want) || e != s.Edition() {
		t.Errorf("%+v, want %+v", m, want)
	}
	one.Mark(index.Exact)
	two.Mark(index.Partial)
	one.Apply(stored(4, 12, 100, "tuned", ""))
	two.Apply(stored(8, 16, 200, "tuned", ""))
	if e == s.Edition() {
		t.Error("block sizes are known now, and the edition is the same")
	}
	m, e = s.Model("tuned")
	want := Model{LoRA: "tuned", Domains: []Domain{{"m", 4}, {"m", 8}}, Engines: []uint32{1, 2}}
	if !reflect.DeepEqual(m, want) {
		t.Errorf("%+v, want %+v", m, want)
	}
	q := prefix.Query{Model: "tuned", Tokens: sequence(40)}
	var names [][]chain.Key
	for _, d := range m.Domains {
		root := chain.Root{Model: d.Base, BlockSize: d.BlockSize, LoRA: m.LoRA}
		names = append(names, root.Key().Append(nil, q.Tokens, d.BlockSize))
	}
	var byTokens, byName, without prefix.Match
	if err := s.Lookup(t.Context(), &q, &byTokens); err != nil {
		t.Fatal(err)
	}
	e.Lookup("tuned", names, &byName)
	if !reflect.DeepEqual(byTokens, byName) || len(byName.Held) != 2 || len(byName.Blind) != 1 {
		t.Errorf("by tokens %+v, by names %+v", byTokens, byName)
	}
	e.Lookup("tuned", nil, &without)
	if len(without.Held) != 0 || len(without.Blind) != 1 {
		t.Errorf("without names %+v", without)
	}
	if m, _ := s.Model("m"); !reflect.DeepEqual(m.Engines, []uint32{1, 2, 3}) {
		t.Errorf("%+v", m)
	}
}
