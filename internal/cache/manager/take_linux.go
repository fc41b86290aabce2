package manager

import (
	"github.com/perigee-llm/perigee/internal/cache/channel"
	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
)

// A consumer that takes compares the checksums itself, as it copies, while the pages are in its cache. It is believed about its own copy, and
// about nothing else: what it says does not match we look at before it goes.

// takePages starts a consumer's restore and names all its pages at once.
func (m *Manager) takePages(by *asker, e *wire.Take) {
	slots := plans.Get().(*[]core.PlanSlot)
	m.locked(func() {
		m.step(&core.Start{Session: by.s.id, Lease: e.Lease, Consumer: e.Consumer, Into: *slots}, by)
		if r := by.s.restores[e.Lease]; by.plan != nil && r != nil {
			r.taking |= 1 << e.Consumer
		}
	})
	defer keepPlan(slots, by)
	if by.plan == nil {
		return
	}
	all, n := by.plan.Slots, firstPlan
	for first := 0; first < len(all); first, n = first+n, min(2*n, maxPlan) {
		if first > 0 {
			by.conn.Flush() // the one is copied while the next is written; and all of it could be more than may wait to be read
		}
		part := all[first:min(first+n, len(all))]
		m.send(by, by, &wire.Plan{Lease: e.Lease, Consumer: e.Consumer, First: uint32(first), Total: uint32(len(all)), Slots: part})
	}
}

// firstPlan is how many pages the first part of a plan names: what the consumer can begin with at once. A page takes 0.1 µs to name at both ends,
// and its copying some µs, so that the parts may double. From maxPlan on a part's frame costs nothing beside it.
const firstPlan, maxPlan = 64, 1024

// lookAgain verifies the page that a taking consumer says does not match. It is still held, since the consumer has not ended. If it is
// spoiled that is noted, and the page goes.
func (m *Manager) lookAgain(by *asker, e *wire.Copied) {
	var page core.PlanSlot
	look := false
	m.locked(func() {
		if r := by.s.restores[e.Lease]; r != nil && r.taking>>e.Consumer&1 == 1 {
			page, look = m.mu.core.Reading(by.s.id, e.Lease, e.Consumer, e.Bad)
			r.taking &^= 1 << e.Consumer // one look a restore
		}
	})
	if look && !m.verify(&page) {
		m.spoiled(by, e.Lease, e.Consumer, e.Bad, page.Slot)
	}
}

// leave takes a process's word about a session that it has lost; that we have lost it, too, we may not know yet.
func (m *Manager) leave(c *channel.Conn, h wire.Header, msg *wire.Leave) {
	left := false
	m.locked(func() {
		for _, s := range m.mu.sessions {
			if s.token == msg.Token {
				m.goodbye(c, s)
				left = true
				return
			}
		}
	})
	if !left {
		m.refuseTo(c, h, refusal{wire.StaleSession, ""})
		return
	}
	c.Send(c.Header(h.Ref, 0), &wire.Bye{})
}
