package events_test

import (
	"errors"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/prefix/events"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/stream"
)

var prefixes = events.Needs{Prefix: true}

func TestLateJoinLossAndRestart(t *testing.T) {
	inWorld(t, events.Options{}, func(w *world) {
		e := newEngine(t, &w.net, "engine-1", "kv")
		e.store(1, 2)
		e.store(3)
		w.follow(w.target(1, prefixes, e.source(0)))
		w.want("1/0", "exact 1,2,3") // by replay: these were published before

		e.store(4, -1)
		w.want("1/0", "exact 2,3,4")
		e.lose(-2)
		e.store(5)
		w.want("1/0", "exact 3,4,5")

		e.mu.Lock()
		e.mute = true
		e.mu.Unlock()
		e.lose(-3)
		e.store(6)
		w.want("1/0", "exact 3,4,5") // within its half second
		pass(500 * time.Millisecond)
		w.want("1/0", "hidden 3,4,5")
		pass(2 * time.Second)
		w.want("1/0", "partial 6") // nobody knows what else there is

		e.stop()
		w.want("1/0", "partial 6")
		pass(700 * time.Millisecond)
		w.want("1/0", "hidden 6")
		e.mute = false
		e.start()
		e.store(7)
		pass(3 * time.Second)
		w.want("1/0", "exact 7")
		s := w.f.Status()[0]
		if s.Stream.Restarts != 1 || s.Stream.Losses != 1 || s.Events.Connects != 2 || s.Events.Breaks != 1 || s.Fault != nil {
			t.Errorf("%+v", s)
		}
		e.stop()
	})
}

// TestSilence: the engine's machine is gone, and nobody says so.
func TestSilence(t *testing.T) {
	inWorld(t, events.Options{}, func(w *world) {
		e := newEngine(t, &w.net, "engine-1", "kv")
		w.follow(w.target(1, prefixes, e.source(0)))
		e.store(1)
		w.want("1/0", "exact 1")
		for _, c := range w.net.Dialled() {
			c.Silence()
		}
		pass(910 * time.Millisecond)
		w.want("1/0", "hidden 1")
		e.store(2)
		pass(5 * time.Second)
		w.want("1/0", "exact 1,2") // the network is back, and the replay proves that it is the same engine
		e.stop()
	})
}

// TestTail: what was lost last shows when the stream is quiet.
func TestTail(t *testing.T) {
	inWorld(t, events.Options{}, func(w *world) {
		e := newEngine(t, &w.net, "engine-1", "")
		e.short = true
		w.follow(w.target(1, prefixes, e.source(0)))
		e.store(1)
		e.lose(-1)
		w.want("1/0", "exact 1")
		pass(500 * time.Millisecond)
		w.want("1/0", "exact ")
		pass(time.Hour)
		if n := w.f.Status()[0].Stream.Probes; n < 8800 || n > 9100 {
			t.Errorf("%d questions in an hour", n)
		}
		e.stop()
	})
}

// TestOwnQueue: what we are too slow for is lost, counted and asked for again.
func TestOwnQueue(t *testing.T) {
	inWorld(t, events.Options{Queue: 4}, func(w *world) {
		e := newEngine(t, &w.net, "engine-1", "kv")
		w.follow(w.target(1, prefixes, e.source(0)))
		gate := make(chan struct{})
		w.claims["1/0"].slow = gate
		for n := 1; n <= 20; n++ {
			e.store(n, -n+1)
		}
		pass(10 * time.Second) // each waits, and is dropped
		close(gate)
		w.want("1/0", "exact 20")
		s := w.f.Status()[0]
		if s.Events.Dropped == 0 || s.Stream.Gaps+s.Stream.Asks < 2 || s.Waiting != 0 {
			t.Errorf("%+v", s)
		}
		e.store(99)
		w.want("1/0", "exact 20,99")
		e.stop()
	})
}

// TestBadMessages: what cannot be read costs what it must.
func TestBadMessages(t *testing.T) {
	inWorld(t, events.Options{}, func(w *world) {
		e := newEngine(t, &w.net, "engine-1", "kv")
		w.follow(w.target(1, prefixes, e.source(0)))
		e.store(1)
		e.pub.Publish([]byte("kv"), []byte("short"), batch(2))
		e.pub.Publish([]byte("kv"), be(1))
		e.pub.Publish([]byte("kv\x00sgl-kv-snapshot=7"), be(1), []byte("x"))
		e.pub.Publish([]byte("kv\x00sgl-kv-epoch=7"), be(2), batch(2))
		w.want("1/0", "exact 1,2")
		e.pub.Publish([]byte("kv"), be(3), []byte{0xc1})
		e.seq = 4
		w.want("1/0", "partial ")
		e.store(0, 5)
		w.want("1/0", "exact 5")
		s := w.f.Status()[0]
		if s.Events.BadMessages != 2 || s.Events.BadBatches != 1 || s.Stream.Gaps != 0 {
			t.Errorf("%+v", s)
		}
		e.stop()
	})
}

