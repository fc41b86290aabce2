package core

import (
	"slices"

	"github.com/perigee-llm/perigee/internal/cache/storage/dram"
	"github.com/perigee-llm/perigee/internal/chain"
)

// publish is one Publish that has open grants.
type publish struct {
	op              uint64
	open            int
	sealed, dropped uint32
	began           Time
	bytes           int64 // of the slots that were sealed
	route           Route
}

// fill is a block on its way to being visible.
type fill struct {
	page     dram.Page // None: it has ended
	at       int       // its place in Core.fills
	sess     *session
	identity []byte
	parent   Hash
	granted  uint64 // bit per part
	sealed   uint64
	deadline Time // when it is collected if no part of it has moved
}

// grant is the right of a session to write one slot.
//
//	open ──Sealed, Abandoned──▶ (gone)
//	  └──collected (too old), Lost──▶ quarantined ──Sealed, Abandoned, Fenced──▶ (gone)
type grant struct {
	sess      *session // nil: the place is free
	pub       *publish
	page      dram.Page
	fill      *fill // of the page, if it still is: see fillOf
	arena     *arena
	slot, gen uint32
	part      uint8
	collected bool
	copy      CopyID // the shell fills it; 0: the client
	deadline  Time
}

// fillAt is the record of a block that is being published; nil: it is not.
func (c *Core) fillAt(p dram.Page) *fill {
	if n := c.books.Word(p); n > 0 {
		return c.fills[n-1]
	}
	return nil
}

// fillOf is what fillAt gives for the grant's page. A page is no other block's for as long as a slot of it is granted, so that a record which is used
// again is of another page.
func (g *grant) fillOf() *fill {
	if g.fill != nil && g.fill.page == g.page {
		return g.fill
	}
	return nil
}

// readWord marks a slot that is granted to a read and to no session.
const readWord = ^uint64(0)

func (c *Core) publish(e *Publish) {
	s := c.sessionOf(e.Session, KindPublish, e.Op)
	if s == nil {
		return
	}
	sc, class := c.mayPublish(s, e)
	if class != NoClass {
		c.refuse(s.id, KindPublish, e.Op, class)
		return
	}
	s.lastPublish = e.Op
	p := s.openPublish(e.Op, c.now)
	answers := c.made.granted.take(len(e.Blocks))
	var without *Block // the last one that got no room
	ahead := 0         // room was made for the blocks before it
	for i := range e.Blocks {
		b := &e.Blocks[i]
		if i >= ahead && without == nil {
			ahead = i + c.roomAhead(s, e.Blocks[i:min(i+aheadRun, len(e.Blocks))], sc)
		}
		if i%warmRun == 0 {
			c.warm(s, e.Blocks[i:min(i+warmRun, len(e.Blocks))])
		}
		// What continues a block that there was no room for could not be reached: nothing goes for it.
		if without != nil && b.Parent == without.Hash && b.Group == without.Group {
			answers[i].Disposition = NoRoom
		} else {
			answers[i] = c.publishBlock(s, p, e, i, sc)
		}
		if answers[i].Disposition == NoRoom {
			without = b
		}
		c.stats.Published[answers[i].Disposition]++
		if d := answers[i].Disposition; d == Taken || d == NoRoom {
			p.dropped++
		}
	}
	c.do(Granted{s.id, e.Op, answers})
	c.settlePublish(s, p)
}

// warmRun is how many blocks are looked at ahead: what that brings is 20 KiB, which stay in a core's cache until they are used. aheadRun is for how many
// room is made at once: with as few as warmRun a run lies in ever shorter rows, as prompts come and go, and more are some hundred KiB.
const warmRun, aheadRun = 64, 512

// warm has what publishing some blocks will look at brought into the cache. The look at one block waits for memory; those ahead wait together.
func (c *Core) warm(s *session, blocks []Block) {
	c.warmed ^= c.books.Warm(s.space, blocks[0].Group, &blocks[0].Parent)
	for i := range blocks {
		c.warmed ^= c.books.Warm(s.space, blocks[i].Group, &blocks[i].Hash)
	}
}

