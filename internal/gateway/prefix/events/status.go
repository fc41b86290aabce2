package events

import (
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/stream"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/wire"
)

// Status is how one rank's streams are.
type Status struct {
	// Engine, ID and Rank say whose they are. An engine that does not say where it publishes has one Status, of rank 0, with Fault.
	Engine uint32
	ID     string
	Rank   int32
	// Prefix says whether its KV events are wanted; then Stream and the figures are theirs.
	Prefix bool
	Stream stream.Status
	Events Counts
	// CutOff says that the engine claimed more than it may: the index credits it with nothing until it begins anew.
	CutOff bool
	// CutOffSince is since when, zero if it is not.
	CutOffSince time.Time
	// Waiting are the messages that wait for the applier.
	Waiting int
	// Lag is the time from the engine's making its last batch to its being applied, by both clocks; 0: no batch has come.
	Lag time.Duration
	// Load is its load stream; nil: there is none, or it is not wanted.
	Load *LoadStatus
	// Fault is why it cannot be followed, or what went wrong last; nil if nothing did since the connection is there.
	Fault error
}

// LoadStatus is how a load stream is.
type LoadStatus struct {
	Connected bool
	// Reports were used; Bad could not be read; Stale were older than the one before, or of a rank that the engine does not have.
	Reports, Bad, Stale uint64
	Fault               error
}

// Counts are what came of a feed's events, since it began.
type Counts struct {
	// Stored, Removed and Cleared are events; Blocks are those of which they said something new.
	Stored, Removed, Cleared, Blocks uint64
	// Bad are events that were of no use, by class.
	Bad [wire.Classes]uint64
	// BadBatches could not be read, BadMessages were no numbered batch, Oversize were longer than what we take.
	BadBatches, BadMessages, Oversize uint64
	// Orphans are stores whose parent nobody has claimed; Refused are events that the index did not take for other reasons.
	Orphans, Refused uint64
	// Dropped are messages for which the queue had no room.
	Dropped uint64
	// Proven are blocks that were doubted and then proven.
	Proven uint64
	// Connects and Breaks are of the live connection.
	Connects, Breaks uint64
}
