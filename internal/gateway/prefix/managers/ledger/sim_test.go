package ledger

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/stream"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/wire"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
	"github.com/perigee-llm/perigee/internal/managerwire"
	"github.com/perigee-llm/perigee/internal/script"
)

const (
	tick      = 5 * time.Millisecond
	bound     = 1300 * time.Millisecond // a second, and what messages take
	simBlocks = 24
	spaces    = 2
	urls      = 3 // of which the last is never known here
)

// truth is a Manager: what it holds, for whom, and what it has said.
type truth struct {
	rng     *rand.Rand
	keys    []chain.Key
	up      bool
	upAt    time.Time
	epoch   uint64
	buffer  [][]byte // by number
	keeps   int
	held    [spaces][simBlocks]managerwire.Media
	granted [urls][spaces]managerwire.Media
	current [urls]uint64 // instance, 0: none
	next    uint64       // instance
	past    [urls][]timed
}

// timed is what an engine could restore from a time on, by tier, in blocks.
type timed struct {
	at    time.Time
	depth prefix.Depth
}

func space(n int) (ns managerwire.Namespace) {
	ns[0] = byte(1 + n)
	return ns
}

func url(n int) string { return fmt.Sprintf("http://e%d", n) }

// change makes something true, and returns what is said of it.
func (m *truth) change() managerwire.Event {
	ns, at, u := m.rng.IntN(spaces), m.rng.IntN(simBlocks), m.rng.IntN(urls)
	e := managerwire.Event{Namespace: space(ns), Rank: managerwire.AllRanks, Media: managerwire.AllMedia, Engine: url(u)}
	medium := managerwire.Medium(1 + m.rng.IntN(3))
	switch n := m.rng.IntN(100); {
	case n < 55:
		end := at + 1 + m.rng.IntN(simBlocks-at)
		for i := at; i < end; i++ {
			m.held[ns][i] |= 1 << medium
		}
		return m.stored(ns, at, end, medium)
	case n < 75:
		e.Kind, e.Chain = managerwire.BlockRemoved, m.keys[at:at+1]
		if m.rng.IntN(3) > 0 {
			e.Medium = medium
			m.held[ns][at] &^= 1 << medium
		} else {
			m.held[ns][at] = 0
		}
	case n < 77:
		e.Kind = managerwire.AllBlocksCleared
		m.held[ns] = [simBlocks]managerwire.Media{}
	case n < 92:
		e.Kind, e.Media = managerwire.Attached, managerwire.Media(m.rng.IntN(8)<<1)
		if m.current[u] == 0 || m.rng.IntN(3) == 0 {
			m.next++
			m.current[u], m.granted[u] = m.next, [spaces]managerwire.Media{}
		}
		e.Instance, m.granted[u][ns] = m.current[u], e.Media
	default:
		e.Kind, e.Instance = managerwire.Detached, m.current[u]
		if m.rng.IntN(3) == 0 && m.current[u] > 0 {
			e.Instance-- // somebody else's, or of long ago
		} else {
			m.current[u], m.granted[u] = 0, [spaces]managerwire.Media{}
		}
	}
	return e
}

func (m *truth) stored(ns, from, to int, medium managerwire.Medium) managerwire.Event {
	e := managerwire.Event{Kind: managerwire.BlockStored, Namespace: space(ns), Model: "m", BlockSize: 4, Chain: m.keys[from:to], Medium: medium}
	if from > 0 {
		e.Parent = m.keys[from-1]
	}
	return e
}

func (m *truth) head() managerwire.Head { return managerwire.Head{Epoch: m.epoch, Manager: "sim"} }

func (m *truth) publish() []byte {
	var events []managerwire.Event
	for range 1 + m.rng.IntN(3) {
		events = append(events, m.change())
	}
	b := managerwire.AppendBatch(nil, m.head(), events)
	m.buffer = append(m.buffer, b)
	return b
}

func (m *truth) die(now time.Time) {
	m.up, m.upAt = false, now.Add(time.Duration(m.rng.IntN(3000))*time.Millisecond)
	m.epoch, m.buffer = m.epoch+1, nil
	m.held, m.granted, m.current = [spaces][simBlocks]managerwire.Media{}, [urls][spaces]managerwire.Media{}, [urls]uint64{}
}

