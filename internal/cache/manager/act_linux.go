package manager

import (
	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
)

// do does one thing that the core wants. by is who caused the step, or nil; answers to him go out when his Frame ends.
func (m *Manager) do(now core.Time, a core.Action, by *asker) {
	switch a := a.(type) {
	case *core.Visible, *core.Removed:
		m.mu.story.saw(now, a)
		m.tells.block(a, m.sealer(by))
		if m.opt.Observe != nil {
			m.opt.Observe(now, a)
		}
		m.recall(a, by)
	case *core.Named:
		m.counts.named.Add(1)
		m.tells.block(a, m.sealer(by))
	case core.CloseSession:
		if s := m.mu.sessions[a.Session.Number]; s != nil {
			for c := range s.conns {
				c.End(wire.ClassOf(a.Class), "")
			}
		}
	case core.PoolTaken, core.PoolGone, core.CopyIn, core.CopyOut, core.CopyStop, core.CopiedIn, core.CopiedOut, core.Fetched:
		m.doCopy(a, by)
	case core.WalkedTo:
		m.mu.walked = a
	case core.Registered, *core.Freed: // Register's caller knows; slots are the core's
	case core.Read:
		panic("manager: a read from below memory, and there is nothing below")
	default:
		m.answer(a, by)
	}
}

// sealer is whose blocks a step completes: who caused it, or else of whom the core is being told.
func (m *Manager) sealer(by *asker) *session {
	if by != nil {
		return by.s
	}
	return m.mu.speaks
}

// answer sends what a client is to be told.
func (m *Manager) answer(a core.Action, by *asker) {
	switch a := a.(type) {
	case core.Refused:
		if by != nil && by.s.id == a.Session {
			if by.kind == wire.KindQuery || by.kind == wire.KindFetch {
				m.mu.story.answered(m.now(), a.Session, by.ticket, "refused: "+wire.ClassOf(a.Class).String(), nil)
			}
			one := *by
			one.item += a.Item
			m.refuse(&one, wire.ClassOf(a.Class), "")
		}
	case core.Granted:
		m.granted(a, by)
	case core.Published:
		if s := m.mu.sessions[a.Session.Number]; s != nil && s.publish[a.Op] != nil {
			p := s.publish[a.Op]
			delete(s.publish, a.Op)
			m.send(&p.by, by, &wire.Published{Op: p.op, Sealed: a.Sealed, Dropped: a.Dropped})
		}
	case core.Busy:
		m.answeredNow(by.s, a.Ticket)
		m.mu.story.answered(m.now(), a.Session, a.Ticket, "busy", nil)
		m.send(by, by, &wire.Busy{Ticket: a.Ticket})
	case core.Loading:
		m.answeredNow(by.s, a.Ticket)
		by.s.queries[a.Ticket.Op] = by
		m.send(by, by, &wire.Loading{Ticket: a.Ticket})
	case core.Candidates:
		m.answeredNow(by.s, a.Ticket)
		m.mu.story.answered(m.now(), a.Session, a.Ticket, "candidates", leading(a.Positions))
		m.send(by, by, &wire.Candidates{Ticket: a.Ticket, Positions: a.Positions})
	case core.Ready:
		m.ready(a, by)
	case core.Plan:
		p := a
		by.plan = &p
		if by.s.restores[a.Lease] == nil {
			r := &restoring{by: map[uint32]asker{}, spoiled: map[uint32]uint32{}}
			r.begun(m.now(), by.s, &p)
			by.s.restores[a.Lease] = r
		}
	case core.Restored:
		m.restored(a, by)
	}
}

func (m *Manager) granted(a core.Granted, by *asker) {
	s := by.s
	s.publish[a.Op] = &publishing{asker{conn: by.conn, ref: by.ref, s: s}, by.msg.Op}
	for i := range a.Blocks {
		if a.Blocks[i].Disposition == core.NoRoom {
			m.mu.story.noRoom(m.now(), by.msg.Blocks[i].Hash)
		}
	}
	m.send(by, by, &wire.Granted{Op: by.msg.Op, Slots: a.Blocks, Chain: by.chain})
}

func (m *Manager) ready(a core.Ready, by *asker) {
	m.mu.story.answered(m.now(), a.Session, a.Ticket, whyWord(a.Why), a.Hits)
	s := m.mu.sessions[a.Session.Number]
	if s == nil {
		return
	}
	to := s.queries[a.Ticket.Op]
	if by != nil && by.s == s && (by.kind == wire.KindQuery || by.kind == wire.KindPoll) && by.ticket == a.Ticket {
		to = by
	}
	if to == nil {
		return // it was cancelled as its answer came
	}
	m.answeredNow(s, a.Ticket)
	m.send(to, by, &wire.Ready{Ticket: a.Ticket, Why: a.Why, Lease: a.Lease, Hits: a.Hits, Arenas: a.Arenas})
}

// answeredNow notes that nobody waits for the answer to a query any more: it was given, or another revision has taken its place.
func (m *Manager) answeredNow(s *session, t core.Ticket) {
	if q := s.queries[t.Op]; q != nil {
		if q.ticket != t {
			m.mu.story.answered(m.now(), s.id, q.ticket, "replaced", nil)
		}
		delete(s.queries, t.Op)
	}
}

func (m *Manager) restored(a core.Restored, by *asker) {
	s := m.mu.sessions[a.Session.Number]
	if s == nil || s.restores[a.Lease] == nil {
		return
	}
	m.tells.restored(m.now(), s, s.restores[a.Lease], a.OK)
	for _, to := range s.restores[a.Lease].by {
		m.send(&to, by, &wire.Restored{Lease: a.Lease, OK: a.OK})
	}
	delete(s.restores, a.Lease)
}

// whyWord is why a query was answered as it was, for people.
func whyWord(w core.Why) string {
	return [...]string{"found", "missing", "too_large", "timed_out", "unreadable"}[w]
}