func (c *Core) mayPublish(s *session, e *Publish) (scope int, class Class) {
	switch {
	case e.Op <= s.lastPublish:
		return 0, Retired
	case len(s.publishes) >= c.lim.Publishes:
		return 0, TooMany
	case len(e.Blocks) == 0 || len(e.Blocks) > c.lim.Blocks:
		return 0, Invalid
	}
	for i := range e.Blocks {
		b := &e.Blocks[i]
		if uint64(b.Group) >= uint64(len(s.layout)) || uint64(e.Part) >= uint64(len(s.layout[b.Group].PartBytes)) ||
			len(b.Identity) > maxIdentity || b.Hash == (Hash{}) {
			return 0, Invalid
		}
	}
	return c.charged(s, e.Scope)
}

// maxIdentity is in bytes: the tokens of the largest blocks in use (1,024 of 4 bytes) and as much of extra keys.
const maxIdentity = 8192

// charged returns whose budget a message is charged to.
func (c *Core) charged(s *session, id Scope) (scope int, class Class) {
	if id == 0 {
		return s.scope, NoClass
	}
	sc, ok := c.scopeOf(id, s.arenas[0])
	if !ok {
		return 0, TooMany
	}
	return sc, NoClass
}

func (c *Core) publishBlock(s *session, pub *publish, e *Publish, i, sc int) GrantedBlock {
	b := &e.Blocks[i]
	p, there := c.books.Find(dram.Key{Space: s.space, Group: b.Group, Hash: b.Hash})
	if there {
		c.before = p
		c.books.Adopt(p, b.Parent)
		if c.books.State(p) == dram.Visible {
			// No use: the engine computed it anew, or had it from here and asked for it before.
			c.name(p, b.ParentChain, b.Chain)
			return GrantedBlock{Disposition: Present}
		}
		f := c.fillAt(p)
		if f == nil || f.sess != s || f.granted>>e.Part&1 == 1 {
			return GrantedBlock{Disposition: Taken}
		}
		return c.grant(s, pub, p, f, e.Part)
	}
	g := &s.layout[b.Group]
	n := &dram.Newcomer{
		Key: dram.Key{Space: s.space, Group: b.Group, Hash: b.Hash}, Parent: b.Parent, Before: c.before, Chain: b.Chain,
		Arena: s.arenas[g.Arena].at, Scope: sc, Parts: len(g.PartBytes),
	}
	if s.identity+len(b.Identity) > c.lim.Identity || !c.room(n) {
		return GrantedBlock{Disposition: NoRoom}
	}
	s.identity += len(b.Identity)
	p = c.books.Begin(n)
	c.before = p
	f := c.newFill()
	f.page, f.sess, f.identity, f.parent = p, s, append(f.identity, b.Identity...), b.Parent
	f.at, c.fills = len(c.fills), append(c.fills, f)
	c.books.SetWord(p, uint32(len(c.fills)))
	return c.grant(s, pub, p, f, e.Part)
}

// newFill returns an empty record, with memory for an identity if it was used, or of a slab of new ones.
func (c *Core) newFill() *fill {
	n := len(c.spareFills) - 1
	if n < 0 {
		slab := make([]fill, slabFills)
		for i := range slab {
			c.spareFills = append(c.spareFills, &slab[i])
		}
		n = slabFills - 1
	}
	f := c.spareFills[n]
	c.spareFills = c.spareFills[:n]
	return f
}

// keepFill keeps an ended record for the next, once no action has its identity any more: see Recycle.
func (c *Core) keepFill(f *fill) {
	identity := f.identity
	if cap(identity) > mostKept {
		identity = nil
	}
	*f = fill{page: dram.None, identity: identity[:0]}
	if len(c.made.fills) < mostFills {
		c.made.fills = append(c.made.fills, f)
	}
}

