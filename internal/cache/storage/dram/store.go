package dram

import (
	"math"

	"github.com/perigee-llm/perigee/internal/chain"
)

// Store is the books. New makes one; the zero value is not usable.
type Store struct {
	policy    Policy
	seed      uint64 // of digest
	memory    Memory // of the tables; nil: Go's heap
	pages     []*[1 << pagesBits]page
	fresh     Page // the first that was never used
	freePages Page // list by page.parent, of those that were
	index     index
	arenas    []*arena
	// spareArenas are the numbers of arenas that were removed.
	spareArenas []int
	slotTotal   int
	scopes      []scope
	ghosts      ghosts
	visible     int
	// elsewhere counts, for blocks that have some, those that continue them and are of another lane.
	elsewhere map[Page]int32
}

// scope is one tenant's part.
type scope struct {
	resident int64 // bytes of slots that its blocks have, in whatever state
	share    int64 // what others leave to it
	expected int64 // bytes that blocks of its will have for which room is being made
}

// New returns an empty Store. A nil policy is LRU.
func New(p Policy) *Store {
	if p == nil {
		p = LRU{}
	}
	mustBe(p.Classes() <= mostClasses, "a policy has too many classes")
	return &Store{policy: p, freePages: None, elsewhere: map[Page]int32{}}
}

// Seed gives a secret by which blocks are spread over the index: with it, clients cannot choose names that meet. It is for a Store that is empty.
func (s *Store) Seed(secret uint64) {
	mustBe(s.index.all() == 0, "the blocks of a Store were to be spread anew")
	s.seed = secret
}

// AddScope makes a tenant and returns its number, from 0 on. Others leave share bytes to it.
func (s *Store) AddScope(share int64) int {
	s.scopes = append(s.scopes, scope{share: share})
	return len(s.scopes) - 1
}

// SetShare changes what others leave to a tenant: its number is another's now. It has no block.
func (s *Store) SetShare(scope int, share int64) {
	mustBe(s.scopes[scope].resident == 0, "a tenant with blocks became another one")
	s.scopes[scope].share = share
}

// Expect says that blocks of the tenant will soon have so many slots of the arena: Victim counts them as if they had them already. It holds until it is said anew.
func (s *Store) Expect(arena, scope, slots int) {
	s.scopes[scope].expected = int64(slots) * int64(s.arenas[arena].slotBytes)
}

// ScopeResident is how many bytes a scope's blocks have.
func (s *Store) ScopeResident(scope int) int64 { return s.scopes[scope].resident }

// Blocks is how many blocks can be found by readers.
func (s *Store) Blocks() int { return s.visible }

// Resident is how many bytes the blocks have that can be found by readers.
func (s *Store) Resident() (bytes int64) {
	for _, a := range s.arenas {
		bytes += int64(a.shown) * int64(a.slotBytes)
	}
	return bytes
}

// Pinned is how many bytes the blocks have that somebody holds, each counted once.
func (s *Store) Pinned() (bytes int64) {
	for _, a := range s.arenas {
		bytes += int64(a.held) * int64(a.slotBytes)
	}
	return bytes
}

// pagesBits says how many records lie in a row, 4,096 in 336 KiB: so that more of them are made beside those that there are.
const pagesBits = 12

// growPages makes room for n records.
func (s *Store) growPages(n int) {
	for len(s.pages)<<pagesBits < n {
		s.pages = append(s.pages, (*[1 << pagesBits]page)(newTable[page](s.memory, 1<<pagesBits)))
	}
}

// takePage returns the number of a record that is free.
func (s *Store) takePage() (p Page) {
	if p = s.freePages; p != None {
		s.freePages = s.at(p).parent
		return p
	}
	p = s.fresh
	s.fresh++
	return p
}

// Newcomer is a block that begins.
type Newcomer struct {
	Key    Key
	Parent Hash // in the same space and group; zero: none
	Before Page // the parent's, by a guess: see FindNear
	Chain  chain.Key
	Arena  int
	Scope  int
	Parts  int
}

