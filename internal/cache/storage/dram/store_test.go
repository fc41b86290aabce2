package dram

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/script"
)

// TestStore does random things to a Store and to a naive one, and compares which blocks are there and which goes next.
func TestStore(t *testing.T) {
	r := script.Rand(t)
	for range 300 {
		s, n := New(LRU{}), &naive{slots: 3 + r.IntN(12)}
		s.AddArena(uint32(n.slots), 10, 0)
		s.AddScope(0)
		s.AddScope(40)
		for now := range Time(300) {
			id := uint64(1 + r.IntN(31))
			switch k := (Key{Hash: blockHash(id)}); r.IntN(8) {
			case 0, 1, 2, 3:
				n.add(s, k, blockHash(id/2), r.IntN(2), now*time.Second)
			case 4:
				if p, ok := s.Find(k); ok {
					s.Touch(p, now*time.Second)
					n.find(k).used = now * time.Second
				}
			case 5:
				if p, ok := s.Find(k); ok {
					s.Hold(p)
					n.find(k).holds++
				}
			case 6:
				if b := n.find(k); b != nil && b.holds > 0 {
					p, _ := s.Find(k)
					s.Unhold(p)
					b.holds--
				}
			default:
				if b := n.find(k); b != nil && b.holds == 0 {
					n.drop(s, b)
				}
			}
			if wrong := s.Check(); wrong != "" {
				t.Fatal(wrong)
			}
			n.compare(t, s)
		}
	}
}

// naive is a list of blocks.
type naive struct {
	slots  int
	blocks []*naiveBlock
}

type naiveBlock struct {
	key    Key
	parent *naiveBlock
	scope  int
	used   Time
	holds  int
	page   Page
}

func (n *naive) find(k Key) *naiveBlock {
	for _, b := range n.blocks {
		if b.key == k {
			return b
		}
	}
	return nil
}

func (n *naive) drop(s *Store, b *naiveBlock) {
	p, _ := s.Find(b.key)
	s.Doom(p)
	s.Free(p, func(uint32, uint32) {})
	n.blocks = slices.DeleteFunc(n.blocks, func(o *naiveBlock) bool { return o == b })
	for _, o := range n.blocks {
		if o.parent == b {
			o.parent = nil
		}
	}
}

func (n *naive) add(s *Store, k Key, parent Hash, scope int, now Time) {
	if n.find(k) != nil {
		return
	}
	if len(n.blocks) == n.slots {
		v := n.victim(scope)
		if v == nil {
			return
		}
		n.drop(s, v)
	}
	p := s.Begin(&Newcomer{Key: k, Parent: parent, Scope: scope, Parts: 1})
	i, _ := s.Grant(p, 0, 0)
	s.Seal(0, i, 0)
	s.Show(p, Retained, now)
	n.blocks = append(n.blocks, &naiveBlock{key: k, parent: n.find(Key{Hash: parent}), scope: scope, used: now, page: p})
}

// victim is the rule as its comment says it: scope 1 has a share of four blocks, scope 0 of none.
func (n *naive) victim(scope int) (first *naiveBlock) {
	count := [2]int{}
	for _, b := range n.blocks {
		count[b.scope]++
	}
	best := func(keeps func(b, child *naiveBlock) bool, want func(*naiveBlock) bool) (first *naiveBlock) {
		for _, b := range n.blocks {
			may := b.holds == 0 && !slices.ContainsFunc(n.blocks, func(o *naiveBlock) bool { return o.parent == b && keeps(b, o) })
			if may && want(b) && (first == nil || b.used < first.used) {
				first = b
			}
		}
		return first
	}
	any := func(_, _ *naiveBlock) bool { return true }
	own := func(b, child *naiveBlock) bool { return b.scope == child.scope }
	for _, keeps := range []func(b, child *naiveBlock) bool{any, own} {
		if b := best(keeps, func(b *naiveBlock) bool { return b.scope == 0 && count[0] > 0 || b.scope == 1 && count[1] > 4 }); b != nil {
			return b
		}
		if b := best(keeps, func(b *naiveBlock) bool { return b.scope == scope }); b != nil {
			return b
		}
	}
	return nil
}

