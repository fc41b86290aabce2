//go:build !race

package state

import "testing"

// TestNoAllocations: a query names hundreds of blocks, and a look-up compares keys.
func TestNoAllocations(t *testing.T) {
	h, _ := NewEngineHash([]byte("0123456789abcdef0123456789abcdef"))
	k := StateKey{NamespaceID{1}, 0, RequestID{1}, h}
	o, buf := k, make([]byte, 0, MaxKey)
	for name, f := range map[string]func(){
		"naming a block": func() { BlockName(h, RequestID{1}) },
		"comparing keys": func() { k.Compare(&o) },
		"encoding a key": func() { k.AppendTo(buf) },
	} {
		if n := testing.AllocsPerRun(100, f); n > 0 {
			t.Errorf("%s: %v allocations, want 0", name, n)
		}
	}
}

func BenchmarkBlockName(b *testing.B) {
	h, _ := NewEngineHash([]byte("0123456789abcdef0123456789abcdef"))
	for b.Loop() {
		BlockName(h, RequestID{1})
	}
}

// BenchmarkRestorableBoundaries is a prompt of 128k tokens in 2,048 pages of three groups.
func BenchmarkRestorableBoundaries(b *testing.B) {
	c, err := Compile(ours, 64, []Requirement{
		{0, Of(AttentionKV), RulePrefix, 0}, {1, Of(WindowKV), RuleWindow, 1024}, {2, Of(RecurrentState), RuleCheckpoint, 0},
	})
	if err != nil {
		b.Fatal(err)
	}
	ends := make([]uint64, 2048)
	for i := range ends {
		ends[i] = uint64(i+1) * 64
	}
	cov := &Coverage{ours, Span{0, 2048 * 64}, []GroupCoverage{{0, ends}, {1, ends}, {2, ends}}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.RestorableBoundaries(cov); err != nil {
			b.Fatal(err)
		}
	}
}
