package core

import (
	"time"

	"github.com/perigee-llm/perigee/internal/cache/state"
)

// Time is the time since the daemon started, by a clock that never goes back. It means nothing on another host.
type Time = time.Duration

// Hash is what a block is called in its namespace and group: the engine's own hash of 32 bytes, which has the request's part in it (LoRA, salt,
// media). Whoever speaks for an engine whose hashes are shorter or leave that out makes 32 bytes of state.StateKey's encoding, by a
// hash that nobody can make collide. The zero value is no block: the parent of a first one.
type Hash = [32]byte

// Namespace is the digest of all that makes pages exchangeable: model, format, layout, scope. It is opaque here.
type Namespace = state.NamespaceID

// Scope is a tenant: whose budget bytes are charged to. The zero value is everybody who has no tenant.
type Scope uint32

// SessionID names one registration of one engine instance. It is never used twice.
type SessionID struct {
	// Epoch is of the Manager's start, and never 0: a session of an earlier daemon has another one.
	Epoch uint64
	// Number is from 1 on within the epoch.
	Number uint32
}

// SlotRef names one use of one slot. Gen grows each time that the slot is granted, so a reference to an earlier use is stale.
type SlotRef struct {
	Arena, Index, Gen uint32
}

// LeaseID names one lease. Gen grows each time that the place in the table is used. The zero value is no lease.
type LeaseID struct {
	Index, Gen uint32
}

// Ticket names a query of a session. Op grows with each new query of the session; Revision grows when what an operation asks for
// changes. Both are from 1 on.
type Ticket struct {
	Op, Revision uint64
}

// ReadID names one read from below the memory. It is never used twice in an epoch. The zero value is no read.
type ReadID uint64

// Extent names bytes on a medium below memory, to the owner of that medium. The core compares it and never looks into it.
type Extent struct {
	// Store is which disk, Gen which use of that place.
	Store, Gen uint32
	// Offset and Length are in bytes. A Length of 0 is no extent.
	Offset, Length uint64
}
