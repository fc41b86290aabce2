package core

import (
	"fmt"
	"maps"
	"slices"

	"github.com/perigee-llm/perigee/internal/chain"
)

// model is what must hold, kept with maps and written without regard for speed. It reads the core's actions as a shell does, and
// complains when one of them breaks a promise.
type model struct {
	now      Time
	total    int64 // the budget of all queries
	spec     int64 // of them, of the speculative ones
	instance int64 // of a session that has none of its own; 0: all
	own      map[SessionID]int64
	asked    [Warm + 1]int64 // blocks, by mode
	hits     [Warm + 1]int64
	counted  [Warm + 1]int64 // queries
	query    map[Scope]int64 // of tenants that have one
	patience Time
	ttl      Time
	lru      bool // the policy is LRU, so the victim is known

	visible map[blockKey]*modelBlock
	memory  map[place]uint64    // content of each slot
	truth   map[SlotRef]content // what was published into each use of a slot
	lastGen map[place]uint32
	writers map[place]SessionID // slots that a process may write; zero session: a read
	refs    map[place]SlotRef
	grants  map[SlotRef]*modelGrant
	leases  map[LeaseID]*modelLease
	queries map[ticketKey]*modelQuery
	reads   map[ReadID]Read
	readKey map[ReadID]blockKey
	backed  map[blockKey]Extent
	disk    bool // backed can be read
	alive   map[SessionID]bool
	parents map[blockKey]blockKey  // of blocks in memory, visible or filling, as they began
	home    map[blockKey]modelHome // of the same blocks
	last    int                    // evicted that blocks elsewhere continued
	filling map[blockKey]*modelFill
	copies  map[CopyID]*modelCopy
	late    map[SessionID]bool // fenced, but for copies of the shell's
	spare   blockKey           // the parent of what is being published: it may not go for its child
	fail    func(format string, args ...any)
}

type blockKey struct {
	ns    Namespace
	group uint32
	hash  Hash
}

// place is a slot, whatever its use.
type place struct{ arena, index uint32 }

type content struct {
	key  blockKey
	part int
	tag  uint64
	lie  bool // sealed with a checksum that is not of what is there
}

type modelBlock struct {
	slots []PlanSlot
	used  Time
	chain chain.Key
}

type modelGrant struct {
	key  blockKey
	part int
	sess SessionID
	dead bool // its block was given up, or it was collected
	at   Time
	copy CopyID // the shell fills it
}

type modelLease struct {
	sess          SessionID
	ticket        Ticket
	keys          []blockKey
	slots         [][]PlanSlot
	consumers     uint32
	started, done map[uint32]bool
	ours          map[uint32]bool // started, and the shell copies
	failed        bool
	closed        bool
	deadline      Time
	spoiled       bool
}

// modelHome is where a block lies and whose it is.
type modelHome struct {
	arena uint32
	scope Scope
}

type modelFill struct {
	sess SessionID
	at   Time // of the last grant or seal
}

type ticketKey struct {
	sess SessionID
	op   uint64
}

type modelQuery struct {
	ev *Query
	ns Namespace
}

func newModel(fail func(string, ...any)) *model {
	return &model{
		visible: map[blockKey]*modelBlock{}, memory: map[place]uint64{}, truth: map[SlotRef]content{}, lastGen: map[place]uint32{},
		writers: map[place]SessionID{}, refs: map[place]SlotRef{}, grants: map[SlotRef]*modelGrant{}, leases: map[LeaseID]*modelLease{},
		queries: map[ticketKey]*modelQuery{}, reads: map[ReadID]Read{}, readKey: map[ReadID]blockKey{}, backed: map[blockKey]Extent{},
		alive: map[SessionID]bool{}, parents: map[blockKey]blockKey{}, filling: map[blockKey]*modelFill{}, fail: fail,
		copies: map[CopyID]*modelCopy{}, late: map[SessionID]bool{}, own: map[SessionID]int64{}, home: map[blockKey]modelHome{},
	}
}

func placeOf(s SlotRef) place { return place{s.Arena, s.Index} }

// pins is how many leases keep a use of a slot.
func (m *model) pins(s SlotRef) (n int) {
	for _, l := range m.leases {
		for _, b := range l.slots {
			for _, t := range b {
				if t.Slot == s {
					n++
				}
			}
		}
	}
	return n
}

