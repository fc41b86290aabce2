package manager

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"

	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/cache/follow"
	"github.com/perigee-llm/perigee/internal/cache/lore"
	"github.com/perigee-llm/perigee/internal/chain"
)

// provable is the algorithm of block names that are hashes of what an event says: package lore's.
const provable = "sglang_sha256"

// follow begins to follow what a session's engine publishes, until the session ends.
func (m *Manager) follow(by *asker, e *wire.Follow) {
	s := by.s
	hash := s.rank0.Hash
	switch {
	case m.tells.pub == nil:
		m.refuse(by, wire.NotBuilt, "nobody is told of blocks here: the Manager has no events")
		return
	case hash.Algorithm != provable || uint64(hash.Tokens) != s.tokens:
		m.refuse(by, wire.NotBuilt, "what events say of blocks cannot be proved but for hash.algorithm "+provable)
		return
	case !onThisMachine(e.Events) || e.Replay != "" && !onThisMachine(e.Replay):
		m.refuse(by, wire.Invalid, "an endpoint is tcp://host:port with a loopback address")
		return
	}
	o := follow.Options{
		Events: e.Events, Replay: e.Replay, Topic: e.Topic, Lore: lore.Options{Model: s.model, BlockTokens: int(s.tokens)},
		Learned: func(l []lore.Lesson) { m.learned(s, l) },
		Said:    func(err error, had bool) { m.followed(s, e.Events, err, had) },
	}
	for _, a := range e.Adapters {
		o.Lore.Adapters = append(o.Lore.Adapters, lore.Adapter(a))
	}
	f, begun := follow.New(o), false
	m.locked(func() {
		if begun = !s.lost && s.follows == nil; begun {
			s.follows = f
			var ctx context.Context
			ctx, s.unfollow = context.WithCancel(m.ctx)
			m.wg.Go(func() { f.Run(ctx) })
		}
	})
	if !begun {
		m.refuse(by, wire.Repeated, "it is followed already, or the session has ended")
		return
	}
	m.send(by, by, &wire.Following{})
}

// onThisMachine tells whether an endpoint is one to dial for a client: who may register must not have us dial others.
func onThisMachine(endpoint string) bool {
	at, err := netip.ParseAddrPort(strings.TrimPrefix(endpoint, "tcp://"))
	return err == nil && strings.HasPrefix(endpoint, "tcp://") && at.Addr().IsLoopback() && at.Port() != 0
}

// followed tells of a connection to an engine's events, or that there is none.
func (m *Manager) followed(s *session, endpoint string, err error, had bool) {
	switch {
	case err == nil:
		m.journal.say(slog.LevelInfo, "an engine's events are followed", "instance", s.instance, "endpoint", endpoint)
	case had: // most often since the engine ends
		m.journal.say(slog.LevelInfo, "an engine's events are not followed any more, until it is back", "instance", s.instance, "endpoint", endpoint, "err", err)
	default:
		m.journal.say(slog.LevelWarn, "an engine's events cannot be followed: what it stores without tokens stays unnamed meanwhile", "instance", s.instance, "endpoint", endpoint, "err", err)
	}
}

// learnRun lessons are told to the core under one lock: some 100 µs.
const learnRun = 128

// learned tells the core what blocks are named, of a session's engine.
func (m *Manager) learned(s *session, all []lore.Lesson) {
	ev := &core.Learned{Session: s.id}
	for from := 0; from < len(all); from += learnRun {
		ev.Blocks = ev.Blocks[:0]
		for _, l := range all[from:min(from+learnRun, len(all))] {
			ev.Blocks = append(ev.Blocks, core.LearnedBlock{Hash: l.Key, Parent: l.Parent, Chain: l.Name})
		}
		m.locked(func() {
			if !s.lost {
				m.mu.speaks = s
				m.step(ev, nil)
				m.mu.speaks = nil
			}
		})
	}
}

// recall names a block that has become visible without a name, if it was learned before.
func (m *Manager) recall(a core.Action, by *asker) {
	v, came := a.(*core.Visible)
	if !came || !v.Chain.IsZero() {
		return
	}
	s := m.sealer(by)
	if s == nil || s.follows == nil {
		return
	}
	if l, known := s.follows.Of(v.Hash); known {
		m.step(&core.Learned{Session: s.id, Blocks: []core.LearnedBlock{{Hash: l.Key, Parent: l.Parent, Chain: l.Name}}}, by)
	}
}

// parentOf is the name of the block behind which a session publishes, by the block's own if it is here, or by what its engine's events have told.
func (m *Manager) parentOf(s *session, group uint32, h core.Hash) (name chain.Key) {
	var f *follow.Follower
	m.locked(func() { name, f = m.mu.core.ChainOf(s.id, group, h), s.follows })
	if name.IsZero() && f != nil {
		l, _ := f.Of(h)
		name = l.Name
	}
	return name
}

// followedAll is how far engines were followed, those of ended sessions included, and how many are at the moment. mu is held.
func (m *Manager) followedAll() (n follow.Counts, engines int) {
	n = m.mu.followed
	for _, s := range m.mu.sessions {
		if s.follows == nil || s.lost {
			continue
		}
		one := s.follows.Counts()
		if addFollowed(&n, one); one.Connected {
			engines++
		}
	}
	return n, engines
}

func addFollowed(to *follow.Counts, n follow.Counts) {
	to.Batches += n.Batches
	to.Missed += n.Missed
	to.Bad += n.Bad
	to.Learned += n.Learned
	to.Orphans += n.Orphans
	to.Strange += n.Strange
}
