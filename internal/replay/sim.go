package replay

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/load"
)

// Errors of Run.
var (
	// ErrPD: the contender picked a pair. The simulated engine does whole requests only.
	ErrPD = errors.New("replay simulates plain engines only, no prefill and decode pairs")
	// ErrBackwards: an arrival is earlier than the one before it.
	ErrBackwards = errors.New("arrivals go backwards")
)

// sim is one run.
type sim struct {
	o        Options
	now      time.Duration
	events   queue
	engines  []*simEngine
	gateways []*gateway
	place    map[string]int // of engines, by their ids
	live     int            // requests that have not ended
	watched  bool           // a baseline wants to know what the engines have pending

	current *request // that a policy is asked about
	actions []engine.Action
	res     Result
	waiting int // requests in the engines' queues
	seen    Event
}

// request is one request on its way.
type request struct {
	Arrival
	number   uint64
	gateway  *gateway
	attempts int
	exclude  []string

	engine    *simEngine // that has it
	guard     *load.Guard
	ticket    fleet.Ticket
	queued    bool // it waits in the engine
	admitted  bool // it was admitted once
	tokens    int
	lastToken time.Duration

	planned        int // see pending
	waits, pending bool
}

// Run replays the arrivals of src through the contender's gateways, until the last request has ended. The error is that of the
// options, of the contender, of src, of ctx, or one of this package's.
func Run(ctx context.Context, o Options, c Contender, src Source) (*Result, error) {
	o = o.For(c)
	if err := o.Validate(); err != nil {
		return nil, err
	}
	s := &sim{o: o, place: map[string]int{}}
	if err := s.build(c); err != nil {
		return nil, err
	}
	var last time.Duration
	for a, err := range src {
		switch {
		case err != nil:
			return nil, err
		case a.At < last:
			return nil, ErrBackwards
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		}
		last = a.At
		a.At = time.Duration(float64(a.At) / o.Rate)
		// At one instant arrivals go first: those that come together can then be batched together.
		for at, ok := s.events.next(); ok && at < a.At; at, ok = s.events.next() {
			s.step()
		}
		s.now = a.At
		if err := s.arrive(a); err != nil {
			return nil, err
		}
		if o.Progress != nil && s.res.Requests%64 == 0 {
			o.Progress(s.now, s.res.Requests)
		}
	}
	for n := 0; s.live > 0; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		s.step()
	}
	return s.finish(), s.failure()
}

// build makes engines and gateways, and schedules what happens by itself.
func (s *sim) build(c Contender) error {
	model := cmp.Or(c.Model, "model")
	for i := range s.o.Engines {
		id := "engine-" + strconv.Itoa(i)
		if c.Workers != nil {
			id = c.Workers[i]
		}
		e := &simEngine{sim: s, index: i, requests: map[engine.ID]*request{}}
		if err := e.start(); err != nil {
			return err
		}
		s.engines = append(s.engines, e)
		if _, twice := s.place[id]; twice {
			return errors.New("two engines have the id " + strconv.Quote(id))
		}
		s.place[id] = i
		s.res.Engines = append(s.res.Engines, EngineResult{ID: id})
	}
	for i := range s.o.Gateways {
		g, err := newGateway(s, i, c, model)
		if err != nil {
			return err
		}
		s.gateways = append(s.gateways, g)
	}
	for _, f := range s.o.Outages {
		s.events.push(event{at: f.At, kind: fail, engine: int32(f.Engine)})
		if f.For > 0 {
			s.events.push(event{at: f.At + f.For, kind: back, engine: int32(f.Engine)})
		}
	}
	return nil
}

// step does the next event. While a request lives there is one: its engine's.
func (s *sim) step() {
	ev := s.events.pop()
	s.now = ev.at
	e := s.engines[ev.engine]
	switch ev.kind {
	case wake:
		if ev.stamp == e.stamp {
			e.armed = false
			e.advance()
		}
	case poll:
		s.gateways[ev.gateway].poll(e, ev.stamp)
	case answer:
		s.gateways[ev.gateway].observe(e, &ev)
	case told:
		s.gateways[ev.gateway].told(e, ev.stamp)
	case mended:
		if ev.stamp == uint64(e.born) && e.core != nil {
			s.gateways[ev.gateway].links[ev.engine].mend(true)
		}
	case restate:
		s.gateways[ev.gateway].restate()
	case heard:
		s.gateways[ev.gateway].heard(ev.word)
	case fail:
		e.fail()
	case back:
		// The options were valid when the engine was made the first time, so it can be made again.
		_ = e.start()
	}
}

