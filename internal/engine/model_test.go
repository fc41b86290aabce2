package engine

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/script"
)

// naivePool is the pool's contract in the plainest form: the order of free blocks is a slice, a look-up walks the chain.
type naivePool struct {
	hash map[int32]BlockHash // of cached blocks
	refs map[int32]int
	free []int32 // next to be taken first
}

func (m *naivePool) find(h BlockHash) int32 {
	for b, x := range m.hash {
		if x == h {
			return b
		}
	}
	return none
}

func (m *naivePool) match(chain []BlockHash) int {
	for i, h := range chain {
		if m.find(h) == none {
			return i
		}
	}
	return len(chain)
}

func (m *naivePool) take(b int32) {
	m.free = slices.DeleteFunc(m.free, func(x int32) bool { return x == b })
	m.refs[b]++
}

func (m *naivePool) release(b int32) {
	if m.refs[b]--; m.refs[b] > 0 {
		return
	}
	if _, cached := m.hash[b]; cached {
		m.free = append(m.free, b)
	} else {
		m.free = slices.Insert(m.free, 0, b)
	}
}

// holder is what a sequence does with the pool: it matches, fills up, and releases from the back.
type holder struct {
	chain  []BlockHash
	blocks []int32
}

func TestPoolAgainstModel(t *testing.T) {
	rng := script.Rand(t)
	for range 40 {
		n := 1 + rng.IntN(24)
		p, m := newPool(n, 8), &naivePool{hash: map[int32]BlockHash{}, refs: map[int32]int{}}
		for b := range n {
			m.free = append(m.free, int32(b))
		}
		var holders []*holder
		for range 400 {
			if len(holders) == 0 || rng.IntN(3) > 0 {
				if h := admitRandom(t, rng, p, m); h != nil {
					holders = append(holders, h)
				}
			} else {
				i := rng.IntN(len(holders))
				for _, b := range slices.Backward(holders[i].blocks) {
					p.release(b)
					m.release(b)
				}
				holders = slices.Delete(holders, i, i+1)
			}
			comparePools(t, p, m)
		}
		for _, h := range holders {
			for _, b := range slices.Backward(h.blocks) {
				p.release(b)
			}
		}
		if p.free != n || !p.reset() || len(p.index) != 0 {
			t.Fatalf("at rest %d of %d blocks are free", p.free, n)
		}
	}
}

// admitRandom runs one chain through both pools: few distinct tokens, so that chains share prefixes and meet duplicates.
func admitRandom(t *testing.T, rng *rand.Rand, p *pool, m *naivePool) *holder {
	h := &holder{}
	parent := rootHash("", "")
	for range rng.IntN(7) {
		parent = parent.next([]uint32{uint32(rng.IntN(3))})
		h.chain = append(h.chain, parent)
	}
	hit := p.match(h.chain)
	if want := m.match(h.chain); hit != want {
		t.Fatalf("match = %d, want %d", hit, want)
	}
	// Another sequence may store part of the chain between this one's look-up and its commit.
	if rng.IntN(3) == 0 {
		hit = rng.IntN(hit + 1)
	}
	for _, x := range h.chain[:hit] {
		b := p.acquire(x)
		m.take(b)
		if m.hash[b] != x {
			t.Fatalf("acquired block %d, which does not hold the hash", b)
		}
		h.blocks = append(h.blocks, b)
	}
	for _, x := range h.chain[hit:] {
		b, evicted, was, ok := p.alloc()
		if ok != (len(m.free) > 0) {
			t.Fatalf("alloc ok = %t with %d free", ok, len(m.free))
		}
		if !ok {
			break
		}
		want := m.free[0]
		if old, cached := m.hash[want]; b != want || was != cached || evicted != old {
			t.Fatalf("alloc = block %d (evicts %v, %t), want %d (%v, %t)", b, evicted, was, want, old, cached)
		}
		delete(m.hash, want)
		m.take(want)
		held, _ := p.commit(b, x)
		if other := m.find(x); other != none {
			m.release(b)
			m.take(other)
			b = other
		}
		m.hash[b] = x
		if held != b {
			t.Fatalf("commit = block %d, want %d", held, b)
		}
		h.blocks = append(h.blocks, held)
	}
	return h
}

