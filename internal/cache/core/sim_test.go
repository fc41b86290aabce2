package core

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/perigee-llm/perigee/internal/cache/planning"
	"github.com/perigee-llm/perigee/internal/cache/storage/dram"
	"github.com/perigee-llm/perigee/internal/script"
)

// TestSimulation lets random clients that die, hang, repeat, lie and restart use a core, and holds what it does against the model.
func TestSimulation(t *testing.T) {
	r := script.Rand(t)
	n := histories
	if testing.Short() {
		n = 200
	}
	var sum tally
	for i := range n {
		seed := r.Uint64()
		s := history(t, seed, &sum)
		if t.Failed() {
			t.Fatalf("history %d:\n%s", seed, s.tail())
		}
		if i%20 == 0 && s.tail() != history(t, seed, &sum).tail() {
			t.Fatalf("history %d is another one the second time", seed)
		}
	}
	t.Logf("%+v", sum)
	if sum.Retired == 0 || sum.Emptied == 0 || sum.Restored == 0 || sum.Shared == 0 || sum.Evicted == 0 || sum.Stale == 0 || sum.Busy == 0 || sum.Waited == 0 || sum.Zombie == 0 || sum.Mismatch == 0 || sum.Closed == 0 || sum.Collected == 0 ||
		sum.Filled == 0 || sum.Poured == 0 || sum.Late == 0 || sum.Kept[bySession] == 0 || sum.Kept[byScope] == 0 || sum.Kept[byTotal] == 0 || sum.Speculative == 0 || sum.Below == 0 || sum.Unserved == 0 || sum.Fetched == 0 || sum.Hurried == 0 || sum.Last == 0 || sum.Named == 0 {
		t.Errorf("the histories leave out something: %+v", sum)
	}
}

// history is one, to its end or its first fault.
func history(t *testing.T, seed uint64, sum *tally) *sim {
	s := newSim(t, seed, sum)
	for i := 0; i < 250 && !t.Failed(); i++ {
		s.step()
	}
	if !t.Failed() {
		s.rest()
	}
	sum.Last += s.m.last
	sum.Shared += int(s.c.Stats().SharedReads)
	sum.Collected += int(s.c.Stats().Collected)
	return s
}

// tally is what happened in all histories, so that a simulator which only ever sees misses is noticed.
type tally struct {
	Restored, Failed, Evicted, Stale, Busy, Waited, Shared, Zombie, Mismatch, Collected, Closed, Filled, Poured, Late, Retired, Emptied int
	Kept                                                                                                                                [byTotal + 1]int
	Later, Speculative, Below, Unserved, Fetched, Hurried, Last, Named                                                                  int
}

type sim struct {
	t       *testing.T
	r       *rand.Rand
	c       *Core
	m       *model
	clients []*client
	number  uint32
	parts   int
	arenas  uint32
	// arenaIDs are their ids; one that was retired is never used again.
	arenaIDs []uint32
	lower    bool // blocks are below, too
	reads    bool // and come from there
	tenants  bool // messages name tenants with budgets
	log      []string
	sum      *tally
	answers  []Action
	// answersTo is the event that they are for.
	answersTo Event
	place     int // the last one of offered memory
	recycles  bool
	shown     []*Visible // the last few, which are ours if we recycle nothing
}

// client is an engine: what it knows, and the words it has not said yet.
type client struct {
	id      SessionID
	ns      Namespace
	lost    bool
	op, pub uint64
	asked   []*Query
	again   *Publish
	slots   []SlotRef // granted to it, ended ones included: it repeats itself
	leases  []LeaseID
	offered bool
}

// spoiling is memory for tables that is spoilt when it is given back.
type spoiling map[*byte]bool

func (m spoiling) Make(n int) []byte {
	words := make([]uint64, (n+7)/8)
	b := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), n)
	m[&b[0]] = true
	return b
}

