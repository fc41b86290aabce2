package layout

import (
	"slices"
	"testing"

	"github.com/perigee-llm/perigee/internal/script"
)

func TestCarve(t *testing.T) {
	for _, c := range []struct {
		name   string
		share  uint64
		parts  [][]uint64
		arenas []Shape
		groups []uint32
	}{
		{"one group", 1 << 20, [][]uint64{{16384}}, []Shape{{64, 16384}}, []uint32{0}},
		{"padding", 1 << 20, [][]uint64{{16385}}, []Shape{{51, 20480}}, []uint32{0}},
		{"two ranks", 1 << 20, [][]uint64{{4096, 4096}}, []Shape{{256, 4096}}, []uint32{0}},
		{"uneven ranks share the larger slot", 1 << 20, [][]uint64{{4096, 8192}}, []Shape{{128, 8192}}, []uint32{0}},
		{"two sizes", 1 << 20, [][]uint64{{4096}, {12288}}, []Shape{{64, 4096}, {64, 12288}}, []uint32{0, 1}},
		{"one size of two groups", 1 << 20, [][]uint64{{4096}, {4000}}, []Shape{{256, 4096}}, []uint32{0, 0}},
		{"smaller than a page", 4095, [][]uint64{{4096}}, nil, nil},
		{"smaller than a block of all groups", 8192, [][]uint64{{4096}, {8192}}, nil, nil},
		{"no bytes", 1 << 20, [][]uint64{{0}}, nil, nil},
		{"no parts", 1 << 20, [][]uint64{{}}, nil, nil},
		{"no groups", 1 << 20, nil, nil, nil},
		{"a page that no slot holds", 1 << 40, [][]uint64{{1 << 32}}, nil, nil},
	} {
		p, ok := Carve(c.share, c.parts)
		if ok != (c.arenas != nil) || ok && (!slices.Equal(p.Arenas, c.arenas) || !slices.Equal(p.Groups, c.groups)) {
			t.Errorf("%s: %+v, %v", c.name, p, ok)
		}
	}
}

// TestCarveFits: whatever is asked, the arenas stay within the share, and each holds what its groups need for one block.
func TestCarveFits(t *testing.T) {
	r := script.Rand(t)
	for range 5000 {
		share := r.Uint64N(1 << 34)
		parts := make([][]uint64, 1+r.IntN(5))
		for g := range parts {
			for range 1 + r.IntN(8) {
				parts[g] = append(parts[g], 1+r.Uint64N(1<<uint(1+r.IntN(24))))
			}
		}
		p, ok := Carve(share, parts)
		if !ok {
			continue
		}
		if p.Bytes() > share {
			t.Fatalf("%d bytes of %d for %v", p.Bytes(), share, parts)
		}
		need := make([]int, len(p.Arenas))
		for g, a := range p.Groups {
			need[a] += len(parts[g])
			if uint64(p.Arenas[a].SlotBytes) < slices.Max(parts[g]) || p.Arenas[a].SlotBytes%Align != 0 {
				t.Fatalf("group %d of %v has slots of %d bytes", g, parts, p.Arenas[a].SlotBytes)
			}
		}
		for a, n := range need {
			if int(p.Arenas[a].Slots) < n {
				t.Fatalf("arena %d of %+v does not hold one block of %v", a, p, parts)
			}
		}
	}
}

// TestFull: an arena has no more slots than the core has numbers for, and it is known then that there was more.
func TestFull(t *testing.T) {
	for _, c := range []struct {
		share uint64
		full  bool
	}{{MaxSlots*Align - 1, false}, {MaxSlots * Align, true}, {3 * MaxSlots * Align, true}} {
		p, ok := Carve(c.share, [][]uint64{{1}})
		if !ok || p.Full() != c.full || p.Bytes() > MaxSlots*Align || !c.full && p.Bytes() <= c.share-Align {
			t.Errorf("%d bytes: %+v", c.share, p)
		}
	}
}
