package keeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/introspect"
	"github.com/perigee-llm/perigee/internal/gateway/load/source"
)

var (
	// ErrDuplicate means that there is an engine under that id.
	ErrDuplicate = errors.New("an engine with that id is there")
	// ErrClosed means that the keeper was closed.
	ErrClosed = errors.New("the keeper is closed")
	// ErrIncomplete is the outcome of a poll in whose answer ranks were missing: nothing of it was observed.
	ErrIncomplete = errors.New("ranks are missing in the answer")
)

// Options say what a [Keeper] keeps. Only Registry is required.
type Options struct {
	// Registry is kept true. The keeper alone puts and removes the workers of its targets.
	Registry *fleet.Registry
	// Client asks the engines; nil means one of the keeper's own ([NewClient]). It is copied, and follows no redirects.
	Client *http.Client
	// Targets are there from the start; their ids must differ.
	Targets []introspect.Target
	// PollInterval is the time between two reads of an engine's load; zero means a second, a fifth of how long a report
	// counts. At 64 engines it costs about a hundredth of a core.
	PollInterval time.Duration
	// RetryInterval is how long an engine that does not answer is left alone at most, and how often one in good health is
	// asked whether it is still the same; zero means 30 s.
	RetryInterval time.Duration
	// Log gets what changed; nil means nowhere.
	Log *slog.Logger
	// Spare is how much memory is set aside for each engine, in bytes, and never touched: so much more garbage for each may be there between two collections,
	// which then look through what is kept of a large fleet less often. Zero means none.
	Spare int
	// Events are told what happens.
	Events Events
}

// Events are the keeper's hooks, for metrics. Each may be nil. They are called from the engines' goroutines, several at once,
// and must not block: the engine's next poll waits for them.
type Events struct {
	// Polled is told of every read of an engine's load.
	Polled func(PollInfo)
	// Asked is told of every introspection, when the registry has what came of it.
	Asked func(AskInfo)
	// Restarted is told that another process answers under the worker's id.
	Restarted func(w *fleet.Worker)
}

// PollInfo is one read of an engine's load.
type PollInfo struct {
	// ID and Kind are the worker's.
	ID   string
	Kind fleet.Kind
	// At is when it was asked: the time that the observed reports carry.
	At time.Time
	// Took is how long the answer took.
	Took time.Duration
	// Err is nil if reports were observed; else of a class of package ask, [source.ErrNoLoad] or [ErrIncomplete].
	Err error
	// Lost tells that it failed for the way to the engine: no connection came about in its time, or a new one ended without a whole answer.
	Lost bool
	// Fresh tells that its connection, if there was one, was made for it.
	Fresh bool
	// Renewed tells that since the question before, a moment ago, the connection that was kept had ended: the process that answered then has, or
	// something between. Some proxies end connections for reasons of their own, so it is a hint.
	Renewed bool
}

// AskInfo is one introspection.
type AskInfo struct {
	// ID is the worker's.
	ID string
	// Took is how long it took with all its attempts.
	Took time.Duration
	// Err is nil if the engine can be used; else of a class of package ask, or [introspect.ErrUnroutable].
	Err error
}

const (
	defaultPollInterval  = time.Second
	defaultRetryInterval = 30 * time.Second
	// A poll may take as long as the interval, but half a second at least, since a busy engine's event loop stalls that
	// long, and two at most, so that a stuck answer leaves time for another before the last report is too old (5 s).
	minPollTimeout = 500 * time.Millisecond
	maxPollTimeout = 2 * time.Second
)

// NewClient returns a client that is fit for asking engines: few connections, kept open between polls, no redirects, no
// proxy and no compression.
func NewClient() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext:           (&net.Dialer{Timeout: 2 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		MaxIdleConnsPerHost:   1, // an engine is never asked twice at once
		IdleConnTimeout:       90 * time.Second,
		TLSHandshakeTimeout:   2 * time.Second,
		ResponseHeaderTimeout: 2 * time.Second,
		DisableCompression:    true,
	}}
}

// helpers is how many goroutines are kept to ask engines. A question goes deep into net/http, and a new goroutine's stack is copied twice or three times on the way there,
// which is a twentieth of a poll. At most so many are asked at once most of the time, and those that are asked beside them get goroutines of their own.
const helpers = 4