func (s *sim) arrive(a Arrival) error {
	r := &request{Arrival: a, number: uint64(s.res.Requests)}
	s.res.Requests++
	s.live++
	at := r.number
	if s.o.Spread == SpreadHash {
		at = keyed(s.o.Seed, forGateway, cmp.Or(a.Session, r.number+1))
	}
	r.gateway = s.gateways[at%uint64(len(s.gateways))]
	if len(a.Blocks) != (a.InputTokens+s.o.Engine.BlockSize-1)/s.o.Engine.BlockSize || a.InputTokens < 1 || a.OutputTokens < 1 {
		return &ArrivalError{Number: r.number}
	}
	if s.o.PrefillOnly {
		r.OutputTokens = 1
	}
	s.tell(r, Arrived, 0, "")
	return r.gateway.dispatch(r)
}

// ArrivalError: the arrival with this number, from 0, has no tokens, or not as many blocks as tokens. A fault of the source.
type ArrivalError struct{ Number uint64 }

func (e *ArrivalError) Error() string {
	return "arrival " + strconv.FormatUint(e.Number, 10) + ": its blocks do not fit its lengths"
}

// end forgets a request, however it ended.
func (s *sim) end(r *request, how EventKind, why string) {
	s.live--
	s.tell(r, how, 0, why)
}

// enqueue and dequeue keep the count of waiting requests.
func (s *sim) enqueue(r *request) {
	r.queued = true
	r.engine.queue++
	s.waiting++
	s.res.QueuePeak = max(s.res.QueuePeak, r.engine.queue)
	s.res.Queue.Set(s.now, s.waiting)
}

func (s *sim) dequeue(r *request) {
	if r.queued {
		r.queued = false
		r.engine.queue--
		s.waiting--
		s.res.Queue.Set(s.now, s.waiting)
	}
}

func (s *sim) tell(r *request, k EventKind, cached int, why string) {
	if s.o.Observe == nil {
		return
	}
	s.seen = Event{At: s.now, Kind: k, Request: r.number, Gateway: r.gateway.index, Engine: -1, Cached: cached, Why: why}
	if r.engine != nil {
		s.seen.Engine = r.engine.index
	}
	s.o.Observe(&s.seen)
}

func (s *sim) engineOf(w *fleet.Worker) int { return s.place[w.ID] }

// finish closes the books.
func (s *sim) finish() *Result {
	s.res.Queue.Set(s.now, s.waiting)
	s.res.Span, s.res.ReportEvery = s.now, s.o.ReportEvery
	for _, e := range s.engines {
		e.account()
		s.res.Engines[e.index].Busy = e.busy
	}
	res := s.res // a copy, so that the run's memory can go
	return &res
}

// failure checks what must hold at the end of every run.
func (s *sim) failure() error {
	for _, g := range s.gateways {
		if n := g.tracker.Held(); n != 0 {
			return errors.New("a fault of the replay: gateway " + strconv.Itoa(g.index) + " still holds guards: " + strconv.Itoa(n))
		}
	}
	if n := s.res.Completed + s.res.Rejected.Total() + s.res.Lost; n != s.res.Requests || s.waiting != 0 {
		return errors.New("a fault of the replay: " + strconv.Itoa(n) + " of " + strconv.Itoa(s.res.Requests) + " requests have ended")
	}
	return nil
}

// simEngine is one engine in virtual time.
type simEngine struct {
	sim      *sim
	index    int
	core     *engine.Core // nil while it is down
	born     int          // how often it was started
	requests map[engine.ID]*request
	queue    int // requests that wait
	pending  pending

	armed bool          // a wake is scheduled
	at    time.Duration // for then
	stamp uint64        // the wake that counts

	working bool
	since   time.Duration // working or not; while it works, up to when busy counts
	busy    time.Duration
}

// start makes the engine's core, empty.
func (e *simEngine) start() error {
	core, err := engine.New(e.sim.o.Engine)
	if err != nil {
		return err
	}
	// A core begins at time 0 and must not see time go backwards; it is idle until its first request.
	e.core, e.born, e.pending = core, e.born+1, pending{}
	return nil
}

// submit gives the engine a request.
func (e *simEngine) submit(r *request) error {
	uncached := 0
	if e.sim.watched {
		uncached = e.uncached(r)
	}
	err := e.core.Submit(e.sim.now, engine.Request{
		ID: engine.ID(r.number), Blocks: r.Blocks, Length: r.InputTokens, MaxTokens: r.OutputTokens,
	})
	if err != nil {
		return err
	}
	e.requests[engine.ID(r.number)] = r
	r.engine = e
	if e.sim.watched {
		e.pending.add(r, uncached)
	}
	e.sim.enqueue(r)
	e.sim.res.Engines[e.index].Requests++
	if !e.working {
		e.working, e.since = true, e.sim.now
	}
	e.arm()
	return nil
}