func (n *naive) compare(t *testing.T, s *Store) {
	t.Helper()
	if s.Blocks() != len(n.blocks) {
		t.Fatalf("%d blocks, want %d", s.Blocks(), len(n.blocks))
	}
	for scope := range 2 {
		p, ok := s.victim(0, scope, 0)
		want := n.victim(scope)
		if ok != (want != nil) || ok && s.Key(p) != want.key {
			t.Fatalf("victim %v %v, want %+v", p, ok, want)
		}
	}
}

// victim is the leaf that goes next, or else what goes last.
func (s *Store) victim(arena, scope int, now Time) (Page, bool) {
	if p, ok := s.Victim(arena, scope, false, now); ok {
		return p, true
	}
	return s.Victim(arena, scope, true, now)
}

// TestContinuedElsewhere: a chain that blocks of another arena continue, or of a tenant that is spared, goes where nothing else may go, from its
// end on, and not before.
func TestContinuedElsewhere(t *testing.T) {
	s := New(nil)
	s.AddArena(4, 1, 0)
	s.AddArena(4, 1, 0)
	s.AddScope(0)
	s.AddScope(100) // is spared
	add := func(id, parent uint64, arena, scope int, now Time) Page {
		p := s.Begin(&Newcomer{Key: Key{Hash: blockHash(id)}, Parent: blockHash(parent), Arena: arena, Scope: scope, Parts: 1})
		i, _ := s.Grant(p, 0, 0)
		s.Seal(arena, i, 0)
		s.Show(p, Retained, now)
		return p
	}
	a, b := add(1, 99, 0, 0, 1), add(2, 1, 0, 0, 2)
	c := add(3, 1, 0, 0, 3)
	next, other := add(4, 2, 1, 0, 4), add(5, 3, 0, 1, 5) // continue b and c
	leaf := add(6, 99, 1, 0, 6)
	for _, want := range []Page{b, c, a, None} {
		if wrong := s.Check(); wrong != "" {
			t.Fatal(wrong)
		}
		p, ok := s.victim(0, 0, 7)
		if p != want || ok != (want != None) {
			t.Fatalf("victim %d %v, want %d", p, ok, want)
		}
		if ok {
			s.Doom(p)
			s.Free(p, func(uint32, uint32) {})
		}
	}
	if p, _ := s.victim(1, 0, 7); p != next {
		t.Errorf("victim %d of the other arena, want %d", p, next)
	}
	d := add(7, 6, 0, 0, 8) // continues leaf
	s.Doom(next)
	s.Free(next, func(uint32, uint32) {})
	if p, _ := s.victim(1, 0, 9); p != leaf {
		t.Errorf("victim %d, want %d, which another arena continues", p, leaf)
	}
	for _, p := range []Page{d, other, leaf} {
		s.Doom(p)
		s.Free(p, func(uint32, uint32) {})
	}
	if wrong := s.Check(); wrong != "" || len(s.elsewhere) != 0 {
		t.Error(wrong, s.elsewhere)
	}
}

// TestCircle lets a client claim that blocks are each other's parents: they must be able to go all the same.
func TestCircle(t *testing.T) {
	s := New(nil)
	s.AddArena(3, 1, 0)
	s.AddScope(0)
	a, b, c := s.bring(Key{Hash: blockHash(1)}, blockHash(3), 0), s.bring(Key{Hash: blockHash(2)}, blockHash(1), 0), s.bring(Key{Hash: blockHash(3)}, blockHash(2), 0)
	s.Adopt(a, blockHash(3))
	s.Adopt(a, blockHash(1))
	if wrong := s.Check(); wrong != "" {
		t.Fatal(wrong)
	}
	for _, want := range []Page{c, b, a} {
		p, ok := s.Victim(0, 0, false, 0)
		if !ok || p != want {
			t.Fatalf("victim %v %v, want %v", p, ok, want)
		}
		s.Doom(p)
		s.Free(p, func(uint32, uint32) {})
	}
}