// Keeper keeps a registry true to its engines. Make one with [Start], and close it. All methods may be called at once.
type Keeper struct {
	o       Options // immutable after Start
	client  http.Client
	timeout time.Duration // of one poll
	ownsIt  bool          // the client's connections are ours to close
	origin  time.Time

	ctx        context.Context
	cancel     context.CancelFunc
	registered chan struct{}  // closed when each first target was asked once
	hands      chan *engine   // unbuffered, to the goroutines that help
	untried    sync.WaitGroup // the first targets that were not asked yet
	running    sync.WaitGroup // all engines, the goroutines that help, and the one that waits for the first engines

	mu struct {
		sync.Mutex // never held across a question or a join
		closed     bool
		engines    map[string]*engine
	}
}

// engine is one engine that is kept. A goroutine asks it when something is due and ends with the answer, so that a thousand engines between two questions are a
// thousand timers and not as many stacks, which are memory and which each collection of garbage would look through.
type engine struct {
	k      *Keeper
	ctx    context.Context // ends when it is kept no longer
	cancel context.CancelFunc
	done   chan struct{} // closed when it is asked no more
	tried  func()        // to be called when it was asked what it is, or is not asked any more

	// Those who ask it, one after another, and nobody else.
	m      *member
	over   connection
	answer source.Answer

	spare []byte // never touched

	mu    sync.Mutex  // held for a moment only
	timer *time.Timer // calls step; set while nobody asks
}

// Start begins to keep the targets and returns at once; it fails, with nothing begun, if two ids are equal. The caller closes
// the keeper.
func Start(o Options) (*Keeper, error) {
	seen := map[string]bool{}
	for _, t := range o.Targets {
		if seen[t.ID] {
			return nil, fmt.Errorf("%q: %w", t.ID, ErrDuplicate)
		}
		seen[t.ID] = true
	}
	k := &Keeper{o: o, origin: time.Now(), registered: make(chan struct{})}
	if k.o.PollInterval <= 0 {
		k.o.PollInterval = defaultPollInterval
	}
	if k.o.RetryInterval <= 0 {
		k.o.RetryInterval = defaultRetryInterval
	}
	if k.o.Log == nil {
		k.o.Log = slog.New(slog.DiscardHandler)
	}
	if k.o.Client == nil {
		k.o.Client, k.ownsIt = NewClient(), true
	}
	k.client = *k.o.Client
	k.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	k.timeout = min(max(k.o.PollInterval, minPollTimeout), maxPollTimeout)
	k.ctx, k.cancel = context.WithCancel(context.Background())
	k.mu.engines = map[string]*engine{}
	k.hands = make(chan *engine)
	for range helpers {
		k.running.Go(k.help)
	}

	k.untried.Add(len(o.Targets))
	k.mu.Lock()
	for _, t := range o.Targets {
		k.beginLocked(t, sync.OnceFunc(k.untried.Done))
	}
	k.mu.Unlock()
	k.running.Go(func() { // ends when the engines were tried or are kept no longer
		k.untried.Wait()
		close(k.registered)
	})
	return k, nil
}

// Registered is closed when each of the first targets was asked once, with whatever outcome: from then on the registry has
// all of them, those that answered with their models. It is closed by Close at the latest.
func (k *Keeper) Registered() <-chan struct{} { return k.registered }

// Add begins to keep an engine. It returns [ErrDuplicate] if there is one under its id, and [ErrClosed] after Close.
func (k *Keeper) Add(t introspect.Target) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.mu.closed:
		return ErrClosed
	case k.mu.engines[t.ID] != nil:
		return fmt.Errorf("%q: %w", t.ID, ErrDuplicate)
	}
	k.beginLocked(t, func() {})
	return nil
}

// Remove stops keeping an engine and takes it out of the registry; requests on it go on. It tells whether the id was known.
// It waits until a question in hand is given up, which is at once. The id can be added again when it has returned.
func (k *Keeper) Remove(id string) bool {
	k.mu.Lock()
	e := k.mu.engines[id]
	k.mu.Unlock()
	if e == nil {
		return false
	}
	e.stop()
	<-e.done // only now nobody puts it into the registry any more
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.mu.engines[id] != e {
		return false // someone else removed it meanwhile
	}
	k.o.Registry.Remove(id)
	delete(k.mu.engines, id)
	return true
}

// Close gives up the questions in hand and waits for all goroutines. The workers stay in the registry: requests may still be
// on their way, and only the reports grow old. Closing again does nothing.
func (k *Keeper) Close() {
	k.mu.Lock()
	k.mu.closed = true
	for _, e := range k.mu.engines {
		e.stop()
	}
	k.mu.Unlock()
	k.cancel()
	k.running.Wait()
	if k.ownsIt {
		k.client.CloseIdleConnections()
	}
}

