package manager

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"sync"

	"github.com/perigee-llm/perigee/internal/cache/channel"
	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/cache/events/book"
	"github.com/perigee-llm/perigee/internal/cache/follow"
	"github.com/perigee-llm/perigee/internal/cache/state"
	"github.com/perigee-llm/perigee/internal/cache/storage/hostpool"
	"github.com/perigee-llm/perigee/internal/chain"
)

// session is one registered instance, as the channel knows it.
//
//	(new) ──Register──▶ live ──a connection ends, Goodbye──▶ lost ──all its processes are gone──▶ (gone)
type session struct {
	id        core.SessionID
	instance  string
	model     string
	url       string
	namespace core.Namespace
	rank0     state.Namespace // for explanations
	token     [16]byte
	contract  *state.Contract
	tokens    uint64 // of a block
	parts     [][]uint32
	holding   *holding
	space     *book.Space

	conns map[*channel.Conn]wire.Role
	procs []*process
	lost  bool

	lastPub  uint64                 // the core's number of the last Publish
	publish  map[uint64]*publishing // by the core's number
	queries  map[uint64]*asker
	restores map[core.LeaseID]*restoring
	copies   sync.WaitGroup // that we make for it; none begins once it is lost
	// follows is who reads its engine's events, nil if nobody does; unfollow ends it.
	follows  *follow.Follower
	unfollow context.CancelFunc
}

// process is the other end of one connection or several, for as long as it may touch the pool.
type process struct {
	pid   int
	pidfd *os.File // of await, which closes it
	gone  bool
	stop  context.CancelFunc // ends await
}

// asker is who gets an answer.
type asker struct {
	conn *channel.Conn
	ref  uint64
	s    *session
	kind wire.Kind
	item uint32
	// ticket is of Query and Poll.
	ticket core.Ticket
	// plan is what Start was answered with, for the asker himself to verify and send.
	plan *core.Plan
	// msg is a Publish, and chain the name of the last block of its group 0, for its Granted.
	msg   *wire.Publish
	chain chain.Key
	// offered is what an OfferPool has mapped, for the core's word.
	offered *hostpool.Pool
	// job is a copy that the message has begun.
	job *copyJob
}

// publishing is an open Publish. The client's number for it is only echoed: several processes of one instance publish, and cannot count
// together, so that the core's number is given here.
type publishing struct {
	by asker
	op uint64
}

// restoring is a lease that was started on: who is to hear of its end, and what was found spoiled for whom.
type restoring struct {
	by      map[uint32]asker  // by consumer
	spoiled map[uint32]uint32 // consumer to the bad place
	// taking is which consumers compare checksums themselves, and have not told of a page that does not match: a bit for each.
	taking uint64
	// began and tokens are for its price; 0 tokens: it has none.
	began  core.Time
	tokens int
}

// Gone implements channel.Handler.
func (m *Manager) Gone(c *channel.Conn) {
	s, _ := c.Data.(*session)
	if s == nil {
		return
	}
	m.locked(func() {
		delete(s.conns, c)
		m.lose(s)
	})
	// The connection's end is what tells the client that its pieces are its own again, where no answer does.
	s.copies.Wait()
}

// lose ends a live session. What its processes may still touch waits for their ends.
func (m *Manager) lose(s *session) {
	if s.lost {
		return
	}
	s.lost = true
	m.journal.say(slog.LevelInfo, "session lost", "instance", s.instance, "session", s.id.Number)
	delete(m.mu.tokens, s.token)
	m.tells.detach(s)
	if s.unfollow != nil {
		s.unfollow()
		addFollowed(&m.mu.followed, s.follows.Counts())
	}
	m.step(&core.Lost{Session: s.id}, nil)
	for c := range s.conns {
		c.End(wire.StaleSession, "the session has ended")
	}
	for _, q := range s.queries {
		m.mu.story.answered(m.now(), s.id, q.ticket, "lost", nil)
	}
	clear(s.publish)
	clear(s.queries)
	clear(s.restores)
	m.fenceIfGone(s)
}

// await waits for the end of a process, which is its session's too: its connections need not end with it, if it has forked a child that has them as well.
func (m *Manager) await(ctx context.Context, s *session, p *process) {
	ended := waitPidfd(ctx, p.pidfd)
	m.mu.Lock()
	defer m.mu.Unlock()
	p.pidfd.Close()
	p.stop()
	if ended {
		p.gone = true
		m.lose(s)
		m.fenceIfGone(s)
	}
}

// fenceIfGone frees what was quarantined, when no process of the session can touch anything any more.
func (m *Manager) fenceIfGone(s *session) {
	for _, p := range s.procs {
		if !p.gone {
			return
		}
	}
	if m.mu.sessions[s.id.Number] != s {
		return
	}
	delete(m.mu.sessions, s.id.Number)
	m.step(&core.Fenced{Session: s.id}, nil)
	s.holding.writer = nil
	m.journal.say(slog.LevelInfo, "session fenced", "instance", s.instance, "session", s.id.Number)
}

// goodbye takes a process's word that it has unmapped everything.
func (m *Manager) goodbye(c *channel.Conn, s *session) {
	m.left(c, s)
	m.lose(s)
	m.fenceIfGone(s)
}

// left notes that the process at the other end touches nothing of the session any more.
func (m *Manager) left(c *channel.Conn, s *session) {
	for _, p := range s.procs {
		// A process that we cannot see has no number of its own: then the word is for nobody else.
		if p.pid != c.Peer.PID || p.pid == 0 || p.gone {
			continue
		}
		p.gone = true
		p.stop()
	}
}

// join makes a connection part of a session.
func (m *Manager) join(c *channel.Conn, s *session, role wire.Role) {
	c.Data = s
	s.conns[c] = role
	if pidfd := c.TakePidfd(); !s.has(c.Peer.PID) {
		p := &process{pid: c.Peer.PID, pidfd: pidfd}
		var ctx context.Context
		ctx, p.stop = context.WithCancel(m.ctx)
		s.procs = append(s.procs, p)
		m.wg.Go(func() { m.await(ctx, s, p) })
	} else {
		pidfd.Close()
	}
	c.Settle()
}

// has tells whether a process is one of the session's that is awaited, and lives: a number may be another's when its process has ended. What cannot
// be seen from here has no number of its own, and each connection is taken for another's.
func (s *session) has(pid int) bool {
	return pid != 0 && slices.ContainsFunc(s.procs, func(p *process) bool { return p.pid == pid && !p.gone && !hasEnded(p.pidfd) })
}

// send answers an asker.
func (m *Manager) send(to *asker, by *asker, msg wire.Message, files ...*os.File) {
	to.conn.Send(to.conn.Header(to.ref, to.s.id.Number), msg, files...)
	if by == nil || by.conn != to.conn {
		to.conn.Kick()
	}
}
