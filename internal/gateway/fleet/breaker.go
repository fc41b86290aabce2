package fleet

import (
	"sync/atomic"
	"time"
)

// Outcome is what a dispatch says of the engine's health. Who is to blame is the caller's judgement: a client that leaves is
// [Cancelled], an engine that says it is full is [Neutral].
type Outcome uint8

// The outcomes.
const (
	// Success: the engine answered, and not with a failure of its own.
	Success Outcome = iota
	// Failure: 5xx other than 503, a transport error, a time-out, a broken body.
	Failure
	// Absent is a failure because nobody was there: the connection was refused, or there is no way to the engine.
	Absent
	// Neutral: 503 and 429. The engine is alive and says that it has enough.
	Neutral
	// Cancelled: nothing was learned. A probe that ends so is given back.
	Cancelled
)

// BreakerState is a worker's circuit breaker, as metrics show it.
type BreakerState uint8

// The states, with the numbers of the field's gauge.
const (
	Closed   BreakerState = 0
	Open     BreakerState = 1
	HalfOpen BreakerState = 2
)

// String returns the state's name.
func (s BreakerState) String() string {
	switch s {
	case Closed:
		return "closed"
	case Open:
		return "open"
	}
	return "half_open"
}

// BreakerConfig are the settings of a circuit breaker. The zero value means the defaults.
type BreakerConfig struct {
	// Threshold is how many failures in a row open it. Default 3: one is chance and two may be one event seen twice.
	Threshold int
	// CoolDown is how long it stays open before one probe is let through, and how long a probe may take before another is. Default 30 s, sgl-router's.
	CoolDown time.Duration
	// Floor is the share of a group's engines below which open breakers stop counting: see [Set.Fill]. Default 0.5; negative: never.
	//
	// An engine that fails by itself is one of many. When more than half have failed, the requests are the likelier cause: a client whose
	// requests make engines answer 500 has every engine's breaker open with a handful of them. It is Envoy's panic threshold, and its default.
	// Below one half the engines that are left would each have to take more than twice their load, which takes them out too.
	Floor float64
}

func (c BreakerConfig) withDefaults() BreakerConfig {
	if c.Threshold <= 0 {
		c.Threshold = 3
	}
	if c.CoolDown <= 0 {
		c.CoolDown = 30 * time.Second
	}
	if c.Floor == 0 {
		c.Floor = 0.5
	}
	return c
}

// breaker is one engine's circuit breaker:
//
//	closed ──threshold failures in a row──▶ open ──cool-down, one dispatch claims the probe──▶ half-open
//	   ▲                                     ▲                                                  │
//	   └───────── success, neutral ──────────┼──────────────────────────────────────────────────┤
//	                                         └──────────────────── failure ────────────────────┘
//
// A cancelled probe leaves it half-open without a probe, so that the next dispatch claims one; so does one that has taken as long as a cool-down, since an answer may
// take minutes, and nobody else gets one from the engine meanwhile. A probe whose answer has begun well closes it. The streak is not zeroed on
// opening, nor by an answer that has only begun: one failure half-open opens it again, and so does one before an answer has ended well, since an engine may break off
// whatever it begins. Dispatches from before the opening end late: their failure while it is open
// changes nothing but whether somebody was there, and their success closes it from any state, since the engine has just answered. Everything but state and streak is guarded by the registry's mutex.
type breaker struct {
	state    atomic.Uint32 // BreakerState; written under the registry's mutex
	streak   atomic.Int64  // failures in a row; written under the registry's mutex
	gone     bool          // nobody was there at the last failure
	openedAt time.Time
	probe    uint64                // generation of the probe that is out; 0: none
	probedAt time.Time             // when it was claimed
	probes   uint64                // generations handed out
	returns  [maxReturns]time.Time // when a cool-down was ended early, the last ones
	returned uint64                // how many were
}

// Ticket is one dispatch as the breaker sees it. Give it back with [Registry.Done] exactly once.
type Ticket struct {
	worker *Worker
	probe  uint64 // 0: an ordinary dispatch
}

func (b *breaker) get() BreakerState { return BreakerState(b.state.Load()) }

// admits tells whether a dispatch could be claimed now. It changes nothing.
func (b *breaker) admits(now time.Time, c BreakerConfig) bool {
	switch b.get() {
	case Closed:
		return true
	case Open:
		return now.Sub(b.openedAt) >= c.CoolDown
	default:
		return b.probe == 0 || now.Sub(b.probedAt) >= c.CoolDown
	}
}

func (b *breaker) claim(now time.Time, c BreakerConfig) (probe uint64, ok bool) {
	if !b.admits(now, c) {
		return 0, false
	}
	if b.get() == Closed {
		return 0, true
	}
	b.state.Store(uint32(HalfOpen))
	b.probes++
	b.probe, b.probedAt = b.probes, now
	return b.probe, true
}

func (b *breaker) done(probe uint64, o Outcome, now time.Time, c BreakerConfig) {
	if probe != 0 && probe == b.probe {
		b.probe = 0
	}
	switch o {
	case Success:
		b.close()
	case Neutral:
		if b.get() == HalfOpen {
			b.close()
		}
	case Failure, Absent:
		b.gone = o == Absent
		if b.get() == Open {
			return // already known; a late failure must not prolong the cool-down
		}
		if b.streak.Add(1) >= int64(c.Threshold) {
			b.state.Store(uint32(Open))
			b.openedAt, b.probe = now, 0
		}
	}
}

// answers closes it for an answer that has begun: what failed before is forgotten when one ends well.
func (b *breaker) answers() {
	b.state.Store(uint32(Closed))
	b.probe, b.gone = 0, false
}

func (b *breaker) close() {
	b.answers()
	b.streak.Store(0)
}
