package events

import (
	"sync"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/stream"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/wire"
)

// message is what happened to a feed, on its way to the applier.
type message struct {
	feed  *feed
	input stream.Input
	fault error // of Broken
	slots int   // of feed.slots, which come back when it is taken
	goOn  bool  // nothing happened: the feed paused
}

// applier applies what happens to the feeds of one domain, one thing after the other.
type applier struct {
	o     *Options
	users int // engines; guarded by Follower.mu
	queue queue
	calls chan func()
	done  chan struct{}
	wg    sync.WaitGroup

	mu struct {
		sync.Mutex
		dropped []*feed // whose messages had no room since the applier looked
	}
	free chan []byte // buffers for their next use

	// Touched by run only.
	spare *wire.Decoder // the one that is not in use, if there is one
	inUse int           // decoders
	feeds map[*feed]struct{}
	next  time.Time // when a feed's deadline is, at the earliest; zero: never
	timer *time.Timer
}

func startApplier(o *Options) *applier {
	a := newApplier(o)
	a.wg.Go(a.run)
	return a
}

func newApplier(o *Options) *applier {
	return &applier{
		o: o, queue: queue{wake: make(chan struct{}, 1)}, calls: make(chan func()), done: make(chan struct{}),
		free:  make(chan []byte, freeList),
		feeds: map[*feed]struct{}{}, timer: time.NewTimer(time.Hour),
	}
}

// stop ends the applier. Its feeds have ended.
func (a *applier) stop() {
	close(a.done)
	a.wg.Wait()
}

// call runs f in the applier's goroutine and waits for it. It returns false, and f may not have run, if the applier has stopped.
func (a *applier) call(f func()) bool {
	ran := make(chan struct{})
	select {
	case a.calls <- func() { f(); close(ran) }:
		<-ran
		return true
	case <-a.done:
		return false
	}
}

// always has something to receive.
var always = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

func (a *applier) run() {
	defer a.timer.Stop()
	for {
		var more chan struct{} // never
		if a.takeTurn() {
			more = always
		}
		select {
		case <-more:
		case f := <-a.calls:
			f()
		case <-a.queue.wake:
			a.seeDropped()
		case <-a.timer.C:
			a.ticks()
		case <-a.done:
			return
		}
	}
}

// takeTurn handles what is next, and tells whether there was something.
func (a *applier) takeTurn() bool {
	turn := a.queue.turn()
	for i, m := range turn {
		a.handle(m)
		if m.feed.paused() {
			a.queue.putBack(m.feed, turn[i+1:])
			break
		}
	}
	return len(turn) > 0
}

func (a *applier) handle(m message) {
	f := m.feed
	if m.goOn {
		f.resume(time.Now())
		a.due(f)
		return
	}
	for range m.slots {
		<-f.slots
	}
	if m.input.Kind == stream.Live {
		f.taken(len(m.input.Batch.Payload))
	}
	if f.ended {
		a.release(m.input.Batch.Payload)
		return
	}
	switch m.input.Kind {
	case stream.Connected:
		f.counts.Connects++
		f.fault = nil
	case stream.Broken:
		f.counts.Breaks++
		f.fault = m.fault
	}
	f.step(time.Now(), m.input)
	a.due(f)
}

// noteDropped is called by a feed's reader that had to drop a message.
func (a *applier) noteDropped(f *feed) {
	a.mu.Lock()
	a.mu.dropped = append(a.mu.dropped, f)
	a.mu.Unlock()
	select {
	case a.queue.wake <- struct{}{}:
	default: // it will look anyway
	}
}

func (a *applier) seeDropped() {
	a.mu.Lock()
	list := a.mu.dropped
	a.mu.dropped = nil
	a.mu.Unlock()
	for _, f := range list {
		f.dropNoted.Store(false)
		switch {
		case f.paused():
			f.dropWaits = true
		case !f.ended:
			f.step(time.Now(), stream.Input{Kind: stream.Dropped})
			a.due(f)
		}
	}
}

// due sees to it that the feed's deadline is not missed. A deadline that moved to later is found when the timer fires; one of a feed that has
// paused when it has gone on.
func (a *applier) due(f *feed) {
	d := f.deadline()
	if f.paused() {
		return
	}
	if d.IsZero() || !a.next.IsZero() && !d.Before(a.next) {
		return
	}
	a.next = d
	a.timer.Reset(time.Until(d))
}

func (a *applier) ticks() {
	a.next = time.Time{}
	now := time.Now()
	for f := range a.feeds {
		if d := f.deadline(); !f.paused() && !d.IsZero() && !d.After(now) {
			f.settle(now)
			f.step(now, stream.Input{Kind: stream.Tick})
		}
		a.due(f)
	}
}

// mostDecoders is how many batches may be begun at once; a decoder keeps up to 20 MB. A feed beyond these does not pause.
const mostDecoders = 16

// decoder returns one that is not in use, until putDecoder.
func (a *applier) decoder() *wire.Decoder {
	d := a.spare
	if a.spare = nil; d == nil {
		d = &wire.Decoder{}
	}
	a.inUse++
	return d
}

func (a *applier) putDecoder(d *wire.Decoder) {
	a.spare = d
	a.inUse--
}

// keep bounds the buffers that wait for their next use, and freeList their number: a batch of a step has some KB, one of a prompt of
// 16,000 tokens 60 KB. (A sync.Pool would take pointers to slices, which have to be kept somewhere while the slices travel.)
const (
	keep     = 64 << 10
	freeList = 1024
)

// copied returns a copy of a payload, which comes back by release.
func (a *applier) copied(payload []byte) []byte {
	select {
	case b := <-a.free:
		return append(b, payload...)
	default:
		return append(make([]byte, 0, max(len(payload), 1<<10)), payload...)
	}
}

func (a *applier) release(b []byte) {
	if cap(b) == 0 || cap(b) > keep {
		return
	}
	select {
	case a.free <- b[:0]:
	default:
	}
}
