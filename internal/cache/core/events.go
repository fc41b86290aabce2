package core

import (
	"time"

	"github.com/perigee-llm/perigee/internal/chain"
)

// Event is something that happened. It is a pointer to one of the types in this file.
type Event interface{ event() }

// Group is one group of KV cache in an instance's layout: pages of one shape.
type Group struct {
	// Arena is the place in Register.Arenas where the group's pages are.
	Arena uint32
	// PartBytes is how many bytes each part of a block has; a part is one rank's. 1 to MaxParts parts, none of 0 bytes.
	PartBytes []uint32
}

// Arena is a piece of the pool that one instance may write.
type Arena struct {
	// ID is the shell's. An arena that is known already is taken over with what it holds if its shape and namespace are the same
	// and its last writer is fenced.
	ID uint32
	// Slots of SlotBytes bytes each; both at least 1.
	Slots, SlotBytes uint32
}

// Register introduces an instance. Answers: Registered, or Refused.
type Register struct {
	Session SessionID
	// Instance is the engine's name for itself. No two live sessions have the same.
	Instance  string
	Namespace Namespace
	// Scope is charged for what its requests do not charge to another.
	Scope  Scope
	Layout []Group
	Arenas []Arena
	// QueryBytes bounds what its queries may hold at once; 0 or more than Budgets.Instance is that.
	QueryBytes int64
	// Instead are arenas that go for it, each as by a Retire, if it is not refused.
	Instead []uint32
}

// Lost says that a session's connection has ended, for whatever reason. Everything of it ends at once, except that slots which its
// process may be writing or reading are quarantined until Fenced.
type Lost struct{ Session SessionID }

// Fenced says that the process behind a session is known to be gone, or to have unmapped the pool: nothing of it can write or read any
// more. It is Lost as well if that was not said before.
type Fenced struct{ Session SessionID }

// Block is one block that is published.
type Block struct {
	Group uint32
	// Hash is the engine's hash, Parent that of the block before it in the same group (zero: none).
	Hash, Parent Hash
	// Chain is our chain key of the block.
	Chain chain.Key
	// ParentChain is that of the block that it continues; zero if it begins a prompt.
	ParentChain chain.Key
	// Identity is the record from which Chain was made (tokens, parent, extra keys), opaque here. A copy of it comes back with Visible.
	Identity []byte
}

// Publish asks for slots for one part of some blocks. The other parts come with publishes of their own, in any order. Answer:
// Granted, with one answer a block; later Published. Or Refused.
type Publish struct {
	Session SessionID
	// Op is the client's number for the publish, above all that the session used before.
	Op uint64
	// Part is which part of the blocks.
	Part uint32
	// Scope is charged; 0 is the session's own.
	Scope  Scope
	Blocks []Block
}

// Sealed says that a granted slot is written. The grant ends with it. Answer: none, or Refused.
type Sealed struct {
	Session SessionID
	Slot    SlotRef
	// Checksum is of the payload, made as it was copied; the core keeps it and never computes one.
	Checksum uint64
}

// SealedSlot is one slot that is written.
type SealedSlot struct {
	Slot     SlotRef
	Checksum uint64
}

// SealedRun is Sealed for many slots at once, in their order. Answers: none, or Refused for each that is not accepted, with its place.
type SealedRun struct {
	Session SessionID
	Slots   []SealedSlot
}

// Abandoned says that a granted slot will not be written, and is not being written any more. The block that it was for is given
// up. For a grant that was collected it is the word that frees the slot.
type Abandoned struct {
	Session SessionID
	Slot    SlotRef
}

// Mode is what a query wants.
type Mode uint8

// The modes.
const (
	// Prefix wants the leading run of the first (and only) group, as far as its budgets can ever hold it, and a lease on it.
	Prefix Mode = iota
	// Exact wants every block of every group, and a lease on all of them, or nothing.
	Exact
	// Discover wants to know which positions of each group could be restored. Nothing is read, reserved or leased.
	Discover
	// Warm wants the leading run of the first group to be brought into memory, on speculation and without a lease.
	Warm
)

// Want is what a query asks of one group, in the order of the tokens.
type Want struct {
	Group  uint32
	Hashes []Hash
}

// Query asks for blocks, or again for the answer: a ticket that is known with the same content is a repetition, and starts nothing;
// a higher revision of a known operation replaces it. Answers: Loading and later Ready, or at once Ready, Candidates, Busy or Refused.
type Query struct {
	Session SessionID
	Ticket  Ticket
	Mode    Mode
	// Scope is charged; 0 is the session's own.
	Scope  Scope
	Demand []Want
	// Consumers is how many of the instance's ranks will restore, each its part; 1 or as many as the groups have parts.
	Consumers uint32
	// Priority decides who is admitted first when bytes become free: higher first, then older.
	Priority int32
	// Wait is the one waiting budget, over all stages: when it is over the answer is Ready with nothing. 0 is Limits.Wait, and no
	// more than that is given.
	Wait time.Duration
}

