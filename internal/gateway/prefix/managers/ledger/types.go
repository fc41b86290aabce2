package ledger

import (
	"cmp"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/stream"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/wire"
)

// Limits bound what a Manager may cost. A zero field means its default.
type Limits struct {
	// Namespaces counts (namespace, model, block size). Default 256: a host has a few models in a few layouts.
	Namespaces int
	// Attachments counts (registration, namespace). Default 1,024: a host has some ten engines, of some ranks each.
	Attachments int
	// Claims counts (block, medium, namespace). Default 8 million, twice an engine's: at 48 bytes each 400 MB.
	Claims int
	// Stream bounds repairs. A silence of 30 s is waited for by default, since a snapshot of millions of blocks takes some seconds;
	// what counts meanwhile is a matter of the other limits. A question that failed is put again after 250 ms: a snapshot costs its Manager more
	// than a replay.
	Stream stream.Limits
	// Resync is when a Manager of which something was lost for good is asked for everything again; it doubles with each time up to
	// ResyncMax. Defaults 5 s and 5 minutes: a snapshot may be 50 MB.
	Resync, ResyncMax time.Duration
}

func (l Limits) withDefaults() Limits {
	l.Namespaces = cmp.Or(l.Namespaces, 256)
	l.Attachments = cmp.Or(l.Attachments, 1024)
	l.Claims = cmp.Or(l.Claims, 8<<20)
	l.Stream.Silence = cmp.Or(l.Stream.Silence, 30*time.Second)
	l.Stream.Retry = cmp.Or(l.Stream.Retry, 250*time.Millisecond)
	l.Resync = cmp.Or(l.Resync, 5*time.Second)
	l.ResyncMax = cmp.Or(l.ResyncMax, 5*time.Minute)
	return l
}

// InputKind says what happened.
type InputKind uint8

// The inputs.
const (
	Tick      InputKind = iota // time passed; see [Ledger.Deadline]
	Connected                  // the live connection is there
	Broken                     // it is gone; Heard is when it was last known to be good
	Live                       // a batch came on it
	Dropped                    // live batches were dropped on our side
	Replayed                   // an answer to an [Ask] is a batch,
	Snapshot                   // or the header of a snapshot,
	Chunk                      // followed by its chunks;
	End                        // the answer came to its end,
	Failed                     // or will not
	Closed                     // it is over
)

// Input is what happened.
type Input struct {
	Kind  InputKind
	Heard time.Time // of Broken
	Seq   int64     // of Live and Replayed
	// Payload is a batch, of Live, Replayed and Chunk. It is the ledger's from then on.
	Payload []byte
	Header  wire.SnapshotHeader // of Snapshot
	Ask     uint64              // of all answers: the question's number
}

// Need says what a question is for.
type Need uint8

// The needs.
const (
	Whether    Need = iota // whether there are batches that have not come: a replay without any is good
	Missing                // the batches from a number on; a snapshot, where a replay does not begin with it
	Everything             // a snapshot
)

// Action is what is to be done: Hangup gives up the question under way, so that nothing more of it comes; else another one is put.
type Action struct {
	Hangup bool
	Ask    uint64
	Need   Need
	From   int64 // the number from which batches are missing
}

// Excess says of what a Manager has too much.
type Excess string

// The excesses. They stand in metrics and answers.
const (
	NoExcess       Excess = ""
	TooManySpaces  Excess = "too_many_namespaces"
	TooManyEngines Excess = "too_many_attachments"
	TooManyClaims  Excess = "claims_too_much"
)

// Counts are what came of a Manager's events since the ledger was made.
type Counts struct {
	// Stored, Removed, Cleared, Attached, Detached and Costs are events; Blocks are those of which they said something new.
	Stored, Removed, Cleared, Attached, Detached, Costs, Blocks uint64
	// Bad are events of no use, by class; BadBatches could not be read at all.
	Bad        [wire.Classes]uint64
	BadBatches uint64
	// Strays are prices of registrations that are not attached; Full are blocks for which the index had no room.
	Strays, Full uint64
	// Snapshots were taken, BadSnapshots were not whole; Resyncs were asked for because something had been lost. Foreign answers were of
	// another incarnation than the live connection's.
	Snapshots, BadSnapshots, Resyncs, Foreign uint64
}

// Status is how a Manager is followed.
type Status struct {
	Stream stream.Status
	// Epoch is its incarnation, 0 while nothing has come; Manager is its own name for itself.
	Epoch   uint64
	Manager string
	// CutOff says of what it has too much.
	CutOff Excess
	// Namespaces, Attachments and Claims are what counts against the limits.
	Namespaces, Attachments, Claims int
	Counts                          Counts
	// Lag is the time from the Manager's making its last batch to its being applied, by both clocks.
	Lag time.Duration
}
