//go:build linux

package manager

import (
	"context"
	"encoding/binary"
	"maps"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/cache/channel/client"
	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/chain"
	gateway "github.com/perigee-llm/perigee/internal/gateway/prefix"
	eventwire "github.com/perigee-llm/perigee/internal/gateway/prefix/events/wire"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/managers"
	"github.com/perigee-llm/perigee/internal/managerwire"
	"github.com/perigee-llm/perigee/internal/zmtp"
)

const anyPort = "tcp://127.0.0.1:0"

func telling(o *Options) { o.Events = Endpoints{anyPort, anyPort, anyPort} }

func reached(url string) func(*client.Options) {
	return func(o *client.Options) { o.URL = url }
}

// namesOf are the names of blocks of a prompt of this package's tests.
func namesOf(p, n int) []chain.Key {
	var tokens []uint32
	for _, b := range prompt(p, 0, n).Blocks {
		tokens = append(tokens, b.Tokens...)
	}
	return chain.Root{Model: "m", BlockSize: blockTokens}.Key().Append(nil, tokens, blockTokens)
}

// listener follows a Manager as a gateway does, from before its first batch.
type listener struct {
	t     *testing.T
	c     *zmtp.Conn
	next  uint64
	epoch uint64
	names map[chain.Key]chain.Key // to their parents
	// engines are attached ones, by their URLs; costs are the last.
	engines map[string]uint64
	costs   map[string]managerwire.Event
}

