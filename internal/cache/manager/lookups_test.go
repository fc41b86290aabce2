//go:build linux

package manager

import (
	"errors"
	"testing"

	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/cache/storage/hostpool"
	"github.com/perigee-llm/perigee/internal/cache/storage/pool"
	"github.com/perigee-llm/perigee/internal/cache/storage/pool/layout"
	"github.com/perigee-llm/perigee/internal/script"
)

// TestLookups: whatever a batch has looked up before, it gets the slot and the pool that it asks for.
func TestLookups(t *testing.T) {
	p, err := pool.New(pool.Options{Bytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	m := &Manager{}
	m.mem.arenas = map[uint32]*pool.Arena{}
	pools := map[uint32]*hostpool.Pool{}
	for id := range uint32(3) {
		if m.mem.arenas[id], err = p.Open(layout.Shape{Slots: 2, SlotBytes: 4096}); err != nil {
			t.Fatal(err)
		}
		pools[id] = &hostpool.Pool{}
	}
	r := script.Rand(t)
	seen := lookups{m: m, j: &copyJob{pools: pools}}
	for range 500 {
		id, slot := uint32(r.IntN(4)), uint32(r.IntN(2))
		got, err := seen.slotOf(&core.PlanSlot{Slot: core.SlotRef{Arena: id, Index: slot}, Bytes: 4096})
		if want := m.mem.arenas[id]; want == nil {
			if !errors.Is(err, errNoArena) {
				t.Fatalf("an arena that is not there: %v", err)
			}
		} else if err != nil || &got[0] != &want.Slot(slot, 4096)[0] {
			t.Fatalf("another slot than %d of arena %d, or %v", slot, id, err)
		}
		if id := uint32(r.IntN(3)); seen.poolOf(id) != pools[id] {
			t.Fatalf("another pool than %d", id)
		}
	}
}