// TestReclaimable: what came on speculation goes before what was used longer ago, until it is asked for.
func TestReclaimable(t *testing.T) {
	s := New(new(Learned))
	s.AddArena(2, 1, 0)
	s.AddScope(0)
	old := s.bring(Key{Hash: blockHash(1)}, Hash{}, 0)
	p := s.Begin(&Newcomer{Key: Key{Hash: blockHash(2)}, Parts: 1})
	i, _ := s.Grant(p, 0, 0)
	s.Seal(0, i, 0)
	s.Show(p, Reclaimable, time.Second)
	if v, _ := s.Victim(0, 0, false, time.Second); v != p {
		t.Errorf("victim %v, want the speculative one", v)
	}
	s.Touch(p, 2*time.Second)
	if v, _ := s.Victim(0, 0, false, 2*time.Second); v != old {
		t.Errorf("victim %v, want the old one", v)
	}
}

// TestIndexCollisions gives many blocks digests whose tags are few, by brute force, and removes them in another order.
func TestIndexCollisions(t *testing.T) {
	var x index
	x.grow(64)
	r := script.Rand(t)
	in := map[Page]uint32{}
	for range 20_000 {
		p := Page(r.IntN(64))
		tag, there := in[p]
		if there {
			at, i := x.find(tag, func(q Page) bool { return q == p })
			if i < 0 {
				t.Fatalf("page %d is lost", p)
			}
			x.remove(at, i)
			delete(in, p)
			continue
		}
		tag = uint32(r.IntN(3)) << 30
		x.put(tag, p)
		in[p] = tag
	}
	for p, tag := range in {
		if _, i := x.find(tag, func(q Page) bool { return q == p }); i < 0 {
			t.Errorf("page %d is lost", p)
		}
	}
	if x.all() != len(in) {
		t.Errorf("%d in use, want %d", x.all(), len(in))
	}
}

// TestSeed: names that a client has made to meet in one place of the index lie apart in a Store with a secret.
func TestSeed(t *testing.T) {
	r := script.Rand(t)
	const m, n = 0x9e3779b97f4a7c15, 1000
	inverse := uint64(m) // of m modulo 2^64, by Newton's way: each round doubles the right bits
	for range 6 {
		inverse *= 2 - m*inverse
	}
	s, open := New(nil), New(nil)
	s.Seed(r.Uint64() | 1)
	places, same := map[uint32]bool{}, map[uint32]bool{}
	for range n {
		k := Key{}
		for at := range 3 {
			binary.LittleEndian.PutUint64(k.Hash[8*at:], r.Uint64())
		}
		h := binary.LittleEndian.Uint64(k.Hash[0:]) * m
		h = (h ^ h>>32 ^ binary.LittleEndian.Uint64(k.Hash[8:])) * m
		h = (h ^ h>>32 ^ binary.LittleEndian.Uint64(k.Hash[16:])) * m
		binary.LittleEndian.PutUint64(k.Hash[24:], h^h>>32^(77<<32)*inverse)
		places[tagOf(s.digest(&k))], same[tagOf(open.digest(&k))] = true, true
	}
	if len(same) != 1 {
		t.Fatalf("without a secret they are in %d places: the test makes nothing meet", len(same))
	}
	if len(places) < n-2 {
		t.Errorf("%d names in %d places", n, len(places))
	}
}

// TestGhosts: a block that comes back is no stranger, whatever else has gone since, within reason.
func TestGhosts(t *testing.T) {
	var g ghosts
	g.grow(1000)
	key := func(i uint64) uint64 {
		k := Key{}
		binary.LittleEndian.PutUint64(k.Hash[:], i)
		return New(nil).digest(&k)
	}
	for i := range uint64(minGhosts / 2) {
		g.remember(key(i), float32(i), uint8(1+i%5))
	}
	lost, wrong := 0, 0
	for i := range uint64(minGhosts / 2) {
		score, uses, ok := g.recall(key(i))
		if !ok {
			lost++
		} else if !nearScore(score, i, minGhosts/2) || uses != uint8(1+i%5) {
			wrong++
		}
	}
	if lost > minGhosts/2/10 || wrong > minGhosts/2/100 {
		t.Errorf("of %d, %d lost and %d others'", minGhosts/2, lost, wrong)
	}
}

// nearScore says that a remembered score is what it was, to a part of how far it lies below the highest one.
func nearScore(score float32, want, highest uint64) bool {
	return math.Abs(float64(score)-float64(want)) <= 0.005*float64(highest-want)
}

