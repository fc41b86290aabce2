package stream

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/script"
)

// The simulation has one publisher and two gateways, each with its own network that loses, breaks and is slow. An oracle knows when the
// engine held what. Held against it:
//
//   - a claim that is seen was true within the last second, and what a message takes;
//   - when all is quiet, each stream is exact, its claims are true, and where they are whole they are all;
//   - each batch that went in came out once.

const (
	bound = time.Second + 60*time.Millisecond // and the network's latency, of a batch that was lost on its way and of a question
	tick  = time.Millisecond
)

// change is what a batch says: a block stored, a block removed (below 0), or everything gone (0).
type change int

type simBatch struct {
	seq     int64
	process uint64
	changes []change
}

// publisher is the engine.
type publisher struct {
	rng      *rand.Rand
	process  uint64
	seq      int64
	up       bool
	downTill time.Time
	minDown  time.Duration
	buffer   []simBatch
	size     int
	held     map[int]bool
	lostAt   map[int]time.Time // when a block was last taken away
}

func (p *publisher) publish(now time.Time) (simBatch, bool) {
	b := simBatch{seq: p.seq, process: p.process}
	for range 1 + p.rng.IntN(3) {
		switch r := p.rng.IntN(400); {
		case r == 0:
			b.changes = append(b.changes, 0)
			p.empty(now)
		case r < 220:
			x := 1 + p.rng.IntN(200)
			p.held[x] = true
			b.changes = append(b.changes, change(x))
		default:
			for x := range p.held {
				delete(p.held, x)
				p.lostAt[x] = now
				b.changes = append(b.changes, change(-x))
				break
			}
		}
	}
	p.seq++
	p.buffer = append(p.buffer, b)
	if len(p.buffer) > p.size {
		p.buffer = p.buffer[1:]
	}
	return b, true
}

func (p *publisher) empty(now time.Time) {
	for x := range p.held {
		p.lostAt[x] = now
	}
	clear(p.held)
}

func (p *publisher) die(now time.Time) {
	p.empty(now)
	p.up, p.downTill = false, now.Add(p.minDown+time.Duration(p.rng.IntN(8000))*time.Millisecond)
	p.process, p.seq, p.buffer = p.process+1, 0, nil
}

// gateway is a machine, its network, and what is claimed.
type gateway struct {
	t       *testing.T
	rng     *rand.Rand
	m       *Machine
	drop    int // of 1,000 batches
	faults  bool
	in, out int

	connected   bool
	connectAt   time.Time
	wire        []arriving // live, in order
	answer      []arriving // of the replay, in order
	claims      map[int]bool
	trust       Trust
	byPrint     map[uint64]simBatch
	asked       uint64
	deliveredAt time.Time
}

type arriving struct {
	at   time.Time
	b    simBatch
	kind InputKind
}

func (g *gateway) batch(b simBatch) Batch {
	print := b.process<<32 | uint64(b.seq)
	g.byPrint[print] = b
	g.in++
	return Batch{Seq: b.seq, Print: print, Payload: []byte{1}}
}

func (g *gateway) step(now time.Time, p *publisher, in Input) {
	if in.Kind != Tick {
		g.check(now, p)
	}
	for _, a := range g.m.Step(now, in) {
		g.act(now, p, a)
	}
}

func (g *gateway) act(now time.Time, p *publisher, a Action) {
	switch a.Kind {
	case Apply:
		g.out++
		o := Plain
		for _, c := range g.byPrint[a.Batch.Print].changes {
			switch {
			case c == 0:
				clear(g.claims)
				o = Emptied
			case c > 0:
				g.claims[int(c)] = true
			default:
				delete(g.claims, -int(c))
			}
		}
		for range g.m.Applied(now, o) {
			g.trust = g.m.Trust()
		}
	case Drop:
		g.out++
	case Mark, Hide:
		g.trust = g.m.Trust()
	case Doubt:
		clear(g.claims)
		g.trust = Partial
	case Withdraw:
		clear(g.claims)
		g.trust = Hidden
	case Hangup:
		g.answer, g.asked = nil, 0
	case Ask:
		g.ask(now, p, a)
	}
}

