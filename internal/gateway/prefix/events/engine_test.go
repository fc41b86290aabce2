package events_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
	"github.com/perigee-llm/perigee/internal/zmtp"
	"github.com/perigee-llm/perigee/internal/zmtp/zmtptest"
)

// engine is a publisher with its replay and its load socket, in a network in memory.
type engine struct {
	t      *testing.T
	net    *zmtptest.Network
	name   string // engine-1: its sockets are engine-1:1, :2 and :3
	topic  string
	pub    *zmtp.Publisher
	load   *zmtp.Publisher
	replay *zmtp.Listener
	served chan struct{}

	mu     sync.Mutex
	seq    uint64
	buffer map[uint64][]byte
	oldest uint64
	asked  []uint64
	mute   bool // replays are not answered
	short  bool // replays have the form of older engines
}

func newEngine(t *testing.T, n *zmtptest.Network, name, topic string) *engine {
	e := &engine{t: t, net: n, name: name, topic: topic}
	e.start()
	return e
}

// start begins a process: its numbers begin at 0.
func (e *engine) start() {
	e.t.Helper()
	e.seq, e.oldest, e.buffer = 0, 0, map[uint64][]byte{}
	e.pub, e.load = e.publisher(e.net.Listen(e.name+":1")), e.publisher(e.net.Listen(e.name+":3"))
	l, err := zmtp.NewListener(e.net.Listen(e.name+":2"), zmtp.Router, zmtp.Options{})
	if err != nil {
		e.t.Fatal(err)
	}
	e.replay, e.served = l, make(chan struct{})
	go func() {
		defer close(e.served)
		_ = l.Serve(context.Background(), e.answer)
	}()
}

func (e *engine) publisher(ln net.Listener) *zmtp.Publisher {
	p, err := zmtp.NewPublisher(zmtp.PublisherOptions{})
	if err != nil {
		e.t.Fatal(err)
	}
	if err := p.ListenOn(ln); err != nil {
		e.t.Fatal(err)
	}
	return p
}

func (e *engine) stop() {
	_ = e.pub.Close()
	_ = e.load.Close()
	_ = e.replay.Close()
	<-e.served
}

func (e *engine) answer(c *zmtp.Conn) {
	var m zmtp.Message
	for c.Receive(&m) == nil {
		from := binary.BigEndian.Uint64(m.Frames[1])
		e.mu.Lock()
		e.asked = append(e.asked, from)
		var answers [][][]byte
		for seq := max(from, e.oldest); seq < e.seq; seq++ {
			answers = append(answers, e.replayed(be(seq), e.buffer[seq]))
		}
		answers = append(answers, e.replayed(be(^uint64(0)), nil))
		mute := e.mute
		e.mu.Unlock()
		for _, a := range answers {
			if !mute && c.Send(a...) != nil {
				return
			}
		}
	}
}

func (e *engine) replayed(seq, payload []byte) [][]byte {
	if e.short {
		return [][]byte{nil, seq, payload}
	}
	topic := []byte(e.topic)
	if payload == nil {
		topic = nil
	}
	return [][]byte{nil, topic, seq, payload}
}

func be(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// store publishes a batch that stores blocks of one token, each behind the one before; -n removes block n, and 0 everything.
func (e *engine) store(blocks ...int) { e.publish(false, blocks...) }

// lose is store, with a batch that does not arrive.
func (e *engine) lose(blocks ...int) { e.publish(true, blocks...) }

func (e *engine) publish(lost bool, blocks ...int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := batch(blocks...)
	seq := e.seq
	e.buffer[seq] = p
	e.seq++
	if !lost {
		e.pub.Publish([]byte(e.topic), be(seq), p)
	}
}

func batch(blocks ...int) []byte {
	b := msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 3), 1.5)
	b = msgp.AppendArrayHeader(b, uint32(len(blocks)))
	for _, n := range blocks {
		switch {
		case n == 0:
			b = msgp.AppendString(msgp.AppendArrayHeader(b, 1), "AllBlocksCleared")
		case n < 0:
			b = msgp.AppendString(msgp.AppendArrayHeader(b, 2), "BlockRemoved")
			b = msgp.AppendInt(msgp.AppendArrayHeader(b, 1), -n)
		default:
			b = msgp.AppendString(msgp.AppendArrayHeader(b, 5), "BlockStored")
			b = msgp.AppendInt(msgp.AppendArrayHeader(b, 1), n)
			b = msgp.AppendNil(b)
			b = msgp.AppendInt(msgp.AppendArrayHeader(b, 1), n)
			b = msgp.AppendInt(b, 1)
		}
	}
	return msgp.AppendInt(b, 0)
}