func comparePools(t *testing.T, p *pool, m *naivePool) {
	t.Helper()
	var order []int32
	for b := p.head; b != none; b = p.blocks[b].next {
		order = append(order, b)
	}
	if !slices.Equal(order, m.free) || p.free != len(m.free) || len(p.index) != len(m.hash) {
		t.Fatalf("free list %v (%d), want %v; %d cached, want %d", order, p.free, m.free, len(p.index), len(m.hash))
	}
	for b, h := range m.hash {
		if p.index[h] != b || !p.intact(b) {
			t.Fatalf("block %d is not what it should hold", b)
		}
	}
}

// TestCoreComesToRest throws random submits, aborts and looks at the clock at a small engine, and checks at each turn that its books
// balance, and in the end that every accepted request has ended and every block is free.
func TestCoreComesToRest(t *testing.T) {
	rng := script.Rand(t)
	for range 60 {
		c, err := New(Config{
			BlockSize: 1 + rng.IntN(5), KVBlocks: 10 + rng.IntN(40), MaxRunning: 1 + rng.IntN(6), MaxWaiting: 1 + rng.IntN(10),
			MaxBatchTokens: 6 + rng.IntN(30), PageBytes: rng.IntN(2) * 16, KVEvents: true, Restore: rng.IntN(2) == 0,
			Timing: Timing{StepFixed: time.Millisecond, PrefillPerToken: time.Microsecond},
		})
		if err != nil {
			t.Fatal(err)
		}
		d := &restDriver{
			c: c, rng: rng, open: map[ID]int{}, cached: map[BlockHash]BlockHash{}, lookups: map[ID]int{}, restores: map[ID]*Wanted{}, held: map[ID][]int32{},
		}
		for id := range ID(150) {
			d.now += time.Duration(rng.IntN(3000)) * time.Microsecond
			r := Request{ID: id, Prompt: randomPrompt(rng), MaxTokens: 1 + rng.IntN(12)}
			if c.Submit(d.now, r) == nil {
				d.open[id] = r.MaxTokens
			}
			if rng.IntN(4) == 0 {
				victim := ID(rng.IntN(int(id) + 1))
				if c.Abort(d.now, victim) {
					d.take(t, c.Advance(d.now, nil)) // its last tokens may be on the way
					delete(d.open, victim)
				}
			}
			if rng.IntN(2) == 0 {
				d.take(t, c.Advance(d.now, nil))
			}
			if rng.IntN(3) == 0 {
				d.answer(t)
			}
			d.check(t)
		}
		for {
			at, ok := c.Next()
			if !ok && d.answer(t) {
				continue
			}
			if !ok {
				break
			}
			d.now = max(d.now, at)
			d.take(t, c.Advance(d.now, nil))
			d.check(t)
			if rng.IntN(4) == 0 {
				d.answer(t)
			}
		}
		if l := c.Load(); len(d.open) != 0 || l.Running+l.Waiting+l.UsedTokens+l.TotalTokens+l.Restoring+len(c.orphans) != 0 || c.pool.free != c.cfg.KVBlocks {
			t.Fatalf("at rest: requests %v have not ended; %+v; %d blocks free of %d", d.open, l, c.pool.free, c.cfg.KVBlocks)
		}
		if l := c.Load(); l.CachedBlocks != len(d.cached) {
			t.Fatalf("%d blocks are cached, the events say %d", l.CachedBlocks, len(d.cached))
		}
	}
}

func randomPrompt(rng *rand.Rand) []uint32 {
	p := make([]uint32, 1+rng.IntN(40))
	shared := rng.IntN(len(p) + 1) // a common prefix, then tokens of its own
	for i := range p {
		if p[i] = uint32(i); i >= shared {
			p[i] = rng.Uint32()
		}
	}
	return p
}

