package wire

import "github.com/perigee-llm/perigee/internal/cache/core"

// The second copy route: pages are copied by the Manager, out of and into memory that is the engine's own.

// OfferPool hands over the engine's own host memory, as one descriptor. Answer: Offered. The memory is the session's until its end.
type OfferPool struct {
	// Pool is the session's number for it; no two of its pools have the same.
	Pool uint32
	// Bytes is how much of it is offered, from its beginning on.
	Bytes uint64
}

// Target is where a page in one piece goes to or comes from in an offered pool, in bytes.
type Target struct {
	Pool   uint32
	Offset uint64
}

// RestoreInto is RestorePieces for pages that lie in one piece each.
type RestoreInto struct {
	Lease    core.LeaseID
	Consumer uint32
	Targets  []Target
}

// PublishFrom is PublishPieces for pages that lie in one piece each.
type PublishFrom struct {
	Slots   []core.SlotRef
	Sources []Target
}

// RestorePieces is Start, where the Manager copies the pages into offered pools, in the order of the plan: Pages are as many as it has, and each
// as long as its part. Answer: CopiedOut, when nothing is copied any more, and Restored, when all consumers have ended.
type RestorePieces struct {
	Lease    core.LeaseID
	Consumer uint32
	Pages    core.Pages
}

// PublishPieces is Seal, where the Manager copies the pages out of offered pools into the granted slots, and makes their checksums.
// Answer: CopiedIn, when nothing is copied any more, and Published, when all slots of the Publish have ended.
type PublishPieces struct {
	Slots []core.SlotRef
	Pages core.Pages
}

// Offered answers OfferPool.
type Offered struct {
	Pool  uint32
	Bytes uint64
}

// CopiedIn answers PublishFrom and PublishPieces: each slot's core.SlotFate, in their order.
type CopiedIn struct{ Slots []byte }

// CopiedOut answers RestoreInto and RestorePieces: the first Good of Total pages were copied and are what was sealed.
type CopiedOut struct {
	Lease       core.LeaseID
	Consumer    uint32
	Outcome     core.Outcome
	Good, Total uint32
}

func (m *OfferPool) fields(c coder) {
	c.u32(&m.Pool)
	c.u64(&m.Bytes)
}

func target(c coder, t *Target) {
	c.u32(&t.Pool)
	c.u64(&t.Offset)
}

func (m *RestoreInto) fields(c coder) {
	leaseID(c, &m.Lease)
	c.u32(&m.Consumer)
	list(c, &m.Targets, MaxBlocks*core.MaxParts, 12, target)
}

func (m *PublishFrom) fields(c coder) {
	list(c, &m.Slots, MaxBlocks, 12, slotRef)
	list(c, &m.Sources, MaxBlocks, 12, target)
}

func pages(c coder, p *core.Pages) {
	c.u32s(&p.Counts, core.MaxPieces)
	c.pieces(&p.Pieces, core.MaxPieces)
}

func (m *RestorePieces) fields(c coder) {
	leaseID(c, &m.Lease)
	c.u32(&m.Consumer)
	pages(c, &m.Pages)
}

func (m *PublishPieces) fields(c coder) {
	list(c, &m.Slots, MaxBlocks, 12, slotRef)
	pages(c, &m.Pages)
}

func (m *Offered) fields(c coder) {
	c.u32(&m.Pool)
	c.u64(&m.Bytes)
}

func (m *CopiedIn) fields(c coder) { c.blob(&m.Slots, MaxBlocks) }

func (m *CopiedOut) fields(c coder) {
	leaseID(c, &m.Lease)
	c.u32(&m.Consumer)
	c.u8((*uint8)(&m.Outcome))
	c.u32(&m.Good)
	c.u32(&m.Total)
}
