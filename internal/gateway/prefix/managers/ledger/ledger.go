package ledger

import (
	"math"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/stream"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/wire"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
)

// Ledger is one Manager. Make it with [New].
type Ledger struct {
	store *local.Store
	costs *prefix.Costs
	lim   Limits
	m     *stream.Machine
	out   []Action // of this step

	epoch  uint64 // 0: nothing has come yet
	proven bool   // the live connection has told it: then no answer on another socket says otherwise
	book   *book
	ask    uint64 // the question under way, 0: none
	counts Counts
	lag    time.Duration

	// The snapshot that is being taken, and whether something in it could not be used.
	staged *book
	head   wire.SnapshotHeader
	spoilt bool

	resyncAt    time.Time
	resyncEvery time.Duration
}

// New returns the ledger of a Manager that is not connected yet.
func New(now time.Time, store *local.Store, costs *prefix.Costs, lim Limits) *Ledger {
	l := &Ledger{store: store, costs: costs, lim: lim.withDefaults()}
	l.m = stream.New(now, true, l.lim.Stream)
	l.book = l.newBook()
	l.book.live = true
	return l
}

// Step takes in what happened at a time, and returns what is to be done, in that order. The slice is good until the next call. Time may
// not go backwards.
func (l *Ledger) Step(now time.Time, in Input) []Action {
	l.out = l.out[:0]
	switch in.Kind {
	case Tick:
		l.tick(now)
	case Connected:
		l.drive(now, stream.Input{Kind: stream.Connected})
	case Broken:
		l.proven = false
		l.drive(now, stream.Input{Kind: stream.Broken, Heard: in.Heard})
	case Dropped:
		l.drive(now, stream.Input{Kind: stream.Dropped})
	case Live, Replayed:
		l.batch(now, in)
	case Snapshot:
		l.beginSnapshot(now, in)
	case Chunk:
		l.chunk(now, in)
	case End:
		l.end(now, in.Ask)
	case Failed:
		l.fail(now, in.Ask)
	case Closed:
		l.drive(now, stream.Input{Kind: stream.Closed})
		l.unstage()
		l.book.clear()
	}
	l.plan(now)
	return l.out
}

// Deadline is when a Tick is due at the latest; zero: there is nothing to wait for.
func (l *Ledger) Deadline() time.Time {
	d := l.m.Deadline()
	if !l.resyncAt.IsZero() && (d.IsZero() || l.resyncAt.Before(d)) {
		return l.resyncAt
	}
	return d
}

// Status returns how the Manager is.
func (l *Ledger) Status() Status {
	return Status{
		Stream: l.m.Status(), Epoch: l.epoch, Manager: l.book.manager, CutOff: l.book.cut, Namespaces: l.book.shelves, Attachments: l.book.attached,
		Claims: l.book.claims, Counts: l.counts, Lag: l.lag,
	}
}

func (l *Ledger) tick(now time.Time) {
	if !l.resyncAt.IsZero() && !now.Before(l.resyncAt) {
		l.resyncAt = time.Time{}
		l.counts.Resyncs++
		l.drive(now, stream.Input{Kind: stream.Renewed})
		return
	}
	l.drive(now, stream.Input{Kind: stream.Tick})
}

// plan sees to it that what was lost for good, or never answered, is asked for once more, some time.
func (l *Ledger) plan(now time.Time) {
	s := l.m.Status()
	switch {
	case s.State == stream.Exact && s.Whole:
		l.resyncAt, l.resyncEvery = time.Time{}, 0
	case !s.Connected || l.book.cut != NoExcess || s.State != stream.Exact && s.Why != stream.NoEvent:
		l.resyncAt = time.Time{}
	case l.resyncAt.IsZero():
		l.resyncEvery = min(max(2*l.resyncEvery, l.lim.Resync), l.lim.ResyncMax)
		l.resyncAt = now.Add(l.resyncEvery)
	}
}