// restDriver follows the actions: which requests are open, with how many tokens to come, and what the events say is cached.
type restDriver struct {
	c      *Core
	rng    *rand.Rand
	now    time.Duration
	open   map[ID]int
	cached map[BlockHash]BlockHash // to its parent

	lookups  map[ID]int     // blocks that were asked for, not yet answered
	restores map[ID]*Wanted // not yet answered
	held     map[ID][]int32 // the blocks of the pages that the driver may write to
}

// answer answers one lookup or restore, if there is one: all, part or nothing of it. In pages that are not named as restored there is anything.
func (d *restDriver) answer(t *testing.T) bool {
	if ids := slices.Sorted(maps.Keys(d.lookups)); len(ids) > 0 {
		id, n := ids[0], d.lookups[ids[0]]
		delete(d.lookups, id)
		d.c.Found(d.now, id, d.rng.IntN(n+2))
		return true
	}
	if ids := slices.Sorted(maps.Keys(d.restores)); len(ids) > 0 {
		id, w := ids[0], d.restores[ids[0]]
		delete(d.restores, id)
		delete(d.held, id)
		n := d.rng.IntN(len(w.Hashes) + 1)
		for i, p := range w.Pages {
			if w.Hashes[i].Fill(p); i >= n {
				p[0] ^= 1
			}
		}
		if !d.c.Restored(d.now, id, n) {
			t.Fatalf("request %d: nobody knows of its restore", id)
		}
		if d.c.Restored(d.now, id, n) {
			t.Fatalf("request %d was restored twice", id)
		}
		return true
	}
	return false
}

// note takes down what a Lookup or a Restore asks for.
func (d *restDriver) note(t *testing.T, a Action) {
	w := a.Wanted
	if len(w.Hashes) == 0 || a.Kind == Restore && d.c.cfg.PageBytes > 0 && len(w.Pages) != len(w.Hashes) {
		t.Fatalf("request %d wants %d hashes, %d pages", a.ID, len(w.Hashes), len(w.Pages))
	}
	if a.Kind == Lookup {
		d.lookups[a.ID] = len(w.Hashes)
		return
	}
	d.restores[a.ID] = w
	for _, s := range append(slices.Clone(d.c.restoring), d.c.orphans[a.ID]) {
		if s != nil && s.req.ID == a.ID {
			d.held[a.ID] = slices.Clone(s.blocks[w.First : w.First+len(w.Hashes)])
		}
	}
}

func (d *restDriver) take(t *testing.T, actions []Action) {
	t.Helper()
	last := time.Duration(0)
	for _, a := range actions {
		if a.At < last || a.At > d.now {
			t.Fatalf("an action at %v after one at %v, now %v", a.At, last, d.now)
		}
		last = a.At
		switch a.Kind {
		case Token:
			if _, ok := d.open[a.ID]; !ok {
				continue // aborted meanwhile
			}
			if d.open[a.ID]--; (d.open[a.ID] == 0) != (a.Reason == ReasonLength) {
				t.Fatalf("request %d: token %d says %d with %d to come", a.ID, a.Index, a.Reason, d.open[a.ID])
			}
			if a.Reason == ReasonLength {
				delete(d.open, a.ID)
			}
		case Ended:
			t.Fatalf("request %d ended with %d", a.ID, a.Reason)
		case KV:
			d.takeEvent(t, a.Event)
		case Lookup, Restore:
			d.note(t, a)
		}
	}
}

// takeEvent holds the promise that a cached block's parent is cached, as an index that follows the events sees it.
func (d *restDriver) takeEvent(t *testing.T, e *KVEvent) {
	t.Helper()
	parent := e.Parent
	for _, h := range e.Hashes {
		if e.Kind == BlockStored {
			if _, ok := d.cached[parent]; parent != (BlockHash{}) && !ok {
				t.Fatal("a block was stored whose parent is not cached")
			}
			d.cached[h] = parent
			parent = h
			continue
		}
		delete(d.cached, h)
		for _, p := range d.cached {
			if p == h {
				t.Fatal("a block was removed before its child")
			}
		}
	}
}

