package dram

import (
	"math"

	"github.com/perigee-llm/perigee/internal/chain"
)

// Page is the number of a block in the Store. It is good for as long as the block is there.
type Page int32

// None is no page.
const None Page = -1

// State is what a block is.
//
//	(free) ──Begin──▶ Filling ──Show──▶ Visible ──Remove──▶ (free), or Doomed while somebody holds it ──▶ (free)
//	   ▲──────Remove──────┘ (Doomed while a slot of it is granted or somebody holds it)
type State uint8

// The states.
const (
	free State = iota
	// Filling: it has its slots, and cannot be found by readers.
	Filling
	// Visible: it can be found and held.
	Visible
	// Doomed: it cannot be found any more, by anybody, and ends when the last holder lets go.
	Doomed
)

// Residency is how firmly a block stays: all blocks of a lower residency go before any of a higher one.
//
// A third one between the two, for blocks not yet used twice (segmented LRU), was left out: with the order below it would say the
// same thing twice, and on the traces that we have it loses to plain LRU from 10,000 blocks on.
type Residency uint8

// The residencies.
const (
	// Reclaimable: brought in on speculation, and not asked for since.
	Reclaimable Residency = iota
	// Retained: published, or asked for.
	Retained
)

// page is one block's record: 84 bytes. Whose block it is, its lane says, and of which namespace, its arena.
type page struct {
	hash Hash

	arena uint16 // place in Store.arenas
	lane  uint16 // place in arena.lanes

	group uint8
	parts uint8
	uses  uint8 // saturating
	kind  uint8 // two bits of its State, above them its heap in its lane

	word   uint32 // of a Filling block its owner's number; else the bits of its score, a float32 of Policy's
	first  int32  // its first slot; the others follow by their links, in the order of the parts
	parent Page
	// parentGen is the parent's gen as the link was made: a parent that had to go before its children leaves links that no
	// longer hold.
	parentGen uint32
	gen       uint32
	holds     int32
	// below counts the pages of its lane whose parent this is; for those of others see Store.elsewhere. A block that is among those that may go has
	// none: its below is ^i then, for its place i in its heap.
	below int32

	chain [chain.Size]byte // last: what is looked at for a query lies together
}

func (g *page) state() State { return State(g.kind & 3) }

// turn changes the block's state.
func (g *page) turn(to State) { g.kind = g.kind&^3 | uint8(to) }

// heap is where in its lane's order the block is among those that may go: see lane.
func (g *page) heap() int { return int(g.kind >> 2) }

// mostClasses is how many classes a policy may have.
const mostClasses = 1<<6 - 2

// Bounds of a Store, for whoever adds arenas: how many slots and arenas there can be, and the largest number of a block's group.
const (
	MaxSlots  = noLink
	MaxArenas = 1 << 16
	MaxGroup  = math.MaxUint8
)

// leaf says that the block is among those that may go.
func (g *page) leaf() bool { return g.below < 0 }

func (g *page) score() float32 { return math.Float32frombits(g.word) }

// at is the record of a block.
func (s *Store) at(p Page) *page { return &s.pages[p>>pagesBits][p&(1<<pagesBits-1)] }

func (s *Store) key(p Page) Key {
	g := s.at(p)
	return Key{s.spaceOf(g), uint32(g.group), g.hash}
}

// Find returns the block with the key, Filling or Visible.
func (s *Store) Find(k Key) (Page, bool) {
	t, i := s.place(&k)
	if i < 0 {
		return None, false
	}
	return t.entries[i].page - 1, true
}

// FindNear is Find with a guess, any number at all, which costs nothing if it is right: blocks most often continue the one before them.
func (s *Store) FindNear(guess Page, k Key) (Page, bool) {
	if uint(guess) < uint(s.fresh) {
		g := s.at(guess)
		if (g.state() == Filling || g.state() == Visible) && s.named(g, &k) {
			return guess, true
		}
	}
	return s.Find(k)
}

// place returns the place of a block's entry in a table of the index; -1: it has none.
func (s *Store) place(k *Key) (*table, int) {
	return s.index.find(tagOf(s.digest(k)), func(p Page) bool {
		g := s.at(p)
		return s.named(g, k)
	})
}

// named says that the block has the key.
func (s *Store) named(g *page, k *Key) bool {
	return g.hash == k.Hash && uint32(g.group) == k.Group && s.spaceOf(g) == k.Space
}

// spaceOf is the space in the block's key.
func (s *Store) spaceOf(g *page) uint32 { return s.arenas[g.arena].space }

// Key is the block's name.
func (s *Store) Key(p Page) Key { return s.key(p) }

// PlaceOf is the space and the group in the block's key.
func (s *Store) PlaceOf(p Page) (space, group uint32) {
	g := s.at(p)
	return s.spaceOf(g), uint32(g.group)
}

// GroupOf is the group in the block's key.
func (s *Store) GroupOf(p Page) uint32 { return uint32(s.at(p).group) }

// Chain is the block's chain key, as it was when the block began, or as SetChain said.
func (s *Store) Chain(p Page) chain.Key { return chain.FromBytes(s.at(p).chain) }

// SetChain gives a Visible block that began without one its chain key.
func (s *Store) SetChain(p Page, k chain.Key) {
	g := s.at(p)
	mustBe(g.state() == Visible && s.Chain(p).IsZero(), "a block was given a name that is not there, or has one")
	g.chain = k.Bytes()
}

// Parent is the hash of the block that it continues, zero if that is not in memory.
func (s *Store) Parent(p Page) Hash {
	if q := s.parentOf(p); q != None {
		return s.at(q).hash
	}
	return Hash{}
}

// ParentPage is the block that it continues, None if that is not in memory.
func (s *Store) ParentPage(p Page) Page { return s.parentOf(p) }

// SetWord gives a Filling block a number of its owner's. It is 0 as the block begins, and is forgotten as it is shown.
func (s *Store) SetWord(p Page, n uint32) {
	g := s.at(p)
	mustBe(g.state() == Filling, "a number was given to a block that is not filling")
	g.word = n
}

// Word is the number that a Filling block was given; 0 for any other.
func (s *Store) Word(p Page) uint32 {
	if g := s.at(p); g.state() == Filling {
		return g.word
	}
	return 0
}

// State is what the block is.
func (s *Store) State(p Page) State { return s.at(p).state() }

// Parts is how many slots the block has.
func (s *Store) Parts(p Page) int { return int(s.at(p).parts) }

// Holds is how many holders the block has.
func (s *Store) Holds(p Page) int { return int(s.at(p).holds) }

// ArenaOf is the number of the arena that the block's slots are in.
func (s *Store) ArenaOf(p Page) int { return int(s.at(p).arena) }

// ScopeOf is the number of the tenant whose block it is.
func (s *Store) ScopeOf(p Page) int { return int(s.laneOf(s.at(p)).scope) }

func (s *Store) laneOf(g *page) *lane { return s.arenas[g.arena].lanes[g.lane] }

// Bytes is what the block's slots take.
func (s *Store) Bytes(p Page) int64 {
	g := s.at(p)
	return int64(g.parts) * int64(s.arenas[g.arena].slotBytes)
}
