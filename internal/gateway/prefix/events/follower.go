package events

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
)

// ErrClosed means that the follower was closed.
var ErrClosed = errors.New("the follower of events is closed")

// Follower follows engines. Make one with [Start], and close it. All methods may be called at once.
type Follower struct {
	o      Options // immutable after Start
	ctx    context.Context
	cancel context.CancelFunc
	hubs   hubs

	mu struct {
		sync.Mutex // never held across a join
		closed     bool
		engines    map[uint32]*engine // by fleet.Worker.No
		appliers   map[string]*applier
	}
}

// Start returns a follower of no engine. The caller closes it.
func Start(o Options) *Follower {
	f := &Follower{o: o.withDefaults()}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	f.hubs.o = &f.o
	f.mu.engines, f.mu.appliers = map[uint32]*engine{}, map[string]*applier{}
	return f
}

// Follow begins to follow an engine, or goes on as it is told now: whoever sees the fleet's workers calls it for each that somebody
// wants something of, again with each change. An engine whose facts are the same is left as it is; one of which nothing is needed
// is not followed. If it was followed otherwise, Follow waits for that to end. It fails only with [ErrClosed].
func (f *Follower) Follow(t Target) error {
	if t.Needs == (Needs{}) {
		f.Unfollow(t.Worker.No)
		return nil
	}
	for {
		f.mu.Lock()
		if f.mu.closed {
			f.mu.Unlock()
			return ErrClosed
		}
		old := f.mu.engines[t.Worker.No]
		switch {
		case old == nil:
			f.mu.engines[t.Worker.No] = f.startLocked(t)
			f.mu.Unlock()
			return nil
		case old.target.same(&t):
			f.mu.Unlock()
			return nil
		}
		f.mu.Unlock()
		f.end(old)
	}
}

// Unfollow ends what is followed of an engine, and waits for it; its claims are gone then. It tells whether there was something.
func (f *Follower) Unfollow(no uint32) bool {
	f.mu.Lock()
	e := f.mu.engines[no]
	f.mu.Unlock()
	if e == nil {
		return false
	}
	f.end(e)
	return true
}

// Keep unfollows all engines but those that are listed.
func (f *Follower) Keep(nos []uint32) {
	f.mu.Lock()
	var gone []*engine
	for no, e := range f.mu.engines {
		if !slices.Contains(nos, no) {
			gone = append(gone, e)
		}
	}
	f.mu.Unlock()
	for _, e := range gone {
		f.end(e)
	}
}

// Renewed says that somebody else knows that the engine's process is another one: what it claims is dropped, and asked for anew.
func (f *Follower) Renewed(no uint32) {
	f.mu.Lock()
	e := f.mu.engines[no]
	f.mu.Unlock()
	if e != nil {
		e.renewed()
	}
}

// Close ends everything and waits for it. Closing twice is closing once.
func (f *Follower) Close() {
	f.mu.Lock()
	f.mu.closed = true
	all := make([]*engine, 0, len(f.mu.engines))
	for _, e := range f.mu.engines {
		all = append(all, e)
	}
	f.mu.Unlock()
	f.cancel()
	for _, e := range all {
		f.end(e)
	}
}

func (f *Follower) startLocked(t Target) *engine {
	e := &engine{f: f, target: t, done: make(chan struct{}), gone: make(chan struct{}), feeds: map[int32]*feed{}, loads: map[int32]*loadReader{}}
	e.ctx, e.cancel = context.WithCancel(f.ctx)
	e.applier = f.mu.appliers[t.Domain]
	if e.applier == nil {
		e.applier = startApplier(&f.o)
		f.mu.appliers[t.Domain] = e.applier
	}
	e.applier.users++
	go e.run()
	return e
}

// end ends an engine's goroutines, and its applier when nobody uses it any more. It may be called more than once, also at once.
func (f *Follower) end(e *engine) {
	e.cancel()
	<-e.done
	f.mu.Lock()
	if f.mu.engines[e.target.Worker.No] != e {
		f.mu.Unlock()
		<-e.gone // somebody else is about it
		return
	}
	defer close(e.gone)
	delete(f.mu.engines, e.target.Worker.No)
	a := e.applier
	if a.users--; a.users > 0 {
		f.mu.Unlock()
		return
	}
	delete(f.mu.appliers, e.target.Domain)
	f.mu.Unlock()
	a.stop()
}

// Status returns how all streams are, in order of engines' ids and ranks. It waits for each applier to have a moment, once: an engine that
// floods its applier may make that a long one.
func (f *Follower) Status() []Status {
	f.mu.Lock()
	engines := map[*applier][]*engine{}
	for _, e := range f.mu.engines {
		engines[e.applier] = append(engines[e.applier], e)
	}
	f.mu.Unlock()
	var all []Status
	for a, of := range engines {
		var them []parts
		for _, e := range of {
			them = append(them, e.parts())
		}
		feeds := make([][]Status, len(them))
		a.call(func() { // if it has stopped, its feeds are gone
			for i := range them {
				for _, fd := range them[i].feeds {
					feeds[i] = append(feeds[i], fd.about())
				}
			}
		})
		for i := range them {
			all = them[i].status(all, feeds[i])
		}
	}
	slices.SortFunc(all, func(a, b Status) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Engine, b.Engine), cmp.Compare(a.Rank, b.Rank))
	})
	return all
}
