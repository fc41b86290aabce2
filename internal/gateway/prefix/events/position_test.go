//go:build !race

// Tens of thousands of blocks are told one after the other, which the race detector stretches to a minute; there is one goroutine at a time.

package events

import (
	"testing"
	"testing/synctest"

	"github.com/tinylib/msgp/msgp"

	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/stream"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
)

// removedBatch is a batch with one removal of so many hashes, which count on from first.
func removedBatch(first, n int) []byte {
	b := msgp.AppendArrayHeader(msgp.AppendNil(msgp.AppendArrayHeader(nil, 2)), 1)
	b = msgp.AppendArrayHeader(msgp.AppendString(msgp.AppendArrayHeader(b, 2), "BlockRemoved"), uint32(n))
	for i := range n {
		b = msgp.AppendUint64(b, uint64(first+i))
	}
	return b
}

// TestStreamOfWaitsForThePause: a rank's position is told with the claims that it speaks of, and not while a part of a batch, or one
// that was held for a repair, is still to be applied. Whoever copied claims then had some that the engine does not hold, and would never hear of their removal.
func TestStreamOfWaitsForThePause(t *testing.T) {
	const blocks = 3 * turnBlocks
	for name, c := range map[string]struct {
		replay bool
		feed   func(a *applier, f *feed)
	}{
		"a long removal": {false, func(a *applier, f *feed) {
			f.offer(0, storedBatch(0, blocks))
			for a.takeTurn() {
			}
			f.offer(1, removedBatch(0, blocks))
		}},
		"held batches": {true, func(a *applier, f *feed) {
			f.offer(0, storedBatch(0, blocks))
			for a.takeTurn() {
			}
			f.offer(2, removedBatch(0, blocks)) // 1 is lost
			for a.takeTurn() {
			}
			ask := f.m.Status().Asks // the last question
			f.tell(message{input: stream.Input{Kind: stream.Replayed, Ask: ask, Batch: f.batch(1, removedBatch(0, 1))}})
			f.tell(message{input: stream.Input{Kind: stream.ReplayEnd, Ask: ask}})
		}},
		"ended": {false, func(_ *applier, f *feed) { f.offer(0, storedBatch(0, blocks)) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, feeds := idle(t, Options{}, 1)
				f, store := feeds[0], local.New(local.Options{})
				f.e.feeds = map[int32]*feed{0: f}
				f.e.f.mu.engines = map[uint32]*engine{1: f.e}
				f.claims = store.Open(local.Engine{No: 1, Base: "m"}, 0)
				if c.replay {
					f.m, f.replays = stream.New(f.poolAt, true, f.e.f.o.Limits), newReplayer(f)
				}
				a.handle(message{feed: f, input: stream.Input{Kind: stream.Connected}})
				if c.replay {
					a.handle(message{feed: f, input: stream.Input{Kind: stream.ReplayEnd, Ask: 1}})
				}
				c.feed(a, f)
				for !f.paused() && a.takeTurn() {
				}
				if !f.paused() {
					t.Fatal("it has not paused")
				}
				var s stream.Status
				var ok, told bool
				held := index.About{}
				go func() {
					s, ok = f.e.f.StreamOf(1, 0)
					held, _, _ = store.About(1, 0)
					told = true
				}()
				(<-a.calls)()
				synctest.Wait()
				if told {
					t.Fatalf("%+v is told while the feed pauses, with %d claims", s, held.Claims)
				}
				if name == "ended" {
					f.ended = true
					f.abandon()
					f.claims.Close()
				} else {
					for a.takeTurn() {
						synctest.Wait()
						if told != !f.paused() {
							t.Fatalf("told: %v, paused: %v", told, f.paused())
						}
					}
				}
				synctest.Wait()
				switch {
				case !told:
					t.Error("it is never told")
				case name == "ended" && ok:
					t.Errorf("%+v of a feed that has ended", s)
				case name != "ended" && (!ok || s.State != stream.Exact || !s.Whole || held.Claims != 0):
					t.Errorf("%+v, %v with %d claims, want none", s, ok, held.Claims)
				}
			})
		})
	}
}
