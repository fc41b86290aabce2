package core

// made is what the actions of a step that come in hundreds are made of: a publish sends away and a seal shows as many blocks as it has, and what each
// of them would leave behind for the collector is half of what a small page costs in it.
type made struct {
	visible slab[Visible]
	removed slab[Removed]
	freed   slab[Freed]
	granted slab[GrantedBlock]
	slots   slab[PlanSlot] // of Visible
	fills   []*fill        // that have ended, with the identities of Visible
}

// Recycle says that no action of earlier steps, nor a slice of one, is needed any more: what they are made of is used again. A shell that never says so
// may keep them for as long as it likes.
func (c *Core) Recycle() {
	c.made.visible.recycle()
	c.made.removed.recycle()
	c.made.freed.recycle()
	c.made.granted.recycle()
	c.made.slots.recycle()
	n := min(len(c.made.fills), mostFills-len(c.spareFills))
	c.spareFills = append(c.spareFills, c.made.fills[:max(0, n)]...)
	clear(c.made.fills)
	c.made.fills = c.made.fills[:0]
}

// slab hands out records in rows.
type slab[T any] struct {
	row  []T
	used int // since the last recycle
}

// leastRow and mostRow are how many records a row has: as many as a step of the usual size needs, so that it stays one row.
const leastRow, mostRow = 64, 512

// take returns n zero records.
func (s *slab[T]) take(n int) []T {
	s.used += n
	if cap(s.row)-len(s.row) < n {
		s.row = make([]T, 0, max(n, leastRow))
	}
	at := len(s.row)
	s.row = s.row[:at+n]
	return s.row[at : at+n : at+n]
}

func (s *slab[T]) recycle() {
	if most := min(s.used, mostRow); cap(s.row) < most || cap(s.row) > mostRow {
		s.row = make([]T, 0, most)
	}
	clear(s.row)
	s.row, s.used = s.row[:0], 0
}
