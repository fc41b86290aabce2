//go:build unix

package offload

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perigee-llm/perigee/internal/cache/channel/client"
	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/cache/state"
	"github.com/perigee-llm/perigee/internal/engine"
)

// Adapter is an engine's place at a Manager. Make one with Start; end it with Close.
type Adapter struct {
	opt Options
	ctx context.Context // ends with Close
	end context.CancelFunc
	wg  sync.WaitGroup

	queue chan *publication
	bad   chan bad // a session is to be given up; one place, which is enough for one session

	count counts
	mu    struct {
		sync.Mutex
		closed   bool
		session  *client.Session // nil: there is none
		err      string          // of the last registration
		late     int             // lookups of the session that are answered already, with nothing, and still awaited
		requests map[engine.ID]*request
	}
}

// bad is a session to be given up, and whether that is because nobody answers.
type bad struct {
	session *client.Session
	hung    bool
}

type counts struct {
	registrations, lost, hung, lookups, lookupsLate, unasked, restores, restoresFailed, restoredPages atomic.Int64
	published, present, dropped, queueFull                                                            atomic.Int64
}

// request is what the Manager does for one request of the engine.
//
//	asking ──an answer──▶ leased ──Restore──▶ restoring ──▶ (gone)
//	   └──────Drop, or nothing found──────┴──────▶ (gone)
type request struct {
	session *client.Session
	first   int           // place in the prompt of the first block that was asked for
	lease   *client.Lease // nil while it is asked for
	cancel  context.CancelFunc
}

// Start starts an adapter, which registers by itself. The caller must Close it.
func Start(o Options) *Adapter {
	if o.LookupWait == 0 {
		o.LookupWait = DefaultLookupWait
	}
	if o.RestoreWait == 0 {
		o.RestoreWait = DefaultRestoreWait
	}
	if o.HangAfter == 0 {
		o.HangAfter = DefaultHangAfter
	}
	a := &Adapter{opt: o, queue: make(chan *publication, publishQueue), bad: make(chan bad, 1)}
	a.ctx, a.end = context.WithCancel(context.Background())
	a.mu.requests = map[engine.ID]*request{}
	a.wg.Go(a.keep)
	a.wg.Go(a.publishAll)
	return a
}

// Close ends everything. Answers that are still to come are given before it returns, so whoever takes them must not wait for it.
func (a *Adapter) Close() {
	a.mu.Lock()
	a.mu.closed = true
	a.mu.Unlock()
	a.end()
	a.wg.Wait()
}

// keep registers, and again whenever the session has ended.
func (a *Adapter) keep() {
	pause := redialFirst
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-a.ctx.Done():
			return
		}
		s, err := a.dial()
		a.note(err)
		if err != nil {
			timer.Reset(pause)
			pause = min(2*pause, redialMost)
			continue
		}
		pause = redialFirst
		a.count.registrations.Add(1)
		a.use(s)
		a.await(s)
		a.use(nil)
		s.Close() // it waits for copies, and those of its restores whose answers are awaited end with it
		timer.Reset(0)
	}
}

func (a *Adapter) dial() (*client.Session, error) {
	ctx, cancel := context.WithTimeout(a.ctx, dialWait)
	defer cancel()
	return client.Dial(ctx, client.Options{
		Socket: a.opt.Socket, Program: "perigee engine", Instance: a.opt.Instance, Ranks: []state.Namespace{namespace(&a.opt)},
		Model: a.opt.Model, URL: a.opt.URL,
	})
}

// await waits for the end of a session, or for a reason to end it.
func (a *Adapter) await(s *client.Session) {
	for {
		select {
		case <-s.Done():
			a.count.lost.Add(1)
			return
		case b := <-a.bad:
			if b.session != s {
				continue // of the one before
			}
			if b.hung {
				a.count.hung.Add(1)
			}
			return
		case <-a.ctx.Done():
			return
		}
	}
}

func (a *Adapter) use(s *client.Session) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.session, a.mu.late = s, 0
}

func (a *Adapter) note(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.err = ""; err != nil {
		a.mu.err = err.Error()
	}
}

func (a *Adapter) current() *client.Session {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.session
}