// slabFills are 7 KiB; mostFills are a message and the next, and 200 KiB with the identities of usual blocks, of 16 tokens. mostKept is those of blocks of 64.
const slabFills, mostFills, mostKept = 64, 1024, 320

func (c *Core) grant(s *session, pub *publish, p dram.Page, f *fill, part uint32) GrantedBlock {
	var at uint32
	if n := len(c.spareG); n > 0 {
		at, c.spareG = c.spareG[n-1], c.spareG[:n-1]
	} else {
		at = uint32(len(c.grants))
		c.grants = append(c.grants, grant{})
	}
	a := c.arenaList[c.books.ArenaOf(p)]
	slot, gen := c.books.Grant(p, int(part), uint64(at))
	f.granted |= 1 << part
	f.deadline = c.now + c.lim.Patience
	c.grants[at] = grant{sess: s, pub: pub, page: p, fill: f, arena: a, slot: slot, gen: gen, part: uint8(part), deadline: f.deadline}
	pub.open++
	return GrantedBlock{Write, SlotRef{a.id, slot, gen}}
}

// grantOf returns the open or quarantined grant that a session speaks of, or refuses the event.
func (c *Core) grantOf(id SessionID, ref SlotRef, k EventKind) (at uint32, ok bool) {
	s := c.sessionOf(id, k, uint64(ref.Index))
	if s == nil {
		return 0, false
	}
	at, ok = c.grantAt(s, ref)
	switch {
	case !ok:
		c.refuse(id, k, uint64(ref.Index), StaleSlot)
	case c.grants[at].copy != 0: // it is not the client who fills it
		c.refuse(id, k, uint64(ref.Index), Repeated)
		ok = false
	}
	return at, ok
}

// grantAt returns the grant that a session speaks of.
func (c *Core) grantAt(s *session, ref SlotRef) (at uint32, ok bool) {
	if a := c.arenas[ref.Arena]; a != nil {
		t, there := c.books.SlotAt(a.at, ref.Index)
		if there && t.State == dram.SlotGranted && t.Gen == ref.Gen && t.Word < uint64(len(c.grants)) && c.grants[t.Word].sess == s {
			return uint32(t.Word), true
		}
	}
	return 0, false
}

// GrantedBytes is how many bytes a slot is granted for to a session that fills it itself; 0: it is not.
func (c *Core) GrantedBytes(id SessionID, ref SlotRef) uint32 {
	s := c.sessions[id]
	if s == nil || !s.live {
		return 0
	}
	at, class := c.sealable(s, ref)
	if class != NoClass {
		return 0
	}
	g := &c.grants[at]
	return s.layout[c.books.GroupOf(g.page)].PartBytes[g.part]
}

func (c *Core) sealed(e *Sealed) {
	s := c.sessionOf(e.Session, KindSealed, uint64(e.Slot.Index))
	if s == nil {
		return
	}
	at, class := c.sealable(s, e.Slot)
	if class != NoClass {
		c.refuse(s.id, KindSealed, uint64(e.Slot.Index), class)
	}
	c.sealAt(at, class, e.Checksum)
}

func (c *Core) sealedRun(e *SealedRun) {
	s := c.sessionOf(e.Session, KindSealedRun, 0)
	if s == nil {
		return
	}
	for i := range e.Slots {
		if i%warmRun == 0 {
			c.warmSealed(e.Slots[i:min(i+warmRun, len(e.Slots))])
		}
		t := &e.Slots[i]
		at, class := c.sealable(s, t.Slot)
		if class != NoClass {
			c.refuseItem(s.id, KindSealedRun, uint64(t.Slot.Index), class, i)
		}
		c.sealAt(at, class, t.Checksum)
	}
}