// holds is how many leases cover a block.
func (m *model) holds(k blockKey) (n int) {
	b := m.visible[k]
	if b == nil {
		return 0
	}
	for _, l := range m.leases {
		for i := range l.slots {
			if l.slots[i][0].Slot == b.slots[0].Slot {
				n++
			}
		}
	}
	return n
}

// granted checks that a slot which is given to a writer is nobody's.
func (m *model) granted(s SlotRef, who SessionID) {
	p := placeOf(s)
	if w, ok := m.writers[p]; ok {
		m.fail("%v granted while %v may write it", s, w)
	}
	if s.Gen <= m.lastGen[p] {
		m.fail("%v granted after generation %d", s, m.lastGen[p])
	}
	for _, k := range slices.Collect(maps.Keys(m.visible)) {
		for _, t := range m.visible[k].slots {
			if placeOf(t.Slot) == p {
				m.fail("%v granted while a visible block is there", s)
			}
		}
	}
	for _, l := range m.leases {
		for _, b := range l.slots {
			for _, t := range b {
				if placeOf(t.Slot) == p {
					m.fail("%v granted while it is leased", s)
				}
			}
		}
	}
	m.lastGen[p], m.writers[p], m.refs[p] = s.Gen, who, s
}

func (m *model) freed(s SlotRef) {
	if w, ok := m.writers[placeOf(s)]; ok {
		m.fail("%v freed while %v may write it", s, w)
	}
	if m.pins(s) > 0 {
		m.fail("%v freed while it is leased", s)
	}
	for _, b := range m.visible {
		for _, t := range b.slots {
			if t.Slot == s {
				m.fail("%v freed while it is visible", s)
			}
		}
	}
}

func (m *model) show(a Visible) {
	k := blockKey{a.Namespace, a.Group, a.Hash}
	if m.visible[k] != nil {
		m.fail("%v visible twice", k)
	}
	for part, s := range a.Slots {
		c, ok := m.truth[s.Slot]
		if !ok || c.key != k || c.part != part {
			m.fail("%v of part %d is visible with what was published for %v", s.Slot, part, c)
		}
		if _, ok := m.writers[placeOf(s.Slot)]; ok {
			m.fail("%v is visible and may be written", s.Slot)
		}
	}
	m.visible[k] = &modelBlock{slices.Clone(a.Slots), m.now, a.Chain}
	delete(m.filling, k)
}

// named takes the name of a block that had none.
func (m *model) named(a *Named) {
	b := m.visible[blockKey{a.Namespace, a.Group, a.Hash}]
	if b == nil || !b.chain.IsZero() || a.Chain.IsZero() {
		m.fail("%v of group %d is named, and is not there or has a name", nameOf(a.Hash), a.Group)
		return
	}
	b.chain = a.Chain
}

func (m *model) remove(a Removed) {
	k := blockKey{a.Namespace, a.Group, a.Hash}
	b := m.visible[k]
	if b == nil {
		m.fail("%v removed, and was not visible", k)
		return
	}
	if a.Chain != b.chain {
		m.fail("%v is removed by another name than it was told by", k)
	}
	if a.Reason == Evicted {
		m.checkVictim(k, b)
	}
	if a.Reason != Evicted {
		for _, l := range m.leases {
			l.spoiled = l.spoiled || slices.Contains(l.keys, k) && slices.ContainsFunc(l.slots, func(s []PlanSlot) bool { return s[0].Slot == b.slots[0].Slot })
		}
	}
	delete(m.visible, k)
	m.forgetParent(k)
}

// forgetParent takes a block out of the tree: those that continue it have no parent any more.
func (m *model) forgetParent(k blockKey) {
	delete(m.parents, k)
	delete(m.home, k)
	for child, p := range m.parents {
		if p == k {
			m.parents[child] = blockKey{}
		}
	}
}

// children counts the blocks that continue one: in its own arena and of its own tenant, and elsewhere.
func (m *model) children(k blockKey) (own, elsewhere int) {
	for c, p := range m.parents {
		switch {
		case p != k:
		case m.home[c] == m.home[k]:
			own++
		default:
			elsewhere++
		}
	}
	return own, elsewhere
}

// mayGo says that nobody holds a block, and that no other of its arena and tenant continues it.
func (m *model) mayGo(k blockKey) bool {
	own, _ := m.children(k)
	return own == 0 && m.holds(k) == 0
}