// ask has the publisher answer, with all that may go wrong.
func (g *gateway) ask(now time.Time, p *publisher, a Action) {
	if g.asked != 0 {
		g.t.Fatal("asked again without hanging up")
	}
	g.asked = a.Ask
	at := now.Add(time.Duration(1+g.rng.IntN(20)) * tick)
	fails := g.faults && !g.m.ask.probe && g.rng.IntN(4) == 0 // a probe that fails leaves nothing to be held against the machine
	if !p.up {
		g.answer = append(g.answer, arriving{at: at, kind: ReplayBroken})
		return
	}
	for _, b := range p.buffer {
		if b.seq < a.From {
			continue
		}
		if fails && g.rng.IntN(20) == 0 {
			if g.rng.IntN(2) == 0 {
				g.answer = append(g.answer, arriving{at: at, kind: ReplayBroken})
				return
			}
			if g.rng.IntN(4) == 0 {
				return // silence
			}
			if b.seq < p.seq-1 {
				continue // a hole; one before the marker, of a batch that was dropped live as well, shows with the next question only
			}
		}
		g.answer = append(g.answer, arriving{at: at, b: b, kind: Replayed})
	}
	g.answer = append(g.answer, arriving{at: at, kind: ReplayEnd})
}

func (g *gateway) tick(now time.Time, p *publisher, published []simBatch) {
	switch {
	case g.connected && (!p.up || g.faults && g.rng.IntN(8000) == 0):
		g.connected, g.wire = false, nil
		g.connectAt = now.Add(time.Duration(20+g.rng.IntN(2500)) * tick)
		g.step(now, p, Input{Kind: Broken, Heard: now})
	case !g.connected && p.up && !now.Before(g.connectAt):
		g.connected = true
		g.step(now, p, Input{Kind: Connected})
	}
	if g.connected {
		for _, b := range published {
			if g.rng.IntN(1000) >= g.drop {
				at := now.Add(time.Duration(1+g.rng.IntN(20)) * tick)
				if at.Before(g.deliveredAt) {
					at = g.deliveredAt
				}
				g.deliveredAt = at
				g.wire = append(g.wire, arriving{at: at, b: b, kind: Live})
			}
		}
	}
	for len(g.wire) > 0 && !g.wire[0].at.After(now) {
		a := g.wire[0]
		g.wire = g.wire[1:]
		if g.faults && g.drop > 0 && g.rng.IntN(500) == 0 {
			g.step(now, p, Input{Kind: Dropped}) // our own queue was full
			continue
		}
		g.step(now, p, Input{Kind: Live, Batch: g.batch(a.b)})
	}
	for len(g.answer) > 0 && !g.answer[0].at.After(now) {
		a := g.answer[0]
		g.answer = g.answer[1:]
		in := Input{Kind: a.kind, Ask: g.asked}
		if a.kind == Replayed {
			in.Batch = g.batch(a.b)
		} else {
			g.asked = 0
		}
		g.step(now, p, in)
	}
	if d := g.m.Deadline(); !d.IsZero() && !d.After(now) {
		g.step(now, p, Input{Kind: Tick})
	}
	g.check(now, p)
}

// check holds what is seen against the oracle.
func (g *gateway) check(now time.Time, p *publisher) {
	if g.trust == Hidden {
		return
	}
	for x := range g.claims {
		if p.held[x] {
			continue
		}
		if lost, ever := p.lostAt[x]; !ever || now.Sub(lost) > bound {
			g.t.Fatalf("%v: block %d is claimed (%v), and was lost %v ago: %+v", now.Sub(epoch), x, g.trust, now.Sub(lost), g.m.Status())
		}
	}
}