// warmSealed is warm for slots that are sealed: since they were granted, as much as a core's cache holds has been looked at, or copied beside it.
func (c *Core) warmSealed(slots []SealedSlot) {
	var pages [warmRun]dram.Page
	n := 0
	for i := range slots {
		a := c.arenas[slots[i].Slot.Arena]
		if a == nil {
			continue
		}
		if t, there := c.books.SlotAt(a.at, slots[i].Slot.Index); there && t.State == dram.SlotGranted && t.Word < uint64(len(c.grants)) {
			c.warmed ^= c.grants[t.Word].gen
			pages[n] = t.Page
			n++
		}
	}
	for _, p := range pages[:n] {
		c.warmed ^= c.books.WarmShown(p)
	}
}

// sealable returns the grant that a session says it has written, or why it is refused; noGrant if there is none of its own.
func (c *Core) sealable(s *session, ref SlotRef) (at uint32, class Class) {
	at, ok := c.grantAt(s, ref)
	switch {
	case !ok:
		return noGrant, StaleSlot
	case c.grants[at].copy != 0: // it is not the client who fills it
		return noGrant, Repeated
	case c.grants[at].fillOf() == nil:
		return at, StaleSlot // the block was given up meanwhile; but now we know that the slot is not written any more
	}
	return at, NoClass
}

func (c *Core) sealAt(at uint32, class Class, checksum uint64) {
	switch {
	case at == noGrant:
	case class != NoClass:
		c.endGrant(at)
	default:
		c.sealGrant(at, c.grants[at].fillOf(), checksum)
	}
}

// sealGrant ends a grant whose slot is written.
func (c *Core) sealGrant(at uint32, f *fill, checksum uint64) {
	g := c.grants[at]
	c.books.Seal(g.arena.at, g.slot, checksum)
	f.sealed |= 1 << g.part
	f.deadline = c.now + c.lim.Patience
	_, size, _ := c.books.Arena(g.arena.at)
	g.pub.sealed++
	g.pub.bytes += int64(size)
	g.pub.route = max(g.pub.route, routeOf(g.copy != 0))
	c.freeGrant(at)
	if f.sealed == 1<<c.books.Parts(g.page)-1 {
		c.endFill(g.page, f)
		c.show(g.page, dram.Retained, f.parent, f.identity)
		c.keepFill(f)
	}
	c.settlePublish(g.sess, g.pub)
}

func (c *Core) endFill(p dram.Page, f *fill) {
	last := c.fills[len(c.fills)-1]
	c.fills[f.at], last.at = last, f.at
	c.books.SetWord(last.page, uint32(f.at+1))
	c.fills[len(c.fills)-1] = nil
	c.fills = c.fills[:len(c.fills)-1]
	c.books.SetWord(p, 0)
	f.sess.identity -= len(f.identity)
}

// show makes a block visible and says so.
func (c *Core) show(p dram.Page, r dram.Residency, parent Hash, identity []byte) {
	c.residence()
	c.books.Show(p, r, c.now)
	k := c.books.Key(p)
	v := &c.made.visible.take(1)[0]
	*v = Visible{
		Namespace: c.spaceList[k.Space].name, Group: k.Group, Hash: k.Hash, Parent: parent, Chain: c.books.Chain(p),
		Scope: c.scopeList[c.books.ScopeOf(p)].id, Identity: identity, Slots: c.slotsOf(c.made.slots.take(c.books.Parts(p))[:0], p),
	}
	c.do(v)
}

// learned gives blocks that were published without a name theirs. One that is still being published has its turn when it is Visible: the shell knows
// what it has learned.
func (c *Core) learned(e *Learned) {
	s := c.sessionOf(e.Session, KindLearned, 0)
	if s == nil {
		return
	}
	for i := range e.Blocks {
		b := &e.Blocks[i]
		for g := range s.layout {
			p, there := c.books.Find(dram.Key{Space: s.space, Group: uint32(g), Hash: b.Hash})
			if there && c.books.State(p) == dram.Visible {
				c.name(p, b.Parent, b.Chain)
			}
		}
	}
}

