package replay

import "time"

// Result is what a run measured. Each request is in exactly one of Completed, Rejected and Lost.
type Result struct {
	Requests  int // that arrived
	Completed int // got their whole answer
	// Rejected are those that no engine was found for, by the word of the gateway, or that the engine refused.
	Rejected Rejections
	// Lost are those whose engine failed: after their first token, or more often than a request is tried.
	Lost    int
	Retries int // new attempts after a failure

	// TTFT is the time from arrival to the first token, of requests that got one; ITL the time between two tokens of a request;
	// E2E the time from arrival to the last token, of requests that got it. Wait is the part of TTFT before the engine first
	// admitted the request.
	TTFT, ITL, E2E, Wait Histogram

	// PromptTokens and PromptBlocks are of the prompts that were admitted, each counted once, CachedTokens and CachedBlocks what the
	// prefix cache supplied of them, contiguous from their beginning. A begun block counts.
	PromptTokens, CachedTokens int64
	PromptBlocks, CachedBlocks int64
	OutputTokens               int64
	Preemptions                int64

	Engines []EngineResult
	// Queue is the number of requests that wait in engines, all together.
	Queue Timeline
	// QueuePeak is the longest queue of a single engine.
	QueuePeak int

	// ReportsLost are load reports that never arrived, of ReportsSent.
	ReportsSent, ReportsLost int
	// EventsLost are batches of KV events that never arrived by themselves, of EventsSent. There are none while nothing is late or lost:
	// gateways then look into the caches.
	EventsSent, EventsLost int
	// ReportEvery is the interval that was in force.
	ReportEvery time.Duration
	// Span is the time at which the last request ended.
	Span time.Duration
}

// Rejections counts rejected requests by who refused and why.
type Rejections struct {
	NoBucket  int // no bucket takes the length
	NoEngine  int // engines are missing or full
	QueueFull int // the engine's queue was full
	TooLong   int // the engine can never take the request
}

// Total returns their sum.
func (r Rejections) Total() int { return r.NoBucket + r.NoEngine + r.QueueFull + r.TooLong }

// EngineResult is one engine's part.
type EngineResult struct {
	ID string
	// Requests were accepted by the engine, PrefillTokens were not in its cache when it admitted them, Busy is the time during
	// which it had work.
	Requests      int
	PrefillTokens int64
	Busy          time.Duration
}

// HitRate returns the share of prompt tokens that came from the cache, and false if there were none.
func (r *Result) HitRate() (float64, bool) { return share(r.CachedTokens, r.PromptTokens) }

// BlockHitRate returns the share of prompt blocks that came from the cache, and false if there were none.
func (r *Result) BlockHitRate() (float64, bool) { return share(r.CachedBlocks, r.PromptBlocks) }

func share(part, whole int64) (float64, bool) {
	if whole == 0 {
		return 0, false
	}
	return float64(part) / float64(whole), true
}

// BusyImbalance returns the longest busy time of an engine over the mean, and false if no engine was busy. 1 is even.
func (r *Result) BusyImbalance() (float64, bool) {
	return imbalance(r.Engines, func(e *EngineResult) float64 { return float64(e.Busy) })
}

// RequestImbalance returns the most requests of an engine over the mean, and false if there were none.
func (r *Result) RequestImbalance() (float64, bool) {
	return imbalance(r.Engines, func(e *EngineResult) float64 { return float64(e.Requests) })
}

func imbalance(engines []EngineResult, of func(*EngineResult) float64) (float64, bool) {
	most, sum := 0.0, 0.0
	for i := range engines {
		v := of(&engines[i])
		most, sum = max(most, v), sum+v
	}
	if sum == 0 {
		return 0, false
	}
	return most * float64(len(engines)) / sum, true
}

// EventKind says what happened to a request.
type EventKind uint8

// What happens to a request. Ended, Rejected and Lost are final.
const (
	Arrived    EventKind = iota
	Dispatched           // to an engine, which accepted it
	Admitted             // to the engine's batch
	FirstToken
	Preempted
	Ended
	Retried // its engine failed; it is selected anew
	Rejected
	Lost
)

// String returns the kind in a word.
func (k EventKind) String() string {
	return [...]string{"arrived", "dispatched", "admitted", "first token", "preempted", "ended", "retried", "rejected", "lost"}[k]
}

// Event is one thing that happened to one request.
type Event struct {
	At      time.Duration
	Kind    EventKind
	Request uint64 // its number in the trace, from 0
	Gateway int
	Engine  int    // of Dispatched and what follows it
	Cached  int    // of Admitted: tokens that the cache supplied
	Why     string // of Rejected, Dispatched (the policy's reason) and Lost
}