// depth is what an engine can restore: naively.
func (m *truth) depth(u int) (d prefix.Depth) {
	for t := prefix.Host; t < prefix.Tiers; t++ {
		for i := range simBlocks {
			has := false
			for ns := range spaces {
				for x := prefix.Host; x <= t; x++ {
					has = has || (m.held[ns][i] & m.granted[u][ns]).Has(managerwire.Medium(x))
				}
			}
			if !has {
				break
			}
			d[t]++
		}
	}
	return d
}

// snapshot is all of it, a few records a chunk.
func (m *truth) snapshot() (h wire.SnapshotHeader, chunks [][]byte) {
	var all []managerwire.Event
	for u := range urls {
		for ns, media := range m.granted[u] {
			if m.current[u] > 0 && media > 0 {
				all = append(all, managerwire.Event{Kind: managerwire.Attached, Engine: url(u), Rank: managerwire.AllRanks, Namespace: space(ns), Instance: m.current[u], Media: media})
			}
		}
	}
	for ns := range spaces {
		for i, media := range m.held[ns] {
			for x := managerwire.CPU; x <= managerwire.External; x++ {
				if media.Has(x) {
					all = append(all, m.stored(ns, i, i+1, x))
				}
			}
		}
	}
	h = wire.SnapshotHeader{Epoch: m.epoch, Resume: uint64(len(m.buffer)), Records: uint64(len(all))}
	for len(all) > 0 {
		n := min(len(all), 7)
		chunks = append(chunks, managerwire.AppendBatch(nil, m.head(), all[:n]))
		all = all[n:]
	}
	return h, chunks
}

// link is what is between the Manager and a ledger.
type link struct {
	t         *testing.T
	rng       *rand.Rand
	l         *Ledger
	store     *local.Store
	faults    bool
	connected bool
	connectAt time.Time
	live      []arriving
	answer    []arriving
}

type arriving struct {
	at time.Time
	in Input
}

func (k *link) step(now time.Time, m *truth, in Input) {
	for _, a := range k.l.Step(now, in) {
		k.answer = nil
		if !a.Hangup {
			k.ask(now, m, a)
		}
	}
}

// ask has the Manager answer as package managers would bring it, with what may go wrong.
func (k *link) ask(now time.Time, m *truth, a Action) {
	at := now.Add(time.Duration(1+k.rng.IntN(20)) * tick)
	put := func(in Input) {
		in.Ask = a.Ask
		k.answer = append(k.answer, arriving{at, in})
	}
	fails := func() bool { return k.faults && a.Need != Whether && k.rng.IntN(10) == 0 }
	oldest := max(0, int64(len(m.buffer)-m.keeps))
	replays := a.Need != Everything && a.From >= oldest && (a.Need == Whether || a.From < int64(len(m.buffer)))
	switch {
	case !m.up || fails():
		put(Input{Kind: Failed})
	case replays:
		for n := a.From; n < int64(len(m.buffer)); n++ {
			if fails() {
				put(Input{Kind: Failed})
				return
			}
			put(Input{Kind: Replayed, Seq: n, Payload: m.buffer[n]})
		}
		put(Input{Kind: End})
	case a.Need == Whether && a.From >= int64(len(m.buffer)):
		put(Input{Kind: End})
	default:
		h, chunks := m.snapshot()
		put(Input{Kind: Snapshot, Header: h})
		for _, c := range chunks {
			at = at.Add(time.Duration(k.rng.IntN(2)) * tick)
			if fails() && k.rng.IntN(3) == 0 {
				continue // it is not whole then
			}
			put(Input{Kind: Chunk, Payload: c})
		}
		put(Input{Kind: End})
	}
}

func (k *link) tick(now time.Time, m *truth, published [][]byte) {
	switch {
	case k.connected && (!m.up || k.faults && k.rng.IntN(3000) == 0):
		k.connected, k.live = false, nil
		k.connectAt = now.Add(time.Duration(20+k.rng.IntN(2500)) * time.Millisecond)
		k.step(now, m, Input{Kind: Broken, Heard: now})
	case !k.connected && m.up && !now.Before(k.connectAt):
		k.connected = true
		k.step(now, m, Input{Kind: Connected})
	}
	for i, b := range published {
		if k.connected && (!k.faults || k.rng.IntN(30) > 0) {
			at := now.Add(time.Duration(1+k.rng.IntN(10)) * tick)
			if n := len(k.live); n > 0 && k.live[n-1].at.After(at) {
				at = k.live[n-1].at
			}
			k.live = append(k.live, arriving{at, Input{Kind: Live, Seq: int64(len(m.buffer) - len(published) + i), Payload: b}})
		}
	}
	for len(k.live) > 0 && !k.live[0].at.After(now) {
		in := k.live[0].in
		k.live = k.live[1:]
		if k.faults && k.rng.IntN(100) == 0 {
			in = Input{Kind: Dropped} // our own queue was full
		}
		k.step(now, m, in)
	}
	for len(k.answer) > 0 && !k.answer[0].at.After(now) {
		in := k.answer[0].in
		k.answer = k.answer[1:]
		k.step(now, m, in)
	}
	if d := k.l.Deadline(); !d.IsZero() && !d.After(now) {
		k.step(now, m, Input{Kind: Tick})
	}
}

