package core

import (
	"maps"
	"slices"
)

// OfferPool says that the shell can reach memory of a session's own, and that pages may be copied out of it and into it. It is the session's
// until its end. Answer: PoolTaken, or Refused: Repeated if the number or the memory is offered already, TooMany, Invalid.
type OfferPool struct {
	Session SessionID
	// Pool is the session's number for it.
	Pool uint32
	// Bytes is how many there are; pieces are from 0 on.
	Bytes uint64
	// Memory tells one memory from another, so that one of them is mapped once: here it is only compared.
	Memory [2]uint64
}

// PublishFrom has the shell fill granted slots out of offered memory, in the client's place: it is Sealed or Abandoned for each
// of them, when the copies have ended. Answers: CopyIn for the shell, and CopiedIn for the client when InDone has come; or Refused, all of it:
// Invalid for pages that do not fit their slots or their pools, Overlap, TooMany. A slot that is not granted any more is passed over.
// The Pages' slices go into the action.
type PublishFrom struct {
	Session SessionID
	Slots   []SlotRef
	Pages   Pages
}

// RestoreInto is Start for a consumer whose pages the shell copies into offered memory, and Copied when OutDone has come. Answers: CopyOut for the
// shell, later CopiedOut, and Restored when it was the last consumer; or Refused as Start is and as PublishFrom is. The
// Pages' slices go into the action.
type RestoreInto struct {
	Session  SessionID
	Lease    LeaseID
	Consumer uint32
	Pages    Pages
}

// CopyID names one copy that the shell makes. It is never used twice in an epoch. The zero value is no copy.
type CopyID uint64

// CopiedPage is how one page of a CopyIn has ended.
type CopiedPage struct {
	// OK says that the slot holds what the pieces held, and Checksum is of the slot's bytes.
	OK       bool
	Checksum uint64
}

// InDone ends a CopyIn: the shell touches neither the slots nor the pieces any more. Pages are as many as the action's slots.
type InDone struct {
	Copy  CopyID
	Pages []CopiedPage
}

// OutDone ends a CopyOut. The first Good pages were copied and are what was sealed; with Mismatch page Good is not.
type OutDone struct {
	Copy    CopyID
	Outcome Outcome
	Good    uint32
}

func (*OfferPool) event()   {}
func (*PublishFrom) event() {}
func (*RestoreInto) event() {}
func (*InDone) event()      {}
func (*OutDone) event()     {}

// PoolTaken answers OfferPool.
type PoolTaken struct {
	Session SessionID
	Pool    uint32
}

// PoolGone says that nothing will be copied into or out of a pool any more.
type PoolGone struct {
	Session SessionID
	Pool    uint32
}

// CopyIn asks for slots to be filled out of offered memory, and for InDone. Slots of 0 bytes are passed over. Checksum is not set.
type CopyIn struct {
	Copy    CopyID
	Session SessionID
	Slots   []PlanSlot
	Pages   Pages
}

// CopyOut asks for slots to be copied into offered memory, compared with their checksums, and for OutDone.
type CopyOut struct {
	Copy     CopyID
	Session  SessionID
	Lease    LeaseID
	Consumer uint32
	Slots    []PlanSlot
	Pages    Pages
}

// CopyStop says that nobody wants a copy any more: it may end before its last page. InDone or OutDone comes all the same.
type CopyStop struct{ Copy CopyID }

// SlotFate is what became of a slot of a PublishFrom.
type SlotFate uint8

// The fates.
const (
	SlotFilled SlotFate = iota // sealed
	SlotFailed                 // it could not be copied; its block is given up
	SlotStale                  // its grant had ended, or its block was given up meanwhile
)

// CopiedIn answers PublishFrom: the pieces are the client's own again.
type CopiedIn struct {
	Session SessionID
	Copy    CopyID
	Slots   []SlotFate
}

// CopiedOut answers RestoreInto: the pieces are the client's own again. The first Good of Total pages are what was sealed, and the others nothing.
type CopiedOut struct {
	Session     SessionID
	Copy        CopyID
	Lease       LeaseID
	Consumer    uint32
	Outcome     Outcome
	Good, Total uint32
}

func (PoolTaken) action() {}
func (PoolGone) action()  {}
func (CopyIn) action()    {}
func (CopyOut) action()   {}
func (CopyStop) action()  {}
func (CopiedIn) action()  {}
func (CopiedOut) action() {}

// offered is memory that a session has offered.
type offered struct {
	bytes  uint64
	memory [2]uint64
}

func (c *Core) offerPool(e *OfferPool) {
	s := c.sessionOf(e.Session, KindOfferPool, uint64(e.Pool))
	if s == nil {
		return
	}
	class := NoClass
	_, again := s.pools[e.Pool]
	switch {
	case e.Bytes == 0 || e.Bytes > maxPool:
		class = Invalid
	case again || c.memories[e.Memory]:
		class = Repeated
	case len(s.pools) >= c.lim.SessionPools || len(c.memories) >= c.lim.Pools || c.offeredBytes+e.Bytes > c.mostOffered():
		class = TooMany
	}
	if class != NoClass {
		c.refuse(s.id, KindOfferPool, uint64(e.Pool), class)
		return
	}
	if s.pools == nil {
		s.pools = map[uint32]offered{}
	}
	s.pools[e.Pool] = offered{e.Bytes, e.Memory}
	c.memories[e.Memory] = true
	c.offeredBytes += e.Bytes
	c.do(PoolTaken{s.id, e.Pool})
}

// maxPool is more than a process can map, and far from overflowing.
const maxPool = 1 << 56

func (c *Core) mostOffered() uint64 {
	if n := c.cfg.Budgets.Offered; n > 0 {
		return uint64(n)
	}
	return maxPool
}

// dropPools ends a lost session's pools, when nothing is copied for it any more.
func (c *Core) dropPools(s *session) {
	if s.live || len(s.copies) > 0 {
		return
	}
	for _, n := range slices.Sorted(maps.Keys(s.pools)) {
		delete(c.memories, s.pools[n].memory)
		c.offeredBytes -= s.pools[n].bytes
		c.do(PoolGone{s.id, n})
	}
	s.pools = nil
}
