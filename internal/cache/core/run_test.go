package core

import (
	"slices"
	"testing"

	"github.com/perigee-llm/perigee/internal/script"
)

// runPair is two cores that are told the same: one a run in one message, the other block by block.
type runPair struct {
	t    *testing.T
	now  Time
	one  [2]*Core
	op   [2]uint64
	next uint64
}

var runSession = SessionID{1, 1}

func newRunPair(t *testing.T, parts int, shares bool) *runPair {
	p := &runPair{t: t}
	for i := range p.one {
		cfg := Config{Epoch: 1, Secret: 7}
		if shares {
			cfg.Scopes = map[Scope]ScopeBudget{1: {Share: 300}, 2: {Share: 900}, 3: {Resident: 1200}}
		}
		p.one[i] = New(cfg, nil)
		layout := Group{PartBytes: make([]uint32, parts)}
		for j := range layout.PartBytes {
			layout.PartBytes[j] = 10
		}
		p.one[i].Step(0, &Register{Session: runSession, Instance: "a", Layout: []Group{layout}, Arenas: []Arena{{0, 250, 10}}}, nil)
	}
	return p
}

// publish publishes and seals blocks, in messages of at most so many, and returns which went for them and which slots they got.
func (p *runPair) publish(i int, scope Scope, blocks []Block, parts, most int) (gone []Hash, slots []SlotRef) {
	c := p.one[i]
	var seal []SealedSlot
	for part := range uint32(parts) {
		full := false // nothing goes for what continues a block without room
		for run := range slices.Chunk(blocks, most) {
			if full {
				break
			}
			p.op[i]++
			for _, a := range c.Step(p.now, &Publish{Session: runSession, Op: p.op[i], Part: part, Scope: scope, Blocks: run}, nil) {
				switch a := a.(type) {
				case *Removed:
					gone = append(gone, a.Hash)
				case Granted:
					for _, b := range a.Blocks {
						full = full || b.Disposition == NoRoom
						if b.Disposition == Write {
							seal, slots = append(seal, SealedSlot{Slot: b.Slot}), append(slots, b.Slot)
						}
					}
				case Refused:
					p.t.Fatalf("%+v", a)
				}
			}
		}
	}
	c.Step(p.now, &SealedRun{Session: runSession, Slots: seal}, nil)
	if wrong := c.Check(); wrong != "" {
		p.t.Fatal(wrong)
	}
	return gone, slots
}

// TestRoomAhead: room that is made for a run at once is made at the same blocks' expense as for one block after the other, also where tenants have
// shares and bounds; and the run then lies in a row.
func TestRoomAhead(t *testing.T) {
	r := script.Rand(t)
	for range 60 {
		parts, shares := 1+r.IntN(2), r.IntN(2) == 0
		p := newRunPair(t, parts, shares)
		var all []Block
		rows, last := 0, 0
		for range 40 {
			p.now += Time(1+r.IntN(20)) * 1e9
			scope := Scope(r.IntN(4))
			var run []Block
			if len(all) > 0 && r.IntN(3) == 0 { // it begins with blocks that were published once
				run = append(run, all[max(0, len(all)-r.IntN(60)):]...)
			}
			for n := 1 + r.IntN(120/parts); n > 0; n-- {
				p.next++
				b := Block{Hash: numbered(p.next)}
				if len(run) > 0 {
					b.Parent = run[len(run)-1].Hash
				}
				run = append(run, b)
			}
			all = run
			gone, slots := p.publish(0, scope, run, parts, len(run))
			want, _ := p.publish(1, scope, run, parts, 1)
			if !slices.Equal(gone, want) {
				t.Fatalf("%d parts: for a run of %d blocks of tenant %d went %d blocks, and one by one %d", parts, len(run), scope, len(gone), len(want))
			}
			for i := 1; i < len(slots); i++ {
				if last++; slots[i].Index == slots[i-1].Index+uint32(parts) {
					rows++
				}
			}
		}
		if !shares && rows*10 < last*8 {
			t.Errorf("%d parts: %d of %d blocks lie behind the one that they continue", parts, rows, last)
		}
	}
}

// TestLongChains: who continues a chain that fills all of his arena is told that there is no room, without a look at all of the chain; and where it lies in several tenants' lanes, with a
// look at so much of it and no more.
func TestLongChains(t *testing.T) {
	const slots = 2*mostSpared + 1000
	for _, tenants := range []Scope{1, 2} {
		c := New(Config{Epoch: 1, Scopes: map[Scope]ScopeBudget{1: {}, 2: {}}}, nil)
		c.Step(0, &Register{Session: runSession, Instance: "a", Layout: []Group{{PartBytes: []uint32{10}}}, Arenas: []Arena{{0, slots, 10}}}, nil)
		op, last := uint64(0), Hash{}
		publish := func(n int) (there, none int) {
			var seal []SealedSlot
			op++
			run := make([]Block, n)
			for i := range run {
				run[i] = Block{Hash: numbered(op<<32 | uint64(i+1)), Parent: last}
				last = run[i].Hash
			}
			for _, a := range c.Step(0, &Publish{Session: runSession, Op: op, Scope: 1 + Scope(op)%tenants, Blocks: run}, nil) {
				if g, ok := a.(Granted); ok {
					for _, b := range g.Blocks {
						switch b.Disposition {
						case Write:
							seal = append(seal, SealedSlot{Slot: b.Slot})
						case NoRoom:
							none++
						}
					}
				}
			}
			c.Step(0, &SealedRun{Session: runSession, Slots: seal}, nil)
			return len(seal), none
		}
		for left := slots; left > 0; {
			n := min(left, 1000)
			if got, _ := publish(n); got != n {
				t.Fatalf("%d blocks of %d were published", got, n)
			}
			left -= n
		}
		tail := last
		for range 2 {
			last = tail
			if _, none := publish(4); tenants == 1 && none != 4 {
				t.Errorf("behind all that there is: %d blocks without room", none)
			}
		}
		// What was held for a step is listed there.
		if n := cap(c.spared); tenants == 1 && n > 0 || n > 3*mostSpared/2 {
			t.Errorf("%d tenants: room for %d blocks that were spared", tenants, n)
		}
		if wrong := c.Check(); wrong != "" {
			t.Error(wrong)
		}
	}
}