// TestGhostScores: a set keeps the highest of its scores, however they come, with an error that grows by a thousandth of the age with each that is higher.
func TestGhostScores(t *testing.T) {
	r := script.Rand(t)
	for range 2000 {
		type known struct {
			tag    uint64
			score  float32
			raised int
		}
		var set ghostSet
		var all []known
		scale, highest := float32(math.Exp2(float64(r.IntN(40)-15))), float32(math.Inf(-1))
		base := scale * float32(r.IntN(1000)-500)
		for n := range uint64(1 + r.IntN(30)) {
			score := base + scale*r.Float32()
			if r.IntN(2) == 0 {
				base += scale * r.Float32() * 4
			}
			if score > highest {
				for i := range all {
					all[i].raised++
				}
				highest = score
			}
			set.remember(n<<3, score, 1)
			all = append(all, known{n << 3, score, 1})
		}
		kept, lowest := 0, float32(math.Inf(1))
		for _, k := range all {
			score, uses, ok := set.recall(k.tag)
			if !ok {
				continue
			}
			kept, lowest = kept+1, min(lowest, k.score)
			age := float64(highest - k.score)
			if off := math.Abs(float64(score) - float64(k.score)); uses != 1 || off > age*0.001*float64(k.raised)+float64(scale)*1e-3+2e-6 {
				t.Fatalf("score %v is remembered as %v, with the highest %v (raised %d times)", k.score, score, highest, k.raised)
			}
		}
		if kept != min(len(all), ghostWays) {
			t.Fatalf("%d of %d are remembered", kept, len(all))
		}
	}
}

// TestAgeBuckets: every age has one bucket, they follow each other without a gap, and a place within one is from 0 to 1.
func TestAgeBuckets(t *testing.T) {
	last, lastWithin := 0, 0.0
	for age := Time(0); age < 1<<57; age += age/64 + 100_000 {
		b, within := ageBucket(age)
		if b < last || b > last+1 || b == last && within < lastWithin || within < 0 || within > 1 {
			t.Fatalf("age %v is in bucket %d at %v, after %d at %v", age, b, within, last, lastWithin)
		}
		last, lastWithin = b, within
	}
	if last < ageBuckets/2 || last >= ageBuckets {
		t.Errorf("the last bucket is %d of %d", last, ageBuckets)
	}
}

func blockHash(id uint64) (h Hash) {
	binary.LittleEndian.PutUint64(h[:], id+1)
	return h
}

// bring puts a block into memory at the expense of others, or returns None if none may go.
func (s *Store) bring(k Key, parent Hash, now Time) Page {
	if _, _, free := s.Arena(0); free == 0 {
		v, ok := s.Victim(0, 0, false, now)
		if !ok {
			return None
		}
		s.Doom(v)
		s.Free(v, func(uint32, uint32) {})
	}
	p := s.Begin(&Newcomer{Key: k, Parent: parent, Parts: 1})
	slot, _ := s.Grant(p, 0, 0)
	s.Seal(0, slot, 0)
	s.Show(p, Retained, now)
	return p
}

// TestGuess: a guess of where the parent is changes nothing, whatever it is: also the newcomer's own number, and that of a block that has gone.
func TestGuess(t *testing.T) {
	s := New(nil)
	s.AddScope(0)
	s.AddArena(4, 4096, 0)
	begin := func(name, parent uint64, guess Page) Page {
		n := &Newcomer{Key: Key{Hash: blockHash(name)}, Before: guess, Parts: 1}
		if parent != 0 {
			n.Parent = blockHash(parent)
		}
		return s.Begin(n)
	}
	root := begin(1, 0, 0)
	for _, guess := range []Page{None, root, root + 1, root + 2, 77, -5} {
		p := begin(2, 1, guess)
		if got := s.parentOf(p); got != root {
			t.Errorf("with the guess %d the parent is %d, want %d", guess, got, root)
		}
		next := s.freePages
		if next == None {
			next = s.fresh
		}
		own := begin(3, 3, next)
		if s.parentOf(own) != None {
			t.Errorf("a block is its own parent")
		}
		for _, p := range []Page{p, own} {
			s.Doom(p)
			s.Free(p, func(uint32, uint32) {})
		}
		if q, ok := s.FindNear(p, Key{Hash: blockHash(2)}); ok {
			t.Errorf("what has gone is found as %d", q)
		}
	}
	if wrong := s.Check(); wrong != "" {
		t.Error(wrong)
	}
}
