package state

import (
	"encoding/hex"
	"errors"
	"strings"
	"testing"
)

// ranks are the example on two stages of two tensor-parallel ranks each; the stages hold other layers.
func ranks() []Namespace {
	out := make([]Namespace, 0, 4)
	for p := range uint32(2) {
		for r := range uint32(2) {
			n := rank(Rank{r, 2}, Rank{p, 2})
			n.Layout.Groups[0].Segments[0].Layer += strings.Repeat("'", int(p))
			out = append(out, n)
		}
	}
	return out
}

func TestInstanceID(t *testing.T) {
	all := ranks()
	id, err := InstanceID(all)
	if err != nil || id.IsZero() {
		t.Fatal(err)
	}
	if got, want := id.String(), "2bf18a27eca5a0e13b5c4440d3d8a7e8d9c14345226fde60c5a4f24efbb55e6c"; got != want {
		t.Errorf("version 1 gave %s, this %s", want, got)
	}
	for i := range all {
		changed := ranks()
		changed[i].Layout.Groups[1].Segments[1].Bytes++
		if other, err := InstanceID(changed); err != nil || other == id {
			t.Errorf("rank %d has other bytes, and the id stays (%v)", i, err)
		}
		if own, _ := all[i].ID(); own == id {
			t.Error("a rank has the instance's id")
		}
	}
}

// TestInstanceRefusals gives ranks that are not one instance's.
func TestInstanceRefusals(t *testing.T) {
	for name, spoil := range map[string]func([]Namespace) []Namespace{
		"none":             func([]Namespace) []Namespace { return nil },
		"one is missing":   func(r []Namespace) []Namespace { return r[:3] },
		"one twice":        func(r []Namespace) []Namespace { r[1] = r[0]; return r },
		"out of order":     func(r []Namespace) []Namespace { r[1], r[2] = r[2], r[1]; return r },
		"another model":    func(r []Namespace) []Namespace { r[3].Model.Content[5]++; return r },
		"another scope":    func(r []Namespace) []Namespace { r[2].Scope = "b"; return r },
		"another shape":    func(r []Namespace) []Namespace { r[2].Shard.Tensor.Size = 3; return r },
		"another window":   func(r []Namespace) []Namespace { r[1].Layout.Groups[1].Window++; return r },
		"other groups":     func(r []Namespace) []Namespace { r[1].Layout.Groups = r[1].Layout.Groups[:1]; return r },
		"an invalid one":   func(r []Namespace) []Namespace { r[1].Engine.Name = ""; return r },
		"a shape too many": func(r []Namespace) []Namespace { r[0].Shard.DecodeContext.Size = 1 << 31; return r },
	} {
		if id, err := InstanceID(spoil(ranks())); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, %v", name, id, err)
		}
	}
}

func TestBlockName(t *testing.T) {
	long, _ := NewEngineHash([]byte("0123456789abcdef0123456789abcdef"))
	short, _ := NewEngineHash([]byte("0123456789abcdef"))
	if got := BlockName(long, RequestID{}); string(got[:]) != "0123456789abcdef0123456789abcdef" {
		t.Errorf("%q", got)
	}
	names := map[[32]byte]bool{}
	for _, h := range []EngineHash{long, short} {
		for _, r := range []RequestID{{}, {1}, {2}} {
			names[BlockName(h, r)] = true
		}
	}
	if len(names) != 6 {
		t.Errorf("%d names of 6 blocks", len(names))
	}
	got := BlockName(short, RequestID{1})
	if want := "9a22a8f53a4cee9f09fffbb7438c17af99f03fee72f26fe390b80c03914d7951"; hex.EncodeToString(got[:]) != want {
		t.Errorf("version 1 gave %s, this %x", want, got)
	}
}