// Begin makes a Filling block with Parts reserved slots. Its key must not be there, and the arena must have the slots free, see
// Victim, and no block of another space. A parent that is not in memory is none.
func (s *Store) Begin(n *Newcomer) Page {
	a := s.arenas[n.Arena]
	mustBe(n.Key.Group <= MaxGroup, "the number of a group is too large")
	mustBe(a.freeCount >= n.Parts && n.Parts > 0, "a block began without room")
	if a.freeCount == len(a.slots) {
		a.space = n.Key.Space
	}
	mustBe(a.space == n.Key.Space, "an arena had blocks of two namespaces")
	p := s.takePage() // there are as many as slots
	g := s.at(p)
	*g = page{
		hash: n.Key.Hash, chain: n.Chain.Bytes(), group: uint8(n.Key.Group), arena: uint16(n.Arena),
		first: -1, parent: None, gen: g.gen + 1, kind: uint8(Filling), parts: uint8(n.Parts), lane: a.laneOf(int32(n.Scope), s.policy.Classes()),
	}
	a.unseen++
	near := s.slotAfter(n)
	for range n.Parts {
		i := a.take(near)
		a.slots[i].follow(p, g.first)
		g.first = i
		near = i + 1
	}
	s.scopes[n.Scope].resident += s.Bytes(p)
	s.link(p, n.Parent, n.Before)
	s.index.put(tagOf(s.digest(&n.Key)), p)
	return p
}

// slotAfter is the slot behind those of the block that a newcomer continues; -1 if that is not the one that was guessed, or in another arena.
func (s *Store) slotAfter(n *Newcomer) int32 {
	if uint(n.Before) < uint(s.fresh) {
		if g := s.at(n.Before); g.state() != free && g.hash == n.Parent && int(g.arena) == n.Arena && g.first >= 0 {
			return g.first + 1
		}
	}
	return -1
}

func (a *arena) laneOf(scope int32, classes int) uint16 {
	for i, l := range a.lanes {
		if l.scope == scope {
			return uint16(i)
		}
	}
	a.lanes = append(a.lanes, &lane{scope: scope, heaps: make([][]leaf, 2*(1+classes))})
	return uint16(len(a.lanes) - 1)
}

// link makes p a child of its parent, if that is in memory. A block that claims itself as its parent has none; longer circles
// cannot close, since a link is made once, as the block begins, to one that is there already.
func (s *Store) link(p Page, parent Hash, guess Page) {
	if parent == (Hash{}) {
		return
	}
	g := s.at(p)
	if guess == p { // the number was another block's: it is not found here before it is in the index
		guess = None
	}
	q, ok := s.FindNear(guess, Key{s.spaceOf(g), uint32(g.group), parent})
	if !ok {
		return
	}
	g.parent, g.parentGen = q, s.at(q).gen
	s.continued(q, p, 1)
}

// continued counts one block more or less, p, among those that continue q.
func (s *Store) continued(q, p Page, by int32) {
	a, b := s.at(q), s.at(p)
	if a.leaf() {
		s.pull(s.laneOf(a), q)
	}
	if a.arena == b.arena && a.lane == b.lane {
		if a.below += by; by > 0 {
			return // it cannot go
		}
	} else if s.elsewhere[q] += by; s.elsewhere[q] == 0 {
		delete(s.elsewhere, q)
	}
	s.settle(q)
}

// maxClimb bounds the search for a circle in Adopt, and so what a message that lies about parents can cost. A block that lies deeper than that
// below its first ancestor stays an orphan, which costs a little of the order's quality.
const maxClimb = 1024

// Adopt makes a block whose parent was not there as it began a child of its parent, if that is there now.
func (s *Store) Adopt(p Page, parent Hash) {
	g := s.at(p)
	if s.parentOf(p) != None {
		return
	}
	q, ok := s.Find(Key{s.spaceOf(g), uint32(g.group), parent})
	if !ok || q == p {
		return
	}
	// A client may claim a circle, and nothing in it could ever go. Only a block with children can close one.
	for up, n := q, 0; g.below > 0 || s.elsewhere[p] > 0; n++ {
		if up == p || n == maxClimb {
			return
		}
		if up = s.parentOf(up); up == None {
			break
		}
	}
	s.link(p, parent, q)
}

func (s *Store) unlink(p Page) {
	if q := s.parentOf(p); q != None {
		s.continued(q, p, -1)
	}
	s.at(p).parent = None
}

// parentOf is the block that p continues, or None if there is none that can be found.
func (s *Store) parentOf(p Page) Page {
	g := s.at(p)
	if g.parent == None {
		return None
	}
	if q := s.at(g.parent); q.gen != g.parentGen || q.state() == free || q.state() == Doomed {
		return None
	}
	return g.parent
}

