package events

import (
	"context"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/stream"
)

// ForBenchmark returns a function that has the applier of n feeds take in the next batch of one of them, in the caller's goroutine.
func ForBenchmark(n int, open func(rank int32) Claims) func(feed int, payload []byte) {
	f := &Follower{o: Options{}.withDefaults()}
	a := newApplier(&f.o)
	var feeds []*feed
	for rank := range int32(n) {
		e := &engine{f: f, applier: a, target: Target{Worker: &fleet.Worker{}}}
		fd := &feed{e: e, applier: a, ctx: context.Background(), m: stream.New(time.Now(), false, f.o.Limits), claims: open(rank)}
		a.feeds[fd] = struct{}{}
		a.handle(message{feed: fd, input: stream.Input{Kind: stream.Connected}})
		feeds = append(feeds, fd)
	}
	next := make([]int64, n)
	return func(i int, payload []byte) {
		fd := feeds[i]
		fd.waiting.Add(1)
		fd.waitingBytes.Add(int64(len(payload)))
		a.handle(message{feed: fd, input: stream.Input{Kind: stream.Live, Batch: fd.batch(next[i], payload)}})
		next[i]++
	}
}