func (e *engine) source(rank int32) events.Source {
	return events.Source{Rank: rank, Events: "tcp://" + e.name + ":1", Topic: e.topic, Replay: "tcp://" + e.name + ":2", Load: "tcp://" + e.name + ":3", LoadTopic: "load"}
}

// claims is an index of one rank that a test can look at.
type claims struct {
	mu     sync.Mutex
	held   map[prefix.Hash]bool
	state  index.State
	closed bool
	slow   chan struct{} // not nil: Apply waits for it
}

func newClaims() *claims { return &claims{held: map[prefix.Hash]bool{}} }

func (c *claims) Apply(e *prefix.Event) (o index.Outcome) {
	if c.slow != nil {
		<-c.slow
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch e.Kind {
	case prefix.Cleared:
		clear(c.held)
	case prefix.Stored:
		for _, h := range e.Hashes {
			c.held[h] = true
			o.Blocks++
		}
	case prefix.Removed:
		for _, h := range e.Hashes {
			delete(c.held, h)
			o.Blocks++
		}
	}
	return o
}

func (c *claims) set(s index.State, drop bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state = s
	if drop {
		clear(c.held)
	}
}

func (c *claims) Mark(s index.State) { c.set(s, false) }
func (c *claims) Doubt()             { c.set(index.Partial, true) }
func (c *claims) Withdraw()          { c.set(index.Hidden, true) }
func (c *claims) Settle()            {}
func (c *claims) Close() {
	c.set(index.Hidden, true)
	c.closed = true
}

func (c *claims) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var parts []string
	for _, h := range slices.Sorted(maps.Keys(c.held)) {
		parts = append(parts, fmt.Sprint(h))
	}
	if c.closed {
		return "closed"
	}
	return c.state.String() + " " + strings.Join(parts, ",")
}

// world is a follower and its engines, in a bubble.
type world struct {
	t      *testing.T
	net    zmtptest.Network
	f      *events.Follower
	claims map[string]*claims // by engine and rank
}

// inWorld runs a test in a bubble.
func inWorld(t *testing.T, o events.Options, test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, claims: map[string]*claims{}}
		o.DialContext = w.net.DialContext
		o.Listen = func(endpoint string, z zmtp.Options) (*zmtp.Listener, error) {
			return zmtp.NewListener(w.net.Listen(strings.TrimPrefix(endpoint, "tcp://")), zmtp.Sub, z)
		}
		w.f = events.Start(o)
		defer w.f.Close()
		test(w)
	})
}

func (w *world) target(no uint32, needs events.Needs, sources ...events.Source) events.Target {
	reg := fleet.NewRegistry(fleet.BreakerConfig{}, 0)
	worker := reg.Put(fleet.Spec{ID: fmt.Sprintf("engine-%d", no), URL: fmt.Sprintf("http://engine-%d:8000", no), Kind: fleet.SGLang})
	worker.No = no
	t := events.Target{Worker: worker, Domain: "m", Needs: needs, Open: func(rank int32) events.Claims {
		c := newClaims()
		w.claims[fmt.Sprintf("%d/%d", no, rank)] = c
		return c
	}}
	if sources != nil {
		t.Sources = &events.Sources{Ranks: sources}
	}
	return t
}

func (w *world) follow(t events.Target) {
	w.t.Helper()
	if err := w.f.Follow(t); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

// pass lets virtual time pass, and all happen that is due.
func pass(d time.Duration) {
	time.Sleep(d) // on the fake clock
	synctest.Wait()
}

// want compares what a rank of an engine claims.
func (w *world) want(key, claims string) {
	w.t.Helper()
	synctest.Wait()
	if got := w.claims[key].String(); got != claims {
		w.t.Errorf("rank %s claims %q, want %q; %s", key, got, claims, w.about())
	}
}

func (w *world) about() string {
	var b strings.Builder
	for _, s := range w.f.Status() {
		fmt.Fprintf(&b, "\n%s/%d: %+v", s.ID, s.Rank, s)
	}
	return b.String()
}
