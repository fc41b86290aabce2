package managers_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/managers"
	"github.com/perigee-llm/perigee/internal/managerwire"
	"github.com/perigee-llm/perigee/internal/managerwire/managertest"
	"github.com/perigee-llm/perigee/internal/zmtp/zmtptest"
)

// world is a follower, an engine that holds nothing, and a Manager, in a network in memory.
type world struct {
	t     *testing.T
	net   zmtptest.Network
	store *local.Store
	costs prefix.Costs
	f     *managers.Follower
	m     *managertest.Manager
}

const engineURL = "http://engine:8000"

func inWorld(t *testing.T, test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, store: local.New(local.Options{})}
		w.store.Open(local.Engine{No: 1, URL: engineURL, Base: "m"}, 0).Mark(index.Exact)
		w.f = managers.Start(managers.Options{Store: w.store, Costs: &w.costs, DialContext: w.net.DialContext})
		defer w.f.Close()
		w.start(1)
		test(w)
		w.f.Close()
		w.m.Stop()
	})
}

func (w *world) start(epoch uint64) {
	w.m = managertest.Start(w.t, epoch, func(name string) (net.Listener, error) { return w.net.Listen("manager-" + name + ":1"), nil })
}

func (w *world) follow() {
	w.f.Set([]managers.Target{{ID: "host-1", Events: w.m.Events, Replay: w.m.Replay, Snapshot: w.m.Snapshot}})
	synctest.Wait()
}

// pass lets virtual time pass, and all happen that is due.
func pass(d time.Duration) {
	time.Sleep(d) // on the fake clock
	synctest.Wait()
}

var space = managerwire.Namespace{1}

func attached(instance uint64) managerwire.Event {
	return managerwire.Event{Kind: managerwire.Attached, Engine: engineURL, Rank: managerwire.AllRanks, Namespace: space, Instance: instance, Media: managerwire.AllMedia}
}

func tokens(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(i)
	}
	return out
}

// stored is blocks from to to of the prompt 0, 1, 2 …, of 4 tokens each.
func stored(from, to int) managerwire.Event {
	keys := chain.Root{Model: "m", BlockSize: 4}.Key().Append(nil, tokens(4*to), 4)
	e := managerwire.Event{Kind: managerwire.BlockStored, Namespace: space, Model: "m", BlockSize: 4, Chain: keys[from:], Medium: managerwire.CPU}
	if from > 0 {
		e.Parent = keys[from-1]
	}
	return e
}

func removed(from, to int) managerwire.Event {
	e := stored(from, to)
	return managerwire.Event{Kind: managerwire.BlockRemoved, Namespace: space, Chain: e.Chain}
}

// want compares the blocks that the engine can restore, and how the Manager is followed.
func (w *world) want(blocks int, state string) {
	w.t.Helper()
	synctest.Wait()
	var m prefix.Match
	if err := w.store.Lookup(w.t.Context(), &prefix.Query{Model: "m", Tokens: tokens(40000)}, &m); err != nil {
		w.t.Fatal(err)
	}
	s := w.f.Status()[0]
	is := s.Stream.State.String()
	if !s.Stream.Whole {
		is += " partial"
	}
	if got := int(m.Of(1)[prefix.Host]) / 4; got != blocks || is != state {
		w.t.Errorf("%d blocks, %s; want %d, %s: %+v", got, is, blocks, state, s)
	}
}

func TestLateJoinGapAndForgotten(t *testing.T) {
	inWorld(t, func(w *world) {
		w.m.Say(attached(1), stored(0, 4))
		w.m.Say(stored(4, 6))
		w.m.Forget()
		w.follow()
		w.want(6, "exact")
		w.m.Say(stored(6, 8))
		w.want(8, "exact")

		w.m.Lose(stored(8, 9))
		w.m.Say(stored(9, 10))
		w.want(10, "exact") // by replay
		if n := w.m.Asked("snapshot"); n != 1 {
			t.Errorf("%d snapshots", n)
		}

		w.m.Lose(removed(9, 10))
		w.m.Lose(stored(10, 12))
		w.m.Forget()
		w.m.Say(stored(12, 13))
		w.want(9, "exact") // by snapshot: the hole is known
		if n := w.m.Asked("snapshot"); n != 2 {
			t.Errorf("%d snapshots", n)
		}
		if s := w.f.Status()[0]; s.Counts.Snapshots != 2 || s.Claims != 12 || s.BadMessages != 0 || s.Fault != nil || s.Manager != "test" {
			t.Errorf("%+v", s)
		}
	})
}

// TestTail: what was lost last shows when the stream is quiet.
func TestTail(t *testing.T) {
	inWorld(t, func(w *world) {
		w.follow()
		w.m.Say(attached(1), stored(0, 4))
		w.want(4, "exact")
		w.m.Lose(removed(2, 4))
		w.want(4, "exact")
		pass(500 * time.Millisecond)
		w.want(2, "exact")
	})
}