// beginLocked begins to keep an engine: it is asked at once.
func (k *Keeper) beginLocked(t introspect.Target, tried func()) {
	e := &engine{k: k, done: make(chan struct{}), tried: tried, spare: make([]byte, k.o.Spare)}
	e.ctx, e.cancel = context.WithCancel(k.ctx)
	e.m = newMember(t, k.o.Registry, k.origin, k.o.PollInterval, k.o.RetryInterval)
	e.m.nextAsk = time.Now()
	k.mu.engines[t.ID] = e
	k.running.Add(1) // until end
	e.mu.Lock()
	defer e.mu.Unlock()
	e.timer = time.AfterFunc(0, e.due)
}

// due is called by the timer, on a goroutine of its own, which is left at once if one of the keeper's has nothing to do.
func (e *engine) due() {
	select {
	case e.k.hands <- e:
	default:
		e.step()
	}
}

// help makes the steps of engines that are due, one after another, until the keeper is closed.
func (k *Keeper) help() {
	for {
		select {
		case <-k.ctx.Done():
			return
		case e := <-k.hands:
			e.step()
		}
	}
}

// step asks the engine what is due, and has the next step be made in its time.
func (e *engine) step() {
	if what, _ := e.m.next(); e.ctx.Err() != nil {
		// It was stopped between the timer and here.
	} else if what == stepPoll {
		e.k.poll(e.ctx, e.m, &e.over, &e.answer)
	} else {
		e.k.ask(e.ctx, e.m, &e.over)
		e.tried()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ctx.Err() != nil {
		e.end()
		return
	}
	_, at := e.m.next()
	e.timer.Reset(time.Until(at))
}

// stop has the engine be asked no more. A question in hand is given up, and its goroutine ends what is kept; else there is nobody else to do it.
func (e *engine) stop() {
	e.cancel()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.timer.Stop() {
		e.end()
	}
}

// end is called once, when nobody asks and the timer is not set.
func (e *engine) end() {
	e.cancel()
	e.tried()
	close(e.done)
	e.k.running.Done()
}

// ask introspects the engine. When ctx has ended, what came is dropped: the engine was not asked to the end.
func (k *Keeper) ask(ctx context.Context, m *member, over *connection) {
	began := time.Now()
	spec, err := introspect.Read(over.watch(ctx, began), &k.client, m.target)
	if ctx.Err() != nil {
		return
	}
	now := time.Now()
	over.ended(now)
	m.renewed = m.renewed || over.renewed // for the poll that follows
	changed := m.asked(now, spec, err)
	if k.o.Events.Asked != nil {
		k.o.Events.Asked(AskInfo{ID: m.target.ID, Took: now.Sub(began), Err: err})
	}
	if !changed {
		return
	}
	if err != nil {
		k.o.Log.Warn("engine cannot be registered; it is asked again", "worker", m.target.ID, "keeps_models", m.worker.Models, "error", err)
		return
	}
	s := m.worker.Spec
	k.o.Log.Info("engine registered", "worker", s.ID, "kind", s.Kind.String(), "stage", s.Stage.String(), "models", s.Models,
		"ranks", s.Ranks, "max_context", s.MaxContext.String(), "version", s.Version)
}

func (k *Keeper) poll(ctx context.Context, m *member, over *connection, into *source.Answer) {
	began := time.Now()
	one, cancel := context.WithTimeout(ctx, k.timeout)
	err := source.Poll(over.watch(one, began), &k.client, m.worker.Kind, m.worker.URL, time.Now, into)
	cancel()
	if ctx.Err() != nil {
		return
	}
	now, kind, lost, renewed := time.Now(), m.worker.Kind, over.lost(err), over.renewed || m.renewed
	over.ended(now)
	m.renewed = false
	what, err := m.polled(now, into, err)
	if k.o.Events.Polled != nil {
		k.o.Events.Polled(PollInfo{ID: m.target.ID, Kind: kind, At: began, Took: now.Sub(began), Err: err, Lost: lost, Fresh: over.fresh, Renewed: renewed})
	}
	switch what {
	case wentQuiet:
		k.o.Log.Warn("engine does not tell its load", "worker", m.target.ID, "error", err)
	case cameBack:
		k.o.Log.Info("engine tells its load again", "worker", m.target.ID)
	case restarted:
		if k.o.Events.Restarted != nil {
			k.o.Events.Restarted(m.worker)
		}
		k.o.Log.Info("engine restarted; its reports are forgotten", "worker", m.target.ID)
	}
}
