package events_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
)

var _ events.Claims = (*local.Rank)(nil)

// chain is a batch that stores a prompt's blocks behind a parent, of 16 tokens each, as vLLM writes it. Tokens count up from a first one, and
// a block's hash is its first token.
func chain(first, blocks int, parent bool) []byte {
	b := msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 3), 1.5)
	b = msgp.AppendArrayHeader(b, 1)
	b = msgp.AppendString(msgp.AppendArrayHeader(b, 7), "BlockStored")
	b = msgp.AppendArrayHeader(b, uint32(blocks))
	for i := range blocks {
		b = msgp.AppendUint64(b, 1<<63|uint64(first+16*i))
	}
	if parent {
		b = msgp.AppendUint64(b, 1<<63|uint64(first-16))
	} else {
		b = msgp.AppendNil(b)
	}
	b = msgp.AppendArrayHeader(b, uint32(16*blocks))
	for i := range 16 * blocks {
		b = msgp.AppendUint32(b, uint32(first+i))
	}
	b = msgp.AppendInt(b, 16)
	b = msgp.AppendNil(b)
	b = msgp.AppendString(b, "GPU")
	return msgp.AppendInt(b, 0)
}

func (e *engine) publishRaw(p []byte, lost bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.buffer[e.seq] = p
	e.seq++
	if !lost {
		e.pub.Publish([]byte(e.topic), be(e.seq-1), p)
	}
}

// TestIntoTheIndex: from the socket to a match.
func TestIntoTheIndex(t *testing.T) {
	inWorld(t, events.Options{}, func(w *world) {
		store := local.New(local.Options{})
		e := newEngine(t, &w.net, "engine-1", "kv")
		target := w.target(1, prefixes, e.source(0))
		target.Open = func(rank int32) events.Claims {
			return store.Open(local.Engine{No: 1, Base: "m", Names: []string{"m"}}, rank)
		}
		tokens := make([]uint32, 64)
		for i := range tokens {
			tokens[i] = uint32(1 + i)
		}
		var m prefix.Match
		want := func(depth int32, blind bool) {
			t.Helper()
			synctest.Wait()
			m.Reset()
			if err := store.Lookup(t.Context(), &prefix.Query{Model: "m", Tokens: tokens}, &m); err != nil {
				t.Fatal(err)
			}
			if got := m.Of(1); got[prefix.Device] != depth || m.IsBlind(1) != blind {
				t.Errorf("depth %v, blind %v; want %d, %v", got, m.IsBlind(1), depth, blind)
			}
		}
		e.publishRaw(chain(1, 1, false), false)
		w.follow(target)
		want(16, false)
		e.publishRaw(chain(17, 2, true), false)
		want(48, false)
		e.publishRaw(chain(49, 1, true), true) // lost, and asked for
		e.publishRaw(chain(1000, 1, false), false)
		want(64, false)

		// Lost for good: what a later store stands on counts again.
		e.mu.Lock()
		e.oldest = e.seq + 1
		e.mu.Unlock()
		e.publishRaw(chain(2000, 1, false), true)
		e.publishRaw(chain(3000, 1, false), false)
		want(0, true)
		e.publishRaw(chain(33, 1, true), false)
		want(48, true)
		w.f.Unfollow(1)
		want(0, false)
		e.stop()
	})
}

// TestPoolIntoTheIndex: what an engine reports of its pool bounds what it may claim, also when the report comes after the claims.
func TestPoolIntoTheIndex(t *testing.T) {
	inWorld(t, events.Options{}, func(w *world) {
		store := local.New(local.Options{})
		e := newEngine(t, &w.net, "engine-1", "kv")
		target := w.target(1, prefixes, e.source(0))
		target.Open = func(rank int32) events.Claims { return store.Open(local.Engine{No: 1, Base: "m"}, rank) }
		want := func(limit int) {
			t.Helper()
			synctest.Wait()
			if a, size, _ := store.About(1, 0); a.Limit != limit || size != 16 {
				t.Errorf("it may claim %d blocks of %d, want %d", a.Limit, size, limit)
			}
		}
		report := func(tokens int64) {
			target.Worker.Load.Observe(0, load.RankReport{At: time.Now(), Capacity: load.Known(tokens)})
		}
		w.follow(target)
		e.publishRaw(chain(1, 1, false), false)
		want(index.DefaultLimit)
		report(16 * 200_000)
		pass(2 * time.Second)
		e.publishRaw(chain(17, 1, true), false)
		want(8 * 200_000)
		report(16 * 300_000)
		pass(2 * time.Second)
		e.publishRaw(chain(33, 1, true), false)
		want(8 * 300_000)
		w.f.Unfollow(1)
		w.follow(target) // the report is there
		e.publishRaw(chain(49, 1, false), false)
		want(8 * 300_000)
		e.stop()
	})
}