// Poll asks again for the answer to a query without its content. It never starts anything.
type Poll struct {
	Session SessionID
	Ticket  Ticket
}

// Cancel ends the interest in a query, with its lease unless a consumer has started on it. Unknown ones are passed over.
type Cancel struct {
	Session SessionID
	Ticket  Ticket
}

// Start begins one consumer's restore under a lease. Answer: Plan, or Refused.
type Start struct {
	Session  SessionID
	Lease    LeaseID
	Consumer uint32
	// Into is memory for the plan's slots, as far as it reaches; it has none yet, or nil.
	Into []PlanSlot
}

// Outcome is how something ended.
type Outcome uint8

// The outcomes.
const (
	Done     Outcome = iota
	Failed           // nothing is known to be wrong with the source
	Mismatch         // the source's bytes are not what was sealed
)

// Copied ends one consumer's restore. The consumer does not touch the slots after it. When it was the last: Restored.
type Copied struct {
	Session  SessionID
	Lease    LeaseID
	Consumer uint32
	Outcome  Outcome
	// Bad is the place in the plan of the block that did not match, for Mismatch. The block is dropped for everybody.
	Bad uint32
}

// Release ends a lease on which no consumer has started. On one that is being read it only keeps further consumers from
// starting: the rest ends with their Copied.
type Release struct {
	Session SessionID
	Lease   LeaseID
}

// Learned says what blocks of the session's namespace are named that may have been published without a name. Those that can be found and have none get it, in all groups, and
// are answered with Named; the others are as they were, and nothing is answered for them.
type Learned struct {
	Session SessionID
	Blocks  []LearnedBlock
}

// LearnedBlock is one of them. Parent is the name of the one that it follows, zero if it begins a prompt.
type LearnedBlock struct {
	Hash          Hash
	Parent, Chain chain.Key
}

// Backed says that a block is on a medium below memory. It can be found from now on.
type Backed struct {
	Namespace Namespace
	Group     uint32
	Hash      Hash
	Parent    Hash
	Chain     chain.Key
	Scope     Scope
	Extent    Extent
	// Checksums are of the parts, in their order.
	Checksums []uint64
}

// Unbacked says that an extent is gone. Reads of it that were asked for still end with their ReadDone.
type Unbacked struct {
	Namespace Namespace
	Group     uint32
	Hash      Hash
	Extent    Extent
}

// ReadDone ends a read: with Done the slots hold what the extent held and the checksums matched. The reader does not touch
// the slots after it.
type ReadDone struct {
	Read    ReadID
	Outcome Outcome
}

// Tick lets time pass: what is due by now happens. Core.Next says when the next one is wanted.
type Tick struct{}

// Retire forgets an arena that nobody writes, with all that is in it, for ever: its id is never to be used again, since clients know arenas by their
// ids. Refused as ArenaBusy while it has a writer or something in it is held, and as Invalid if there is none.
type Retire struct{ Arena uint32 }

// Part is one of a walk over all blocks, so that nobody waits for the whole of it: it drops Most blocks at most, and looks at 16 times as many. The zero value is
// all of it at once. A part is answered with WalkedTo, which has the next one's From; what comes meanwhile the walk may pass by.
type Part struct{ From, Most uint32 }

// Flush drops every block of the namespace, or of all if it is zero. What is held goes when it is let go of.
type Flush struct {
	Namespace Namespace
	Part      Part
}

// Empty drops the blocks of an arena that nobody holds, if nobody writes it: what a Retire would have to do. Refused as ArenaBusy if it has a writer, and as Invalid
// if there is none.
type Empty struct {
	Arena uint32
	Part  Part
}

// Evict drops up to Blocks blocks of an arena, in the order in which a full pool would.
type Evict struct {
	Arena  uint32
	Blocks int
}

func (*Register) event()  {}
func (*Retire) event()    {}
func (*Empty) event()     {}
func (*Lost) event()      {}
func (*Fenced) event()    {}
func (*Publish) event()   {}
func (*Learned) event()   {}
func (*Sealed) event()    {}
func (*SealedRun) event() {}
func (*Abandoned) event() {}
func (*Query) event()     {}
func (*Poll) event()      {}
func (*Cancel) event()    {}
func (*Start) event()     {}
func (*Copied) event()    {}
func (*Release) event()   {}
func (*Backed) event()    {}
func (*Unbacked) event()  {}
func (*ReadDone) event()  {}
func (*Tick) event()      {}
func (*Flush) event()     {}
func (*Evict) event()     {}