func (m spoiling) Free(b []byte) {
	if !m[&b[0]] {
		panic("a table was given back twice")
	}
	delete(m, &b[0])
	spoil(b)
}

func spoil(b []byte) {
	for i := range b {
		b[i] = 0xdb
	}
}

func newSim(t *testing.T, seed uint64, sum *tally) *sim {
	s := &sim{t: t, r: rand.New(rand.NewPCG(seed, 1)), sum: sum}
	s.m = newModel(func(format string, args ...any) { t.Errorf(format, args...) })
	s.parts, s.arenas, s.lower = 1+s.r.IntN(2), 1+uint32(s.r.IntN(3)), s.r.IntN(2) == 0
	s.reads = s.lower && s.r.IntN(4) > 0
	for id := range s.arenas {
		s.arenaIDs = append(s.arenaIDs, id)
	}
	cfg := Config{Epoch: scriptEpoch, Budgets: Budgets{Total: int64(100 * (2 + s.r.IntN(20)))}}
	if s.m.disk = s.reads; s.reads {
		cfg.Routes = planning.Only(planning.FromMemory, planning.FromDisk)
	}
	if s.r.IntN(2) == 0 {
		cfg.Budgets.Instance = int64(100 * (1 + s.r.IntN(12)))
	}
	if s.r.IntN(2) == 0 {
		cfg.Budgets.Speculative = int64(100 * (1 + s.r.IntN(6)))
	}
	cfg.Limits = Limits{Wait: 3 * time.Second, LeaseTTL: 5 * time.Second, Patience: 8 * time.Second, SessionQueries: 6, Publishes: 4}
	if s.r.IntN(2) == 0 {
		cfg.Limits.Looks, cfg.Limits.WaitingNames = 1, 8+s.r.IntN(8)
	}
	s.m.total, s.m.patience, s.m.ttl = cfg.Budgets.Total, cfg.Limits.Patience, cfg.Limits.LeaseTTL
	s.m.instance, s.m.spec = cfg.Budgets.Instance, cmp.Or(cfg.Budgets.Speculative, cfg.Budgets.Total/4)
	if s.tenants = s.r.IntN(3) == 0; s.tenants {
		s.m.query = map[Scope]int64{1: 300, 3: 600}
		cfg.Scopes = map[Scope]ScopeBudget{1: {Resident: 400, Query: 300}, 2: {Share: 300}, 3: {Resident: 300, Share: 200, Query: 600}}
	}
	s.m.lru = !s.reads && !s.tenants && s.r.IntN(2) == 0
	var p dram.Policy = dram.LRU{}
	if !s.m.lru {
		p = dram.DefaultPolicy()
	}
	s.recycles = s.r.IntN(2) == 0
	cfg.Tables = spoiling{}
	s.c = New(cfg, p)
	return s
}

func (s *sim) step() {
	s.m.now += time.Duration(s.r.IntN(150)) * time.Millisecond
	if s.r.IntN(80) == 0 {
		s.m.now += time.Duration(s.r.IntN(10)) * time.Second
	}
	alive := s.some(func(c *client) bool { return !c.lost })
	lost := s.some(func(c *client) bool { return c.lost })
	switch n := s.r.IntN(100); {
	case n < 4+10*b2i(alive == nil) && len(s.clients) < 5:
		s.register()
	case n < 10 && alive != nil && s.r.IntN(3) == 0:
		alive.lost = true
		s.m.lost(alive.id)
		s.event(&Lost{alive.id})
	case n < 15 && lost != nil:
		s.fence(lost)
	case n < 25 && lost != nil:
		s.zombie(lost)
	case n < 30:
		s.m.tick()
		s.event(&Tick{})
		for _, q := range s.c.open {
			if q.lease == (LeaseID{}) && q.deadline <= s.m.now {
				s.t.Errorf("%v waits after its time", q.ticket)
			}
		}
	case n < 32 && s.r.IntN(4) == 0:
		s.flush()
	case n < 33:
		s.event(&Evict{s.arenaIDs[s.r.IntN(int(s.arenas))], 1 + s.r.IntN(3)})
	case n < 34 && s.r.IntN(2) == 0:
		s.retire(s.r.IntN(int(s.arenas)))
	case n < 34 && s.r.IntN(2) == 0:
		s.empty(s.arenaIDs[s.r.IntN(int(s.arenas))])
	case n < 40 && len(s.m.copies) > 0:
		s.endCopy()
	case n < 47 && s.lower:
		s.below()
	case alive != nil:
		for range 1 + s.r.IntN(6) {
			s.act(alive)
		}
	}
}

