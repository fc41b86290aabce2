// Package follow reads the KV events that an engine publishes for routers, for a Cache Manager who wants to know which tokens are in the blocks that the engine stores.
//
// It believes nothing that could be wrong: see package lore. So a batch that was lost costs lessons and no more, and nothing has to be taken back: what is missing is asked for
// again where the engine has a replay socket, and is counted where it has none or no longer has it.
//
// A [Follower] belongs to its owner, who calls Run and ends it by its context. Of and Counts may be called by any goroutine at any time.
package follow

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/perigee-llm/perigee/internal/cache/lore"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/wire"
	"github.com/perigee-llm/perigee/internal/zmtp"
)

// Options are a follower's.
type Options struct {
	// Events is where the engine publishes, Replay where it can be asked for what was missed, or empty, and Topic what its messages begin with. As zmtp.Dial has endpoints.
	Events, Replay, Topic string
	// Lore is how its events are read.
	Lore lore.Options
	// Learned is told of what one batch has taught, in parts if it is much. A part is its own until it returns. The follower's goroutine calls it.
	Learned func([]lore.Lesson)
	// Said is told when the connection is there (nil), and why there is none: each once until the other one has come. had says that there was one before. Nil: nobody is told.
	Said func(err error, had bool)
	// Quiet is for how long nothing came before it is asked whether something was missed; 0: a second. It is asked once then.
	Quiet time.Duration
}

const (
	// dialTime bounds one attempt: the engine is on this machine.
	dialTime = 5 * time.Second
	// answerTime is how long a replay may bring nothing: the engine's publisher is a thread of a Python process that is busy.
	answerTime = 5 * time.Second
	// replayTries is how often what is missing is asked for, if each time some of it comes: a ROUTER of libzmq drops what is above 1,000 answers, the end too.
	replayTries = 20
)

// Counts say how far an engine was followed.
type Counts struct {
	lore.Counts
	// Connected says whether there is a connection now.
	Connected bool
	// Batches were read, Missed never came, and Bad could not be read.
	Batches, Missed, Bad uint64
}

// Follower follows one engine.
type Follower struct {
	opt  Options
	next int64 // the number of the batch that is to come; Run's
	dec  wire.Decoder

	mu struct {
		sync.Mutex // a leaf
		book       *lore.Book
		count      Counts
	}
}

// New returns one that has not begun.
func New(o Options) *Follower {
	if o.Quiet == 0 {
		o.Quiet = time.Second
	}
	f := &Follower{opt: o}
	f.mu.book = lore.New(o.Lore)
	return f
}

// Of returns what is known of a page.
func (f *Follower) Of(k lore.Key) (lore.Lesson, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.book.Of(k)
}

// Counts returns the counts.
func (f *Follower) Counts() Counts {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.count.Counts = f.mu.book.Counts()
	return f.mu.count
}

// Run follows until the context ends.
func (f *Follower) Run(ctx context.Context) {
	told, had := false, false // of a connection that is not there; whether there was one
	dial := func(ctx context.Context) (*zmtp.Conn, error) {
		return f.dial(ctx, zmtp.Sub, f.opt.Events, zmtp.Options{Topics: []string{f.opt.Topic}})
	}
	serve := func(c *zmtp.Conn) error {
		told, had = false, true
		f.connected(true)
		f.say(nil, true)
		defer f.connected(false)
		return f.serve(ctx, c)
	}
	down := func(err error) {
		if !told {
			told = true
			f.say(err, had)
		}
	}
	_ = zmtp.Maintain(ctx, zmtp.Backoff{}, dial, serve, down) // its error is the context's
}

func (f *Follower) dial(ctx context.Context, typ zmtp.Type, endpoint string, o zmtp.Options) (*zmtp.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	return zmtp.Dial(ctx, typ, endpoint, o)
}

func (f *Follower) say(err error, had bool) {
	if f.opt.Said != nil {
		f.opt.Said(err, had)
	}
}

func (f *Follower) connected(is bool) { f.locked(func() { f.mu.count.Connected = is }) }