// batch gives a batch to the machine. Equal epoch and number are the same batch, so that both are its print.
func (l *Ledger) batch(now time.Time, in Input) {
	if in.Seq < 0 { // engines have a meaning for it, Managers have not
		l.counts.BadBatches++
		return
	}
	epoch, ok := wire.ManagerEpoch(in.Payload)
	if !ok {
		epoch = l.epoch // whose it is, is not to be known; what was in it is lost when it is applied
	}
	kind := stream.Live
	if in.Kind == Replayed {
		if kind = stream.Replayed; l.foreign(now, epoch, in.Ask) {
			return
		}
	}
	l.sees(now, epoch)
	l.proven = l.proven || ok && in.Kind == Live
	if in.Payload == nil {
		in.Payload = []byte{} // nil is the snapshot's mark
	}
	l.drive(now, stream.Input{Kind: kind, Batch: stream.Batch{Seq: in.Seq, Print: printOf(epoch, in.Seq), Payload: in.Payload}, Ask: in.Ask})
}

func printOf(epoch uint64, seq int64) uint64 { return epoch*0x9e3779b97f4a7c15 ^ uint64(seq) }

// foreign tells whether an answer is of another incarnation than the one that is there: of one that has just ended, or of another Manager. It is
// of no use then, and the question is put again soon.
func (l *Ledger) foreign(now time.Time, epoch, ask uint64) bool {
	if !l.proven || epoch == l.epoch || ask != l.ask {
		return false
	}
	l.counts.Foreign++
	l.out = append(l.out, Action{Hangup: true})
	l.fail(now, ask)
	return true
}

// sees takes note of an incarnation. Another one than before is a restart.
func (l *Ledger) sees(now time.Time, epoch uint64) {
	if epoch == l.epoch || epoch == 0 {
		return
	}
	began := l.epoch != 0
	l.epoch = epoch
	if began {
		l.drive(now, stream.Input{Kind: stream.Renewed})
	}
}

// drive does what the machine decides.
func (l *Ledger) drive(now time.Time, in stream.Input) {
	for _, a := range l.m.Step(now, in) {
		switch a.Kind {
		case stream.Apply:
			for range l.m.Applied(now, l.apply(now, a.Batch.Payload)) {
				l.mark()
			}
		case stream.Drop: // the memory is nobody's
		case stream.Mark, stream.Hide:
			l.mark()
		case stream.Doubt:
			l.book.drop()
		case stream.Withdraw:
			l.book.clear()
		case stream.Ask:
			l.ask = a.Ask
			l.out = append(l.out, Action{Ask: a.Ask, From: a.From, Need: l.need()})
		case stream.Hangup:
			l.ask = 0
			l.unstage()
			l.out = append(l.out, Action{Hangup: true})
		}
	}
}

// need says what the question that has just been decided on is for.
func (l *Ledger) need() Need {
	switch s := l.m.Status(); {
	case s.Next < 0:
		return Everything
	case s.Asking:
		return Missing
	}
	return Whether
}

// mark tells the book how far it is to be believed.
func (l *Ledger) mark() {
	l.book.mark([...]index.State{stream.Hidden: index.Hidden, stream.Partial: index.Partial, stream.Whole: index.Exact}[l.m.Trust()])
}

// apply applies a batch, or the snapshot that stands for one.
func (l *Ledger) apply(now time.Time, payload []byte) stream.Outcome {
	if payload == nil {
		l.book.clear()
		l.book, l.staged = l.staged, nil
		l.book.goLive()
		l.counts.Snapshots++
		return stream.Emptied // all is known from here on
	}
	head, ok := l.book.apply(now, payload)
	if head.Time > 0 {
		l.lag = time.Duration(max(0, min(float64(now.UnixNano())-head.Time*1e9, math.MaxInt64/2)))
	}
	if !ok {
		return stream.Lossy
	}
	return stream.Plain
}
