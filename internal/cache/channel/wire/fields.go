package wire

import (
	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/cache/state"
)

// The fields of each message, in the order of their bytes: what docs/cache-channel.md has in tables.

func (m *Hello) fields(c coder) {
	c.u16(&m.MinVersion)
	c.u16(&m.MaxVersion)
	c.text(&m.Client, MaxText)
}

func (m *Register) fields(c coder) {
	c.text(&m.Instance, MaxText)
	c.text(&m.Model, MaxText)
	c.text(&m.URL, MaxText)
	c.u32(&m.DataRank)
	c.u32((*uint32)(&m.Scope))
	c.u64(&m.QueryBytes)
	c.u64(&m.PoolBytes)
	list(c, &m.Ranks, core.MaxParts, 4, func(c coder, e *[]byte) { c.blob(e, state.MaxEncoding) })
}

func (m *Attach) fields(c coder) {
	c.raw(m.Token[:])
	c.u8((*uint8)(&m.Role))
}

func (m *Publish) fields(c coder) {
	c.u64(&m.Op)
	c.u32(&m.Part)
	c.u32((*uint32)(&m.Scope))
	c.text(&m.Root.Model, MaxText)
	c.text(&m.Root.LoRA, MaxText)
	c.text(&m.Root.Salt, MaxText)
	chainKey(c, &m.ParentChain)
	blocks(c, &m.Blocks, &m.words)
}

func (m *Seal) fields(c coder) {
	flag(c, &m.Summed)
	flatList(c, &m.Slots, MaxBlocks, sealedSize, sealedFields, putSealed, getSealed)
}

func (m *Abandon) fields(c coder) { list(c, &m.Slots, MaxBlocks, 12, slotRef) }

func (m *Query) fields(c coder) {
	ticket(c, &m.Ticket)
	c.u8((*uint8)(&m.Mode))
	c.u32((*uint32)(&m.Scope))
	c.u32(&m.Consumers)
	p := uint32(m.Priority)
	c.u32(&p)
	m.Priority = int32(p)
	c.u64(&m.WaitMicros)
	c.u64(&m.FirstUseMicros)
	c.u32(&m.ConfidencePPM)
	c.text(&m.Request, MaxText)
	c.u64(&m.Demand.PageTokens)
	c.u64(&m.Demand.Span.Start)
	c.u64(&m.Demand.Span.End)
	list(c, &m.Demand.Ranges, maxGroups, 20, func(c coder, r *state.GroupRange) {
		c.u32(&r.Group)
		c.u64(&r.Span.Start)
		c.u64(&r.Span.End)
	})
	list(c, &m.Wants, maxGroups, 8, func(c coder, w *core.Want) {
		c.u32(&w.Group)
		if w.Hashes == nil {
			w.Hashes, m.spare = m.spare, nil
		}
		c.hashes(&w.Hashes, MaxBlocks)
	})
}

func (m *Poll) fields(c coder)   { ticket(c, &m.Ticket) }
func (m *Cancel) fields(c coder) { ticket(c, &m.Ticket) }

func (m *Start) fields(c coder) {
	leaseID(c, &m.Lease)
	c.u32(&m.Consumer)
}

func (m *Take) fields(c coder) {
	leaseID(c, &m.Lease)
	c.u32(&m.Consumer)
}

func (m *Copied) fields(c coder) {
	leaseID(c, &m.Lease)
	c.u32(&m.Consumer)
	c.u8((*uint8)(&m.Outcome))
	c.u32(&m.Bad)
}

func (m *Release) fields(c coder)   { leaseID(c, &m.Lease) }
func (m *Goodbye) fields(coder)     {}
func (m *Leave) fields(c coder)     { c.raw(m.Token[:]) }
func (m *MapArenas) fields(c coder) { c.u32s(&m.Arenas, MaxDescriptors) }

func (m *Ping) fields(coder) {}

func (m *Welcome) fields(c coder) {
	c.u16(&m.Version)
	c.text(&m.Manager, MaxText)
	c.u32(&m.Queries)
	c.u32(&m.Publishes)
	c.u32(&m.Blocks)
}

func arena(c coder, a *Arena) {
	c.u32(&a.ID)
	c.u32(&a.Slots)
	c.u32(&a.SlotBytes)
	c.u64(&a.MapBytes)
}

func (m *Registered) fields(c coder) {
	c.raw(m.Token[:])
	c.raw(m.Namespace[:])
	c.u32s(&m.GroupArenas, maxGroups)
	list(c, &m.Arenas, MaxDescriptors, 20, arena)
}

func (m *Attached) fields(c coder) { list(c, &m.Arenas, MaxDescriptors, 20, arena) }

func (m *Granted) fields(c coder) {
	c.u64(&m.Op)
	flatList(c, &m.Slots, MaxBlocks, grantedSize, grantedFields, putGranted, getGranted)
	chainKey(c, &m.Chain)
}

func (m *Published) fields(c coder) {
	c.u64(&m.Op)
	c.u32(&m.Sealed)
	c.u32(&m.Dropped)
}

func (m *Busy) fields(c coder)    { ticket(c, &m.Ticket) }
func (m *Loading) fields(c coder) { ticket(c, &m.Ticket) }

func (m *Ready) fields(c coder) {
	ticket(c, &m.Ticket)
	c.u8((*uint8)(&m.Why))
	leaseID(c, &m.Lease)
	c.u32s(&m.Hits, maxGroups)
	c.u32s(&m.Arenas, MaxFrame/8)
}

func (m *Candidates) fields(c coder) {
	ticket(c, &m.Ticket)
	list(c, &m.Positions, maxGroups, 4, func(c coder, p *[]uint32) { c.u32s(p, MaxBlocks) })
}

func (m *Plan) fields(c coder) {
	leaseID(c, &m.Lease)
	c.u32(&m.Consumer)
	c.u32(&m.First)
	c.u32(&m.Total)
	flatList(c, &m.Slots, MaxBlocks, planSize, planFields, putPlan, getPlan)
}

func (m *Spoiled) fields(c coder) {
	leaseID(c, &m.Lease)
	c.u32(&m.Consumer)
	c.u32(&m.Bad)
}

func (m *Restored) fields(c coder) {
	leaseID(c, &m.Lease)
	flag(c, &m.OK)
}

func (m *Refused) fields(c coder) {
	c.u8((*uint8)(&m.Of))
	c.u16((*uint16)(&m.Class))
	c.u32(&m.Item)
	c.text(&m.Text, MaxText)
}

func (m *Arenas) fields(c coder) { list(c, &m.Arenas, MaxDescriptors, 20, arena) }
func (m *Bye) fields(coder)      {}
func (m *Pong) fields(coder)     {}

func (m *Closing) fields(c coder) {
	c.u16((*uint16)(&m.Class))
	c.text(&m.Text, MaxText)
}

func sealedFields(c coder, s *Sealed) {
	slotRef(c, &s.Slot)
	c.u64(&s.Checksum)
}

func grantedFields(c coder, s *GrantedSlot) {
	c.u8((*uint8)(&s.Disposition))
	slotRef(c, &s.Slot)
}

func planFields(c coder, s *core.PlanSlot) {
	slotRef(c, &s.Slot)
	c.u32(&s.Bytes)
	c.u64(&s.Checksum)
}