func (d *restDriver) check(t *testing.T) {
	t.Helper()
	held := map[int32]int32{}
	for id, blocks := range d.held {
		for _, b := range blocks {
			if k := d.c.pool.blocks[b]; k.refs != 1 || k.cached {
				t.Fatalf("request %d: a page that the driver may write to has %d holders, cached %t", id, k.refs, k.cached)
			}
		}
	}
	var all []*sequence
	for _, s := range d.c.orphans {
		all = append(all, s)
	}
	for _, s := range slices.Concat(d.c.running, d.c.restoring, all) {
		if s.computed > len(s.blocks)*d.c.cfg.BlockSize || s.stored > len(s.blocks) {
			t.Fatalf("request %d computed %d tokens in %d blocks", s.req.ID, s.computed, len(s.blocks))
		}
		for _, b := range s.blocks {
			held[b]++
		}
	}
	for b := range d.c.pool.blocks {
		if got := d.c.pool.blocks[b].refs; got != held[int32(b)] {
			t.Fatalf("block %d counts %d holders, %d sequences hold it", b, got, held[int32(b)])
		}
	}
	if l := d.c.Load(); l.Running > d.c.cfg.MaxRunning || l.UsedTokens > l.CapacityTokens || l.WaitingUncachedTokens < 0 {
		t.Fatalf("%+v", l)
	}
}

// TestAnswersDoNotDependOnTheBatch: the tokens of an answer follow from seed, adapter and prompt alone, whatever was cached or preempted.
func TestAnswersDoNotDependOnTheBatch(t *testing.T) {
	prompt := promptOf("0:50")
	var salt, lora string
	answer := func(cfg Config, others int) (out []uint32, preempted int64) {
		c, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		for i := range others {
			if err := c.Submit(0, Request{ID: ID(i), Prompt: promptOf("0:20"), MaxTokens: 30}); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Submit(0, Request{ID: 99, Prompt: prompt, MaxTokens: 20, Salt: salt, LoRA: lora}); err != nil {
			t.Fatal(err)
		}
		for at, ok := c.Next(); ok; at, ok = c.Next() {
			for _, a := range c.Advance(at, nil) {
				if a.ID == 99 && a.Kind == Token {
					out = append(out, a.Token)
				}
			}
		}
		return out, c.Load().Preemptions
	}
	alone, _ := answer(Config{}, 0)
	crowded, preempted := answer(Config{BlockSize: 4, KVBlocks: 24, MaxBatchTokens: 16, MaxRunning: 8}, 5)
	if preempted == 0 {
		t.Error("the crowded engine did not preempt: the test shows too little")
	}
	if !slices.Equal(alone, crowded) {
		t.Errorf("alone %v, in a crowd %v", alone, crowded)
	}
	if other, _ := answer(Config{Seed: 1}, 0); slices.Equal(alone, other) {
		t.Error("another seed gives the same answer")
	}
	salt = "tenant"
	if other, _ := answer(Config{}, 0); !slices.Equal(alone, other) {
		t.Error("a salt changes the answer")
	}
	lora = "adapter"
	if other, _ := answer(Config{}, 0); slices.Equal(alone, other) {
		t.Error("an adapter gives the same answer")
	}
}

// TestFreeStepsEnd: an engine whose steps cost nothing still takes time, or Advance would never return to its caller's clock.
func TestFreeStepsEnd(t *testing.T) {
	c, err := New(Config{Timing: Timing{StepFixed: -1, PrefillPerToken: -1, DecodePerSeq: -1, PerKVToken: -1}})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Submit(0, Request{Prompt: promptOf("0:10"), MaxTokens: 1000}); err != nil {
		t.Fatal(err)
	}
	if n := len(c.Advance(10, nil)); n != 11 { // admitted, and a token in each nanosecond
		t.Errorf("%d actions in 10 ns, want 11", n)
	}
}