// seen is what the index says of an engine, in blocks.
func (k *link) seen(u int) (d prefix.Depth) {
	var m prefix.Match
	if err := k.store.Lookup(k.t.Context(), &prefix.Query{Model: "m", Tokens: tokens(4 * simBlocks)}, &m); err != nil {
		k.t.Fatal(err)
	}
	d = m.Of(uint32(u + 1))
	for i := range d {
		d[i] /= 4
	}
	return d
}

func TestSimulation(t *testing.T) {
	rng := script.Rand(t)
	for range 6 {
		simulate(t, rand.New(rand.NewPCG(rng.Uint64(), 0)), 1+rng.IntN(200))
	}
}

func simulate(t *testing.T, rng *rand.Rand, keeps int) {
	now := began
	m := &truth{rng: rng, up: true, epoch: 1, keeps: keeps, keys: chain.Root{Model: "m", BlockSize: 4}.Key().Append(nil, tokens(4*simBlocks), 4)}
	k := &link{t: t, rng: rng, store: local.New(local.Options{}), connectAt: now}
	for u := range urls - 1 {
		k.store.Open(local.Engine{No: uint32(u + 1), URL: url(u), Base: "m"}, 0).Mark(index.Exact)
	}
	k.l = New(now, k.store, &prefix.Costs{}, Limits{Resync: 300 * time.Millisecond})
	step := func(faults, busy bool) {
		now = now.Add(tick)
		k.faults = faults
		var published [][]byte
		switch {
		case m.up && faults && rng.IntN(4000) == 0:
			m.die(now)
		case !m.up && !now.Before(m.upAt):
			m.up = true
		}
		if m.up && busy && rng.IntN(10) == 0 {
			published = append(published, m.publish())
		}
		for u := range urls {
			if d, n := m.depth(u), len(m.past[u]); n == 0 || m.past[u][n-1].depth != d {
				m.past[u] = append(m.past[u], timed{now, d})
			}
		}
		k.tick(now, m, published)
		for u := range urls - 1 {
			checkPast(t, k, m, u, now)
		}
		k.store.Sweep(100)
	}
	for range 20_000 {
		step(true, now.Unix()%7 < 5)
	}
	for range 4_000 {
		step(false, true)
	}
	for range 400 {
		step(false, false)
	}
	for u := range urls - 1 {
		if got, want := k.seen(u), m.depth(u); got != want {
			t.Fatalf("at rest: engine %d has %v, want %v: %+v", u, got, want, k.l.Status())
		}
	}
	s := k.l.Status()
	if !s.Stream.Whole || s.Stream.State != stream.Exact || s.CutOff != NoExcess {
		t.Fatalf("at rest: %+v", s)
	}
	checkCounts(t, m, s)
	t.Logf("keeps %d: %+v; %+v", keeps, s.Stream.Counts, s.Counts)
}

// checkPast holds that nobody is credited with more than what was true lately.
func checkPast(t *testing.T, k *link, m *truth, u int, now time.Time) {
	got := k.seen(u)
	past := m.past[u]
	for len(past) > 1 && now.Sub(past[1].at) > bound {
		past = past[1:]
	}
	m.past[u] = past
	var most prefix.Depth
	for _, p := range past {
		most = most.Deeper(p.depth)
	}
	if got.Deeper(most) != most {
		t.Fatalf("%v: engine %d is credited with %v, and had %v at most: %+v", now.Sub(began), u, got, most, k.l.Status())
	}
}

func checkCounts(t *testing.T, m *truth, s Status) {
	claims := 0
	for ns := range spaces {
		for _, media := range m.held[ns] {
			for x := managerwire.CPU; x <= managerwire.External; x++ {
				if media.Has(x) {
					claims++
				}
			}
		}
	}
	if s.Claims != claims {
		t.Errorf("%d claims are counted, there are %d", s.Claims, claims)
	}
}
