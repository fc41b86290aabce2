package wire

import (
	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/cache/state"
	"github.com/perigee-llm/perigee/internal/chain"
)

// Bounds of lists and texts.
const (
	MaxBlocks = 8192 // as core.Limits has it
	MaxTokens = 1024 // of a block
	MaxExtra  = 4000 // bytes of a block's extra keys: with the tokens they are what the core keeps of a block
	MaxText   = 2048 // bytes
	maxGroups = 64
)

// Hello opens a connection. Answer: Welcome, or Refused and the end.
type Hello struct {
	// MinVersion and MaxVersion are what the client speaks.
	MinVersion, MaxVersion uint16
	// Client names the program, for logs.
	Client string
}

// Register introduces an instance. Answer: Registered, with one descriptor an arena, in their order. The connection has the role
// RoleQuery from then on.
type Register struct {
	// Instance is the engine's name for itself; no two live ones are the same.
	Instance string
	// Ranks are the canonical encodings of the ranks' namespaces, in state.InstanceID's order. From them the Manager works out the
	// identity, the bytes of each part and the recovery contract; nothing of that is believed from anybody.
	Ranks [][]byte
	// Model and URL are what the Manager tells gateways: the base model's id as the engine serves it, and where the engine is reached.
	Model, URL string
	// DataRank is the data-parallel rank plus 1; 0: all.
	DataRank uint32
	// Scope is the tenant that is charged.
	Scope core.Scope
	// QueryBytes bounds what its queries hold at once, 0: the Manager's bound. PoolBytes is how much of the pool it wants, 0: its share.
	QueryBytes, PoolBytes uint64
}

// Role is what a connection is for.
type Role uint8

// The roles.
const (
	NoRole Role = iota
	// RoleQuery asks, restores and releases. A worker process that only restores takes one, too.
	RoleQuery
	// RolePublish publishes.
	RolePublish
)

// Attach joins a connection to a session, from this process or another one of the instance. Answer: Attached.
type Attach struct {
	Token [16]byte
	Role  Role
}

// Root is what names of blocks begin with; see package chain.
type Root struct{ Model, LoRA, Salt string }

// Block is one block that is published.
type Block struct {
	Group        uint32
	Hash, Parent core.Hash
	// Tokens and Extra make the block's name. Without tokens it has none, and is not announced to gateways.
	Tokens []uint32
	Extra  []byte
}

// Publish asks for slots for one part of blocks. Answers: Granted, later Published.
type Publish struct {
	Op    uint64
	Part  uint32
	Scope core.Scope
	Root  Root
	// ParentChain is the name of the block before the first, as an earlier Granted told; zero if the first begins the prompt.
	ParentChain chain.Key
	Blocks      []Block

	words []uint32 // room for the blocks' tokens, of an earlier message
}

// Sealed is a slot that is written. Checksum is XXH3-64 of the part's bytes if Seal.Summed, else 0.
type Sealed = core.SealedSlot

// Seal says that slots are written. No answer but Published, or Refused for what is not granted.
type Seal struct {
	// Summed says that the client made the checksums; else the Manager does.
	Summed bool
	Slots  []Sealed
}

// Abandon says that granted slots are not and will not be written.
type Abandon struct{ Slots []core.SlotRef }

// Query asks for blocks. Answers: Ready, Candidates, Busy, or Loading and later Ready.
type Query struct {
	Ticket core.Ticket
	Mode   core.Mode
	Scope  core.Scope
	// Consumers is how many ranks will restore, each its part.
	Consumers uint32
	Priority  int32
	// WaitMicros is the one waiting budget over all stages; 0: the Manager's. FirstUseMicros is when the engine expects to need the
	// pages, from now; 0: at once. ConfidencePPM is how likely it is to need them at all, in millionths.
	WaitMicros, FirstUseMicros uint64
	ConfidencePPM              uint32
	// Request names the engine's request, for people.
	Request string
	// Demand has PageTokens 0 where there is none: that is for modes other than Exact.
	Demand state.RecoveryDemand
	Wants  []core.Want

	spare []core.Hash // memory for those of the first of Wants
}

// Poll asks again for the answer to a query.
type Poll struct{ Ticket core.Ticket }

// Cancel ends the interest in a query. No answer.
type Cancel struct{ Ticket core.Ticket }

// Start begins a restore. Answers: Plan, in one or more frames, as the pages are verified; or Refused; or in the middle Spoiled.
type Start struct {
	Lease    core.LeaseID
	Consumer uint32
}

// Take is Start for a consumer that compares the checksums itself, of what it has copied: the pages of its Plan were not looked at, and come in
// as few frames as they go into. A page that does not match ends its restore, with Copied (core.Mismatch).
type Take struct {
	Lease    core.LeaseID
	Consumer uint32
}

// Copied ends a consumer's restore: it does not read the slots any more. Answer: Restored, when all consumers have said so.
type Copied struct {
	Lease    core.LeaseID
	Consumer uint32
	Outcome  core.Outcome
	// Bad is the place in the plan of a page that did not match, for core.Mismatch.
	Bad uint32
}

// Release gives up a lease that was not started on. No answer.
type Release struct{ Lease core.LeaseID }

// Goodbye ends the session's part of this process: it has unmapped every arena, and nothing of it writes or reads any more. Answer: Bye.
type Goodbye struct{}

// Leave is Goodbye for a session that has been lost, on a connection that is of no session: this process has unmapped what that one had. Answer:
// Bye, or Refused (StaleSession) for a token that is of no session any more.
type Leave struct{ Token [16]byte }

// MapArenas asks for read-only descriptors. Answer: Arenas.
type MapArenas struct{ Arenas []uint32 }

// Ping asks for a Pong.
type Ping struct{}
