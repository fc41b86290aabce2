package manager

import (
	"errors"
	"log/slog"

	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/cache/storage/hostpool"
)

// The second copy route: the engine has offered memory of its own, and we copy.

// poolKey names an offered pool.
type poolKey struct {
	session core.SessionID
	pool    uint32
}

var errNoArena = errors.New("the arena is not there any more")

// offerPool maps what came with the message, and asks the core whether it may stay.
func (m *Manager) offerPool(by *asker, e *wire.OfferPool) {
	f := by.conn.TakeFile()
	if f == nil {
		m.refuse(by, wire.BadPool, "no descriptor arrived with it; one is wanted, with the frame's first byte")
		return
	}
	defer f.Close()
	p, err := hostpool.Open(f, e.Bytes)
	if err != nil {
		m.refuse(by, wire.BadPool, err.Error())
		return
	}
	taken := false
	m.locked(func() {
		key := poolKey{by.s.id, e.Pool}
		by.offered = p
		m.step(&core.OfferPool{Session: by.s.id, Pool: e.Pool, Bytes: e.Bytes, Memory: p.Memory}, by)
		taken = m.mu.pools[key] == p
	})
	if !taken {
		p.Close()
		return
	}
	m.journal.say(slog.LevelInfo, "an engine's memory is mapped", "instance", by.s.instance, "session", by.s.id.Number, "pool", e.Pool, "bytes", e.Bytes)
	m.send(by, by, &wire.Offered{Pool: e.Pool, Bytes: e.Bytes})
}

func (m *Manager) restoreInto(by *asker, e *wire.RestorePieces) {
	m.locked(func() {
		m.step(&core.RestoreInto{Session: by.s.id, Lease: e.Lease, Consumer: e.Consumer, Pages: e.Pages}, by)
	})
	m.help(by)
}

func (m *Manager) publishFrom(by *asker, e *wire.PublishPieces) {
	m.locked(func() {
		m.step(&core.PublishFrom{Session: by.s.id, Slots: e.Slots, Pages: e.Pages}, by)
	})
	m.help(by)
}

// whole is pages of one piece each, as long as the page.
func whole(targets []wire.Target) (p core.Pages) {
	for _, t := range targets {
		p.Counts = append(p.Counts, 1)
		p.Pieces = append(p.Pieces, core.Piece{Pool: t.Pool, Offset: t.Offset})
	}
	return p
}

// doCopy does what the core says of copies and of offered memory.
func (m *Manager) doCopy(a core.Action, by *asker) {
	switch a := a.(type) {
	case core.PoolTaken:
		m.mu.pools[poolKey{a.Session, a.Pool}] = by.offered
	case core.PoolGone:
		key := poolKey{a.Session, a.Pool}
		p := m.mu.pools[key]
		delete(m.mu.pools, key)
		m.wg.Go(p.Close) // unmapping much memory takes a while, and nobody has to wait for it
	case core.CopyIn:
		m.beginCopy(newCopyJob(a.Copy, by, false, a.Slots, a.Pages, m.poolsOf(a.Session)), by)
	case core.CopyOut:
		m.fetches(a, by)
		if by.s.restores[a.Lease] == nil {
			r := &restoring{by: map[uint32]asker{}, spoiled: map[uint32]uint32{}}
			r.begun(m.now(), by.s, &core.Plan{Session: a.Session, Lease: a.Lease, Consumer: a.Consumer, Slots: a.Slots})
			by.s.restores[a.Lease] = r
		}
		m.beginCopy(newCopyJob(a.Copy, by, true, a.Slots, a.Pages, m.poolsOf(a.Session)), by)
	case core.CopyStop:
		m.copier.stop(m.mu.copies[a.Copy])
	case core.CopiedIn:
		fates := make([]byte, len(a.Slots))
		for i, f := range a.Slots {
			fates[i] = byte(f)
		}
		m.send(&m.mu.copies[a.Copy].by, by, &wire.CopiedIn{Slots: fates})
	case core.CopiedOut:
		j := m.mu.copies[a.Copy]
		if r := j.by.s.restores[a.Lease]; r != nil {
			if _, again := r.by[a.Consumer]; !again {
				r.by[a.Consumer] = j.by
			}
		}
		m.send(&j.by, by, &wire.CopiedOut{Lease: a.Lease, Consumer: a.Consumer, Outcome: a.Outcome, Good: a.Good, Total: a.Total})
	case core.Fetched:
		m.fetched(a, by)
	}
}

func (m *Manager) poolsOf(s core.SessionID) func(uint32) *hostpool.Pool {
	return func(n uint32) *hostpool.Pool { return m.mu.pools[poolKey{s, n}] }
}

func (m *Manager) beginCopy(j *copyJob, by *asker) {
	m.mu.copies[j.id] = j
	j.by.s.copies.Add(1)
	by.job = j
	m.copier.add(j, m.helps())
}

// helps says that connections' own goroutines copy.
func (m *Manager) helps() bool { return m.opt.CopyForTesting == nil || m.opt.HelpForTesting }

// help copies for the asker what it has just asked for, if that is on.
func (m *Manager) help(by *asker) {
	if by.job != nil && m.helps() && m.copier.help(by.job) {
		m.copyEnded(by.job, by)
	}
}

// copyEnded tells the core how a copy has ended. Nobody touches its memory any more. by is whose Frame it ends in; nil: in none.
func (m *Manager) copyEnded(j *copyJob, by *asker) {
	defer j.by.s.copies.Done()
	m.mu.Lock()
	defer m.mu.Unlock()
	if !j.out {
		m.mu.speaks = j.by.s
		m.step(&core.InDone{Copy: j.id, Pages: j.in}, by)
		m.mu.speaks = nil
		delete(m.mu.copies, j.id)
		return
	}
	done := &core.OutDone{Copy: j.id, Good: uint32(j.end)}
	switch {
	case j.mismatch:
		done.Outcome = core.Mismatch
		m.counts.spoiled.Add(1)
		m.journal.say(slog.LevelError, "a page is not what was sealed", "instance", j.by.s.instance, "slot", j.slots[j.end].Slot)
	case j.end < len(j.slots):
		done.Outcome = core.Failed
	}
	m.step(done, by)
	delete(m.mu.copies, j.id)
}