// TestUnfollowInFlight: a worker is removed while its events are on their way; nothing of them comes later.
func TestUnfollowInFlight(t *testing.T) {
	inWorld(t, events.Options{}, func(w *world) {
		e := newEngine(t, &w.net, "engine-1", "kv")
		other := newEngine(t, &w.net, "engine-2", "kv")
		w.follow(w.target(1, prefixes, e.source(0)))
		w.follow(w.target(2, prefixes, other.source(0)))
		for n := 1; n < 500; n++ {
			e.store(n)
		}
		if !w.f.Unfollow(1) || w.f.Unfollow(1) {
			t.Error("followed?")
		}
		w.want("1/0", "closed")
		other.store(1)
		w.want("2/0", "exact 1")
		e.store(500)
		w.want("1/0", "closed")

		// It returns under its id, and another number.
		w.follow(w.target(3, prefixes, e.source(0)))
		if s := w.f.Status(); len(s) != 2 || s[1].Stream.State != stream.Exact || s[1].Stream.Next != 500 {
			t.Errorf("%+v", s)
		}
		w.f.Keep([]uint32{3})
		w.want("2/0", "closed")
		w.f.Close()
		w.want("3/0", "closed")
		if err := w.f.Follow(w.target(4, prefixes, e.source(0))); !errors.Is(err, events.ErrClosed) {
			t.Errorf("error %v", err)
		}
		e.stop()
		other.stop()
	})
}

// TestFollowAgain: the same facts change nothing, others what they are about.
func TestFollowAgain(t *testing.T) {
	inWorld(t, events.Options{}, func(w *world) {
		a, b := newEngine(t, &w.net, "engine-1", "kv"), newEngine(t, &w.net, "engine-2", "kv")
		w.follow(w.target(1, prefixes, a.source(0), b.source(1)))
		a.store(1)
		b.store(2)
		w.want("1/0", "exact 1")
		w.want("1/1", "exact 2")
		first := w.claims["1/0"]
		w.follow(w.target(1, prefixes, a.source(0), b.source(1)))
		if w.claims["1/0"] != first {
			t.Error("it was begun anew")
		}
		w.follow(w.target(1, events.Needs{Prefix: true, Load: true}, a.source(0)))
		w.want("1/1", "closed")
		w.want("1/0", "exact 1")
		w.follow(w.target(1, events.Needs{}, a.source(0)))
		w.want("1/0", "closed")
		if s := w.f.Status(); len(s) != 0 {
			t.Errorf("%+v", s)
		}
		a.stop()
		b.stop()
	})
}

// TestRenewed: somebody else has seen that the engine is another one.
func TestRenewed(t *testing.T) {
	inWorld(t, events.Options{}, func(w *world) {
		e := newEngine(t, &w.net, "engine-1", "kv")
		w.follow(w.target(1, prefixes, e.source(0)))
		e.store(1)
		w.want("1/0", "exact 1")
		w.f.Renewed(1)
		w.f.Renewed(2)
		w.want("1/0", "exact 1")
		if s := w.f.Status()[0]; s.Stream.Restarts != 1 {
			t.Errorf("%+v", s)
		}
		e.stop()
	})
}

// TestNobodyThere: an engine that cannot be reached says so, and is found when it comes.
func TestNobodyThere(t *testing.T) {
	inWorld(t, events.Options{}, func(w *world) {
		e := &engine{t: t, net: &w.net, name: "engine-1", topic: "kv"}
		w.follow(w.target(1, prefixes, e.source(0)))
		pass(10 * time.Second)
		w.want("1/0", "hidden ")
		s := w.f.Status()[0]
		if s.Fault == nil || s.Stream.Why != stream.Connecting {
			t.Errorf("%+v", s)
		}
		e.start()
		e.store(1)
		pass(3 * time.Second)
		w.want("1/0", "exact 1")
		e.stop()
	})
}

// TestHooks are told of what changes.
func TestHooks(t *testing.T) {
	var told []string
	o := events.Options{Hooks: events.Hooks{Changed: func(s events.Status) {
		told = append(told, s.Stream.State.String()+" "+s.Stream.Why.String())
	}}}
	inWorld(t, o, func(w *world) {
		e := newEngine(t, &w.net, "engine-1", "kv")
		w.follow(w.target(1, prefixes, e.source(0)))
		e.stop()
		pass(time.Second)
	})
	want := []string{"blind joining", "exact ", "repairing disconnected", "blind disconnected"}
	for i := range max(len(told), len(want)) {
		if i >= len(told) || i >= len(want) || told[i] != want[i] {
			t.Fatalf("told %q, want %q", told, want)
		}
	}
}
