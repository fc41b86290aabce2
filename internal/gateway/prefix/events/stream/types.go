package stream

import "time"

// State is how far a stream is to be believed; see the package comment.
type State uint8

// The states.
const (
	Blind State = iota
	Repairing
	Exact
)

// String returns the state's name as it stands in metrics and answers.
func (s State) String() string {
	if s > Exact {
		return "invalid"
	}
	return [...]string{"blind", "repairing", "exact"}[s]
}

// Trust is what whoever holds the claims makes of them.
type Trust uint8

// The trusts.
const (
	Hidden  Trust = iota // the claims are kept and not seen: the engine is blind
	Partial              // the claims are good, and there may be more: the engine is credited, and blind as well
	Whole                // the claims are all there is
)

// String returns the trust's name.
func (t Trust) String() string {
	if t > Whole {
		return "invalid"
	}
	return [...]string{"hidden", "partial", "whole"}[t]
}

// Reason says why a stream is not exact, or not whole. It labels metrics.
type Reason uint8

// The reasons.
const (
	None         Reason = iota
	Connecting          // there never was a connection
	Joining             // what came before we were there is awaited, or is not to be had
	NoEvent             // nothing has come yet, and nobody can be asked whether there was anything
	Gap                 // numbers are missing
	Disconnected        // the connection broke
	Overflow            // we dropped batches: our own queue was full
	Restarted           // the engine, or its publisher, began anew
	TooLate             // the replay no longer has what is missing
	ReplayFailed        // the replay did not come
	Unreadable          // a batch, or a removal in one, could not be read
	Unplaced            // a store could not be followed: nobody knows on what it stands, or what it says
	Unanswered          // nobody answers whether the last batches came: the replay socket is there, and silent
)

// String returns the reason's name as it stands in metrics and answers.
func (r Reason) String() string {
	if r > Unanswered {
		return "invalid"
	}
	return [...]string{
		"", "connecting", "joining", "no_event", "gap", "disconnected", "overflow", "restarted", "replay_too_late", "replay_failed", "unreadable", "unplaced", "unanswered",
	}[r]
}

// Limits bound what a stream may cost and how long it may be believed. A zero field means its default.
type Limits struct {
	// Repair is how long a gap may be repaired before the claims are hidden. Default 500 ms: with Probe the time from a loss that no later
	// batch shows to the end of the belief in it stays below a second. A replay over a network takes milliseconds.
	Repair time.Duration
	// Break is the same for a broken connection, from the moment at which it was last known to be good. Default 600 ms, for the same
	// sum: what was dropped just before the break does not show any more.
	Break time.Duration
	// Silence is how long a replay may bring nothing before it is given up. Default 2 s: an engine's publisher serves replays between
	// two batches, and Python under load stalls for some hundred milliseconds.
	Silence time.Duration
	// Pause is how long a replay that has begun may bring nothing before the rest is asked for anew. Default 500 ms: a ROUTER that drops
	// answers beyond its high-water mark drops the marker at the end as well.
	Pause time.Duration
	// Retry is the pause before a replay that failed is asked for again. Default 100 ms.
	Retry time.Duration
	// Quick is how long a connection may be away so that numbers which go on prove that nothing is lost, where there is no replay. Default
	// 5 s: no engine loads a model in less.
	Quick time.Duration
	// Forget is how long the claims of an engine that is away are kept, hidden, for its return. Default 60 s: they cost memory, and what
	// an engine publishes in a minute is what its replay buffer may still hold.
	Forget time.Duration
	// Probe is how long a stream must have been quiet for the replay to be asked whether something was missed, again and again. Default
	// 400 ms: an idle publisher takes up to 100 ms to look, and with Repair that is a second. A question costs us 40 µs of a processor, 0.6 % of
	// one for 64 engines, and a publisher in Python walks through its whole buffer for each, half a millisecond in its quiet moments.
	// Rejected: pauses that double, up to 30 s, which cost next to nothing: a removal that was lost when nothing had been heard for
	// long was believed for as long again. And 800 ms: a gap that shows just before the question leaves no time for its repair.
	Probe time.Duration
	// Held and HeldBytes bound what is kept while a replay is awaited. Defaults 1,024 batches and 8 MiB.
	Held, HeldBytes int
}

func (l Limits) withDefaults() Limits {
	d := func(v *time.Duration, def time.Duration) {
		if *v == 0 {
			*v = def
		}
	}
	d(&l.Repair, 500*time.Millisecond)
	d(&l.Break, 600*time.Millisecond)
	d(&l.Silence, 2*time.Second)
	d(&l.Pause, 500*time.Millisecond)
	d(&l.Retry, 100*time.Millisecond)
	d(&l.Quick, 5*time.Second)
	d(&l.Forget, time.Minute)
	d(&l.Probe, 400*time.Millisecond)
	if l.Held == 0 {
		l.Held = 1024
	}
	if l.HeldBytes == 0 {
		l.HeldBytes = 8 << 20
	}
	return l
}

// Batch is a publisher's message.
type Batch struct {
	// Seq is its number.
	Seq int64
	// Print is a hash of the payload, by which it is known again.
	Print uint64
	// Payload is what is in it. The machine looks at its length alone.
	Payload []byte
}

// InputKind says what happened.
type InputKind uint8

// The inputs.
const (
	Tick         InputKind = iota // time passed; see [Machine.Deadline]
	Connected                     // the live connection is there, subscription sent
	Broken                        // it is gone; Heard is when it was last known to be good
	Live                          // a batch came on it
	Replayed                      // a batch came as answer to [Ask]
	ReplayEnd                     // the answer ended with its marker
	ReplayBroken                  // the answer will not come, or not to its end
	Dropped                       // batches of the live stream were dropped on our side
	Renewed                       // somebody else knows that the engine's process is another
	Closed                        // it is over: what is held comes back
)

// Input is what happened.
type Input struct {
	Kind  InputKind
	Batch Batch     // of Live and Replayed
	Heard time.Time // of Broken
	// Ask is that of the [Ask] which Replayed, ReplayEnd and ReplayBroken answer: what belongs to one that was given up means nothing.
	Ask uint64
}

// ActionKind says what is to be done.
type ActionKind uint8

// The actions.
const (
	Apply    ActionKind = iota // apply the batch, then tell [Machine.Applied]; its memory is the caller's again
	Drop                       // let the batch's memory go
	Mark                       // let the claims be seen as [Machine.Trust] says
	Hide                       // the same, where it is the end of a belief that lasted too long
	Doubt                      // events were lost for good: drop the claims, and keep them in mind for what is proven later
	Withdraw                   // drop all claims
	Ask                        // ask for a replay from a number on
	Hangup                     // give up the replay that was asked for: nothing more of it may come
)

// Action is what is to be done.
type Action struct {
	Kind  ActionKind
	Batch Batch  // of Apply and Drop
	From  int64  // of Ask
	Ask   uint64 // of Ask: its number, from 1
}

// Outcome says what a batch that was applied had in it.
type Outcome uint8

// The outcomes. Where a batch had both, the later one counts.
const (
	Plain   Outcome = iota
	Emptied         // the engine said that it holds nothing any more
	Lossy           // something may have been taken away that could not be read; whoever applied it has doubted the claims at that place
	Holed           // the claims are good, and no longer all there is: a store could not be followed
)

// Counts is what became of batches and replays, since the machine was made.
type Counts struct {
	Applied, Duplicates, NotHeld                uint64 // batches
	Gaps, Asks, Probes, Losses, Restarts, Hides uint64
	// Unanswered are those of Probes that nobody answered.
	Unanswered uint64
}
