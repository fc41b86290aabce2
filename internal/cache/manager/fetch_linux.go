package manager

import (
	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
)

// fetch looks up, copies and lets go in one message.
func (m *Manager) fetch(by *asker, e *wire.Fetch) {
	if len(e.Lines.Lines) > 0 || len(e.Lines.Places) > 0 {
		if len(e.Pages.Counts) > 0 || len(e.Pages.Pieces) > 0 {
			m.refuse(by, wire.Invalid, "pieces and lines")
			return
		}
		var ok bool
		if e.Pages, ok = e.Lines.Pages(); !ok {
			m.refuse(by, wire.Invalid, "lines that are too many, or go beyond all memory")
			return
		}
	}
	// A client that has given up has hung up before it looked whether this was read, and takes the pieces for its own.
	if by.conn.HungUp() {
		return
	}
	ev := &core.Fetch{Session: by.s.id, Scope: e.Scope, Group: e.Group, Hashes: e.Hashes, All: e.All, Pages: e.Pages}
	m.locked(func() {
		m.mu.story.asked(m.now(), by.s, &wire.Query{Mode: core.Prefix, Request: e.Request, Wants: []core.Want{{Group: e.Group, Hashes: e.Hashes}}})
		m.step(ev, by)
	})
	m.help(by)
}

// fetches takes down what a fetch has found.
func (m *Manager) fetches(a core.CopyOut, by *asker) {
	if by.kind == wire.KindFetch {
		m.mu.story.answered(m.now(), a.Session, core.Ticket{}, whyWord(core.Found), []uint32{uint32(len(a.Slots) / len(by.s.parts[0]))})
	}
}

func (m *Manager) fetched(a core.Fetched, by *asker) {
	to := by
	if a.Copy != 0 {
		to = &m.mu.copies[a.Copy].by
	} else {
		m.mu.story.answered(m.now(), a.Session, core.Ticket{}, whyWord(a.Why), nil)
	}
	m.send(to, by, &wire.Fetched{Why: a.Why, Outcome: a.Outcome, Found: a.Found, Good: a.Good})
}
