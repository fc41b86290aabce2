package events_test

import (
	"encoding/binary"
	"errors"
	"maps"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/perigee-llm/perigee/internal/cache/events"
	"github.com/perigee-llm/perigee/internal/cache/events/book"
	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/wire"
	"github.com/perigee-llm/perigee/internal/managerwire"
	"github.com/perigee-llm/perigee/internal/zmtp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const anyPort = "tcp://127.0.0.1:0"

var space = &book.Space{Namespace: managerwire.Namespace{7}, Model: "m", BlockSize: 16, Groups: 1}

func start(t *testing.T, o events.Options) *events.Publisher {
	t.Helper()
	o.Listen, o.Replay, o.Snapshot, o.Epoch = anyPort, anyPort, anyPort, 5
	p, err := events.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func name(n int) chain.Key { return chain.Key{Lo: uint64(n), Hi: 9} }

// visible tells of block n, which follows n-1; 1 begins a prompt.
func visible(p *events.Publisher, n int) {
	var parent chain.Key
	if n > 1 {
		parent = name(n - 1)
	}
	p.Visible(space, 0, parent, name(n))
}

func dial(t *testing.T, typ zmtp.Type, endpoint string) *zmtp.Conn {
	t.Helper()
	c, err := zmtp.Dial(t.Context(), typ, endpoint, zmtp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(2 * time.Minute))
	return c
}

// receive returns the next message.
func receive(t *testing.T, c *zmtp.Conn) [][]byte {
	t.Helper()
	var m zmtp.Message
	if err := c.Receive(&m); err != nil {
		t.Fatal(err)
	}
	return m.Frames
}

// names is what a gateway holds: its decoder's reading.
type names map[chain.Key]bool

func (n names) apply(t *testing.T, batch []byte) (count int) {
	t.Helper()
	var d wire.ManagerDecoder
	if err := d.Begin(batch); err != nil {
		t.Fatal(err)
	}
	if d.Head.Epoch != 5 || d.Head.Time < 1e9 {
		t.Errorf("%+v", d.Head)
	}
	for {
		switch d.Next() {
		case wire.Event:
			count++
			switch e := d.Event; e.Kind {
			case managerwire.BlockStored:
				for _, k := range e.Chain {
					n[k] = true
				}
			case managerwire.BlockRemoved:
				for _, k := range e.Chain {
					delete(n, k)
				}
			case managerwire.AllBlocksCleared:
				clear(n)
			}
		case wire.End:
			return count
		default:
			t.Fatalf("a batch that our own decoder does not read: %+v", d.Bad)
		}
	}
}

// TestLiveReplay: batches are dense from 0, and a replay has them again, the same bytes, as far as they are kept.
func TestLiveReplay(t *testing.T) {
	p := start(t, events.Options{Manager: "host", ReplayBatches: 3})
	sub := dial(t, zmtp.Sub, p.Endpoints().Events)
	awaitSubscriber(t, p)
	var live [][]byte
	held := names{}
	for n := 1; n <= 5; n++ {
		visible(p, n)
		f := receive(t, sub)
		if string(f[0]) != managerwire.Topic || binary.BigEndian.Uint64(f[1]) != uint64(n-1) {
			t.Fatalf("%q, number %x", f[0], f[1])
		}
		live = append(live, f[2])
		held.apply(t, f[2])
	}
	if len(held) != 5 {
		t.Errorf("%d names", len(held))
	}
	ask := dial(t, zmtp.Dealer, p.Endpoints().Replay)
	for _, c := range []struct{ from, first int }{{0, 2}, {3, 3}, {5, 5}, {99, 5}} {
		ask.Send([]byte("nonsense")) // is not answered
		ask.Send(nil, binary.BigEndian.AppendUint64(nil, uint64(c.from)))
		for n := c.first; n < 5; n++ {
			f := receive(t, ask)
			if len(f) != 4 || binary.BigEndian.Uint64(f[2]) != uint64(n) || string(f[3]) != string(live[n]) {
				t.Fatalf("from %d: batch %d is %q", c.from, n, f)
			}
		}
		if f := receive(t, ask); len(f) != 4 || binary.BigEndian.Uint64(f[2]) != 1<<64-1 {
			t.Fatalf("from %d: no end: %q", c.from, f)
		}
	}
	if s := p.Stats(); s.Batches != 5 || s.Replays != 4 || s.Names != 5 || s.Events[managerwire.BlockStored] != 5 {
		t.Errorf("%+v", s)
	}
}

func awaitSubscriber(t *testing.T, p *events.Publisher) {
	t.Helper()
	if err := p.WaitSubscribed(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
}

// snapshot asks for one, checks its form, and returns what it holds and where to go on.
func snapshot(t *testing.T, c *zmtp.Conn) (resume uint64, held names) {
	t.Helper()
	if err := c.Send(nil, []byte(managerwire.SnapshotRequest)); err != nil {
		t.Fatal(err)
	}
	f := receive(t, c)
	if len(f) != 3 || string(f[1]) != managerwire.HeaderWord {
		t.Fatalf("%q", f)
	}
	h, err := wire.ParseSnapshotHeader(f[2])
	if err != nil || h.Epoch != 5 {
		t.Fatalf("%+v, %v", h, err)
	}
	held, records := names{}, uint64(0)
	for {
		f := receive(t, c)
		switch string(f[1]) {
		case managerwire.ChunkWord:
			records += uint64(held.apply(t, f[2]))
			continue
		case managerwire.EndWord:
		default:
			t.Fatalf("%q", f[1:])
		}
		if records != h.Records {
			t.Errorf("%d records, %d in the header", records, h.Records)
		}
		return h.Resume, held
	}
}

// TestSnapshotUnderFlood: while blocks come and go, each snapshot with the live batches from its resume on gives what the publisher has in the
// end: no gap, no duplicate.
func TestSnapshotUnderFlood(t *testing.T) {
	p := start(t, events.Options{})
	sub := dial(t, zmtp.Sub, p.Endpoints().Events)
	awaitSubscriber(t, p)
	if resume, held := snapshot(t, dial(t, zmtp.Dealer, p.Endpoints().Snapshot)); resume != 0 || len(held) != 0 {
		t.Fatalf("before anything: %d, %d names", resume, len(held))
	}
	const snapshots, wave, stay = 5, 4000, 5000 // blocks
	waves, last := make(chan struct{}), 0
	var flood sync.WaitGroup
	flood.Go(func() {
		for range waves {
			for range wave {
				last++
				visible(p, last)
				if last > stay {
					p.Removed(space.Namespace, 0, name(last-stay))
				}
			}
		}
	})
	c := dial(t, zmtp.Dealer, p.Endpoints().Snapshot)
	type taken struct {
		resume uint64
		held   names
	}
	var all []taken
	for range snapshots {
		waves <- struct{}{} // the last one is over, and the next begins
		resume, held := snapshot(t, c)
		all = append(all, taken{resume, held})
	}
	close(waves)
	flood.Wait()
	const marker = 1 << 40
	p.Visible(space, 0, chain.Key{}, name(marker))
	live := names{}
	for seq := uint64(0); !live[name(marker)]; seq++ {
		f := receive(t, sub)
		if got := binary.BigEndian.Uint64(f[1]); got != seq {
			t.Fatalf("batch %d, want %d", got, seq)
		}
		for i := range all {
			if seq == all[i].resume && !maps.Equal(live, all[i].held) {
				t.Fatalf("snapshot %d has %d names, the batches before %d have %d", i, len(all[i].held), seq, len(live))
			}
		}
		live.apply(t, f[2])
		for i := range all {
			if seq >= all[i].resume {
				all[i].held.apply(t, f[2])
			}
		}
	}
	if want := min(last, stay) + 1; len(live) != want {
		t.Errorf("%d names in the end, want %d", len(live), want)
	}
	for i := range all {
		if !maps.Equal(all[i].held, live) {
			t.Errorf("snapshot %d, resumed at %d, leads to %d names, not %d", i, all[i].resume, len(all[i].held), len(live))
		}
	}
	t.Logf("%d blocks, snapshots at %d … %d", last, all[0].resume, all[4].resume)
}

func TestSnapshotRefused(t *testing.T) {
	p := start(t, events.Options{})
	c := dial(t, zmtp.Dealer, p.Endpoints().Snapshot)
	c.Send(nil, []byte("snapshot.v2"))
	if f := receive(t, c); string(f[1]) != managerwire.ErrorWord {
		t.Errorf("%q", f)
	}
}

// TestPrice: what was measured is told, and what was not is not.
func TestPrice(t *testing.T) {
	p := start(t, events.Options{})
	sub := dial(t, zmtp.Sub, p.Endpoints().Events)
	awaitSubscriber(t, p)
	p.Attach(1, book.Engine{URL: "http://a", Rank: managerwire.AllRanks, Space: space})
	p.Attach(2, book.Engine{URL: "http://b", Rank: 3, Space: space})
	p.Restored(1, 1000, 30*time.Millisecond)
	// How many batches they come in is a matter of time, and a price is said again each second.
	var d wire.ManagerDecoder
	next := func() managerwire.Event {
		t.Helper()
		for d.Next() != wire.Event {
			if err := d.Begin(receive(t, sub)[2]); err != nil {
				t.Fatal(err)
			}
		}
		return d.Event
	}
	for n := uint64(1); n <= 2; n++ {
		e := next()
		for n == 2 && e.Kind == managerwire.Cost {
			e = next()
		}
		if e.Kind != managerwire.Attached || e.Instance != n {
			t.Fatalf("%+v, want %d attached", e, n)
		}
	}
	if e := next(); e.Kind != managerwire.Cost || e.Engine != "http://a" || e.PerToken != 30e-6 || e.Samples != 1 {
		t.Errorf("%+v", e)
	}
	p.Detach(1)
	e := next()
	for e.Kind == managerwire.Cost {
		e = next()
	}
	if e.Kind != managerwire.Detached || e.Instance != 1 {
		t.Fatalf("%+v", e)
	}
}

func TestStartFails(t *testing.T) {
	p := start(t, events.Options{})
	for _, o := range []events.Options{
		{Listen: p.Endpoints().Events, Replay: anyPort, Snapshot: anyPort, Epoch: 1},
		{Listen: anyPort, Replay: p.Endpoints().Events, Snapshot: anyPort, Epoch: 1},
		{Listen: anyPort, Replay: anyPort, Snapshot: p.Endpoints().Replay, Epoch: 1},
		{Listen: anyPort, Replay: anyPort, Snapshot: anyPort},
	} {
		if _, err := events.Start(o); err == nil {
			t.Errorf("%+v: started", o)
		}
	}
	if _, err := events.Start(events.Options{Listen: "nowhere", Epoch: 1}); err == nil {
		t.Error("started nowhere")
	} else if _, ok := errors.AsType[*zmtp.EndpointError](err); !ok {
		t.Errorf("%v", err)
	}
}
