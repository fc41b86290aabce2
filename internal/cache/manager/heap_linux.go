package manager

// HeapGrowth is by how much, in percent, the heap of a Manager with so many slots may grow before it is collected, as debug.SetGCPercent takes it. Its
// heap is a few large arrays without pointers, so that a collection costs the same whatever their size, and memory is what it must not take from
// engines: it grows by 2 MiB, which is what publishing some 20,000 blocks leaves behind, and by a twentieth where that is more. A tenth for all was a
// collection each 400 KiB with a pool of a few thousand pages.
func HeapGrowth(slots int) int {
	const (
		growth = 2 << 20
		least  = 5
		most   = 100
		empty  = 2 << 20 // without any slot
		slot   = 132     // bytes: docs/design-notes/cache-channel.md
	)
	return max(least, min(most, 100*growth/(empty+slot*slots)))
}

// tellSlots tells how many slots there are now, if somebody wants to know.
func (m *Manager) tellSlots() {
	if m.opt.Slots == nil {
		return
	}
	n := 0
	m.locked(func() {
		for _, h := range m.mu.holdings {
			for _, sh := range h.shapes {
				n += int(sh.Slots)
			}
		}
	})
	m.opt.Slots(n)
}
