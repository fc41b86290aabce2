// Package offload is the simulated engine's end of a Cache Manager: what its core computes is published there, and what its core asks for is
// looked up and restored from there. It speaks through the Go client of the channel; docs/simulated-engine.md has its figures.
//
// Promises:
//
//   - Every Lookup and every Restore is answered, once, within a bounded time, with what is in place: nothing if the Manager is absent, late, hung or
//     lost. A page that was restored is where the core wanted it, and nobody writes there after the answer.
//   - A lost Manager is registered with again, by itself. A hung one is given up after Options.HangAfter; what was asked when it began to hang waits as
//     long as a lookup may take, and nothing else is asked until it answers.
//   - A restore takes at least the time that the engine's timing model says, and the Manager is told of its end only then: so what the
//     Manager measures, and tells gateways as a price, is the model's time, or the real copy's where that took longer.
//   - Publishing holds no block and no request: pages are written from their names. What finds the queue full is dropped and counted.
//   - A lease ends with its request, whatever becomes of it. Close returns when every goroutine has ended and the Manager has been
//     told goodbye.
//
// An Adapter may be used by several goroutines, and calls of one request come one after the other.
package offload

import (
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
)

// Options say who registers with whom.
type Options struct {
	// Socket is the Manager's; required.
	Socket string
	// Instance is the engine's name on this host, no other's; URL and Model are what gateways know it by. Required.
	Instance, URL, Model string
	// BlockTokens and PageBytes are the engine's; required.
	BlockTokens, PageBytes int
	// Timing says what a restore takes; its defaults filled in.
	Timing engine.Timing
	// LookupWait bounds what a request waits for the answer to its lookup, on the wall; 0: DefaultLookupWait.
	LookupWait time.Duration
	// RestoreWait bounds a restore, on the wall, beyond the time that the timing model gives it; 0: DefaultRestoreWait.
	RestoreWait time.Duration
	// HangAfter is how long an answer is awaited until the Manager counts as hung, on the wall; 0: DefaultHangAfter.
	HangAfter time.Duration
}

const (
	// DefaultLookupWait is what a lookup may take: an answer takes 0.1 ms, on a machine that is overloaded a thousand times as much. A Manager
	// that hangs costs it once, since nobody asks again before it has answered.
	DefaultLookupWait = 500 * time.Millisecond
	// DefaultRestoreWait is what a restore may take longer than the model says. A gigabyte takes half of it.
	DefaultRestoreWait = time.Second
	// DefaultHangAfter is when a Manager that does not answer is given up: longer than a machine that is overloaded takes, and soon enough
	// for one that will not come back.
	DefaultHangAfter = 5 * time.Second
	// publishQueue is how many batches may wait to be published: a batch is what a step has stored, and a Manager that is a hundred steps behind
	// will not catch up.
	publishQueue = 128
	// dialWait bounds a registration. The Manager makes the arena's memory in it, a second for tens of gigabytes.
	dialWait = 10 * time.Second
	// redialFirst and redialMost are the pause before a registration is tried again, doubled each time: a Manager that restarts is
	// found within a fraction of a second, and one that is away costs a connection every five seconds.
	redialFirst = 50 * time.Millisecond
	redialMost  = 5 * time.Second
)

// Stats is what an Adapter has counted since its start.
type Stats struct {
	// Error is why the last registration failed; empty: it did not.
	Error          string `json:"error,omitempty"`
	Registered     bool   `json:"registered"`      // now
	Registrations  int64  `json:"registrations"`   // that were successful
	Lost           int64  `json:"lost"`            // sessions that the Manager or its end has ended
	Hung           int64  `json:"hung"`            // sessions that were given up because nobody answered
	Lookups        int64  `json:"lookups"`         // that were sent
	LookupsLate    int64  `json:"lookups_late"`    // of them, answered too late
	Unasked        int64  `json:"unasked"`         // not sent: no session, or one that is late with another lookup
	Restores       int64  `json:"restores"`        // that were begun
	RestoresFailed int64  `json:"restores_failed"` // of them, ended without pages: the Manager lost, hung or out of a page's right bytes; or the client gone
	RestoredPages  int64  `json:"restored_pages"`  // that were put in place; the core compares each
	// Blocks that were published: written, there already, and come to nothing: refused, lost with the session or without a session.
	Published int64 `json:"published"`
	Present   int64 `json:"present"`
	Dropped   int64 `json:"dropped"`
	// QueueFull are the blocks among Dropped for which the queue had no place.
	QueueFull int64 `json:"queue_full"`
}
