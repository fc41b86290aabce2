package dram

// arena is a row of slots of one size.
type arena struct {
	slotBytes uint32
	space     uint32 // of all its blocks, while there are some
	slots     []slot
	gen       uint32 // from which the slots' go on
	fresh     int32  // the first slot that was never used, whose record is zero, as those behind it
	free      int32  // head of the list of free slots before it, by slot.next; -1: none
	freeCount int    // of both
	lanes     []*lane

	// What a walk over all blocks would find, for whoever asks while others wait.
	shown  int // slots of Visible blocks
	held   int // slots of blocks that somebody holds
	unseen int // blocks that are Filling or Doomed
}

// SlotState is what a slot is.
type SlotState uint8

// The states. A block's slots are Reserved together as it begins, so that a block of several parts never stands half-way
// for want of room.
const (
	SlotFree SlotState = iota
	SlotReserved
	SlotGranted
	SlotSealed
)

// slot is 16 bytes.
type slot struct {
	word uint64 // SlotGranted: the owner's own number; SlotSealed: the checksum; SlotFree: the free one before it, plus 1
	gen  uint32 // of its present use; grows as it is taken
	link uint32 // two bits of its state, one that says whether a number of 29 bits above them is a slot or the block
}

// A link's number is the block's next slot, and of the last one the block itself; of a free slot it is the next free one.
const (
	linkState = 1<<2 - 1
	linkPage  = 1 << 2 // the number is the block's
	linkShift = 3
	noLink    = 1<<29 - 1 // the number of no slot
)

func (t *slot) state() SlotState { return SlotState(t.link & linkState) }

func (t *slot) set(s SlotState, word uint64) {
	t.link, t.word = t.link&^linkState|uint32(s), word
}

// next is the block's next slot, or the next free one; -1: none.
func (t *slot) next() int32 {
	if n := t.link >> linkShift; t.link&linkPage == 0 && n != noLink {
		return int32(n)
	}
	return -1
}

// follow makes next the slot that comes behind in block p; -1: none.
func (t *slot) follow(p Page, next int32) {
	t.link &= linkState
	if next < 0 {
		t.link |= uint32(p)<<linkShift | linkPage
	} else {
		t.link |= uint32(next) << linkShift
	}
}

// pageOf is the block that has slot i; None if it is free. It goes over the slots behind it in its block.
func (a *arena) pageOf(i int32) Page {
	t := &a.slots[i]
	if t.state() == SlotFree {
		return None
	}
	for t.link&linkPage == 0 {
		t = &a.slots[t.link>>linkShift]
	}
	return Page(t.link >> linkShift)
}

// Slot is one slot, as its owner sees it.
type Slot struct {
	State SlotState
	Gen   uint32
	Page  Page
	Word  uint64
}

// AddArena makes an arena of n slots, all free, and returns its number: one that RemoveArena has left, or the next. The slots'
// generations go on from gen, for an arena that takes the place of another under the same name.
//
// Callers hold a lock that everybody waits for: so what there is stays where it is, memory for more is not touched before it is used, and what has to be moved
// is moved later, a part at a time: see index.
func (s *Store) AddArena(n, slotBytes, gen uint32) int {
	mustBe(uint64(s.slotTotal)+uint64(n) <= MaxSlots, "there are too many slots")
	a := &arena{slotBytes: slotBytes, slots: newTable[slot](s.memory, int(n)), gen: gen, free: -1, freeCount: int(n)}
	s.slotTotal += int(n)
	s.index.grow(s.slotTotal)
	s.growPages(s.slotTotal)
	s.ghosts.grow(s.slotTotal)
	if last := len(s.spareArenas) - 1; last >= 0 {
		at := s.spareArenas[last]
		s.spareArenas = s.spareArenas[:last]
		s.arenas[at] = a
		return at
	}
	mustBe(len(s.arenas) < MaxArenas, "there are too many arenas")
	s.arenas = append(s.arenas, a)
	return len(s.arenas) - 1
}

