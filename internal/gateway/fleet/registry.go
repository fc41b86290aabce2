package fleet

import (
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/load"
)

// Registry holds the workers. Make one with [NewRegistry].
type Registry struct {
	breakers  BreakerConfig
	freshness time.Duration
	clock     load.Clock // of its workers' load records
	view      atomic.Pointer[View]

	mu struct {
		sync.Mutex // guards breakers' transitions too; never held across a call out
		workers    map[string]*Worker
		slots      []bool // in use
		last       uint32 // number that was given
		// departed keeps the load records of engines that left with guards still held, so that an engine that returns
		// under its id does not look idle. The last one is kept even at rest: a request may have picked it and not be
		// counted yet.
		departed map[string]*load.Engine
	}
}

// NewRegistry returns an empty registry. freshness is how long a load report counts; zero means [load.DefaultFreshness].
func NewRegistry(b BreakerConfig, freshness time.Duration) *Registry {
	r := &Registry{breakers: b.withDefaults(), freshness: freshness}
	r.mu.workers = map[string]*Worker{}
	r.mu.departed = map[string]*load.Engine{}
	r.view.Store(&View{reg: r})
	return r
}

// View returns the workers as they are now.
func (r *Registry) View() *View { return r.view.Load() }

// Put registers an engine or replaces what is known of it, and returns its worker. Under an id that is known the load record
// and the breaker go on; load reports are forgotten if the URL, the kind or the ranks are others.
func (r *Registry) Put(spec Spec) *Worker {
	spec.Models = slices.Clone(spec.Models)
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.mu.workers[spec.ID]
	if old != nil && old.Spec.Equal(spec) {
		return old
	}
	w := &Worker{Spec: spec}
	switch {
	case old != nil:
		w.Load, w.breaker, w.slot, w.No = old.Load, old.breaker, old.slot, old.No
		if old.URL != spec.URL || old.Kind != spec.Kind || old.Ranks != spec.Ranks {
			w.Load.Forget()
		}
	default:
		r.mu.last++ // 4 billion registrations are a century of one each second
		w.breaker, w.slot, w.No = &breaker{}, r.freeSlotLocked(), r.mu.last
		if w.Load = r.mu.departed[spec.ID]; w.Load == nil {
			w.Load = load.NewEngine(r.freshness, &r.clock)
		}
		w.Load.Forget() // a poll that was under way when it left may have answered since
		delete(r.mu.departed, spec.ID)
	}
	w.Load.Expect(spec.Ranks)
	r.mu.workers[spec.ID] = w
	r.publishLocked()
	return w
}

// Remove takes a worker out. Requests on it go on; its reports are forgotten. It tells whether the id was known.
func (r *Registry) Remove(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.mu.workers[id]
	if w == nil {
		return false
	}
	delete(r.mu.workers, id)
	r.mu.slots[w.slot] = false
	w.Load.Forget()
	for id, e := range r.mu.departed {
		if e.Active() == 0 {
			delete(r.mu.departed, id)
		}
	}
	r.mu.departed[id] = w.Load
	r.publishLocked()
	return true
}

// Claim asks the worker's breaker for one dispatch. Every claim that succeeded is ended by [Registry.Done].
func (r *Registry) Claim(w *Worker, now time.Time) (Ticket, bool) {
	if w.breaker.get() == Closed {
		return Ticket{worker: w}, true // the usual case takes no lock
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	probe, ok := w.breaker.claim(now, r.breakers)
	return Ticket{worker: w, probe: probe}, ok
}

// ClaimAnyway is [Registry.Claim] for an engine out of a set that is [Set.Floored]: where the breaker refuses, it is not counted. A probe
// that is due is claimed all the same.
func (r *Registry) ClaimAnyway(w *Worker, now time.Time) Ticket {
	t, _ := r.Claim(w, now)
	return t // of a breaker that refuses: an ordinary dispatch, whose success closes it and whose failure it does not notice
}

// Done says what became of a claimed dispatch. The outcome of a worker that was replaced
// counts for its successor; one that was removed took its breaker with it.
func (r *Registry) Done(t Ticket, o Outcome, now time.Time) {
	b := t.worker.breaker
	if t.probe == 0 && b.get() == Closed && (o == Neutral || o == Cancelled || (o == Success && b.streak.Load() == 0)) {
		return // nothing would change; the usual case takes no lock
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	before := b.get()
	b.done(t.probe, o, now, r.breakers)
	if (before == Closed) != (b.get() == Closed) {
		r.view.Load().markLocked(t.worker.slot, b)
	}
}

// Answers says that the engine has begun to answer a claimed dispatch, and well. A probe has then found out what it is for: an answer may go on for minutes, and the
// engine is there for others meanwhile. [Registry.Done] says how it ended all the same: until an answer has ended well, one failure takes the engine out again.
func (r *Registry) Answers(t Ticket) {
	if t.probe == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	b := t.worker.breaker
	if t.probe != b.probe {
		return // it was overtaken by a failure, or by another probe
	}
	b.answers()
	r.view.Load().markLocked(t.worker.slot, b)
}

// Breaker returns the state of the worker's breaker and its failures in a row.
func (r *Registry) Breaker(w *Worker) (BreakerState, int) {
	return w.breaker.get(), int(w.breaker.streak.Load())
}

// Admits tells whether the worker's breaker would let a dispatch through at now.
func (r *Registry) Admits(w *Worker, now time.Time) bool {
	if w.breaker.get() == Closed {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return w.breaker.admits(now, r.breakers)
}

func (r *Registry) freeSlotLocked() int {
	for i, used := range r.mu.slots {
		if !used {
			r.mu.slots[i] = true
			return i
		}
	}
	r.mu.slots = append(r.mu.slots, true)
	return len(r.mu.slots) - 1
}

func (r *Registry) publishLocked() {
	v := &View{
		reg:     r,
		workers: make([]*Worker, 0, len(r.mu.workers)),
		loads:   make([]*load.Engine, len(r.mu.workers)),
		bySlot:  make([]int32, len(r.mu.slots)),
	}
	for _, w := range r.mu.workers {
		v.workers = append(v.workers, w)
	}
	slices.SortFunc(v.workers, func(a, b *Worker) int { return strings.Compare(a.ID, b.ID) })
	for i := range v.bySlot {
		v.bySlot[i] = math.MaxInt32
	}
	v.numbers = sync.OnceValue(func() map[uint32]int32 {
		m := make(map[uint32]int32, len(v.workers))
		for i, w := range v.workers {
			m[w.No] = int32(i)
		}
		return m
	})
	v.tripped = make([]atomic.Uint64, words(len(v.workers)))
	v.changes = make([]atomic.Uint64, (len(v.workers)+BlockSize-1)/BlockSize)
	v.watches = make([]load.Watch, len(v.workers))
	for i, w := range v.workers {
		v.bySlot[w.slot] = int32(i)
		v.loads[i] = w.Load
		v.watches[i].Block = &v.changes[i/BlockSize]
		w.Load.WatchBy(&v.watches[i]) // before anybody has v; who has the view before it sees that it is no longer the registry's
		if w.breaker.get() != Closed {
			v.tripped[i/64].Or(1 << (i % 64))
		}
	}
	r.view.Store(v)
}