// arm schedules the next wake, unless it is scheduled already.
func (e *simEngine) arm() {
	at, ok := e.core.Next()
	if !ok {
		e.account()
		e.working = false
		return
	}
	at = max(at, e.sim.now)
	if e.armed && e.at == at {
		return
	}
	e.stamp++
	e.armed, e.at = true, at
	e.sim.events.push(event{at: at, kind: wake, engine: int32(e.index), stamp: e.stamp})
}

// account adds the busy time so far.
func (e *simEngine) account() {
	if e.working {
		e.busy += e.sim.now - e.since
		e.since = e.sim.now
	}
}

// advance does what the engine has to do now.
func (e *simEngine) advance() {
	s := e.sim
	s.actions = e.core.Advance(s.now, s.actions[:0])
	if s.o.Engine.KVEvents {
		e.collect()
	}
	for i := range s.actions {
		a := &s.actions[i]
		r := e.requests[a.ID]
		switch a.Kind {
		case engine.Admitted:
			e.admitted(r, a.Cached)
		case engine.Preempted:
			s.res.Preemptions++
			s.enqueue(r)
			s.tell(r, Preempted, 0, "")
		case engine.Token:
			e.token(r, a.Reason != engine.Unfinished)
		}
	}
	e.arm()
}

func (e *simEngine) admitted(r *request, cached int) {
	s := e.sim
	s.dequeue(r)
	e.pending.admit(r)
	s.res.Engines[e.index].PrefillTokens += int64(r.InputTokens + r.tokens - cached)
	if !r.admitted {
		r.admitted = true
		s.res.Wait.Add(s.now - r.At)
		s.res.PromptTokens += int64(r.InputTokens)
		s.res.CachedTokens += int64(cached)
		s.res.PromptBlocks += int64(len(r.Blocks))
		s.res.CachedBlocks += int64(cached / s.o.Engine.BlockSize)
	}
	s.tell(r, Admitted, cached, "")
}

func (e *simEngine) token(r *request, last bool) {
	s := e.sim
	s.res.OutputTokens++
	if r.tokens == 0 {
		e.pending.remove(r)
		r.guard.Prefilled(wall(s.now))
		s.res.TTFT.Add(s.now - r.At)
		s.tell(r, FirstToken, 0, "")
	} else {
		s.res.ITL.Add(s.now - r.lastToken)
	}
	r.tokens++
	r.lastToken = s.now
	if !last {
		return
	}
	delete(e.requests, engine.ID(r.number))
	r.gateway.release(r, fleet.Success)
	s.res.E2E.Add(s.now - r.At)
	s.res.Completed++
	s.end(r, Ended, "")
}

// fail takes the engine down. Requests without a token are tried again elsewhere, as the gateway does; the others are lost: the
// client has seen half an answer.
func (e *simEngine) fail() {
	s := e.sim
	e.account()
	e.core, e.working, e.armed = nil, false, false
	e.stamp++
	for _, g := range s.gateways {
		g.links[e.index].forget()
	}
	orphans := make([]*request, 0, len(e.requests))
	for _, r := range e.requests {
		orphans = append(orphans, r)
	}
	slices.SortFunc(orphans, func(a, b *request) int { return cmp.Compare(a.number, b.number) })
	clear(e.requests)
	for _, r := range orphans {
		s.dequeue(r)
		r.gateway.release(r, fleet.Failure)
	}
	for _, r := range orphans {
		if r.tokens > 0 || r.attempts >= s.o.Attempts {
			s.res.Lost++
			s.end(r, Lost, "its engine failed")
			continue
		}
		r.exclude = append(r.exclude, s.res.Engines[e.index].ID)
		s.tell(r, Retried, 0, "")
		// A contender that picks pairs has failed at its first request.
		_ = r.gateway.dispatch(r)
	}
}

// rejected counts a request that the gateway found no engine for.
func (s *sim) rejected(r *request, err error) {
	why := "no engine"
	var x *bucket.ExhaustedError
	switch {
	case errors.Is(err, bucket.ErrNoMatchingBucket):
		s.res.Rejected.NoBucket++
		why = "no bucket"
	case errors.Is(err, engine.ErrQueueFull):
		s.res.Rejected.QueueFull++
		why = "queue full"
	case errors.As(err, &x):
		s.res.Rejected.NoEngine++
	default:
		s.res.Rejected.TooLong++
		why = "too long"
	}
	s.end(r, Rejected, why)
}