func (s *sim) some(want func(*client) bool) *client {
	var fit []*client
	for _, c := range s.clients {
		if want(c) {
			fit = append(fit, c)
		}
	}
	if len(fit) == 0 {
		return nil
	}
	return fit[s.r.IntN(len(fit))]
}

func (s *sim) register() {
	s.number++
	c := &client{id: SessionID{scriptEpoch, s.number}, ns: Namespace(hashOf([]string{"m", "n"}[s.r.IntN(2)]))}
	nth := s.r.IntN(int(s.arenas))
	arena, slots := s.arenaIDs[nth], 6+4*uint32(nth)
	e := &Register{Session: c.id, Instance: fmt.Sprint("engine", s.r.IntN(4)), Namespace: c.ns, Arenas: []Arena{{arena, slots, 100}}}
	if s.r.IntN(3) == 0 {
		e.QueryBytes = int64(100 * (1 + s.r.IntN(8)))
	}
	for range 2 {
		g := Group{PartBytes: []uint32{100, 90}[:s.parts]}
		e.Layout = append(e.Layout, g)
	}
	instead := s.r.IntN(int(s.arenas))
	if s.r.IntN(3) == 0 {
		e.Instead = []uint32{s.arenaIDs[instead]}
	}
	s.event(e)
	if _, ok := s.answers[len(s.answers)-1].(Registered); ok {
		if len(e.Instead) > 0 {
			s.retired(instead)
		}
		s.clients = append(s.clients, c)
		s.m.alive[c.id] = true
		s.m.own[c.id] = min(s.m.total, cmp.Or(s.m.instance, s.m.total), cmp.Or(e.QueryBytes, s.m.total))
	}
}

// fence ends a process: from now on it writes and reads nothing.
func (s *sim) fence(c *client) {
	s.m.lost(c.id)
	if s.m.hasCopies(c.id) {
		s.m.late[c.id] = true
	} else {
		s.m.fenced(c.id)
	}
	s.clients = slices.DeleteFunc(s.clients, func(o *client) bool { return o == c })
	s.event(&Fenced{c.id})
}

// retire ends an arena if nobody has anything to do with it, and never otherwise.
func (s *sim) retire(nth int) {
	id := s.arenaIDs[nth]
	a := s.c.arenas[id]
	busy := a != nil && (a.writer != nil || s.c.inUse(a))
	for p := range s.m.writers {
		if p.arena == id && !busy {
			s.t.Errorf("%v may be written, and its arena is not in use", p)
		}
	}
	for _, l := range s.m.leases {
		if slices.ContainsFunc(l.slots, func(b []PlanSlot) bool { return b[0].Slot.Arena == id }) && !busy {
			s.t.Errorf("arena %d is leased, and not in use", id)
		}
	}
	s.event(&Retire{id})
	switch {
	case a == nil:
		s.wantRefused(true, Invalid)
	case busy:
		s.wantRefused(true, ArenaBusy)
	default:
		s.wantRefused(false, ArenaBusy)
		s.retired(nth)
	}
}

// retired is of an arena that was retired.
func (s *sim) retired(nth int) {
	for k, b := range s.m.visible {
		if b.slots[0].Slot.Arena == s.arenaIDs[nth] {
			s.t.Errorf("%v is in arena %d, which is no more", k, s.arenaIDs[nth])
		}
	}
	s.arenaIDs[nth] += 10
	s.sum.Retired++
}