// Slots is how many slots there are, of all arenas.
func (s *Store) Slots() int { return s.slotTotal }

// Arena returns an arena's shape and its free slots.
func (s *Store) Arena(a int) (slots int, slotBytes uint32, freeSlots int) {
	r := s.arenas[a]
	return len(r.slots), r.slotBytes, r.freeCount
}

// SlotAt tells of a slot. ok is false if there is none.
func (s *Store) SlotAt(a int, i uint32) (Slot, bool) {
	r := s.arenas[a]
	if uint(i) >= uint(len(r.slots)) {
		return Slot{}, false
	}
	t := &r.slots[i]
	return Slot{t.state(), t.gen, r.pageOf(int32(i)), t.word}, true
}

// PartOf returns the block's slot for a part, and its place in its arena.
func (s *Store) PartOf(p Page, part int) (index uint32, t Slot) {
	i := s.SlotOf(p, part)
	at := &s.arenas[s.at(p).arena].slots[i]
	return i, Slot{at.state(), at.gen, p, at.word}
}

// SlotOf returns the place in its arena of the block's slot for a part.
func (s *Store) SlotOf(p Page, part int) uint32 {
	g := s.at(p)
	i := g.first
	for range part {
		i = s.arenas[g.arena].slots[i].next()
	}
	return uint32(i)
}

// Grant turns a block's reserved slot into one that word owns, and returns its generation.
func (s *Store) Grant(p Page, part int, word uint64) (index, gen uint32) {
	i := s.SlotOf(p, part)
	t := &s.arenas[s.at(p).arena].slots[i]
	mustBe(t.state() == SlotReserved, "a slot was granted twice")
	t.set(SlotGranted, word)
	return i, t.gen
}

// Seal ends the grant of a slot: it holds what has the checksum.
func (s *Store) Seal(a int, i uint32, checksum uint64) {
	t := &s.arenas[a].slots[i]
	mustBe(t.state() == SlotGranted, "a slot was sealed that was not granted")
	t.set(SlotSealed, checksum)
}

// Ungrant ends the grant of a slot that nobody writes any more: it is what it was before.
func (s *Store) Ungrant(a int, i uint32) {
	t := &s.arenas[a].slots[i]
	mustBe(t.state() == SlotGranted, "a grant was ended that was not there")
	t.set(SlotReserved, 0)
}

// take takes a free slot: the one at near if it is free, else the one that came free last, else the first that was never used. A run of pages that lies in a row is copied faster
// than one that is scattered, by a sixth to a quarter for pages of 16 KiB.
func (a *arena) take(near int32) int32 {
	i := near
	if uint(i) >= uint(len(a.slots)) || i > a.fresh || a.slots[i].state() != SlotFree {
		if i = a.free; i < 0 {
			i = a.fresh
		}
	}
	t := &a.slots[i]
	a.freeCount--
	if i == a.fresh {
		a.fresh++
		*t = slot{gen: a.gen + 1, link: uint32(SlotReserved)}
		return i
	}
	a.link(int32(t.word)-1, t.next())
	*t = slot{gen: t.gen + 1, link: uint32(SlotReserved)}
	return i
}

func (a *arena) put(i int32) {
	t := &a.slots[i]
	*t = slot{gen: t.gen}
	a.link(i, a.free)
	a.link(-1, i)
	a.freeCount++
}

// link has free slot next follow free slot before; -1: none, the list's beginning and its end.
func (a *arena) link(before, next int32) {
	if before < 0 {
		a.free = next
	} else {
		a.slots[before].link = linkTo(next)
	}
	if next >= 0 {
		a.slots[next].word = uint64(before + 1)
	}
}

// linkTo is a free slot's link to the next one; -1: none.
func linkTo(next int32) uint32 { return uint32(next) & noLink << linkShift }

func mustBe(ok bool, what string) {
	if !ok {
		panic("dram: " + what)
	}
}