// giveUp has a session ended. The one place may hold word of this very session already.
func (a *Adapter) giveUp(s *client.Session, hung bool) {
	select {
	case a.bad <- bad{s, hung}:
	default:
	}
}

// watch gives the session up as hung when the deadline of ctx passes, until stop is called: what waits for the Manager may be stuck in writing to it.
func (a *Adapter) watch(ctx context.Context, s *client.Session) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			a.giveUp(s, true)
		}
	})
}

// Restart is the engine's: it forgets its requests, and registers anew as a process does that has begun again.
func (a *Adapter) Restart() {
	a.mu.Lock()
	var all []engine.ID
	for id := range a.mu.requests {
		all = append(all, id)
	}
	s := a.mu.session
	a.mu.Unlock()
	for _, id := range all {
		a.Drop(id)
	}
	if s != nil {
		a.giveUp(s, false)
	}
}

// Lookup asks how many blocks of w can be restored, from the first on, and has answer called with it, from another goroutine. It returns
// false if nobody can be asked: the answer is nothing then. p may be nil.
func (a *Adapter) Lookup(id engine.ID, w *engine.Wanted, p *Prompt, answer func(blocks int)) bool {
	a.Drop(id) // it may have been asked before, for less
	if p == nil {
		return false
	}
	q := &wire.Query{
		Mode: core.Prefix, Consumers: 1, WaitMicros: uint64(a.opt.LookupWait.Microseconds()),
		Wants: []core.Want{{Hashes: p.names(w.Hashes[:min(len(w.Hashes), wire.MaxBlocks)])}},
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.closed || a.mu.session == nil || a.mu.late > 0 {
		a.count.unasked.Add(1)
		return false
	}
	r := &request{session: a.mu.session, first: w.First}
	a.mu.requests[id] = r
	a.count.lookups.Add(1)
	a.wg.Go(func() { a.look(id, r, q, answer) })
	return true
}

// look answers a lookup in time. It goes on waiting for the Manager itself, whose lease has to be given back.
func (a *Adapter) look(id engine.ID, r *request, q *wire.Query, answer func(blocks int)) {
	ctx, cancel := context.WithTimeout(a.ctx, a.opt.HangAfter)
	defer cancel()
	defer a.watch(ctx, r.session)()
	found := make(chan *client.Lease, 1)
	a.wg.Go(func() {
		got, _ := r.session.Query(ctx, q) // without an answer there is no lease
		found <- got.Lease
	})
	timer := time.NewTimer(a.opt.LookupWait)
	defer timer.Stop()
	select {
	case l := <-found:
		answer(a.leased(id, r, l))
		return
	case <-timer.C:
		a.count.lookupsLate.Add(1)
	case <-r.session.Done():
	case <-a.ctx.Done():
	}
	a.late(r.session, 1)
	answer(0)
	l := <-found
	a.late(r.session, -1)
	a.forget(id, r)
	if l != nil {
		_ = r.session.Release(l) // a session that is lost has released it
	}
}

func (a *Adapter) late(s *client.Session, by int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.session == s {
		a.mu.late += by
	}
}

// leased keeps the lease of a request, if it still wants it, and returns how many blocks it is for.
func (a *Adapter) leased(id engine.ID, r *request, l *client.Lease) int {
	a.mu.Lock()
	wanted := a.mu.requests[id] == r
	if wanted && l == nil {
		delete(a.mu.requests, id)
	}
	if wanted {
		r.lease = l
	}
	a.mu.Unlock()
	switch {
	case l == nil:
		return 0
	case !wanted || len(l.Hits) != 1:
		_ = r.session.Release(l)
		return 0
	}
	return int(l.Hits[0])
}

// forget removes a request's record, if it is this one.
func (a *Adapter) forget(id engine.ID, r *request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.requests[id] == r {
		delete(a.mu.requests, id)
	}
}

// Drop ends what is done for a request: it needs no more of it, or has gone. A restore that is under way ends soon, and is answered as ever.
func (a *Adapter) Drop(id engine.ID) {
	a.mu.Lock()
	r := a.mu.requests[id]
	delete(a.mu.requests, id)
	a.mu.Unlock()
	switch {
	case r == nil:
	case r.cancel != nil:
		r.cancel()
	case r.lease != nil:
		_ = r.session.Release(r.lease)
	}
}

// Restore puts the pages of w in place and has answer called with how many are, from another goroutine, when nobody writes to them any more. It
// returns false if there is nothing to restore them from: the answer is nothing then.
func (a *Adapter) Restore(id engine.ID, w *engine.Wanted, answer func(blocks int)) bool {
	took := a.opt.Timing.Restore(len(w.Hashes) * a.opt.BlockTokens)
	ctx, cancel := context.WithTimeout(a.ctx, took+a.opt.RestoreWait)
	a.mu.Lock()
	r := a.mu.requests[id]
	if r == nil || r.lease == nil || r.cancel != nil || a.mu.closed {
		a.mu.Unlock()
		cancel()
		return false
	}
	r.cancel = cancel
	a.wg.Go(func() {
		defer cancel()
		n := a.bring(ctx, r, w, took)
		a.forget(id, r)
		answer(n)
	})
	a.mu.Unlock()
	a.count.restores.Add(1)
	return true
}

// bring copies the pages of w out of the lease's, in no less than the time that this takes.
func (a *Adapter) bring(ctx context.Context, r *request, w *engine.Wanted, took time.Duration) int {
	defer a.watch(ctx, r.session)()
	began := time.Now()
	skip, last, n := w.First-r.first, int(r.lease.Hits[0])-1, 0
	err := r.session.Restore(ctx, r.lease, 0, func(i int, page []byte) error {
		if at := i - skip; at >= 0 && at < len(w.Pages) {
			copy(w.Pages[at], page)
			n++
		}
		if i == last {
			return pass(ctx, r.session, took-time.Since(began))
		}
		return ctx.Err()
	})
	if err != nil || n != len(w.Pages) {
		a.count.restoresFailed.Add(1)
		return 0
	}
	a.count.restoredPages.Add(int64(n))
	return n
}

// pass lets time pass, or returns why it does not.
func pass(ctx context.Context, s *client.Session, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-s.Done():
		return client.ErrLost
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Stored has the blocks of an event published, if they have names and the queue has a place.
func (a *Adapter) Stored(p *Prompt, ev *engine.KVEvent) {
	var x *publication
	if p != nil {
		x = p.publication(ev)
	}
	if x == nil {
		a.count.dropped.Add(int64(len(ev.Hashes)))
		return
	}
	select {
	case a.queue <- x:
	default:
		a.count.dropped.Add(int64(len(x.blocks)))
		a.count.queueFull.Add(int64(len(x.blocks)))
	}
}

// publishAll publishes what is queued, one after the other.
func (a *Adapter) publishAll() {
	for {
		select {
		case x := <-a.queue:
			a.publish(x)
		case <-a.ctx.Done():
			return
		}
	}
}

func (a *Adapter) publish(x *publication) {
	s := a.current()
	if s == nil {
		a.count.dropped.Add(int64(len(x.blocks)))
		return
	}
	ctx, cancel := context.WithTimeout(a.ctx, a.opt.HangAfter)
	defer cancel()
	defer a.watch(ctx, s)()
	// What an error says of the blocks is in out, and of the session it says nothing that Done does not.
	out, _ := s.Publish(ctx, &client.Publish{Root: x.root, ParentChain: x.parent, Blocks: x.blocks}, func(i int, slot []byte) error {
		x.hashes[i].Fill(slot)
		return nil
	})
	a.count.published.Add(int64(out.Sealed))
	a.count.present.Add(int64(out.Present))
	a.count.dropped.Add(int64(len(x.blocks)) - int64(out.Sealed) - int64(out.Present))
}

// Stats returns the counts.
func (a *Adapter) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := &a.count
	return Stats{
		Error: a.mu.err, Registered: a.mu.session != nil, Registrations: c.registrations.Load(), Lost: c.lost.Load(), Hung: c.hung.Load(),
		Lookups: c.lookups.Load(), LookupsLate: c.lookupsLate.Load(), Unasked: c.unasked.Load(),
		Restores: c.restores.Load(), RestoresFailed: c.restoresFailed.Load(), RestoredPages: c.restoredPages.Load(),
		Published: c.published.Load(), Present: c.present.Load(), Dropped: c.dropped.Load(), QueueFull: c.queueFull.Load(),
	}
}
