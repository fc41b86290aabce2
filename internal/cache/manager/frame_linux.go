package manager

import (
	"log/slog"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/perigee-llm/perigee/internal/cache/channel"
	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
)

// Frame implements channel.Handler.
func (m *Manager) Frame(c *channel.Conn, h wire.Header, msg wire.Message) {
	m.quiet.moved()
	s, _ := c.Data.(*session)
	if s == nil {
		m.greet(c, h, msg)
		return
	}
	by := &asker{conn: c, ref: h.Ref, s: s, kind: h.Kind}
	if h.Epoch != m.epoch || h.Session != s.id.Number {
		m.refuse(by, wire.StaleSession, "")
		return
	}
	// Roles never change once a connection is part of a session; the map does.
	m.mu.Lock()
	role := s.conns[c]
	m.mu.Unlock()
	if want := roleOf(h.Kind); want != wire.NoRole && role != want {
		m.refuse(by, wire.WrongRole, "")
		return
	}
	m.serve(by, msg)
}

// greet takes what a connection without a session may say.
func (m *Manager) greet(c *channel.Conn, h wire.Header, msg wire.Message) {
	switch msg := msg.(type) {
	case *wire.Register:
		m.register(c, h, msg)
	case *wire.Attach:
		m.attach(c, h, msg)
	case *wire.Leave:
		m.leave(c, h, msg)
	case *wire.Ping:
		c.Send(c.Header(h.Ref, 0), &wire.Pong{})
	default:
		m.refuseTo(c, h, refusal{wire.WrongRole, "register or attach first"})
	}
}

// roleOf is the connection that a message belongs on; NoRole: any.
func roleOf(k wire.Kind) wire.Role {
	switch k {
	case wire.KindPublish, wire.KindSeal, wire.KindAbandon, wire.KindPublishFrom, wire.KindPublishPieces:
		return wire.RolePublish
	case wire.KindQuery, wire.KindPoll, wire.KindCancel, wire.KindStart, wire.KindCopied, wire.KindRelease, wire.KindRestoreInto,
		wire.KindRestorePieces, wire.KindTake, wire.KindFetch:
		return wire.RoleQuery
	}
	return wire.NoRole
}

func (m *Manager) refuse(by *asker, class wire.Class, text string) {
	m.send(by, by, &wire.Refused{Of: by.kind, Class: class, Item: by.item, Text: text})
}

// serve takes one message of a session.
func (m *Manager) serve(by *asker, msg wire.Message) {
	id := by.s.id
	switch e := msg.(type) {
	case *wire.Publish:
		m.publish(by, e)
	case *wire.Seal:
		m.seal(by, e)
	case *wire.Abandon:
		m.locked(func() {
			for i, slot := range e.Slots {
				by.item = uint32(i)
				m.step(&core.Abandoned{Session: id, Slot: slot}, by)
			}
		})
	case *wire.Query:
		m.query(by, e)
	case *wire.Poll:
		by.ticket = e.Ticket
		m.locked(func() { m.step(&core.Poll{Session: id, Ticket: e.Ticket}, by) })
	case *wire.Cancel:
		m.locked(func() {
			if q := by.s.queries[e.Ticket.Op]; q != nil && q.ticket == e.Ticket { // not that of a revision which has taken its place
				m.mu.story.answered(m.now(), id, e.Ticket, "cancelled", nil)
				delete(by.s.queries, e.Ticket.Op)
			}
			m.step(&core.Cancel{Session: id, Ticket: e.Ticket}, by)
		})
	case *wire.Start:
		m.restore(by, e)
	case *wire.Take:
		m.takePages(by, e)
	case *wire.Copied:
		m.copied(by, e)
	case *wire.Release:
		m.locked(func() { m.step(&core.Release{Session: id, Lease: e.Lease}, by) })
	case *wire.MapArenas:
		m.mapArenas(by.conn, wire.Header{Ref: by.ref, Kind: by.kind}, by.s, e)
	case *wire.Follow:
		m.follow(by, e)
	case *wire.Goodbye:
		m.send(by, by, &wire.Bye{})
		m.locked(func() { m.goodbye(by.conn, by.s) })
	case *wire.Ping:
		m.send(by, by, &wire.Pong{})
	case *wire.OfferPool:
		m.offerPool(by, e)
	case *wire.RestorePieces:
		m.restoreInto(by, e)
	case *wire.Fetch:
		m.fetch(by, e)
	case *wire.RestoreInto:
		m.restoreInto(by, &wire.RestorePieces{Lease: e.Lease, Consumer: e.Consumer, Pages: whole(e.Targets)})
	case *wire.PublishPieces:
		m.publishFrom(by, e)
	case *wire.PublishFrom:
		m.publishFrom(by, &wire.PublishPieces{Slots: e.Slots, Pages: whole(e.Sources)})
	default: // Hello, Register, Attach again, or an answer
		m.refuse(by, wire.WrongRole, "")
	}
}