func (m *tester) listen(t *testing.T) *listener {
	t.Helper()
	c, err := zmtp.Dial(t.Context(), zmtp.Sub, m.EventsAt().Listen, zmtp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	if err := m.tells.pub.WaitSubscribed(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	return &listener{t: t, c: c, names: map[chain.Key]chain.Key{}, engines: map[string]uint64{}, costs: map[string]managerwire.Event{}}
}

// until reads batches until something is so.
func (l *listener) until(what string, is func() bool) {
	l.t.Helper()
	for !is() {
		var msg zmtp.Message
		if err := l.c.Receive(&msg); err != nil {
			l.t.Fatalf("%s: %v; names %d, engines %v", what, err, len(l.names), l.engines)
		}
		if got := binary.BigEndian.Uint64(msg.Frames[1]); got != l.next {
			l.t.Fatalf("%s: batch %d, want %d", what, got, l.next)
		}
		l.next++
		l.batch(msg.Frames[2])
	}
}

func (l *listener) batch(b []byte) {
	l.t.Helper()
	var d eventwire.ManagerDecoder
	if err := d.Begin(b); err != nil {
		l.t.Fatal(err)
	}
	l.epoch = d.Head.Epoch
	for d.Next() == eventwire.Event {
		switch e := d.Event; e.Kind {
		case managerwire.BlockStored:
			if len(l.engines) == 0 || e.Model != "m" || e.BlockSize != blockTokens || e.Medium != managerwire.CPU {
				l.t.Errorf("%d engines, %+v", len(l.engines), e)
			}
			for _, k := range e.Chain {
				l.names[k], e.Parent = e.Parent, k
			}
		case managerwire.BlockRemoved:
			for _, k := range e.Chain {
				delete(l.names, k)
			}
		case managerwire.AllBlocksCleared:
			clear(l.names)
		case managerwire.Attached:
			l.engines[e.Engine] = e.Instance
		case managerwire.Detached:
			if l.engines[e.Engine] == e.Instance {
				delete(l.engines, e.Engine)
			}
		case managerwire.Cost:
			l.costs[e.Engine] = e
		}
	}
	if d.Bad != [eventwire.Classes]uint64{} {
		l.t.Errorf("our own decoder does not read all: %v", d.Bad)
	}
}

// holds tells whether the names are those of the blocks, each behind the one before it.
func (l *listener) holds(names ...chain.Key) bool {
	want := map[chain.Key]chain.Key{}
	var parent chain.Key
	for _, k := range names {
		want[k], parent = parent, k
	}
	return maps.Equal(l.names, want)
}

// TestNamesBehindABlock: who publishes behind a block without its name is told of by the block's own, whoever published that; behind one that is not
// there, nobody is told.
func TestNamesBehindABlock(t *testing.T) {
	m := begin(t, telling, func(o *Options) { o.Instances = 2 })
	l := m.listen(t)
	a, b := m.dial(reached("http://a:8000")), m.dial(named("b"), reached("http://b:8000"))
	names := namesOf(1, 8)
	if _, err := publish(a, prompt(1, 0, 5)); err != nil {
		t.Fatal(err)
	}
	l.until("five blocks", func() bool { return l.holds(names[:5]...) })
	if _, err := publish(b, prompt(2, 4, 6)); err != nil { // its parent was never published
		t.Fatal(err)
	}
	if _, err := publish(b, prompt(1, 5, 8)); err != nil {
		t.Fatal(err)
	}
	l.until("what follows them, of another", func() bool { return l.holds(names...) })
}

// TestFlushTold: a flush of more blocks than go at once is one word to gateways, however long it takes.
func TestFlushTold(t *testing.T) {
	const blocks = 2*walkMost/100*100 + 100
	removed := 0
	m := begin(t, telling, func(o *Options) {
		o.PoolBytes = blocks * 8192
		o.Observe = func(_ core.Time, a core.Action) {
			if _, gone := a.(*core.Removed); gone {
				if removed++; removed%walkMost == 0 {
					<-time.After(30 * time.Millisecond) // so long that what has gone would be told
				}
			}
		}
	})
	s := m.dial()
	for p := range blocks / 100 {
		if _, err := publish(s, prompt(p, 0, 100)); err != nil {
			t.Fatal(err)
		}
	}
	m.until("all is told", func(Status) bool { return m.tells.pub.Stats().Names == blocks })
	if n := m.Flush(core.Namespace{}); n != blocks {
		t.Errorf("%d blocks were dropped, want %d", n, blocks)
	}
	m.until("their end is told", func(Status) bool { return m.tells.pub.Stats().Names == 0 })
	if e := m.tells.pub.Stats().Events; e[managerwire.BlockRemoved] != 0 || e[managerwire.AllBlocksCleared] != 1 {
		t.Errorf("%d times blocks were removed, %d times all were", e[managerwire.BlockRemoved], e[managerwire.AllBlocksCleared])
	}
}

// TestEventsOfCopies: what the Manager copied itself is told as what an engine sealed, and a restore that it copied has a price.
func TestEventsOfCopies(t *testing.T) {
	m := begin(t, telling)
	l := m.listen(t)
	s := m.dial(reached("http://a:8000"))
	e := newMemory(t, 16, pageBytes)
	e.offer(t, s, 0)
	e.fill(1, 0, 5)
	if got, err := s.PublishFrom(context.Background(), prompt(1, 0, 5), e.pages(0, 0, 5)); err != nil || got.Sealed != 5 {
		t.Fatalf("%+v, %v", got, err)
	}
	l.until("five blocks", func() bool { return l.holds(namesOf(1, 5)...) })
	if r, err := e.restore(s, 0, 1, 6, 5); err != nil || r.Good != 5 {
		t.Fatalf("%+v, %v", r, err)
	}
	l.until("a price", func() bool { return l.costs["http://a:8000"].Samples == 1 })
}

// TestEvents: what is published is told when it can be restored, what goes is taken back, engines come and go, a restore has a price.
func TestEvents(t *testing.T) {
	m := begin(t, telling, func(o *Options) { o.Instances, o.Admin = 2, "127.0.0.1:0" })
	l := m.listen(t)
	a := m.dial(reached("http://a:8000"))
	l.until("attached", func() bool { return l.engines["http://a:8000"] == 1 })
	names := namesOf(1, 8)
	if _, err := publish(a, prompt(1, 0, 5)); err != nil {
		t.Fatal(err)
	}
	l.until("five blocks", func() bool { return l.holds(names[:5]...) })
	next := prompt(1, 5, 8)
	next.ParentChain = names[4]
	if _, err := publish(a, next); err != nil {
		t.Fatal(err)
	}
	l.until("what follows them", func() bool { return l.holds(names...) })
	if len(l.costs) != 0 {
		t.Errorf("a price of nothing: %+v", l.costs)
	}
	before := time.Now()
	if n, err := restore(a, 1, 8); n != 8 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	took := time.Since(before).Seconds()
	l.until("a price", func() bool { return len(l.costs) > 0 })
	if c := l.costs["http://a:8000"]; c.Instance != 1 || c.Samples != 1 || c.PerToken <= 0 || c.PerToken*8*blockTokens > took*1.000001 || c.Medium != managerwire.CPU {
		t.Errorf("%+v", c)
	}
	b := m.dial(named("b"), reached("http://b:8000"))
	// One that leaves before it was told is never told: so that the count is known, it is waited for.
	l.until("another, for a while", func() bool { return l.engines["http://b:8000"] == 2 })
	m.dialUnaddressed(t, b)
	l.until("another", func() bool { return l.engines["http://b:8000"] == 4 })
	m.Evict(3)
	l.until("three evicted", func() bool { return l.holds(names[:5]...) })
	a.Close()
	l.until("detached", func() bool { _, there := l.engines["http://a:8000"]; return !there })
	if !l.holds(names[:5]...) {
		t.Error("its blocks went with it")
	}
	m.Flush([32]byte{})
	l.until("flushed", func() bool { return len(l.names) == 0 })
	_, metrics := m.admin("GET", "/metrics", nil)
	for _, want := range []string{
		`perigee_cache_events_total{type="Attached"} 3`, `perigee_cache_events_total{type="AllBlocksCleared"} 1`, "perigee_cache_events_names 0",
		"perigee_cache_events_unaddressed_engines_total 1", "perigee_cache_events_subscribers 1", "perigee_cache_events_dropped_total 0",
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("no %q in the metrics", want)
		}
	}
	if l.epoch != m.Epoch() {
		t.Errorf("epoch %d, want %d", l.epoch, m.Epoch())
	}
}

// dialUnaddressed: an engine without a base URL is no gateway's business.
func (m *tester) dialUnaddressed(t *testing.T, next *client.Session) {
	t.Helper()
	next.Close()
	m.until("b has left", func(st Status) bool { return len(st.Sessions) == 1 })
	m.dial(named("b")).Close()
	if n := m.tells.pub.Stats().Unaddressed; n != 1 {
		t.Errorf("%d without a URL", n)
	}
	m.until("and again", func(st Status) bool { return len(st.Sessions) == 1 })
	m.dial(named("b"), reached("http://b:8000"))
}

// TestEventsWholeOnly: a block of two ranks is told when both are sealed, one without tokens never.
func TestEventsWholeOnly(t *testing.T) {
	m := begin(t, telling)
	l := m.listen(t)
	ranks := namespaces(2, pageBytes)
	one := m.dial(func(o *client.Options) { o.Ranks = ranks }, reached("http://a"))
	two := m.dial(func(o *client.Options) { o.Ranks, o.Join = ranks, ptr(one.Credentials()) })
	names := namesOf(1, 3)
	part := func(s *client.Session, n uint32, to int) {
		p := prompt(1, 0, to)
		p.Part = n
		if _, err := s.Publish(context.Background(), p, func(int, []byte) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	part(one, 0, 3)
	part(two, 1, 2)
	l.until("two", func() bool { return len(l.names) > 0 })
	whole := prompt(3, 0, 1) // what is told wrongly is told before this or with it
	for i, s := range []*client.Session{one, two} {
		whole.Part = uint32(i)
		if _, err := s.Publish(context.Background(), whole, func(int, []byte) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	late := namesOf(3, 1)[0]
	l.until("a later one", func() bool { _, told := l.names[late]; return told })
	delete(l.names, late)
	if s := m.tells.pub.Stats(); s.Names != 3 || !l.holds(names[:2]...) {
		t.Errorf("%d names are told", s.Names)
	}
	part(two, 1, 3)
	l.until("the third", func() bool { return l.holds(names...) })
	nameless := prompt(2, 0, 1)
	nameless.Blocks[0].Tokens = nil
	for i, s := range []*client.Session{one, two} {
		nameless.Part = uint32(i)
		if _, err := s.Publish(context.Background(), nameless, func(int, []byte) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	m.until("it is there", func(st Status) bool { return st.Usage.Blocks == 5 })
	if s := m.tells.pub.Stats(); s.Unnamed != 1 {
		t.Errorf("%+v", s)
	}
}

// TestEventsToGateway joins a real Manager and the gateway's follower: the attached engine gets the credit, at its price, also when the
// gateway comes late, and loses it with the engine, with the blocks and with the Manager.
func TestEventsToGateway(t *testing.T) {
	m := begin(t, telling, func(o *Options) { o.Instances = 2 })
	store, costs := local.New(local.Options{}), &gateway.Costs{}
	const url = "http://engine:8000"
	r := store.Open(local.Engine{No: 1, URL: url, Base: "m"}, 0)
	r.Mark(index.Exact)
	defer r.Close()
	f := managers.Start(managers.Options{Store: store, Costs: costs})
	defer f.Close()
	s := m.dial(reached(url))
	publishRestore := func(p, n int) {
		t.Helper()
		if _, err := publish(s, prompt(p, 0, n)); err != nil {
			t.Fatal(err)
		}
		if got, err := restore(s, p, n); got != n || err != nil {
			t.Fatalf("%d, %v", got, err)
		}
	}
	publishRestore(1, 6)
	follow := func(m *tester) {
		at := m.EventsAt()
		f.Set([]managers.Target{{ID: "host", Events: at.Listen, Replay: at.Replay, Snapshot: at.Snapshot}})
	}
	follow(m)
	depth := func(p, want int) {
		t.Helper()
		deadline := time.Now().Add(patience)
		for {
			var match gateway.Match
			var tokens []uint32
			for _, b := range prompt(p, 0, 8).Blocks {
				tokens = append(tokens, b.Tokens...)
			}
			if err := store.Lookup(t.Context(), &gateway.Query{Model: "m", Tokens: tokens}, &match); err != nil {
				t.Fatal(err)
			}
			got := int(match.Of(1)[gateway.Host]) / blockTokens
			if got == want {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("prompt %d: %d blocks, want %d: %+v", p, got, want, f.Status())
			}
			<-time.After(2 * time.Millisecond)
		}
	}
	depth(1, 6) // by snapshot or replay
	publishRestore(2, 3)
	depth(2, 3)
	m.Evict(1)
	depth(1, 5)
	s.Close()
	depth(1, 0)
	s = m.dial(reached(url))
	depth(1, 5)
	old := m.Epoch()
	m.Close()
	depth(1, 0)
	next := begin(t, telling, func(o *Options) { o.Socket = m.opt.Socket })
	if next.Epoch() == old {
		t.Fatal("the same epoch again")
	}
	follow(next)
	s = next.dial(reached(url))
	publishRestore(3, 2)
	depth(3, 2)
	depth(1, 0)
}

// TestEventsRestart: at the same sockets another epoch begins at 0.
func TestEventsRestart(t *testing.T) {
	dir := filepath.Dir(socketPath(t)) // no port, which another one might have by then
	m := begin(t, func(o *Options) {
		o.Events = Endpoints{"ipc://" + dir + "/e", "ipc://" + dir + "/r", "ipc://" + dir + "/s"}
	})
	m.dial(reached("http://a"))
	at := m.EventsAt()
	m.Close()
	next := begin(t, func(o *Options) { o.Socket, o.Events = m.opt.Socket, at })
	l2 := next.listen(t)
	next.dial(reached("http://a"))
	l2.until("attached", func() bool { return len(l2.engines) == 1 })
	if l2.next != 1 || l2.epoch == m.Epoch() || l2.epoch != next.Epoch() {
		t.Errorf("batch %d of epoch %d; the one before was %d", l2.next-1, l2.epoch, m.Epoch())
	}
}
