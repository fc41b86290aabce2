package load

import (
	"sync"
	"sync/atomic"
	"time"
)

// Stage says on which of an engine's gauges a guard's amount counts.
type Stage uint8

// The stages that are accounted apart.
const (
	// StagePrefill is a plain request or the prefill half of a pair; its amount is input tokens.
	StagePrefill Stage = iota
	// StageDecode is the decode half of a pair; it counts one.
	StageDecode
)

// Tracker holds every guard of a gateway, so that a janitor finds those whose owner never gave them back. The zero value is ready.
type Tracker struct {
	// Observer is told of the prompts in prefill; nil: nobody wants to know. It is set before the first guard is acquired.
	Observer Observer

	mu struct {
		sync.Mutex // order: Tracker.mu, then Engine.mu
		held       guardList
		n          int
	}
	last atomic.Uint64 // number given to a guard
}

// Guard is one request's place in an engine's accounts, from just before it is sent until its answer has ended. Whoever
// acquired it calls Release when that has happened, on every path; calling it again does nothing.
type Guard struct {
	tracker *Tracker // nil: another gateway's prompt, see Account
	engine  *Engine
	id      uint64
	at      time.Time
	stage   Stage
	amount  int64
	expired Expirer
	done    atomic.Bool

	inTracker, onEngine guardLinks // guarded by the mutex of the list

	// Guarded by the engine's mutex; see Prefill.
	uncached  int64
	unseen    bool
	queued    bool // among the engine's guards without a first token
	inPrefill guardLinks
}

// Acquire counts one request on the engine from now on. amount is its input tokens (ignored for the decode stage).
// expired is called at most once, from Expire's goroutine, if the janitor gives the guard up; it may be nil and must not block.
func (t *Tracker) Acquire(e *Engine, now time.Time, stage Stage, amount int64, expired func()) *Guard {
	g := new(Guard)
	if expired == nil {
		t.AcquireAt(g, e, now, stage, amount, nil)
	} else {
		t.AcquireAt(g, e, now, stage, amount, expiry(expired))
	}
	return g
}

// Expirer is told that its guard was given up, as Acquire's function is.
type Expirer interface{ Expired() }

type expiry func()

// Expired implements Expirer.
func (f expiry) Expired() { f() }

// AcquireAt is Acquire for a guard that is a part of something else, which lives on at least until it was given back, and in which it is zero.
func (t *Tracker) AcquireAt(g *Guard, e *Engine, now time.Time, stage Stage, amount int64, expired Expirer) {
	g.tracker, g.engine, g.id, g.at, g.stage, g.amount, g.expired = t, e, t.last.Add(1), now, stage, amount, expired
	e.active.Add(1)
	g.gauge().Add(g.weight())
	e.mu.Lock()
	e.mu.held.insert(g, func(g *Guard) *guardLinks { return &g.onEngine })
	if stage == StagePrefill {
		g.uncached = max(amount, 0)
		g.enterPrefillLocked() // which says that the engine has changed
		g.tellSentLocked()
	} else {
		e.changed()
	}
	e.mu.Unlock()
	t.mu.Lock() // last: from here on the janitor can find it, and it must be whole then
	t.mu.held.insert(g, func(g *Guard) *guardLinks { return &g.inTracker })
	t.mu.n++
	t.mu.Unlock()
}

// Release takes the request off the accounts, on the very counters it was put on. Only the first call does something.
func (g *Guard) Release() {
	if g.done.CompareAndSwap(false, true) {
		g.unlink()
	}
}

// At returns when the guard was acquired.
func (g *Guard) At() time.Time { return g.at }

func (g *Guard) unlink() {
	g.tracker.mu.Lock()
	g.tracker.mu.held.remove(g, func(g *Guard) *guardLinks { return &g.inTracker })
	g.tracker.mu.n--
	g.tracker.mu.Unlock()
	g.engine.mu.Lock()
	g.engine.mu.held.remove(g, func(g *Guard) *guardLinks { return &g.onEngine })
	g.engine.outdate()
	if g.queued {
		g.leavePrefillLocked(time.Time{})
		g.tellGoneLocked(time.Time{})
	}
	g.engine.mu.Unlock()
	g.gauge().Add(-g.weight())
	g.engine.active.Add(-1)
	g.engine.changed()
}

func (g *Guard) gauge() *atomic.Int64 {
	if g.stage == StageDecode {
		return &g.engine.decode
	}
	return &g.engine.prefill
}

func (g *Guard) weight() int64 {
	if g.stage == StageDecode {
		return 1
	}
	return g.amount
}

// Held returns how many guards are held; zero at rest.
func (t *Tracker) Held() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.n
}

// Expire gives up every guard that is at least age old at now: it takes it off the accounts and calls its expired. It
// returns how many there were. This is the janitor; the caller decides how often it runs.
func (t *Tracker) Expire(now time.Time, age time.Duration) int {
	var stale []*Guard
	t.mu.Lock()
	for g := t.mu.held.first; g != nil && now.Sub(g.at) >= age; g = g.inTracker.next {
		if g.done.CompareAndSwap(false, true) {
			stale = append(stale, g)
		}
	}
	t.mu.Unlock()
	for _, g := range stale {
		g.unlink()
		if g.expired != nil {
			g.expired.Expired()
		}
	}
	return len(stale)
}

// guardLinks are a guard's neighbours in one list.
type guardLinks struct{ prev, next *Guard }

// guardList is a list of guards by time of acquisition, oldest first, linked through the guards themselves: acquiring
// allocates the guard and nothing else.
type guardList struct{ first, last *Guard }

// insert puts g in its place, which is nearly always the end: two goroutines may come in another order than their times.
func (l *guardList) insert(g *Guard, links func(*Guard) *guardLinks) {
	after := l.last
	for after != nil && after.at.After(g.at) {
		after = links(after).prev
	}
	k := links(g)
	k.prev = after
	if after == nil {
		k.next, l.first = l.first, g
	} else {
		k.next, links(after).next = links(after).next, g
	}
	if k.next == nil {
		l.last = g
	} else {
		links(k.next).prev = g
	}
}

func (l *guardList) remove(g *Guard, links func(*Guard) *guardLinks) {
	k := links(g)
	if k.prev == nil {
		l.first = k.next
	} else {
		links(k.prev).next = k.next
	}
	if k.next == nil {
		l.last = k.prev
	} else {
		links(k.next).prev = k.prev
	}
	*k = guardLinks{}
}
