package stream

import "time"

// Machine is the state of one stream. Make it with [New].
type Machine struct {
	lim    Limits
	replay bool // there is somebody to ask
	counts Counts
	out    []Action // of this step

	state State
	why   Reason
	since time.Time
	// whole and the two beside it: whether the claims are all there is; if not, why and since when.
	whole     bool
	partWhy   Reason
	partSince time.Time
	marked    Trust // what whoever holds the claims was told last

	connected bool
	broke     time.Time     // when the connection was last known to be good
	away      time.Duration // how long the last break took
	unproven  bool          // there was a break: the publisher may be another

	// The place in the publisher's numbers. next is the one that is expected, if known; print is of the one before it.
	known   bool
	next    int64
	print   uint64
	printed bool
	live    int64  // the highest that came live, -1 for none: these only rise
	livePr  uint64 // its print
	any     bool   // next is only the least that may come: what was lost may be more
	noPast  bool   // what came before could not be had; do not ask again

	ask  asking
	asks uint64 // that were made, probes too
	// unheard are the probes in a row that nobody answered, unheardAt when the first of them had to be given up.
	unheard   int
	unheardAt time.Time
	held      []Batch
	bytes     int  // of held
	missed    bool // something was dropped on our side while a replay was awaited

	hideAt, stallAt, retryAt, forgetAt, probeAt time.Time // zero: not set
}

// asking is the replay that is awaited.
type asking struct {
	on       bool
	no       uint64
	probe    bool // only to see whether there is anything
	verify   bool // the first batch must be the last one that was applied
	got      int
	progress bool // it brought something new
}

// New returns the machine of a stream that is not connected yet. Replay says whether there is a replay socket.
func New(now time.Time, replay bool, lim Limits) *Machine {
	return &Machine{lim: lim.withDefaults(), replay: replay, why: Connecting, since: now, partWhy: Joining, partSince: now, live: -1}
}

func (a *asking) is(no uint64) bool { return a.on && a.no == no }

// Step takes in what happened at a time and returns what is to be done, in that order. The slice is good until the next call. Time
// may not go backwards. Deadlines that have passed are seen to first, so a step is never too early.
func (m *Machine) Step(now time.Time, in Input) []Action {
	clear(m.out) // so that no payload is kept alive
	m.out = m.out[:0]
	if in.Kind != Closed {
		m.clock(now)
	}
	switch in.Kind {
	case Connected:
		m.becomeConnected(now)
	case Broken:
		m.becomeBroken(now, in.Heard)
	case Live:
		m.onLive(now, in.Batch)
	case Replayed:
		m.onReplayed(now, in.Batch, in.Ask)
	case ReplayEnd:
		if m.ask.is(in.Ask) {
			m.onReplayEnd(now)
		}
	case ReplayBroken:
		if m.ask.is(in.Ask) {
			m.onReplayBroken(now)
		}
	case Dropped:
		m.onDropped(now)
	case Renewed:
		m.restart(now)
		m.join(now)
	case Closed:
		m.stopAsking()
		m.dropHeld()
	}
	m.mark(Mark)
	return m.out
}

// Applied says what came of an [Apply], before the next action is done, and returns what follows from it, as Step does.
func (m *Machine) Applied(now time.Time, o Outcome) []Action {
	var out []Action
	switch o {
	case Plain:
		return nil
	case Emptied:
		m.whole = true
	case Lossy:
		m.whole, m.partWhy, m.partSince = false, Unreadable, now
		m.counts.Losses++
	case Holed:
		if !m.whole {
			return nil
		}
		m.whole, m.partWhy, m.partSince = false, Unplaced, now
	}
	m.marked = m.Trust()
	return append(out, Action{Kind: Mark})
}

// mostUnheard is how many probes in a row may fail before a quiet stream is no longer taken for whole: one may meet a publisher that is busy, and
// three are about a second where the connection is refused, and seven where it is silent.
const mostUnheard = 3

func (m *Machine) unanswered() bool { return m.unheard >= mostUnheard }

// heard says that what is known of the stream's end was proven: by an answer, or by the next batch.
func (m *Machine) heard() { m.unheard, m.unheardAt = 0, time.Time{} }

func (m *Machine) notHeard(now time.Time) {
	if m.counts.Unanswered++; m.unheard == 0 {
		m.unheardAt = now
	}
	m.unheard++
}

// Trust is what is to be made of the claims now.
func (m *Machine) Trust() Trust {
	switch {
	case m.state == Blind:
		return Hidden
	case m.whole && !m.unanswered():
		return Whole
	}
	return Partial
}

