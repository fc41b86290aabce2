package events

import (
	"math"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/stream"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/wire"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
)

// applying is how far a batch has been applied. The zero value is none.
type applying struct {
	dec     *wire.Decoder // its own until the batch ends
	before  [wire.Classes]uint64
	outcome stream.Outcome
	losses  int
	claimed bool // since the last loss something may have been claimed

	events  int    // that the decoder's event is: it may be several removals
	half    bool   // it is told in part
	told    int    // so many of its hashes
	refused bool   // the index has not taken all that it says is stored
	holes   uint64 // stores that the decoder could not read, as of the event before
}

// paused tells whether the feed has to go on with what it began before anything else happens to it.
func (f *feed) paused() bool { return len(f.todo) > 0 }

// resume goes on for another turn.
func (f *feed) resume(now time.Time) {
	if f.paused() { // it may have ended
		f.goOn(now)
	}
	if !f.paused() && f.dropWaits {
		f.dropWaits = false
		if !f.ended {
			f.step(now, stream.Input{Kind: stream.Dropped})
		}
	}
}

// goOn does what is to be done, as much as fits into a turn.
func (f *feed) goOn(now time.Time) {
	left := turnBlocks
	for len(f.todo) > 0 {
		if left <= 0 && f.applier.inUse < mostDecoders {
			return
		}
		if a := &f.todo[0]; a.Kind != stream.Apply {
			f.do(now, a)
		} else if !f.apply(now, &a.Batch, &left) {
			return
		}
		f.todo = f.todo[1:]
	}
	f.todo = nil
	f.changed(now)
	f.tellDone()
	if f.mistaken {
		f.disown(now)
	}
}

// do does all that is no batch.
func (f *feed) do(now time.Time, a *stream.Action) {
	switch a.Kind {
	case stream.Drop:
		f.applier.release(a.Batch.Payload)
	case stream.Mark, stream.Hide:
		f.mark()
	case stream.Doubt:
		f.doubt(now)
	case stream.Withdraw:
		f.claims.Withdraw()
		f.cutOff, f.settleAt = time.Time{}, time.Time{}
		f.adopted, f.withdrawn = false, true
	case stream.Ask:
		f.replays.ask(a.Ask, a.From)
	case stream.Hangup:
		f.replays.hangup()
	}
}

// abandon leaves undone what the feed has to do: its claims are about to go.
func (f *feed) abandon() {
	for i := range f.todo {
		f.applier.release(f.todo[i].Batch.Payload)
	}
	f.todo = nil
	if f.at.dec != nil {
		f.applier.putDecoder(f.at.dec)
	}
	f.at = applying{}
	f.tellDone()
}

// maxLosses is how many losses a batch may have between its stores before the rest of it is one: each costs what the fleet is large, and
// a batch of 16 MiB has room for a million of them.
const maxLosses = 64

// costlyBlocks is what an event costs that concerns the whole fleet's roster, in blocks: 10 to 20 microseconds.
const costlyBlocks = 32

// apply applies the events of a batch until there is nothing left of the turn, and tells whether that was all.
func (f *feed) apply(now time.Time, b *stream.Batch, left *int) bool {
	at := &f.at
	if at.dec == nil {
		at.dec, at.claimed = f.applier.decoder(), true
		at.before, at.holes = at.dec.Bad, at.dec.Holes
		if at.dec.Begin(b.Payload) != nil {
			f.counts.BadBatches++
			at.outcome = f.lost(now)
			f.applied(now, b)
			return true
		}
	}
	for *left > 0 || f.applier.inUse > mostDecoders {
		if f.next(now, left) {
			f.applied(now, b)
			return true
		}
	}
	return false
}

// joinMost is how many hashes removals are joined up to: the index has 32 brought near at once, and a step of an engine seldom evicts more.
const joinMost = 128

// next applies the next part of a batch, and tells whether it was the last.
func (f *feed) next(now time.Time, left *int) (end bool) {
	at := &f.at
	d := at.dec
	if at.half {
		f.event(&d.Event, left)
		return false
	}
	step := d.Next()
	if d.Holes != at.holes {
		at.holes = d.Holes
		at.hole()
	}
	switch step {
	case wire.Event:
		at.half, at.told, at.refused, at.events = true, 0, false, 1+d.Join(joinMost)
		f.event(&d.Event, left)
	case wire.Lost:
		if *left--; !at.claimed {
			return false // what there is, is in doubt already
		}
		*left -= costlyBlocks
		if at.losses++; at.losses == maxLosses {
			f.counts.BadBatches++
			at.outcome = f.lost(now)
			return true
		}
		at.claimed, at.outcome = false, f.lost(now)
	case wire.Broken:
		f.counts.BadBatches++
		at.outcome = f.lost(now)
	case wire.End:
		for i := range d.Bad {
			f.counts.Bad[i] += d.Bad[i] - at.before[i]
		}
		if t := d.Time(); t > 0 && f.live {
			f.lag = time.Duration(max(0, min(float64(now.UnixNano())-t*1e9, math.MaxInt64/2)))
		}
		return true
	}
	return false
}