// serve reads a subscription until it breaks. What was published before it is asked for first, and what is missed as soon as that shows: with the next batch, or, if there is
// none, when it has been quiet for a while.
func (f *Follower) serve(ctx context.Context, c *zmtp.Conn) error {
	f.ask(ctx)
	var m zmtp.Message
	c.SetDeadline(time.Now().Add(f.opt.Quiet))
	for {
		err := c.Receive(&m)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			f.ask(ctx)
			c.SetDeadline(time.Time{})
			continue
		}
		if _, over := errors.AsType[*zmtp.OversizeError](err); over {
			continue // its number shows that it is missing
		}
		if err != nil {
			return err
		}
		if len(m.Frames) == 3 && len(m.Frames[1]) == 8 {
			f.live(ctx, int64(binary.BigEndian.Uint64(m.Frames[1])), m.Frames[2])
		} else {
			f.bad()
		}
		c.SetDeadline(time.Now().Add(f.opt.Quiet))
	}
}

// live takes a batch of the subscription.
func (f *Follower) live(ctx context.Context, seq int64, payload []byte) {
	if seq > f.next {
		f.ask(ctx)
	}
	f.take(seq, payload)
}

// take takes a batch, unless it has had it. An engine that begins its numbers anew has a new session, and a new follower.
func (f *Follower) take(seq int64, payload []byte) {
	if seq < f.next {
		return
	}
	if seq-f.next > farthest {
		f.bad()
		return
	}
	f.locked(func() {
		f.mu.count.Missed += uint64(seq - f.next)
		f.mu.count.Batches++
	})
	f.next = seq + 1
	if f.dec.Begin(payload) != nil {
		f.bad()
		return
	}
	var out []lore.Lesson
	for step := f.dec.Next(); step != wire.End; step = f.dec.Next() {
		if step == wire.Broken {
			f.bad()
			break
		}
		if step == wire.Event {
			out = f.apply(&f.dec.Event, out)
		}
		if len(out) >= most {
			f.opt.Learned(out)
			out = out[:0]
		}
	}
	if len(out) > 0 {
		f.opt.Learned(out)
	}
}

// most is how many lessons are kept before they are told, but for those of one event: a batch may have a million pages of one token.
const most = 4096

// part is how many pages are worked out under one lock, some 200 µs, and partTokens how many tokens, if it is more than one page: who asks meanwhile may have everybody wait.
const part, partTokens = 128, 1 << 14

// farthest is how many batches may be missed at once. What is farther away is no number of an engine's, and would make the counts nonsense for ever.
const farthest = 1 << 40

// apply takes an event part by part.
func (f *Follower) apply(e *prefix.Event, out []lore.Lesson) []lore.Lesson {
	most := max(1, min(part, partTokens/max(1, e.BlockSize)))
	if e.Kind != prefix.Stored || len(e.Hashes) <= most || len(e.Tokens) != len(e.Hashes)*e.BlockSize {
		f.locked(func() { out = f.mu.book.Apply(e, out) })
		return out
	}
	one := *e
	for from := 0; from < len(e.Hashes); from += most {
		to := min(from+most, len(e.Hashes))
		one.Hashes, one.Tokens = e.Hashes[from:to], e.Tokens[from*e.BlockSize:to*e.BlockSize]
		f.locked(func() { out = f.mu.book.Apply(&one, out) })
		one.Parent, one.HasParent = e.Hashes[to-1], true
	}
	return out
}

func (f *Follower) locked(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

func (f *Follower) bad() { f.locked(func() { f.mu.count.Bad++ }) }

// ask asks for all from the next batch on, and takes it. If there is nobody to ask, or the answer breaks off without anything new, what is missing is given up: take counts it.
func (f *Follower) ask(ctx context.Context) {
	if f.opt.Replay == "" {
		return
	}
	for range replayTries {
		from := f.next
		if f.replay(ctx) || f.next == from || ctx.Err() != nil {
			return
		}
	}
}

// replay asks once, and says whether the answer came to its end.
func (f *Follower) replay(ctx context.Context) (ended bool) {
	c, err := f.dial(ctx, zmtp.Dealer, f.opt.Replay, zmtp.Options{})
	if err != nil {
		return false
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() }) // always nil, as below
	defer stop()
	defer c.Close()
	if c.Send(nil, binary.BigEndian.AppendUint64(nil, uint64(f.next))) != nil {
		return false
	}
	var m zmtp.Message
	for ctx.Err() == nil {
		c.SetDeadline(time.Now().Add(answerTime))
		err := c.Receive(&m)
		if _, over := errors.AsType[*zmtp.OversizeError](err); over {
			continue
		}
		if err != nil {
			return false
		}
		seq, _, payload, ok := wire.Answer(m.Frames)
		switch {
		case !ok:
			f.bad()
		case seq == -1:
			return true
		default:
			f.take(seq, payload)
		}
	}
	return false
}