func (m *Manager) locked(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

func (m *Manager) publish(by *asker, e *wire.Publish) {
	by.msg = e
	if len(e.Blocks) > 0 && e.ParentChain.IsZero() && e.Blocks[0].Parent != (core.Hash{}) {
		// Whoever does not keep names may know its blocks by the engine's hashes alone.
		e.ParentChain = m.parentOf(by.s, e.Blocks[0].Group, e.Blocks[0].Parent)
	}
	list := namedLists.Get().(*namedBlocks)
	list.name(e, by.s.model, int(by.s.tokens))
	ev := &core.Publish{Session: by.s.id, Part: e.Part, Scope: e.Scope, Blocks: list.blocks}
	for i := range ev.Blocks {
		if ev.Blocks[i].Group == 0 {
			by.chain = ev.Blocks[i].Chain
		}
	}
	m.locked(func() {
		by.s.lastPub++
		ev.Op = by.s.lastPub
		m.step(ev, by)
	})
	if list.empty() {
		namedLists.Put(list)
	}
	by.msg = nil
	channel.Recycle(e)
}

// namedLists are memory for the core's blocks of a Publish, each for a step.
var namedLists = sync.Pool{New: func() any { return new(namedBlocks) }}

// seal makes the checksums, without the lock, and then tells the core.
func (m *Manager) seal(by *asker, e *wire.Seal) {
	if !e.Summed {
		m.sum(by.s, e.Slots)
	}
	// The lock is let go of between runs, so that a query need not wait for a long one.
	ev := &core.SealedRun{Session: by.s.id}
	for from := 0; from < len(e.Slots); from += sealRun {
		m.locked(func() {
			ev.Slots = e.Slots[from:min(from+sealRun, len(e.Slots))]
			by.item = uint32(from)
			m.step(ev, by)
		})
	}
	channel.Recycle(e)
}

// sealRun slots are sealed under one lock: some 100 µs.
const sealRun = 128

// sum makes the checksums of slots that were granted to the session. One that was not gets none, which the core will find.
func (m *Manager) sum(s *session, slots []wire.Sealed) {
	bytes := make([]uint32, len(slots))
	seen := make(map[core.SlotRef]bool, len(slots))
	m.locked(func() {
		for i := range slots {
			if !seen[slots[i].Slot] { // named again, it is not read again
				seen[slots[i].Slot] = true
				bytes[i] = m.mu.core.GrantedBytes(s.id, slots[i].Slot)
			}
		}
	})
	total := int64(0)
	for i, slot := range slots {
		m.mem.RLock() // for each, so that nobody waits long for the arenas
		if a := m.mem.arenas[slot.Slot.Arena]; a != nil && bytes[i] > 0 {
			slots[i].Checksum = xxh3.Hash(a.Slot(slot.Slot.Index, bytes[i]))
			total += int64(bytes[i])
		}
		m.mem.RUnlock()
	}
	m.counts.sealedBytes.Add(total)
}

func (m *Manager) query(by *asker, e *wire.Query) {
	if text := checkDemand(by.s, e); text != "" {
		m.refuse(by, wire.BadDemand, text)
		return
	}
	by.ticket = e.Ticket
	ev := &core.Query{
		Session: by.s.id, Ticket: e.Ticket, Mode: e.Mode, Scope: e.Scope, Demand: e.Wants, Consumers: e.Consumers, Priority: e.Priority,
		Wait: micros(e.WaitMicros),
	}
	m.locked(func() {
		m.mu.story.asked(m.now(), by.s, e)
		m.step(ev, by)
	})
	channel.Recycle(e)
}

// micros is a duration; one that is beyond all sense is an hour, which the core cuts.
func micros(n uint64) time.Duration { return time.Duration(min(n, 3_600_000_000)) * time.Microsecond }

// restore starts a consumer's restore, and names the pages as they are verified.
func (m *Manager) restore(by *asker, e *wire.Start) {
	slots := plans.Get().(*[]core.PlanSlot)
	m.locked(func() {
		m.step(&core.Start{Session: by.s.id, Lease: e.Lease, Consumer: e.Consumer, Into: *slots}, by)
	})
	if by.plan != nil {
		m.namePages(by, by.plan)
	}
	keepPlan(slots, by)
}

// plans are memory for the slots of plans, each for as long as one is sent. Longer ones than mostPlanned are not kept.
var plans = sync.Pool{New: func() any { return new([]core.PlanSlot) }}

const mostPlanned = 1024

func keepPlan(slots *[]core.PlanSlot, by *asker) {
	if by.plan != nil {
		*slots, by.plan = by.plan.Slots[:0], nil
	}
	if cap(*slots) <= mostPlanned {
		plans.Put(slots)
	}
}

// planPiece is how many bytes are verified before they are named: the copying of one piece hides the verifying of the next, and its frame
// costs a twentieth of it.
const planPiece = 1 << 20

// namePages verifies a plan piece by piece and sends it.
func (m *Manager) namePages(by *asker, p *core.Plan) {
	first, bytes := 0, 0
	for i := range p.Slots {
		if !m.verify(&p.Slots[i]) {
			m.spoil(by, p, uint32(i))
			return
		}
		bytes += int(p.Slots[i].Bytes)
		last := i+1 == len(p.Slots)
		if last || bytes >= planPiece || i+1-first == wire.MaxBlocks {
			m.send(by, by, &wire.Plan{
				Lease: p.Lease, Consumer: p.Consumer, First: uint32(first), Total: uint32(len(p.Slots)), Slots: p.Slots[first : i+1],
			})
			first, bytes = i+1, 0
			if !last {
				by.conn.Flush()
			}
		}
	}
}

// verify says whether a slot holds what was sealed.
func (m *Manager) verify(s *core.PlanSlot) bool {
	m.mem.RLock()
	defer m.mem.RUnlock()
	a := m.mem.arenas[s.Slot.Arena]
	if a == nil {
		return false // the session has ended meanwhile
	}
	m.counts.verifiedBytes.Add(int64(s.Bytes))
	return xxh3.Hash(a.Slot(s.Slot.Index, s.Bytes)) == s.Checksum
}

// spoil tells a consumer that its plan ends here. The page goes with its Copied, whatever outcome that claims.
func (m *Manager) spoil(by *asker, p *core.Plan, bad uint32) {
	if !m.spoiled(by, p.Lease, p.Consumer, bad, p.Slots[bad].Slot) {
		m.refuse(by, wire.ClassOf(core.StaleLease), "it has ended meanwhile")
		return
	}
	m.send(by, by, &wire.Spoiled{Lease: p.Lease, Consumer: p.Consumer, Bad: bad})
}

// spoiled notes a page that is not what was sealed, if its lease kept it till now, and says so. One whose lease was ended meanwhile, by another
// connection of the session, may have been looked at when it was another's already.
func (m *Manager) spoiled(by *asker, lease core.LeaseID, consumer, bad uint32, slot core.SlotRef) (held bool) {
	m.locked(func() {
		if r := by.s.restores[lease]; r != nil {
			r.spoiled[consumer], held = bad, true
		}
	})
	if held {
		m.counts.spoiled.Add(1)
		m.journal.say(slog.LevelError, "a page is not what was sealed", "instance", by.s.instance, "slot", slot)
	}
	return held
}

func (m *Manager) copied(by *asker, e *wire.Copied) {
	if e.Outcome == core.Mismatch {
		m.lookAgain(by, e)
	}
	ev := &core.Copied{Session: by.s.id, Lease: e.Lease, Consumer: e.Consumer, Outcome: e.Outcome, Bad: e.Bad}
	m.locked(func() {
		if r := by.s.restores[e.Lease]; r != nil {
			if bad, ok := r.spoiled[e.Consumer]; ok {
				ev.Outcome, ev.Bad = core.Mismatch, bad
			} else if e.Outcome == core.Mismatch {
				// We find every page of the plan to be right, so this is not the page's fault, and no client drops
				// what is everybody's by saying so.
				ev.Outcome = core.Failed
			}
			if _, again := r.by[e.Consumer]; !again && e.Consumer < core.MaxParts { // who is no consumer is refused below
				r.by[e.Consumer] = *by
			}
		}
		m.step(ev, by)
	})
}