// spared says that what is being published continues a block: it does not go for it.
func (m *model) spared(k blockKey) bool {
	for p := m.spare; p != (blockKey{}); p = m.parents[p] {
		if p == k {
			return true
		}
	}
	return false
}

// checkVictim wants an evicted block to be one that may go, and with LRU the one of its arena that was used longest ago: of the leaves, or else
// of those that only blocks elsewhere continue.
func (m *model) checkVictim(k blockKey, b *modelBlock) {
	if !m.mayGo(k) {
		for c, p := range m.parents {
			if p == k {
				m.fail("%v/%v is its child, visible %v filling %v", c.group, nameOf(c.hash), m.visible[c] != nil, m.filling[c])
			}
		}
		m.fail("%v evicted with %d holders, or children", k, m.holds(k))
	}
	if m.spared(k) {
		m.fail("%v evicted for what continues it", k)
	}
	_, elsewhere := m.children(k)
	if elsewhere > 0 {
		m.last++
	}
	if !m.lru {
		return
	}
	for other, o := range m.visible {
		if m.spared(other) || m.home[other].arena != m.home[k].arena || !m.mayGo(other) {
			continue
		}
		switch _, otherElsewhere := m.children(other); {
		case elsewhere > 0 && otherElsewhere == 0:
			m.fail("%v evicted, which others continue, before the leaf %v", k, other)
		case (elsewhere > 0) == (otherElsewhere > 0) && o.used < b.used:
			m.fail("%v used at %v evicted before %v used at %v", k, b.used, other, o.used)
		}
	}
}

// endLease is the naive rule of when a lease ends, and what is said then.
func (m *model) endLease(id LeaseID) (ended bool, said string) {
	l := m.leases[id]
	for c := range l.started {
		if !l.done[c] {
			return false, ""
		}
	}
	all := len(l.done) == int(l.consumers)
	if !all && !l.closed {
		return false, ""
	}
	delete(m.leases, id)
	if len(l.started) == 0 || !m.alive[l.sess] {
		return true, ""
	}
	return true, fmt.Sprintf("restored %v: %v", id, all && !l.failed)
}

// run is how many leading blocks of a want could be had.
func (m *model) run(ns Namespace, w Want, below bool) int {
	for i, h := range w.Hashes {
		k := blockKey{ns, w.Group, h}
		_, there := m.backed[k]
		there = there && m.disk && m.filling[k] == nil // what is being published is not read as well
		if m.visible[k] == nil && !(below && (there || m.isRead(k))) {
			return i
		}
	}
	return len(w.Hashes)
}

func (m *model) isRead(k blockKey) bool {
	for _, r := range m.readKey {
		if r == k {
			return true
		}
	}
	return false
}

// giveUp forgets a block that was being published; its grants are dead.
func (m *model) giveUp(k blockKey) {
	if m.filling[k] == nil {
		return
	}
	delete(m.filling, k)
	m.forgetParent(k)
	for _, g := range m.grants {
		g.dead = g.dead || g.key == k
	}
}

// tick collects what is too old, by the naive rule.
func (m *model) tick() {
	for _, g := range m.grants {
		switch f := m.filling[g.key]; {
		case g.copy != 0:
			if f != nil && !g.dead {
				f.at = m.now
			}
		case !g.dead && m.now >= g.at+m.patience:
			g.dead = true
			m.giveUp(g.key)
		}
	}
	for k, f := range m.filling {
		if m.now >= f.at+m.patience {
			m.giveUp(k)
		}
	}
	for _, l := range m.leases {
		if open := len(l.started) - len(l.done); m.now >= l.deadline && (open == 0 || open > len(l.ours)) {
			l.closed = true
			l.failed = l.failed || len(l.started) > 0 && len(l.started) == len(l.done)
		}
	}
}

// lost ends what a session had, but for what its process may still touch.
func (m *model) lost(id SessionID) {
	delete(m.alive, id)
	for k, f := range m.filling {
		if f.sess == id {
			m.giveUp(k)
		}
	}
	for s, g := range m.grants {
		if g.sess == id {
			delete(m.grants, s) // nobody will hear its word
		}
	}
	for k := range m.queries {
		if k.sess == id {
			delete(m.queries, k)
		}
	}
	for _, l := range m.leases {
		if l.sess == id {
			l.closed = true
		}
	}
}
