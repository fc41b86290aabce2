package events

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/stream"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
	"github.com/perigee-llm/perigee/internal/script"
)

// idle returns feeds whose applier does not run, so that what is put into its queue stays there.
func idle(t *testing.T, o Options, n int) (*applier, []*feed) {
	t.Helper()
	f := &Follower{o: o.withDefaults()}
	a := newApplier(&f.o)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	feeds := make([]*feed, n)
	for i := range feeds {
		e := &engine{f: f, applier: a, target: Target{Worker: &fleet.Worker{}}}
		feeds[i] = &feed{
			e: e, applier: a, ctx: ctx, cancel: cancel, src: Source{Rank: int32(i)}, room: make(chan struct{}, 1), slots: make(chan struct{}, slots),
			m: stream.New(time.Now(), false, f.o.Limits), claims: nobody{},
		}
		a.feeds[feeds[i]] = struct{}{}
	}
	return a, feeds
}

func TestFeedsTakeTurns(t *testing.T) {
	a, feeds := idle(t, Options{}, 2)
	flood, quiet := feeds[0], feeds[1]
	for n := range int64(1000) {
		flood.offer(n, make([]byte, 8<<10))
	}
	quiet.offer(0, make([]byte, 8<<10))
	before := 0
	next := make([]int64, 2)
	for {
		turn := a.queue.turn()
		if len(turn) == 0 {
			break
		}
		bytes := 0
		for _, m := range turn {
			if m.feed != turn[0].feed || m.input.Batch.Seq != next[m.feed.src.Rank] {
				t.Fatalf("rank %d, number %d, in a turn of rank %d; %v are next", m.feed.src.Rank, m.input.Batch.Seq, turn[0].feed.src.Rank, next)
			}
			next[m.feed.src.Rank]++
			bytes += len(m.input.Batch.Payload)
		}
		if bytes > turnBytes+8<<10 || len(turn) > turnMessages {
			t.Errorf("a turn of %d messages with %d bytes", len(turn), bytes)
		}
		if next[1] == 0 {
			before += len(turn)
		}
	}
	if next[0] != 1000 || next[1] != 1 {
		t.Errorf("%v were taken, want 1000 and 1", next)
	}
	if before > turnMessages {
		t.Errorf("%d messages of the one that floods came before the other's only one", before)
	}
}

// TestQueueModel compares the queue with one list for each feed. Feeds pause now and then in the middle of a turn.
func TestQueueModel(t *testing.T) {
	rng := script.Rand(t)
	a, feeds := idle(t, Options{}, 3)
	put, got := make([]int64, len(feeds)), make([]int64, len(feeds))
	take := func(pause bool) bool {
		turn := a.queue.turn()
		for i, m := range turn {
			f := m.feed
			switch {
			case m.goOn && !f.paused():
				t.Fatal("a feed is to go on that has not paused")
			case m.goOn:
				if len(turn) > 1 {
					t.Fatal("a feed that has paused gets messages")
				}
				f.todo = f.todo[1:]
			case f.paused():
				t.Fatal("a feed that has paused gets a message")
			case m.input.Batch.Seq != got[f.src.Rank]:
				t.Fatalf("rank %d: got %d, want %d", f.src.Rank, m.input.Batch.Seq, got[f.src.Rank])
			default:
				got[f.src.Rank]++
				if pause && rng.IntN(100) == 0 {
					f.todo = make([]stream.Action, 1+rng.IntN(3))
				}
			}
			if f.paused() {
				a.queue.putBack(f, turn[i+1:])
				break
			}
		}
		return len(turn) > 0
	}
	for range 3000 {
		if rng.IntN(100) < 60 {
			for range rng.IntN(300) {
				i := rng.IntN(len(feeds))
				a.queue.push(message{feed: feeds[i], input: stream.Input{Batch: stream.Batch{Seq: put[i]}}})
				put[i]++
			}
			continue
		}
		for range rng.IntN(40) {
			take(true)
		}
		if rng.IntN(20) == 0 {
			for take(false) {
			}
			for i := range feeds {
				if got[i] != put[i] {
					t.Fatalf("rank %d: %d were put, %d came out", i, put[i], got[i])
				}
			}
		}
	}
}

// TestReplayWaits has a replay bring 64 MiB while the applier is busy with something else.
func TestReplayWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, feeds := idle(t, Options{}, 1)
		f := feeds[0]
		told := make(chan int)
		go func() {
			n := 0
			for ; n < 64 && f.ctx.Err() == nil; n++ {
				f.tell(message{input: stream.Input{Kind: stream.Replayed, Batch: f.batch(int64(n), make([]byte, 1<<20))}})
			}
			told <- n
		}()
		synctest.Wait()
		waiting := f.pending.len()
		if waiting < 8 || waiting > slots*slotSize>>20 {
			t.Errorf("%d MiB wait, want at most 16", waiting)
		}
		seen := 0
		for seen < 40 {
			turn := a.queue.turn()
			for _, m := range turn {
				a.handle(m)
			}
			seen += len(turn)
			synctest.Wait()
		}
		f.cancel() // whoever waits for room goes, and leaves no place taken
		<-told
		for turn := a.queue.turn(); len(turn) > 0; turn = a.queue.turn() {
			for _, m := range turn {
				a.handle(m)
			}
		}
		if len(f.slots) != 0 {
			t.Errorf("%d places are taken, and nothing waits", len(f.slots))
		}
	})
}

// TestLogIsBounded: an engine without replays that says -1 and jumps, again and again, changes with each message.
func TestLogIsBounded(t *testing.T) {
	var log bytes.Buffer
	a, feeds := idle(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, 1)
	f := feeds[0]
	a.handle(message{feed: f, input: stream.Input{Kind: stream.Connected}})
	for n := range int64(1000) {
		f.waiting.Add(1)
		a.handle(message{feed: f, input: stream.Input{Kind: stream.Live, Batch: stream.Batch{Seq: []int64{-1, 5}[n%2]}}})
	}
	if n := bytes.Count(log.Bytes(), []byte("\n")); n < logLines || n > 2*(logLines+1) { // it may begin anew once
		t.Errorf("%d lines for 1,000 changes, want %d or so", n, logLines+1)
	}
	if !bytes.Contains(log.Bytes(), []byte("not logged for a while")) {
		t.Error("the log does not say that it leaves something out")
	}
}

// nobody is an index that takes everything.
type nobody struct{}

func (nobody) Apply(*prefix.Event) index.Outcome { return index.Outcome{} }
func (nobody) Mark(index.State)                  {}
func (nobody) Doubt()                            {}
func (nobody) Withdraw()                         {}
func (nobody) Settle()                           {}
func (nobody) Close()                            {}
