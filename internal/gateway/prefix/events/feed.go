package events

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/stream"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
)

// feed is the KV events of one rank of one engine, from the sockets to the index.
type feed struct {
	e       *engine
	applier *applier
	src     Source
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup // its readers
	replays *replayer      // nil: there is nobody to ask

	pending               fifo[message] // what waits for the applier; its queue's
	ready                 bool          // it is among those whose turn comes; the queue's
	slots                 chan struct{} // a place taken for each part of what tell has put there
	waiting, waitingBytes atomic.Int64  // live messages among it
	full                  atomic.Bool   // the reader waits for room
	room                  chan struct{}
	dropNoted             atomic.Bool // the applier knows of a drop and has not looked yet
	droppedN, badMessages atomic.Uint64
	oversize              atomic.Uint64

	// Touched by the applier only.
	m         *stream.Machine
	todo      []stream.Action // what the machine decided and is not done yet; something is there between turns only if the feed paused
	at        applying        // of the batch of the first of them
	awaited   []func()        // who waits for that to be done
	dropWaits bool            // a message was dropped while the feed paused
	pool      int64           // the rank's KV pool in tokens, as Claims were told; 0: not known
	poolAt    time.Time       // when it is looked at next
	claims    Claims
	ended     bool
	counts    Counts
	fault     error
	lag       time.Duration
	live      bool      // what is applied came just now: a replay's age is no lag
	cutOff    time.Time // since when the index takes nothing of it; zero: it does
	settleAt  time.Time // when the index may forget what was doubted
	told      standing  // as Hooks.Changed was told
	// Of what was adopted from somebody else: that there is something; that a withdrawal came in between; and that the engine's blocks are of
	// another size.
	adopted, withdrawn, mistaken bool

	loggedFrom time.Time // lines of the log are counted from then on
	logged     int
}

// startFeed opens the rank's claims and starts its readers.
func (e *engine) startFeed(src Source) *feed {
	f := &feed{e: e, applier: e.applier, src: src, room: make(chan struct{}, 1), slots: make(chan struct{}, slots)}
	f.ctx, f.cancel = context.WithCancel(e.ctx)
	if src.Replay != "" {
		f.replays = newReplayer(f)
	}
	e.applier.call(func() {
		f.m = stream.New(time.Now(), src.Replay != "", e.f.o.Limits)
		f.claims = e.target.Open(src.Rank)
		f.claims.Mark(index.Hidden)
		f.lookAtPool(time.Now())
		e.applier.feeds[f] = struct{}{}
	})
	if f.replays != nil {
		f.wg.Go(f.replays.run)
	}
	if src.Listen && e.target.Past == nil { // at once, so that nobody sees it without its listener
		f.listen()
		return f
	}
	f.wg.Go(func() {
		f.splice()
		switch {
		case f.ctx.Err() != nil:
		case src.Listen:
			f.listen()
		default:
			f.readLive()
		}
	})
	return f
}

func (f *feed) listen() {
	if err := f.e.f.hubs.join(f); err != nil {
		f.e.f.o.Log.Warn("cannot listen for an engine's events", "worker", f.e.target.Worker.ID, "endpoint", f.src.Events, "error", err)
		f.applier.call(func() { f.fault = err })
	}
}

// end ends the readers, then drops what was claimed.
func (f *feed) end() {
	f.cancel()
	f.wg.Wait() // before leaving: it may be about to join
	if f.src.Listen {
		f.e.f.hubs.leave(f)
	}
	f.applier.call(func() {
		f.ended = true
		f.abandon()
		f.step(time.Now(), stream.Input{Kind: stream.Closed})
		f.claims.Close()
		delete(f.applier.feeds, f)
	})
}

// offer hands a live message to the applier, and waits a moment for room.
func (f *feed) offer(seq int64, payload []byte) {
	n := int64(len(payload))
	if !f.hasRoom(n) && !f.awaitRoom(n) {
		f.drop()
		return
	}
	f.waiting.Add(1)
	f.waitingBytes.Add(n)
	f.applier.queue.push(message{feed: f, input: stream.Input{Kind: stream.Live, Batch: f.batch(seq, payload)}})
}

func (f *feed) hasRoom(n int64) bool {
	o := &f.e.f.o
	waiting := f.waiting.Load()
	return waiting == 0 || waiting < int64(o.Queue) && f.waitingBytes.Load()+n <= int64(o.QueueBytes)
}

// awaitRoom waits until the applier has taken enough of what waits.
func (f *feed) awaitRoom(n int64) bool {
	patience := time.NewTimer(f.e.f.o.Patience)
	defer patience.Stop()
	for {
		f.full.Store(true)
		if f.hasRoom(n) {
			return true
		}
		select {
		case <-f.room:
		case <-patience.C:
			return false
		case <-f.ctx.Done():
			return false
		}
	}
}

// taken is told by the applier of a message that it has taken.
func (f *feed) taken(n int) {
	f.waiting.Add(-1)
	f.waitingBytes.Add(-int64(n))
	if f.full.Load() && f.full.Swap(false) {
		select {
		case f.room <- struct{}{}:
		default: // the reader has not looked yet
		}
	}
}

