package managers

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/stream"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/managers/ledger"
)

// inbox is the messages that wait for a Manager's ledger, of up to 16 MiB each. Its batches are few and are applied in microseconds; what is
// many and long is a snapshot, which waits.
const inbox = 8

// message is what happened, on its way to the ledger.
type message struct {
	ledger.Input
	fault error // of Broken
}

// manager is one that is followed.
type manager struct {
	o       *Options
	target  Target
	ctx     context.Context
	cancel  context.CancelFunc
	readers sync.WaitGroup
	running sync.WaitGroup
	in      chan message
	calls   chan func()
	wake    chan struct{} // messages were dropped; one is enough
	done    chan struct{}
	asker   *asker

	dropped, badMessages, oversize atomic.Uint64

	// Touched by run only.
	l                *ledger.Ledger
	connects, breaks uint64
	fault            error
	told             [4]string
}

func startManager(o *Options, t Target) *manager {
	m := &manager{
		o: o, target: t, in: make(chan message, inbox), calls: make(chan func()), wake: make(chan struct{}, 1), done: make(chan struct{}),
		l: ledger.New(time.Now(), o.Store, o.Costs, o.Limits),
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.asker = &asker{m: m, more: make(chan struct{}, 1)}
	m.running.Go(m.run)
	m.readers.Go(m.readLive)
	m.readers.Go(m.asker.run)
	return m
}

// end ends the connections, drops what was claimed and waits.
func (m *manager) end() {
	m.cancel()
	m.readers.Wait()
	m.call(func() { m.step(ledger.Input{Kind: ledger.Closed}) })
	close(m.done)
	m.running.Wait()
}

// call runs f in the ledger's goroutine and waits for it, unless that has ended.
func (m *manager) call(f func()) {
	ran := make(chan struct{})
	select {
	case m.calls <- func() { f(); close(ran) }:
		<-ran
	case <-m.done:
	}
}

func (m *manager) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case msg := <-m.in:
			m.handle(msg)
		case f := <-m.calls:
			f()
		case <-m.wake:
			m.step(ledger.Input{Kind: ledger.Dropped})
		case <-timer.C:
			m.step(ledger.Input{Kind: ledger.Tick})
		case <-m.done:
			return
		}
		wait := time.Hour
		if d := m.l.Deadline(); !d.IsZero() {
			wait = time.Until(d)
		}
		timer.Reset(wait)
	}
}

func (m *manager) handle(msg message) {
	switch msg.Kind {
	case ledger.Connected:
		m.connects++
		m.fault = nil
	case ledger.Broken:
		m.breaks++
		m.fault = msg.fault
	}
	m.step(msg.Input)
}

// step does what the ledger decides.
func (m *manager) step(in ledger.Input) {
	for _, a := range m.l.Step(time.Now(), in) {
		if a.Hangup {
			m.asker.hangup()
		} else {
			m.asker.ask(a)
		}
	}
	m.changed()
}

// tell hands over what may not be lost, and waits for room.
func (m *manager) tell(in ledger.Input) { m.tellFault(in, nil) }

func (m *manager) tellFault(in ledger.Input, fault error) {
	select {
	case m.in <- message{in, fault}:
	case <-m.ctx.Done():
	}
}

// offer hands a live batch over, and waits a moment for room.
func (m *manager) offer(in ledger.Input) {
	select {
	case m.in <- message{in, nil}:
		return
	default:
	}
	patience := time.NewTimer(m.o.Patience)
	defer patience.Stop()
	select {
	case m.in <- message{in, nil}:
	case <-m.ctx.Done():
	case <-patience.C:
		m.dropped.Add(1)
		select {
		case m.wake <- struct{}{}:
		default: // it will look anyway
		}
	}
}

func (m *manager) status() Status {
	return Status{
		ID: m.target.ID, Status: m.l.Status(), Connects: m.connects, Breaks: m.breaks, Dropped: m.dropped.Load(), BadMessages: m.badMessages.Load(),
		Oversize: m.oversize.Load(), Fault: m.fault,
	}
}

// changed tells the log of a new state.
func (m *manager) changed() {
	s := m.l.Status()
	now := [4]string{s.Stream.State.String(), s.Stream.Why.String(), s.Stream.PartWhy.String(), string(s.CutOff)}
	if now == m.told {
		return
	}
	level := slog.LevelInfo
	switch {
	case s.CutOff != ledger.NoExcess && now[3] != m.told[3]:
		level = slog.LevelWarn
	case s.Stream.State == stream.Repairing:
		level = slog.LevelDebug // a gap that is repaired is no news
	}
	m.told = now
	m.o.Log.Log(context.Background(), level, "a Cache Manager's events", "manager", m.target.ID, "state", now[0], "why", now[1], "partial_why", now[2],
		"cut_off", now[3], "epoch", s.Epoch, "claims", s.Claims)
}