func TestDeathAndRestart(t *testing.T) {
	inWorld(t, func(w *world) {
		w.follow()
		w.m.Say(attached(1), stored(0, 4), managerwire.Event{Kind: managerwire.Cost, Engine: engineURL, Instance: 1, Medium: managerwire.CPU, Fixed: 0.5, Samples: 1})
		w.want(4, "exact")
		if s, ok := w.costs.Of(1)[prefix.Host].Restore(100, time.Now()); s != 0.5 || !ok {
			t.Error(s, ok)
		}
		w.m.Stop()
		pass(590 * time.Millisecond)
		w.want(4, "repairing")
		pass(20 * time.Millisecond)
		w.want(0, "blind")

		// Another one, with other numbers; what the first had is gone.
		w.start(2)
		w.m.Say(attached(7), stored(0, 1))
		w.m.Say(stored(1, 2))
		w.m.Say(stored(2, 3))
		pass(3 * time.Second)
		w.want(3, "exact")
		if s := w.f.Status()[0]; s.Epoch != 2 || s.Stream.Restarts == 0 {
			t.Errorf("%+v", s)
		}
		if r := w.costs.Of(1)[prefix.Host]; r.Samples != 0 {
			t.Errorf("%+v", r)
		}
	})
}

// TestSilence: the Manager's machine is gone, and nobody says so. It is back, and is the same.
func TestSilence(t *testing.T) {
	inWorld(t, func(w *world) {
		w.follow()
		w.m.Say(attached(1), stored(0, 4))
		w.want(4, "exact")
		for _, c := range w.net.Dialled() {
			c.Silence()
		}
		pass(930 * time.Millisecond)
		w.want(0, "blind")
		w.m.Say(stored(4, 5))
		pass(5 * time.Second)
		w.want(5, "exact")
		if n := w.m.Asked("snapshot"); n != 1 {
			t.Errorf("%d snapshots", n)
		}
	})
}

// TestNobodyAnswers: without replay and snapshot a gap hides what was claimed; what comes then is believed after a while, and everything is asked
// for again.
func TestNobodyAnswers(t *testing.T) {
	inWorld(t, func(w *world) {
		w.follow()
		w.m.Say(attached(1), stored(0, 4))
		w.want(4, "exact")
		w.m.Mute(true)
		w.m.Lose(stored(4, 5))
		w.m.Say(stored(5, 6))
		w.want(4, "repairing")
		pass(510 * time.Millisecond)
		w.want(0, "blind")
		pass(40 * time.Second)
		w.m.Mute(false)
		pass(40 * time.Second)
		w.want(6, "exact")
	})
}

// TestLargeSnapshot: chunks wait for the ledger, and live batches meanwhile are spliced.
func TestLargeSnapshot(t *testing.T) {
	inWorld(t, func(w *world) {
		w.m.Say(attached(1))
		for i := range 200 {
			w.m.Say(stored(40*i, 40*i+40))
		}
		w.m.Forget()
		go w.f.Set([]managers.Target{{ID: "host-1", Events: w.m.Events, Replay: w.m.Replay, Snapshot: w.m.Snapshot}})
		for i := 200; i < 220; i++ {
			w.m.Say(stored(40*i, 40*i+40))
			time.Sleep(time.Microsecond) // on the fake clock
		}
		synctest.Wait()
		w.want(8800, "exact")
	})
}

// TestSet: what is the same stays, what is another or gone ends, with its claims.
func TestSet(t *testing.T) {
	inWorld(t, func(w *world) {
		w.m.Say(attached(1), stored(0, 4))
		w.follow()
		w.follow()
		w.want(4, "exact")
		if n := len(w.net.Dialled()); n != 2 {
			t.Errorf("dialled %d times", n)
		}
		w.f.Set([]managers.Target{{ID: "host-1", Events: "tcp://elsewhere:1", Replay: "tcp://elsewhere:2", Snapshot: "tcp://elsewhere:3"}})
		w.want(0, "blind partial")
		if s := w.f.Status()[0]; s.Fault == nil || !strings.Contains(fmt.Sprint(s.Fault), "elsewhere") {
			t.Errorf("%+v", s)
		}
		w.f.Set(nil)
		if s := w.f.Status(); len(s) != 0 {
			t.Errorf("%+v", s)
		}
		w.f.Close()
		w.follow() // does nothing
		if s := w.f.Status(); len(s) != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestLoopback: the same over the machine's own sockets.
func TestLoopback(t *testing.T) {
	store, costs := local.New(local.Options{}), &prefix.Costs{}
	r := store.Open(local.Engine{No: 1, URL: engineURL, Base: "m"}, 0)
	r.Mark(index.Exact)
	defer r.Close()
	m := managertest.Start(t, 3, managertest.Loopback)
	defer m.Stop()
	f := managers.Start(managers.Options{Store: store, Costs: costs})
	defer f.Close()
	m.Say(attached(1), stored(0, 4))
	m.Forget()
	f.Set([]managers.Target{{ID: "host-1", Events: m.Events, Replay: m.Replay, Snapshot: m.Snapshot}})
	until(t, "the snapshot", func() bool { return depth(t, store) == 4 })
	m.Say(stored(4, 8))
	until(t, "a live batch", func() bool { return depth(t, store) == 8 })
	m.Lose(removed(6, 8))
	m.Say(stored(9, 10))
	until(t, "a replay", func() bool { return depth(t, store) == 6 })
	m.Stop()
	died := time.Now()
	until(t, "the end", func() bool { return depth(t, store) == 0 })
	t.Logf("gone after %v", time.Since(died))
}

func depth(t *testing.T, store *local.Store) int {
	var m prefix.Match
	if err := store.Lookup(t.Context(), &prefix.Query{Model: "m", Tokens: tokens(100)}, &m); err != nil {
		t.Fatal(err)
	}
	return int(m.Of(1)[prefix.Host]) / 4
}

func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !is() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: not within 20 s", what)
		}
	}
}