// atRest holds that everything is exact again.
func (g *gateway) atRest(now time.Time, p *publisher) {
	g.t.Helper()
	s := g.m.Status()
	if s.State != Exact || g.trust == Hidden || g.trust != g.m.Trust() {
		g.t.Fatalf("at rest: told %v, %+v", g.trust, s)
	}
	for x := range g.claims {
		if !p.held[x] {
			g.t.Fatalf("at rest: block %d is claimed: %+v", x, s)
		}
	}
	if g.trust == Whole && !maps.Equal(g.claims, p.held) {
		g.t.Fatalf("at rest, and whole: %d claims, %d are held: %+v", len(g.claims), len(p.held), s)
	}
	g.step(now, p, Input{Kind: Closed})
	if g.in != g.out {
		g.t.Fatalf("%d batches went in, %d came out", g.in, g.out)
	}
}

// simCase is a kind of network and engine.
type simCase struct {
	name   string
	replay bool
	buffer int
	drop   int // of 1,000
	down   time.Duration
	spell  int // ms that it is quiet or busy at a time, on the average
	lone   int // ms between two batches while it is quiet, on the average; 0: there are none
}

func TestSimulation(t *testing.T) {
	for _, c := range []simCase{
		{name: "long buffer", replay: true, buffer: 10000, drop: 20, spell: 3000},
		{name: "short buffer", replay: true, buffer: 20, drop: 50, spell: 3000},
		{name: "calm", replay: true, buffer: 1000, spell: 3000},
		// What the limits are for that are shipped: a removal that is lost long after anything was heard, and nothing behind it.
		{name: "mostly quiet", replay: true, buffer: 1000, drop: 300, spell: 20_000, lone: 4000},
		// A loss that nothing shows cannot be held against it, nor a process that is back at once.
		{name: "no replay", down: 5100 * time.Millisecond, spell: 3000},
	} {
		t.Run(c.name, func(t *testing.T) {
			rng := script.Rand(t)
			for range 3 {
				simulate(t, rand.New(rand.NewPCG(rng.Uint64(), 0)), &c)
			}
		})
	}
}

func simulate(t *testing.T, rng *rand.Rand, c *simCase) {
	now := epoch
	p := &publisher{rng: rng, up: true, size: c.buffer, held: map[int]bool{}, lostAt: map[int]time.Time{}, minDown: c.down}
	var gates []*gateway
	for range 2 {
		gates = append(gates, &gateway{
			t: t, rng: rng, drop: c.drop, faults: true, claims: map[int]bool{}, byPrint: map[uint64]simBatch{},
			connectAt: now.Add(time.Duration(rng.IntN(5000)) * tick),
			m:         New(now, c.replay, Limits{Held: 30}),
		})
	}
	busy := true
	step := func(faults bool) {
		now = now.Add(tick)
		var published []simBatch
		switch {
		case p.up && faults && rng.IntN(20000) == 0:
			p.die(now)
		case !p.up && !now.Before(p.downTill):
			p.up = true
		}
		if rng.IntN(c.spell) == 0 {
			busy = !busy // seconds without a batch, or with few
		}
		for p.up && (busy && rng.IntN(20) == 0 || !busy && c.lone > 0 && rng.IntN(c.lone) == 0 || !faults && rng.IntN(1000) == 0) {
			if b, ok := p.publish(now); ok {
				published = append(published, b)
			}
		}
		for _, g := range gates {
			g.faults = faults
			if !faults {
				g.drop = 0
			}
			g.tick(now, p, published)
		}
	}
	for range 60_000 {
		step(true)
	}
	for range 20_000 {
		step(false)
	}
	busy = false
	for range 2_000 { // what is under way arrives
		now = now.Add(tick)
		for _, g := range gates {
			g.tick(now, p, nil)
		}
	}
	for _, g := range gates {
		g.atRest(now, p)
	}
	if a, b := gates[0], gates[1]; a.trust == Whole && b.trust == Whole && !maps.Equal(a.claims, b.claims) {
		t.Fatal("two gateways differ")
	}
	t.Log(fmt.Sprintf("%+v", gates[0].m.Status().Counts), gates[0].trust, gates[1].trust)
}
