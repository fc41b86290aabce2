package core

import (
	"encoding/binary"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"
)

// fullPool is a core whose arenas hold blocks in chains of 32, with all slots taken.
type fullPool struct {
	c        *Core
	sessions []SessionID
	now      Time
	next     uint64
	last     []Hash // of each session
	out      []Action
	publish  Publish
	seal     Sealed
	ops      []uint64
}

func numbered(n uint64) (h Hash) {
	binary.LittleEndian.PutUint64(h[:], n*0x9e3779b97f4a7c15)
	binary.LittleEndian.PutUint64(h[24:], n)
	return h
}

func newFullPool(sessions, blocks int) *fullPool {
	p := &fullPool{c: New(Config{Epoch: 1}, nil), last: make([]Hash, sessions), ops: make([]uint64, sessions)}
	p.publish.Blocks = make([]Block, 1)
	for i := range sessions {
		id := SessionID{1, uint32(i + 1)}
		p.c.Step(0, &Register{
			Session: id, Instance: string(rune('A' + i)), Layout: []Group{{PartBytes: []uint32{4096}}},
			Arenas: []Arena{{uint32(i), uint32(blocks / sessions), 4096}},
		}, nil)
		p.sessions = append(p.sessions, id)
	}
	for range blocks {
		p.insert()
	}
	return p
}

// insert publishes one block, which sends one away when the pool is full.
func (p *fullPool) insert() {
	p.next++
	i := int(p.next) % len(p.sessions)
	p.now += 100 * time.Microsecond
	h := numbered(p.next)
	parent := p.last[i]
	if p.next/uint64(len(p.sessions))%32 == 0 {
		parent = Hash{}
	}
	p.ops[i]++
	p.c.Recycle()
	p.publish.Session, p.publish.Op = p.sessions[i], p.ops[i]
	p.publish.Blocks[0] = Block{Hash: h, Parent: parent}
	p.out = p.c.Step(p.now, &p.publish, p.out[:0])
	var g Granted
	for _, a := range p.out {
		if a, ok := a.(Granted); ok {
			g = a
		}
	}
	if g.Blocks[0].Disposition != Write {
		panic("no room")
	}
	p.seal = Sealed{p.sessions[i], g.Blocks[0].Slot, p.next}
	p.out = p.c.Step(p.now, &p.seal, p.out[:0])
	p.last[i] = h
}

// cpuTime reports the processor's time beside the clock's: on a machine that others use it is the one that says something.
func cpuTime(b *testing.B) func() {
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	start := used()
	b.ResetTimer()
	return func() { b.ReportMetric(float64(used()-start)/float64(b.N), "cpu-ns/op") }
}

// BenchmarkInsert is a publish of one block with the eviction that it needs, and its seal, through Step: with 100,000 blocks
// in memory and 64 sessions.
func BenchmarkInsert(b *testing.B) {
	p := newFullPool(64, 100_000)
	b.ReportAllocs()
	defer cpuTime(b)()
	for range b.N {
		p.insert()
	}
}

// BenchmarkQuery is a query of 512 blocks that are all there, and the end of its lease.
func BenchmarkQuery(b *testing.B) {
	p := newFullPool(1, 100_000)
	for range 512 { // one chain
		p.publish.Blocks[0].Parent = p.last[0]
		p.insert()
	}
	e := &Query{Session: p.sessions[0], Mode: Prefix, Consumers: 1, Demand: []Want{{0, nil}}}
	for i := range 512 {
		e.Demand[0].Hashes = append(e.Demand[0].Hashes, numbered(p.next-511+uint64(i)))
	}
	b.ReportAllocs()
	defer cpuTime(b)()
	for i := range b.N {
		e.Ticket = Ticket{uint64(i + 1), 1}
		p.out = p.c.Step(p.now, e, p.out[:0])
		r := p.out[0].(Ready)
		p.out = p.c.Step(p.now, &Release{p.sessions[0], r.Lease}, p.out[:0])
	}
}

// BenchmarkFetch is a fetch of 128 blocks that are all there, in two pieces each, and its end.
func BenchmarkFetch(b *testing.B) {
	p := newFullPool(1, 100_000)
	for range 128 { // one chain
		p.publish.Blocks[0].Parent = p.last[0]
		p.insert()
	}
	p.c.Step(p.now, &OfferPool{p.sessions[0], 1, 1 << 30, [2]uint64{1, 1}}, nil)
	e := &Fetch{Session: p.sessions[0]}
	for i := range uint64(128) {
		e.Hashes = append(e.Hashes, numbered(p.next-127+i))
		e.Pages.Counts = append(e.Pages.Counts, 2)
		e.Pages.Pieces = append(e.Pages.Pieces, Piece{1, 2048, 2048 * i}, Piece{1, 2048, 1<<20 + 2048*i})
	}
	b.ReportAllocs()
	defer cpuTime(b)()
	for range b.N {
		p.out = p.c.Step(p.now, e, p.out[:0])
		p.out = p.c.Step(p.now, &OutDone{Copy: p.out[0].(CopyOut).Copy, Good: 128}, p.out[:0])
	}
}

// TestMemory holds the bytes that a block costs outside of the pool.
func TestMemory(t *testing.T) {
	const blocks = 100_000
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	p := newFullPool(64, blocks)
	runtime.GC()
	runtime.ReadMemStats(&after)
	per := float64(after.HeapAlloc-before.HeapAlloc) / blocks
	t.Logf("%.0f bytes a block", per)
	if per > 140 {
		t.Errorf("%.0f bytes a block, at most 140", per)
	}
	runtime.KeepAlive(p)
}

// BenchmarkRun publishes prompts of 512 blocks into a full pool of 16,384, and seals them, after as many pages as the core's cache holds have passed
// through it: as where 16 KiB pages are published. The metric is what a block takes, by the median and by the best, which is what a busy machine leaves of it.
func BenchmarkRun(b *testing.B) {
	const blocks = 512
	p := newFullPool(1, 16384)
	run := &Publish{Session: p.sessions[0], Blocks: make([]Block, blocks)}
	seal := &SealedRun{Session: p.sessions[0]}
	flood := make([]byte, 16<<20)
	var took, sealing []time.Duration
	for b.Loop() {
		for i := range flood {
			flood[i]++
		}
		p.ops[0]++
		p.c.Recycle()
		run.Op = p.ops[0]
		parent := Hash{}
		for i := range run.Blocks {
			p.next++
			run.Blocks[i] = Block{Hash: numbered(p.next), Parent: parent}
			parent = run.Blocks[i].Hash
		}
		p.now += time.Millisecond
		began := time.Now()
		p.out = p.c.Step(p.now, run, p.out[:0])
		took = append(took, time.Since(began))
		seal.Slots = seal.Slots[:0]
		for _, a := range p.out {
			if g, ok := a.(Granted); ok {
				for _, one := range g.Blocks {
					seal.Slots = append(seal.Slots, SealedSlot{Slot: one.Slot})
				}
			}
		}
		began = time.Now()
		p.out = p.c.Step(p.now, seal, p.out[:0])
		sealing = append(sealing, time.Since(began))
	}
	for name, d := range map[string][]time.Duration{"publish": took, "seal": sealing} {
		slices.Sort(d)
		b.ReportMetric(float64(d[len(d)/2])/blocks, "ns/"+name)
		b.ReportMetric(float64(d[0])/blocks, "best-ns/"+name)
	}
}
