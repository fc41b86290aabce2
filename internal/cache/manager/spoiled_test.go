//go:build linux

package manager

import (
	"testing"

	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
)

// TestSpoiledLate: a page that is looked at when its lease has ended already, by the word of another connection, may be another one by then. That
// is no spoiled page.
func TestSpoiledLate(t *testing.T) {
	m := begin(t)
	c := raw(m)
	ended := core.LeaseID{Index: 7, Gen: 1}
	plan := core.Plan{Lease: ended, Slots: []core.PlanSlot{{Slot: core.SlotRef{Gen: 1}, Bytes: pageBytes, Checksum: 1}}}
	m.mu.Lock()
	by := &asker{s: m.mu.sessions[1], ref: 99, kind: wire.KindStart}
	for conn := range by.s.conns {
		by.conn = conn
	}
	m.mu.Unlock()
	m.namePages(by, &plan)
	by.conn.Kick()
	if msg, _ := c.hear(); msg.Kind() != wire.KindRefused || msg.(*wire.Refused).Class != wire.StaleLease {
		t.Errorf("%+v", msg)
	}
	if n := m.counts.spoiled.Load(); n != 0 {
		t.Errorf("%d pages are counted as spoiled", n)
	}
}