// empty drops what nobody holds of an arena that nobody writes, and nothing else.
func (s *sim) empty(id uint32) {
	a := s.c.arenas[id]
	stays := map[blockKey]bool{}
	for k, b := range s.m.visible {
		p, _ := s.c.books.Find(dram.Key{Space: s.c.spaces[k.ns], Group: k.group, Hash: k.hash})
		stays[k] = b.slots[0].Slot.Arena != id || s.c.books.Holds(p) > 0
	}
	part := Part{Most: uint32(s.r.IntN(3))}
	for more := true; more; {
		s.event(&Empty{id, part})
		if a == nil || a.writer != nil {
			s.wantRefused(true, map[bool]Class{true: Invalid, false: ArenaBusy}[a == nil])
			return
		}
		part.From, more = s.walked()
	}
	s.sum.Emptied++
	for k := range s.m.visible {
		if !stays[k] {
			s.t.Errorf("%v is in arena %d, which was emptied", k, id)
		}
		delete(stays, k)
	}
	for k, want := range stays {
		if want {
			s.t.Errorf("%v has gone, and was not to", k)
		}
	}
}

// walked is what the last part of a walk was answered with.
func (s *sim) walked() (next uint32, more bool) {
	for _, a := range s.answers {
		if w, ok := a.(WalkedTo); ok {
			return w.Next, w.More
		}
	}
	return 0, false
}

// zombie writes where a process that nobody listens to any more may still be writing.
func (s *sim) zombie(c *client) {
	for _, p := range slices.SortedFunc(maps.Keys(s.m.writers), func(a, b place) int { return int(a.arena*1000+a.index) - int(b.arena*1000+b.index) }) {
		if s.m.writers[p] == c.id {
			s.m.memory[p] = s.r.Uint64()
			s.sum.Zombie++
		}
	}
}

func (s *sim) flush() {
	ns := Namespace(hashOf([]string{"m", "n"}[s.r.IntN(2)]))
	for k := range s.m.backed {
		if k.ns == ns {
			delete(s.m.backed, k)
		}
	}
	for id, k := range s.m.readKey {
		if k.ns == ns {
			delete(s.m.readKey, id)
			s.m.forgetParent(k)
		}
	}
	for k := range s.m.filling {
		if k.ns == ns {
			s.m.giveUp(k)
		}
	}
	part := Part{Most: uint32(s.r.IntN(3))}
	for more := true; more; { // parts between which nothing comes are as one
		s.event(&Flush{ns, part})
		part.From, more = s.walked()
	}
}

// nodes is how many blocks there are in each group and namespace.
const nodes = 9

// path is the blocks from the root to block n of a binary tree.
func path(n int) (out []Hash) {
	for ; n > 0; n /= 2 {
		out = append(out, hashOf(fmt.Sprint(n)))
	}
	slices.Reverse(out)
	return out
}

func tagOf(k blockKey, part int) uint64 {
	h := uint64(part + 1)
	for _, b := range fmt.Sprint(k) {
		h = h*0x9e3779b97f4a7c15 + uint64(b)
	}
	return h | 1
}

func (s *sim) below() {
	ids := slices.Sorted(maps.Keys(s.m.reads))
	if len(ids) > 0 && s.r.IntN(3) > 0 {
		s.readDone(ids[s.r.IntN(len(ids))])
		return
	}
	ns := Namespace(hashOf([]string{"m", "n"}[s.r.IntN(2)]))
	way := path(1 + s.r.IntN(nodes))
	k := blockKey{ns, uint32(s.r.IntN(2)), way[len(way)-1]}
	if x, ok := s.m.backed[k]; ok && s.r.IntN(3) == 0 {
		delete(s.m.backed, k)
		s.event(&Unbacked{Namespace: ns, Group: k.group, Hash: k.hash, Extent: x})
		return
	}
	e := &Backed{Namespace: ns, Group: k.group, Hash: k.hash, Extent: Extent{Offset: s.r.Uint64N(100), Length: 1}}
	if len(way) > 1 {
		e.Parent = way[len(way)-2]
	}
	for part := range s.parts {
		e.Checksums = append(e.Checksums, tagOf(k, part))
	}
	s.m.backed[k] = e.Extent
	s.event(e)
}

