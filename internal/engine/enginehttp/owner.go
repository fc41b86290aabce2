package enginehttp

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/engine/offload"
)

// errStopped: the server is closing.
var errStopped = errors.New("the engine is stopping")

// owner is the goroutine that owns the core. Everything else hands it functions to run.
type owner struct {
	cfg  engine.Config
	ops  chan func() // run by the goroutine, in order; unbuffered: a caller waits until its op is taken
	stop chan struct{}
	done chan struct{}

	// The rest belongs to the goroutine, except during newOwner.
	start   time.Time // the core's epoch
	core    *engine.Core
	lastID  engine.ID
	refs    map[engine.ID]*ref
	metrics metrics
	acts    []engine.Action
	kv      *publisher       // nil: nobody is told of the cache
	outer   *offload.Adapter // nil: there is no Cache Manager
	fetches *fetches         // nil: it is no decode engine
	joins   map[string]chan word
	changes []*engine.KVEvent
	told    engine.Load   // the last load that was published
	toldAt  time.Duration // when
}

// ref is a sequence that the core works on.
type ref struct {
	id       engine.ID
	call     *call
	index    int    // of the choice in the call's answer
	rid      string // SGLang's request id
	prompt   int    // tokens
	names    *offload.Prompt
	admitted bool
	waits    bool               // SGLang's prefill half: it is answered when its room is closed
	token    uint32             // then
	cancel   context.CancelFunc // ends its fetch; nil: it has none
	why      string             // it could not be fetched
	// On the core's clock.
	submitted, started, first, last time.Duration
	tokens                          int
}

func newOwner(cfg engine.Config, kv *publisher) (*owner, error) {
	o := &owner{cfg: cfg, kv: kv, ops: make(chan func()), stop: make(chan struct{}), done: make(chan struct{}), start: time.Now()}
	if err := o.reset(); err != nil {
		return nil, err
	}
	o.cfg = o.core.Config()
	return o, nil
}

// reset puts a new core in place, as a restarted engine has one: nothing cached, all counters zero.
func (o *owner) reset() error {
	core, err := engine.New(o.cfg)
	if err != nil {
		return err
	}
	o.core, o.refs, o.metrics = core, make(map[engine.ID]*ref), newMetrics()
	o.joins = make(map[string]chan word)
	o.changes, o.told, o.toldAt = nil, engine.Load{}, 0
	return nil
}

func (o *owner) now() time.Duration { return time.Since(o.start) }

