// Package layout decides how an instance's share of the pool becomes arenas: one for each size of its pages, of slots that are aligned to
// 4 KiB. It is pure; package pool makes the memory.
//
// It promises that there is no fragmentation outside of slots: an arena holds slots of one size, and every slot that is free fits every
// page of its arena. What is lost is the padding of a page to 4 KiB and to the largest page that shares its arena, which is less
// than 4 KiB a page by construction.
package layout

import "slices"

// Align is the alignment of slots in bytes: a page of memory, so that a slot can be read from an SSD past the page cache, registered
// with a device, and faulted in by itself.
const Align = 4096

// MaxSlots is how many slots an arena may have, as the core has it: a tebibyte of slots of 4 KiB.
const MaxSlots = 1 << 28

// Shape is an arena's shape. SlotBytes is a multiple of Align.
type Shape struct{ Slots, SlotBytes uint32 }

// Bytes is the arena's size.
func (s Shape) Bytes() uint64 { return uint64(s.Slots) * uint64(s.SlotBytes) }

// SlotBytes returns the size of the slot for a page of n bytes; ok is false for a page of no bytes or of more than a slot can have.
func SlotBytes(n uint64) (size uint32, ok bool) {
	up := (n + Align - 1) / Align * Align
	return uint32(up), n > 0 && up >= n && up <= 1<<32-Align
}

// Plan is an instance's arenas.
type Plan struct {
	Arenas []Shape
	// Groups says in which of Arenas each group's pages are.
	Groups []uint32
}

// Bytes is what the arenas take together.
func (p Plan) Bytes() (n uint64) {
	for _, a := range p.Arenas {
		n += a.Bytes()
	}
	return n
}

// Full says that an arena has as many slots as one may have: of the share there may be more, which nobody gets.
func (p Plan) Full() bool {
	return slices.ContainsFunc(p.Arenas, func(s Shape) bool { return s.Slots == MaxSlots })
}

// Carve divides share bytes between the groups of an instance. parts has, for each group, the bytes of each part of its blocks. Every group
// gets room for the same number of blocks, since a prompt brings one of each a page; those whose slots have one size share an arena,
// which then goes to whoever needs it. ok is false if a part has no size that fits a slot, or if the share does not hold one block of
// each group. An arena has MaxSlots at most, whatever the share: see Full.
func Carve(share uint64, parts [][]uint64) (p Plan, ok bool) {
	var sizes []uint32
	var count []uint64 // slots for one block of each group
	block := uint64(0)
	for _, group := range parts {
		if len(group) == 0 {
			return Plan{}, false
		}
		size, fits := SlotBytes(slices.Max(group))
		if !fits || slices.Min(group) == 0 {
			return Plan{}, false
		}
		at := slices.Index(sizes, size)
		if at < 0 {
			at = len(sizes)
			sizes, count = append(sizes, size), append(count, 0)
		}
		p.Groups = append(p.Groups, uint32(at))
		count[at] += uint64(len(group))
		block += uint64(len(group)) * uint64(size)
	}
	if block == 0 || share < block {
		return Plan{}, false
	}
	for i, size := range sizes {
		n := min(share/block*count[i], MaxSlots)
		p.Arenas = append(p.Arenas, Shape{Slots: uint32(n), SlotBytes: size})
	}
	return p, true
}