// Show makes a Filling block Visible. Its coming in counts as a use.
func (s *Store) Show(p Page, r Residency, now Time) {
	g := s.at(p)
	mustBe(g.state() == Filling, "a block was shown twice")
	g.turn(Visible)
	g.word = 0
	s.visible++
	a := s.arenas[g.arena]
	a.unseen--
	a.shown += int(g.parts)
	k := s.key(p)
	if score, uses, ok := s.ghosts.recall(s.digest(&k)); ok {
		g.word, g.uses = math.Float32bits(score), uses
	}
	s.use(p, r, now, true)
	s.settle(p)
}

// Touch counts a use of a Visible block, which is Retained from now on.
func (s *Store) Touch(p Page, now Time) {
	g := s.at(p)
	mustBe(g.state() == Visible, "a block was touched that is not visible")
	s.out(p)
	s.use(p, Retained, now, false)
	s.settle(p)
}

// use has the policy say where the block belongs. What is Reclaimable has a heap of its own.
func (s *Store) use(p Page, r Residency, now Time, incoming bool) {
	g := s.at(p)
	class, score := s.policy.Use(History{float64(g.score()), int(g.uses), incoming}, now)
	g.kind, g.word = g.kind&3|uint8(int(r)*(1+class))<<2, math.Float32bits(float32(score))
	if g.uses < math.MaxUint8 {
		g.uses++
	}
}

// Hold keeps a block, Filling or Visible, from going until Unhold.
func (s *Store) Hold(p Page) {
	mustBe(s.at(p).state() == Filling || s.at(p).state() == Visible, "a block was held that is not there")
	s.hold(s.at(p))
	s.settle(p)
}

func (s *Store) hold(g *page) {
	if g.holds++; g.holds == 1 {
		s.arenas[g.arena].held += int(g.parts)
	}
}

// Unhold ends one Hold. It returns true if it was the last of a Doomed block: the owner then frees it with Free, if no slot of it
// is granted.
func (s *Store) Unhold(p Page) (last bool) {
	g := s.at(p)
	mustBe(g.holds > 0, "a block was let go of more often than it was held")
	if g.holds--; g.holds == 0 {
		s.arenas[g.arena].held -= int(g.parts)
	}
	s.settle(p)
	return g.holds == 0 && g.state() == Doomed
}

// settle puts p among the blocks that may go, or takes it out, as it is now. One that blocks of other lanes continue may go, but last.
func (s *Store) settle(p Page) {
	g := s.at(p)
	may := g.state() == Visible && g.holds == 0 && g.below <= 0
	if may == g.leaf() {
		return
	}
	l := s.arenas[g.arena].lanes[g.lane]
	if may {
		s.push(l, p)
	} else {
		s.pull(l, p)
	}
}

func (s *Store) out(p Page) {
	if g := s.at(p); g.leaf() {
		s.pull(s.arenas[g.arena].lanes[g.lane], p)
	}
}

// Doom takes a block out of sight, of readers and of those that would publish it again. Its slots stay until Free.
func (s *Store) Doom(p Page) {
	g := s.at(p)
	mustBe(g.state() == Filling || g.state() == Visible, "a block was doomed that is not there")
	s.out(p)
	k := s.key(p)
	if g.state() == Visible {
		s.visible--
		a := s.arenas[g.arena]
		a.unseen++
		a.shown -= int(g.parts)
		s.ghosts.remember(s.digest(&k), g.score(), g.uses)
	}
	g.turn(Doomed)
	delete(s.elsewhere, p)
	t, i := s.place(&k)
	s.index.remove(t, i)
	s.unlink(p)
}

// Free ends a Doomed block that nobody holds, with every slot that is not granted; freed gets each slot as it becomes free. While a
// slot is granted the block stays, and Free returns false.
func (s *Store) Free(p Page, freed func(slot, gen uint32)) bool {
	g := s.at(p)
	mustBe(g.state() == Doomed && g.holds == 0, "a block was freed that somebody can see")
	a := s.arenas[g.arena]
	keep, kept := int32(-1), 0
	for i := g.first; i >= 0; {
		next := a.slots[i].next()
		if a.slots[i].state() == SlotGranted {
			a.slots[i].follow(p, keep)
			keep = i
			kept++
		} else {
			freed(uint32(i), a.slots[i].gen)
			a.put(i)
		}
		i = next
	}
	s.scopes[s.ScopeOf(p)].resident -= int64(int(g.parts)-kept) * int64(a.slotBytes)
	g.first, g.parts = keep, uint8(kept)
	if kept > 0 {
		return false
	}
	a.unseen--
	gen := g.gen
	*g = page{gen: gen, parent: s.freePages}
	s.freePages = p
	return true
}