func (s *sim) readDone(id ReadID) {
	e := &ReadDone{Read: id, Outcome: Outcome(max(0, s.r.IntN(8)-5))}
	read, k := s.m.reads[id], s.m.readKey[id]
	for part, t := range read.Slots {
		p := placeOf(t.Slot)
		if e.Outcome == Done {
			s.m.memory[p] = t.Checksum
			s.m.truth[t.Slot] = content{key: k, part: part, tag: t.Checksum}
		} else {
			s.m.memory[p] = s.r.Uint64()
		}
		delete(s.m.writers, p)
	}
	if _, live := s.m.readKey[id]; e.Outcome == Mismatch && live {
		delete(s.m.backed, k)
	}
	if e.Outcome != Done {
		s.m.forgetParent(k)
	}
	delete(s.m.reads, id)
	delete(s.m.readKey, id)
	s.event(e)
}

// rest ends everything, and wants all bytes back. First only what is held ends: then whoever waits must have had his turn.
func (s *sim) rest() {
	for len(s.m.copies) > 0 {
		s.endCopy()
	}
	for len(s.m.leases)+len(s.m.reads) > 0 || s.c.freed { // a step may leave some of the line to the next, whose leases end here, too
		if s.c.freed {
			s.m.tick()
			s.event(&Tick{})
		}
		for _, id := range slices.Sorted(maps.Keys(s.m.reads)) {
			s.readDone(id)
		}
		for _, c := range s.clients {
			if !c.lost {
				s.letGo(c)
			}
		}
		for len(s.m.leases) > 0 && s.some(func(c *client) bool { return c.lost }) != nil {
			s.fence(s.some(func(c *client) bool { return c.lost }))
		}
	}
	for _, q := range s.c.waiting {
		s.t.Errorf("%v of %v waits, and nothing is held", q.ticket, q.sess.id)
	}
	for len(s.clients) > 0 {
		s.fence(s.clients[0])
	}
	for _, id := range slices.Sorted(maps.Keys(s.m.reads)) {
		s.readDone(id)
	}
	u := s.c.Usage()
	if u.Reserved != 0 || u.Leased != 0 || u.Orphaned != 0 || u.Pinned != 0 || u.Granted != 0 || u.Quarantined != 0 || u.Queries != 0 || u.Copies != 0 || u.Pools != 0 || u.Offered != 0 {
		s.t.Errorf("at rest: %+v", u)
	}
	s.checkCounts()
	if u.Resident != int64(100*s.parts*len(s.m.visible)) || u.Speculative != 0 {
		s.t.Errorf("at rest: %+v, and %d blocks are visible", u, len(s.m.visible))
	}
	if u.Blocks != len(s.m.visible) || u.Free != u.Pool-int64(100*s.parts*u.Blocks) {
		s.t.Errorf("at rest: %+v, and %d blocks are visible", u, len(s.m.visible))
	}
}

// letGo ends all leases of a client.
func (s *sim) letGo(c *client) {
	for _, id := range slices.Clone(c.leases) {
		l := s.known(c, id)
		if l == nil {
			continue
		}
		l.closed = true
		s.event(&Release{c.id, id})
		for n := range l.consumers {
			if l.started[n] && !l.done[n] {
				l.done[n], l.failed = true, true
				s.event(&Copied{c.id, id, n, Failed, 0})
			}
		}
	}
}

func (s *sim) tail() string {
	out := ""
	for _, l := range s.log[max(0, len(s.log)-300):] {
		out += l + "\n"
	}
	return out
}