func (f *feed) drop() {
	f.droppedN.Add(1)
	if !f.dropNoted.Swap(true) {
		f.applier.noteDropped(f)
	}
}

func (f *feed) batch(seq int64, payload []byte) stream.Batch {
	return stream.Batch{Seq: seq, Print: xxh3.Hash(payload), Payload: f.applier.copied(payload)}
}

// What tell has put in the applier's queue is bounded, 16 MiB: a replay may have more than anybody has memory for, and is read no faster than it
// is applied.
const (
	slots    = 512
	slotSize = 32 << 10
)

// tell hands over what may not be lost, and waits for room. Of several callers at once one at most may have a batch.
func (f *feed) tell(m message) {
	m.feed = f
	for want := min(1+len(m.input.Batch.Payload)/slotSize, slots); m.slots < want; m.slots++ {
		select {
		case f.slots <- struct{}{}:
		case <-f.ctx.Done():
			for range m.slots {
				<-f.slots
			}
			f.applier.release(m.input.Batch.Payload)
			return
		}
	}
	f.applier.queue.push(m)
}

// renewed may be called by anybody.
func (f *feed) renewed() { f.tell(message{input: stream.Input{Kind: stream.Renewed}}) }

// deadline is when the feed has to be looked at.
func (f *feed) deadline() time.Time {
	d := f.m.Deadline()
	if !f.settleAt.IsZero() && (d.IsZero() || f.settleAt.Before(d)) {
		return f.settleAt
	}
	return d
}

func (f *feed) settle(now time.Time) {
	if !f.settleAt.IsZero() && !now.Before(f.settleAt) {
		f.settleAt = time.Time{}
		f.claims.Settle()
	}
}

// step tells the machine what happened, and does what it decides.
func (f *feed) step(now time.Time, in stream.Input) {
	for f.paused() { // the queue does not let this happen; it must not be lost
		f.goOn(now)
	}
	f.lookAtPool(now)
	f.live = in.Kind == stream.Live
	f.todo = f.m.Step(now, in)
	f.goOn(now)
}

func (f *feed) doubt(now time.Time) {
	f.claims.Doubt()
	f.settleAt = now.Add(f.e.f.o.DoubtedFor)
}

func (f *feed) mark() {
	f.claims.Mark([...]index.State{stream.Hidden: index.Hidden, stream.Partial: index.Partial, stream.Whole: index.Exact}[f.m.Trust()])
}

// The log has so many lines of a feed in such a time: an engine may change with each of its messages, and logs fill disks.
const (
	logLines = 10
	logEvery = 10 * time.Second
)

// standing is what the log and the hooks are told changes of.
type standing struct {
	state  stream.State
	why    stream.Reason
	trust  stream.Trust
	cutOff bool
}

// changed tells the log and the hooks of a new state.
func (f *feed) changed(now time.Time) {
	s := f.m.Status()
	is := standing{s.State, s.Why, f.m.Trust(), !f.cutOff.IsZero()}
	if is == f.told {
		return
	}
	level := slog.LevelDebug // a gap that is repaired is no news
	switch {
	case is.cutOff && !f.told.cutOff:
		level = slog.LevelWarn
	case is.trust != f.told.trust || is.cutOff != f.told.cutOff:
		level = slog.LevelInfo
	}
	f.told = is
	f.log(now, level, &s)
	if f.e.f.o.Hooks.Changed != nil {
		f.e.f.o.Hooks.Changed(f.about())
	}
}

func (f *feed) log(now time.Time, level slog.Level, s *stream.Status) {
	log, ctx, worker := f.e.f.o.Log, context.Background(), f.e.target.Worker.ID
	if !log.Enabled(ctx, level) {
		return
	}
	if now.Sub(f.loggedFrom) >= logEvery {
		f.loggedFrom, f.logged = now, 0
	}
	switch f.logged++; {
	case f.logged <= logLines:
		log.Log(ctx, level, "an engine's events", "worker", worker, "rank", f.src.Rank, "state", s.State.String(), "why", s.Why.String(),
			"trust", f.m.Trust().String(), "partial_why", s.PartWhy.String(), "cut_off", !f.cutOff.IsZero())
	case f.logged == logLines+1:
		log.Warn("an engine's events change state all the time: what follows is not logged for a while", "worker", worker, "rank", f.src.Rank)
	}
}

func (f *feed) about() Status {
	c := f.counts
	c.Dropped, c.BadMessages, c.Oversize = f.droppedN.Load(), f.badMessages.Load(), f.oversize.Load()
	return Status{
		Engine: f.e.target.Worker.No, ID: f.e.target.Worker.ID, Rank: f.src.Rank, Prefix: true, Stream: f.m.Status(), Events: c,
		CutOff: !f.cutOff.IsZero(), CutOffSince: f.cutOff, Waiting: int(f.waiting.Load()), Lag: f.lag, Fault: f.fault,
	}
}