// Status says how a stream is.
type Status struct {
	State State
	// Why says why it is not exact; None in Exact.
	Why Reason
	// Since is when it came into its state.
	Since time.Time
	// Whole says whether the claims are all that the engine holds; if not, PartWhy and PartSince say why not and since when.
	Whole     bool
	PartWhy   Reason
	PartSince time.Time
	// Connected is the live connection; Asking says that a replay is awaited.
	Connected, Asking bool
	// Next is the number of the batch that is expected, -1 where that is not known. Print is that of the batch before it, if Printed.
	Next    int64
	Print   uint64
	Printed bool
	// Held are the batches that wait for a replay.
	Held int
	Counts
}

// Status returns how the stream is.
func (m *Machine) Status() Status {
	s := Status{
		State: m.state, Why: m.why, Since: m.since, Whole: m.whole, PartWhy: m.partWhy, PartSince: m.partSince,
		Connected: m.connected, Asking: m.ask.on && !m.ask.probe, Next: -1, Held: len(m.held), Counts: m.counts,
	}
	if m.known {
		s.Next, s.Print, s.Printed = m.next, m.print, m.printed
	}
	switch {
	case m.whole && m.unanswered():
		s.Whole, s.PartWhy, s.PartSince = false, Unanswered, m.unheardAt
	case m.whole:
		s.PartWhy, s.PartSince = None, time.Time{}
	}
	return s
}

func (m *Machine) do(a Action) { m.out = append(m.out, a) }

func (m *Machine) drop(b Batch) { m.do(Action{Kind: Drop, Batch: b}) }

// mark tells what the trust is, if it has changed.
func (m *Machine) mark(kind ActionKind) {
	if t := m.Trust(); t != m.marked {
		m.marked = t
		m.do(Action{Kind: kind})
	}
}

func (m *Machine) become(now time.Time, s State, why Reason) {
	if m.state != s {
		m.since = now
	}
	m.state, m.why = s, why
}

// becomeExact is the end of all repairs.
func (m *Machine) becomeExact(now time.Time) {
	m.become(now, Exact, None)
	m.hideAt, m.stallAt, m.retryAt = time.Time{}, time.Time{}, time.Time{}
	m.rest(now)
}

// becomeRepairing is the beginning of doubts, which may last until a time. What is blind stays so, for its own reason.
func (m *Machine) becomeRepairing(now time.Time, why Reason, until time.Time) {
	switch m.state {
	case Exact:
		m.become(now, Repairing, why)
		m.hideAt = until
	case Repairing:
		if until.Before(m.hideAt) {
			m.hideAt = until
		}
	}
}

// apply takes the batch as the next one.
func (m *Machine) apply(b Batch) {
	m.heard()
	m.known, m.next, m.print, m.printed, m.any = true, b.Seq+1, b.Print, true, false
	m.counts.Applied++
	m.do(Action{Kind: Apply, Batch: b})
}

// lose drops the claims, because events are lost for good.
func (m *Machine) lose(now time.Time, why Reason) {
	m.counts.Losses++
	m.whole, m.partWhy, m.partSince = false, why, now
	m.unproven = false
	m.do(Action{Kind: Doubt})
	m.marked = m.Trust()
	m.do(Action{Kind: Mark}) // doubted claims may count again: they must not be seen where nothing is to be seen
}

// restart drops everything: the engine's process is another.
func (m *Machine) restart(now time.Time) {
	m.counts.Restarts++
	m.forget(now, Restarted)
}

// forget drops everything, as if there had never been anything.
func (m *Machine) forget(now time.Time, why Reason) {
	m.stopAsking()
	m.dropHeld()
	m.known, m.printed, m.unproven, m.any, m.noPast, m.missed, m.live = false, false, false, false, false, false, -1
	m.whole, m.partWhy, m.partSince = false, Joining, now
	m.forgetAt, m.hideAt = time.Time{}, time.Time{}
	m.become(now, Blind, why)
	m.do(Action{Kind: Withdraw})
	m.marked = Hidden
}

func (m *Machine) stopAsking() {
	if m.ask.on {
		m.do(Action{Kind: Hangup})
	}
	m.ask, m.retryAt, m.stallAt = asking{}, time.Time{}, time.Time{}
}

func (m *Machine) dropHeld() {
	for _, b := range m.held {
		m.drop(b)
	}
	clear(m.held)
	m.held, m.bytes = m.held[:0], 0
}
