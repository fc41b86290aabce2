package core

import "github.com/perigee-llm/perigee/internal/chain"

// Action is something that the shell has to do or to tell. It is one of the types in this file; Visible, Removed and Freed, of which a step may have hundreds,
// by a pointer.
type Action interface{ action() }

// Registered answers Register.
type Registered struct{ Session SessionID }

// Refused answers an event that was not accepted; nothing has changed.
type Refused struct {
	Session SessionID
	// Event is what was refused, by its kind; Ref is its operation, lease index or slot index, whichever it has.
	Event EventKind
	Ref   uint64
	Class Class
	// Item is the place of what was refused in an event that has many.
	Item uint32
}

// Disposition is what became of a block of a Publish.
type Disposition uint8

// The dispositions.
const (
	// Write: the slot is granted. The client writes it and says Sealed or Abandoned, exactly once.
	Write Disposition = iota
	// Present: the block is visible already, and nothing is to be written.
	Present
	// Taken: this part is being written by somebody, or the block by another session. The block is dropped here.
	Taken
	// NoRoom: the arena is full of what may not go, or the scope's budget is used up by what may not go. The block is dropped.
	NoRoom
)

// GrantedBlock is the answer for one block of a Publish. Slot means something only with Write.
type GrantedBlock struct {
	Disposition Disposition
	Slot        SlotRef
}

// Granted answers Publish, block by block in its order.
type Granted struct {
	Session SessionID
	Op      uint64
	Blocks  []GrantedBlock
}

// Published says that no slot of a publish is being written any more: the engine's pages are free.
type Published struct {
	Session SessionID
	Op      uint64
	// Sealed and Dropped are how many of its blocks were sealed and how many came to nothing; those Present count as neither.
	Sealed, Dropped uint32
}

// Busy answers a query that was not admitted. Nothing is kept of it: it may be asked again, as a new operation if one with a higher number
// was asked meanwhile.
type Busy struct {
	Session SessionID
	Ticket  Ticket
}

// Loading answers a query that was admitted: Ready will follow.
type Loading struct {
	Session SessionID
	Ticket  Ticket
}

// Why says why a Ready brings nothing.
type Why uint8

// The reasons. Found is none: there is a lease (or, for Warm, something in memory).
const (
	Found      Why = iota
	Missing        // a verified miss, or an Exact demand of which something is missing
	TooLarge       // it would never fit its budgets: an Exact demand, or a run's first block
	TimedOut       // the waiting budget is over
	Unreadable     // all was found, and then could not be read or given room
)

// Ready ends a query. With a zero Lease the engine computes.
type Ready struct {
	Session SessionID
	Ticket  Ticket
	Why     Why
	Lease   LeaseID
	// Hits is how many blocks of each group of the demand the lease covers, from the first on. nil without a lease, but for Warm.
	Hits []uint32
	// Arenas are those that the lease's slots are in, rising: told early, so that the client can map them before it starts.
	Arenas []uint32
}

// Candidates answers a Discover: for each group of the demand the positions that could be restored, rising.
type Candidates struct {
	Session   SessionID
	Ticket    Ticket
	Positions [][]uint32
}

// PlanSlot is one slot that a consumer copies from.
type PlanSlot struct {
	Slot     SlotRef
	Bytes    uint32
	Checksum uint64
}

// Plan answers Start: what the consumer copies, in the order of the demand. The slots stay as they are until its Copied.
type Plan struct {
	Session  SessionID
	Lease    LeaseID
	Consumer uint32
	Slots    []PlanSlot
}

// Restored ends a lease that was started on: every consumer has copied everything, or none of them may use what it has.
type Restored struct {
	Session SessionID
	Lease   LeaseID
	OK      bool
}

// Read asks for an extent to be read into slots, part by part, and for ReadDone. It is not called off.
type Read struct {
	Read   ReadID
	Extent Extent
	Slots  []PlanSlot
}

// Visible announces a block: it can be restored from now on.
type Visible struct {
	Namespace Namespace
	Group     uint32
	Hash      Hash
	Parent    Hash
	Chain     chain.Key
	Scope     Scope
	// Identity is the publisher's record; nil for a block that came back from below.
	Identity []byte
	Slots    []PlanSlot
}

// Named says what a block is named that was announced without a name: it was learned, or somebody has published the block again who knows. Parent is the name of the one that
// it follows, zero if it begins a prompt.
type Named struct {
	Namespace     Namespace
	Group         uint32
	Hash          Hash
	Parent, Chain chain.Key
}

// Reason is why a block was removed.
type Reason uint8

// The reasons.
const (
	Evicted   Reason = iota // its slots were needed
	Flushed                 // an operator wanted it
	Corrupted               // its bytes were not what was sealed
)

// Removed withdraws a block from memory: it is not given out any more.
type Removed struct {
	Namespace Namespace
	Group     uint32
	Hash      Hash
	Chain     chain.Key
	Reason    Reason
}

// Freed says that nobody can be writing or reading a slot any more, and that it may be granted again.
type Freed struct{ Slot SlotRef }

// WalkedTo answers a Part of a walk: the next one begins there, if there is More.
type WalkedTo struct {
	Next uint32
	More bool
}

// CloseSession asks the shell to end a session's connection, and to say Lost when it has.
type CloseSession struct {
	Session SessionID
	Class   Class
}

func (Registered) action()   {}
func (Refused) action()      {}
func (Granted) action()      {}
func (Published) action()    {}
func (Busy) action()         {}
func (Loading) action()      {}
func (Ready) action()        {}
func (Candidates) action()   {}
func (Plan) action()         {}
func (Restored) action()     {}
func (Read) action()         {}
func (*Visible) action()     {}
func (*Named) action()       {}
func (*Removed) action()     {}
func (*Freed) action()       {}
func (WalkedTo) action()     {}
func (CloseSession) action() {}