// run is the goroutine. It ends when stop is closed; what the core still has to do is dropped, and every call is told.
func (o *owner) run() {
	defer close(o.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var beat <-chan time.Time
	if o.kv != nil && o.kv.flavor == SGLang {
		t := time.NewTicker(loadBeat)
		defer t.Stop()
		beat = t.C
	}
	for {
		if at, ok := o.core.Next(); ok {
			timer.Reset(max(0, at-o.now()))
		} else {
			timer.Stop()
		}
		select {
		case op := <-o.ops:
			op()
			o.drain()
		case <-timer.C:
		case <-beat:
		case <-o.stop:
			o.dropAll()
			return
		}
		o.acts = o.core.Advance(o.now(), o.acts[:0])
		for i := range o.acts {
			o.deliver(&o.acts[i])
		}
		if o.kv != nil {
			o.publish()
		}
	}
}

// publish tells what the cache has stored and evicted, a batch for each turn of the loop, and the load where it has changed or nobody
// was told for a while.
func (o *owner) publish() {
	if len(o.changes) > 0 {
		o.kv.publish(o.changes)
		clear(o.changes)
		o.changes = o.changes[:0]
	}
	if o.kv.flavor != SGLang {
		return
	}
	l, now := o.core.Load(), o.now()
	if since := now - o.toldAt; since >= loadBeat || (since >= loadInterval && l != o.told) || o.toldAt == 0 {
		o.told, o.toldAt = l, now
		o.kv.publishLoad(l)
	}
}

// drain takes the ops that wait, so that requests which come together are batched together.
func (o *owner) drain() {
	for {
		select {
		case op := <-o.ops:
			op()
		default:
			return
		}
	}
}

// do runs f in the owner's goroutine and waits for it. It returns errStopped, without running f, if the owner has stopped.
func (o *owner) do(f func()) error {
	ran := make(chan struct{})
	select {
	case o.ops <- func() { f(); close(ran) }:
		<-ran
		return nil
	case <-o.done:
		return errStopped
	}
}

// submit hands the sequences of c to the core: all of them, or none and the error.
func (o *owner) submit(c *call, reqs []engine.Request, rid string) (err error) {
	stopped := o.do(func() {
		now := o.now()
		for i, r := range reqs {
			o.lastID++
			r.ID = o.lastID
			if err = o.core.Submit(now, r); err != nil {
				o.abort(c)
				return
			}
			ref := &ref{id: r.ID, call: c, index: i, rid: rid, prompt: len(r.Prompt), submitted: now}
			ref.waits = r.Half == engine.PrefillHalf && o.cfg.Pairing == engine.Push
			if c.names != nil {
				ref.names = c.names[i]
			}
			o.refs[r.ID] = ref
			c.refs = append(c.refs, ref)
			o.metrics.submitted(r.MaxTokens)
		}
	})
	return errors.Join(stopped, err)
}

// leave ends what is left of c because its client has gone.
func (o *owner) leave(c *call) {
	_ = o.do(func() { o.abort(c) }) // a stopped owner has dropped c already
}

// abort must run in the owner's goroutine.
func (o *owner) abort(c *call) {
	for _, r := range c.refs {
		if o.refs[r.id] == r {
			o.core.Abort(o.now(), r.id)
			o.forget(r)
		}
	}
}

// forget forgets a sequence that has ended, and ends what was done for it elsewhere.
func (o *owner) forget(r *ref) {
	delete(o.refs, r.id)
	o.dropOuter(r.id)
	if r.cancel != nil {
		r.cancel()
	}
}

// abortRID ends the requests whose id begins with rid, or all of them, and tells their calls. It returns how many there were.
func (o *owner) abortRID(rid string, all bool) (n int) {
	_ = o.do(func() {
		for id, r := range o.refs {
			if all || (rid != "" && strings.HasPrefix(r.rid, rid)) {
				o.core.Abort(o.now(), id)
				o.forget(r)
				r.call.put(event{index: r.index, end: endAbort})
				o.metrics.aborted++
				n++
			}
		}
	})
	return n
}

// dropAll tells every call that its engine is gone.
func (o *owner) dropAll() {
	for _, r := range o.refs {
		r.call.put(event{index: r.index, end: endGone})
		o.forget(r)
	}
	for name := range o.joins {
		o.tell(name, word{why: engine.ReasonLeft})
	}
	clear(o.joins)
}

// deliver hands one action to the call that waits for it, and counts it.
func (o *owner) deliver(a *engine.Action) {
	switch a.Kind {
	case engine.KV:
		o.changed(a)
		return
	case engine.Lookup:
		o.lookUp(a)
		return
	case engine.Restore:
		o.restore(a)
		return
	case engine.Fetch, engine.Ready, engine.Closed:
		o.deliverPair(a)
		return
	}
	r, ok := o.refs[a.ID]
	if !ok {
		return // aborted while the action was on its way
	}
	switch a.Kind {
	case engine.Admitted:
		o.dropOuter(a.ID) // what was found and is not needed
		if !r.admitted {
			r.admitted, r.started = true, a.At
			r.call.put(event{index: r.index, cached: a.Cached, admitted: true})
		}
	case engine.Token:
		o.metrics.token(r, a)
		if r.waits {
			r.token = a.Token
			return
		}
		ev := event{index: r.index, token: a.Token, hasToken: true}
		if a.Reason != engine.Unfinished {
			ev.end = endLength
			o.metrics.finished(r, a)
			delete(o.refs, a.ID)
		}
		r.call.put(ev)
	case engine.Ended:
		o.metrics.failed++
		o.forget(r)
		if a.Reason == engine.ReasonUnfetched {
			o.metrics.transferFailed++
			r.call.put(event{index: r.index, end: endFailed, why: o.unfetched(r)})
			return
		}
		r.call.put(event{index: r.index, end: endCorrupt})
	}
}

// How a sequence ended.
type ending uint8

const (
	open       ending = iota
	endLength         // it has all its tokens
	endAbort          // an abort request named it
	endCorrupt        // the engine met a corrupt KV page
	endGone           // the engine is stopping or restarting
	endFailed         // the other half of its pair did not do its part
)

// event is what the owner tells a call.
type event struct {
	index    int
	token    uint32
	hasToken bool
	admitted bool
	cached   int // with admitted
	end      ending
	why      string // with endFailed
}

// call is one HTTP request that waits for its sequences. The owner puts events, the request's handler takes them. No more are ever
// kept than the answer has tokens.
type call struct {
	refs    []*ref            // the owner's
	remotes []remote          // where the KV of the prompts is, of decode halves
	names   []*offload.Prompt // of the prompts, the owner's once submitted; nil without a Cache Manager
	eager   bool              // wake for each event; otherwise only when a sequence ends
	wake    chan struct{}
	mu      struct {
		sync.Mutex
		events []event
	}
}

func newCall(eager bool) *call { return &call{eager: eager, wake: make(chan struct{}, 1)} }

func (c *call) put(ev event) {
	c.mu.Lock()
	c.mu.events = append(c.mu.events, ev)
	c.mu.Unlock()
	if c.eager || ev.end != open {
		select {
		case c.wake <- struct{}{}:
		default: // the handler has not yet taken what the last signal was for
		}
	}
}

// take waits for events and returns them; the slice becomes the call's again at the next take. It returns ctx's error when ctx
// ends first.
func (c *call) take(ctx context.Context, old []event) ([]event, error) {
	select {
	case <-c.wake:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	evs := c.mu.events
	c.mu.events = old[:0]
	return evs, nil
}