// name gives a visible block that has no name one, if there is one.
func (c *Core) name(p dram.Page, parent, name chain.Key) {
	if name.IsZero() || !c.books.Chain(p).IsZero() {
		return
	}
	c.books.SetChain(p, name)
	k := c.books.Key(p)
	c.do(&Named{Namespace: c.spaceList[k.Space].name, Group: k.Group, Hash: k.Hash, Parent: parent, Chain: name})
}

// slotsOf appends the block's slots, part by part.
func (c *Core) slotsOf(dst []PlanSlot, p dram.Page) []PlanSlot {
	for part := range c.books.Parts(p) {
		dst = append(dst, c.slotOf(p, part))
	}
	return dst
}

func (c *Core) slotOf(p dram.Page, part int) PlanSlot {
	i, t := c.books.PartOf(p, part)
	space, group := c.books.PlaceOf(p)
	s := PlanSlot{Slot: SlotRef{c.arenaList[c.books.ArenaOf(p)].id, i, t.Gen}, Bytes: c.spaceList[space].layout[group].PartBytes[part]}
	if t.State == dram.SlotSealed {
		s.Checksum = t.Word
	}
	return s
}

func (c *Core) abandoned(e *Abandoned) {
	at, ok := c.grantOf(e.Session, e.Slot, KindAbandoned)
	if !ok {
		return
	}
	c.giveUp(c.grants[at].page)
	c.endGrant(at)
}

// giveUp takes a block that is being published out of sight. Slots of it that are granted stay so until their owner's word.
func (c *Core) giveUp(p dram.Page) {
	f := c.fillAt(p)
	if f == nil {
		return
	}
	c.endFill(p, f)
	c.keepFill(f)
	c.stats.Collected++
	c.books.Doom(p)
	c.free(p)
}

// free gives back the slots of a doomed block that nobody needs any more.
func (c *Core) free(p dram.Page) {
	if c.books.Holds(p) > 0 {
		return
	}
	a := c.arenaList[c.books.ArenaOf(p)].id
	c.books.Free(p, func(slot, gen uint32) {
		f := &c.made.freed.take(1)[0]
		f.Slot = SlotRef{a, slot, gen}
		c.do(f)
	})
}

// endGrant ends a grant whose slot came to nothing and is not being written any more.
func (c *Core) endGrant(at uint32) {
	g := c.grants[at]
	c.books.Ungrant(g.arena.at, g.slot)
	c.free(g.page)
	g.pub.dropped++
	c.freeGrant(at)
	if g.sess.live {
		c.settlePublish(g.sess, g.pub)
	}
}

func (c *Core) freeGrant(at uint32) {
	c.grants[at].pub.open--
	c.grants[at] = grant{}
	c.spareG = append(c.spareG, at)
}

// settlePublish says so when a publish has no open grant left.
func (c *Core) settlePublish(s *session, p *publish) {
	if p.open > 0 {
		return
	}
	i := slices.Index(s.publishes, p)
	if i < 0 {
		return
	}
	s.publishes = slices.Delete(s.publishes, i, i+1)
	if p.sealed > 0 {
		c.stats.Saves[p.route].add(p.bytes, c.now-p.began)
	}
	c.do(Published{s.id, p.op, p.sealed, p.dropped})
	if s.spare == nil {
		s.spare = p
	}
}

// openPublish notes a publish; the last one that ended lends its record.
func (s *session) openPublish(op uint64, now Time) *publish {
	p := s.spare
	if p == nil {
		p = &publish{}
	}
	s.spare, *p = nil, publish{op: op, began: now}
	s.publishes = append(s.publishes, p)
	return p
}

// fillsOf returns the blocks that are being published and that want says, in the order of their numbers.
func (c *Core) fillsOf(want func(*fill) bool) []dram.Page {
	var out []dram.Page
	for _, f := range c.fills {
		if want(f) {
			out = append(out, f.page)
		}
	}
	slices.Sort(out)
	return out
}