// applied ends a batch.
func (f *feed) applied(now time.Time, b *stream.Batch) {
	outcome := f.at.outcome
	f.applier.putDecoder(f.at.dec)
	f.at = applying{}
	f.applier.release(b.Payload)
	for range f.m.Applied(now, outcome) {
		f.mark()
	}
}

// lost is done at the place in a batch where a removal may have been. What the claims are then, the machine says when it knows.
func (f *feed) lost(now time.Time) stream.Outcome {
	f.doubt(now)
	if f.m.Trust() == stream.Hidden {
		f.mark() // else doubted claims count again when something proves them
	}
	return stream.Lossy
}

// event tells the index of an event, or of the next part of a long one.
func (f *feed) event(e *prefix.Event, left *int) {
	at := &f.at
	if at.told == 0 {
		*left -= at.events
		switch e.Kind {
		case prefix.Stored:
			f.counts.Stored++
		case prefix.Removed:
			f.counts.Removed += uint64(at.events)
		case prefix.Cleared:
			*left -= costlyBlocks
			f.counts.Cleared++
		}
	}
	n := len(e.Hashes)
	var o index.Outcome
	if n <= turnBlocks || !divisible(e) {
		o = f.claims.Apply(e)
		at.told = n
		*left -= n
	} else {
		p := part(e, at.told, min(n, at.told+max(*left, 1)))
		o = f.claims.Apply(&p)
		at.told += len(p.Hashes)
		*left -= len(p.Hashes)
	}
	f.count(&o)
	at.refused = at.refused || e.Kind == prefix.Stored && f.leavesOut(&o)
	if o.Result == index.Applied && at.told < n {
		return
	}
	at.half, at.claimed = false, true
	switch {
	case e.Kind == prefix.Cleared:
		at.outcome = stream.Emptied
	case at.refused:
		at.hole()
	}
}

// hole takes down that the engine has stored what we do not have.
func (at *applying) hole() {
	if at.outcome != stream.Lossy { // then it is no news
		at.outcome = stream.Holed
	}
}

// leavesOut tells whether the index did not take all that a store says. What KV cache groups store that it leaves out is its own affair, and so is
// a block that is not full.
//
// An orphan is a hole where the claims were taken over from somebody else, whose copy may lack its parent. On a stream of which we have all it is none of
// ours: vLLM may have one block twice, says of the first that goes that the hash has gone, and stores on the other. So each of its streams would be
// partial for ever after a while, and the word would mean nothing.
func (f *feed) leavesOut(o *index.Outcome) bool {
	switch o.Result {
	case index.Malformed, index.OtherSize, index.Full:
		return true
	case index.Orphan:
		return f.adopted
	}
	return o.Unknown > 0
}

// divisible tells whether an event's parts are events, which together say the same.
func divisible(e *prefix.Event) bool {
	n := len(e.Hashes)
	switch e.Kind {
	case prefix.Removed:
		return true
	case prefix.Stored:
		return len(e.Tokens) == n*e.BlockSize && e.BlockSize > 0 && (e.Extras == nil || len(e.Extras) == n)
	}
	return false
}

// part is the event that says of the hashes from i up to j what the whole one does. Each block is the parent of the next.
func part(e *prefix.Event, i, j int) prefix.Event {
	p := *e
	p.Hashes = e.Hashes[i:j]
	if e.Kind == prefix.Stored {
		p.Tokens = e.Tokens[i*e.BlockSize : j*e.BlockSize]
		if e.Extras != nil {
			p.Extras = e.Extras[i:j]
		}
		if i > 0 {
			p.HasParent, p.Parent = true, e.Hashes[i-1]
		}
	}
	return p
}

func (f *feed) count(o *index.Outcome) {
	f.counts.Blocks += uint64(o.Blocks)
	f.counts.Proven += uint64(o.Proven)
	switch o.Result {
	case index.Applied:
	case index.Orphan:
		f.counts.Orphans++
	case index.Exceeded:
		if f.counts.Refused++; f.cutOff.IsZero() {
			f.cutOff = time.Now()
		}
	default:
		f.counts.Refused += uint64(f.at.events)
		f.mistaken = f.mistaken || f.adopted && o.Result == index.OtherSize
	}
}

// expecter is Claims that prepare for what is to come; a *local.Rank is one.
type expecter interface {
	// Expect says how many tokens the rank's KV pool holds.
	Expect(tokens int64)
}

// poolEvery is how often it is looked what an engine's load reports say of its pool. They come once a second, and say the same as long as the
// engine's process lives.
const poolEvery = time.Second

// lookAtPool tells the claims how large the rank's pool is, when that is known and news. What was known stays while an engine says nothing.
func (f *feed) lookAtPool(now time.Time) {
	if now.Before(f.poolAt) {
		return
	}
	f.poolAt = now.Add(poolEvery)
	x, able := f.claims.(expecter)
	if load := f.e.target.Worker.Load; able && load != nil {
		if tokens, known := load.Capacity(int(f.src.Rank)).Get(); known && tokens > 0 && tokens != f.pool {
			f.pool = tokens
			x.Expect(tokens)
		}
	}
}
