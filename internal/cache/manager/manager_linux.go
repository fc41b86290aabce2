package manager

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perigee-llm/perigee/internal/cache/channel"
	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/cache/follow"
	"github.com/perigee-llm/perigee/internal/cache/storage/hostpool"
	"github.com/perigee-llm/perigee/internal/cache/storage/pool"
)

// Manager is one running daemon. Start one with Start; end it with Close.
type Manager struct {
	opt    Options
	epoch  uint64
	start  time.Time
	pool   *pool.Pool
	server *channel.Server

	mu     books
	copier copier
	mem    memory
	// opening is held by a registration, over the making and the closing of arenas too: others wait for it, and nobody else does. Before mem and mu.
	// What all wait for is the part under mu, in which the core's books grow: see dram.Store.AddArena.
	opening sync.Mutex
	tick    chan struct{}      // a look at the time is wanted
	quit    context.CancelFunc // ends the ticking and the waiting for processes
	ctx     context.Context
	wg      sync.WaitGroup

	admin struct {
		http *http.Server
		addr net.Addr
	}
	counts  counts
	tells   teller
	journal *journal
	quiet   *quiet
}

// books is what one lock guards. It is never held over I/O or over a look at pages.
type books struct {
	sync.Mutex // before channel's locks
	core       *core.Core
	tables     tables // the core's
	acts       []core.Action
	depth      int // of steps in steps
	sessions   map[uint32]*session
	tokens     map[[16]byte]*session
	holdings   []*holding
	pools      map[poolKey]*hostpool.Pool // what engines have offered
	copies     map[core.CopyID]*copyJob   // under way
	speaks     *session                   // whose copy has ended, or whose engine's events have told something, while the core is told of it
	followed   follow.Counts              // of sessions that have ended
	walked     core.WalkedTo              // of the last part of a walk
	session    uint32                     // the last number that a client was told
	arena      uint32                     // the next id that none was told
	closed     bool
	ticking    bool
	tickAt     core.Time // when the time is looked at, if ticking
	story      story
}

// memory is the arenas by their ids. It is held for reading over every look at a page, so that no arena is unmapped under it; before mu
// when both are taken.
type memory struct {
	sync.RWMutex
	arenas map[uint32]*pool.Arena
}

// counts are of what the core does not see.
type counts struct {
	sealedBytes, verifiedBytes atomic.Int64
	spoiled                    atomic.Int64
	named                      atomic.Int64 // blocks that were published without a name and got one
	// copiedBytes and copyNanos are of copies between slots and engines' own memory: publishes, restores. The time is the workers'.
	copiedBytes, copyNanos [2]atomic.Int64
}

// Start starts a Manager: it listens when Start returns.
func Start(o Options) (*Manager, error) {
	if o.Instances == 0 {
		o.Instances = 1
	}
	if o.Core.Budgets.Instances == 0 {
		o.Core.Budgets.Instances = o.Instances
	}
	if o.Core.Epoch == 0 {
		o.Core.Epoch = randomNumber()
	}
	if o.Core.Secret == 0 {
		o.Core.Secret = randomNumber()
	}
	if o.Copiers == 0 {
		o.Copiers = defaultCopiers()
	}
	if o.Name == "" {
		o.Name = version
	}
	po := o.Pool
	po.Bytes, po.Huge = o.PoolBytes, o.Huge
	p, err := pool.New(po)
	if err != nil {
		return nil, err
	}
	m := &Manager{opt: o, epoch: o.Core.Epoch, start: time.Now(), pool: p, tick: make(chan struct{}, 1), quiet: newQuiet(o.AtRest)}
	o.Core.Tables = &m.mu.tables
	m.mu.core = core.New(o.Core, nil)
	m.mu.sessions, m.mu.tokens = map[uint32]*session{}, map[[16]byte]*session{}
	m.mu.pools, m.mu.copies = map[poolKey]*hostpool.Pool{}, map[core.CopyID]*copyJob{}
	m.mem.arenas = map[uint32]*pool.Arena{}
	m.ctx, m.quit = context.WithCancel(context.Background())
	m.copier.start(m, o.Copiers)
	m.journal = startJournal(o.Log)
	if err := m.startEvents(); err != nil {
		m.quit()
		m.copier.close()
		m.journal.close()
		p.Close()
		return nil, err
	}
	if err := m.listen(); err != nil {
		m.quit()
		m.copier.close()
		m.tells.close()
		m.journal.close()
		p.Close()
		return nil, err
	}
	m.wg.Go(m.ticks)
	if o.AtRest != nil {
		m.wg.Go(func() { m.quiet.run(m.ctx) })
	}
	return m, nil
}

// defaultCopiers is half the processors, since the other half are the engines', but two, so that a copy and its checksum overlap with another's;
// and eight, which have the memory busy.
func defaultCopiers() int { return max(2, min(8, runtime.NumCPU()/2)) }

// randomNumber is not 0.
func randomNumber() uint64 {
	for {
		var b [8]byte
		rand.Read(b[:])
		if n := binary.LittleEndian.Uint64(b[:]); n != 0 {
			return n
		}
	}
}

// listen opens the socket last: who registers finds a Manager whose start fails no more.
func (m *Manager) listen() (err error) {
	var admin net.Listener
	if m.opt.Admin != "" {
		if admin, err = net.Listen("tcp", m.opt.Admin); err != nil {
			return err
		}
	}
	m.server, err = channel.Listen(channel.Options{
		Path: m.opt.Socket, Epoch: m.epoch, Handler: m, UIDs: m.opt.UIDs,
		Welcome: wire.Welcome{Manager: m.opt.Name, Queries: uint32(or(m.opt.Core.Limits.SessionQueries, 128)), Publishes: uint32(or(m.opt.Core.Limits.Publishes, 256)), Blocks: wire.MaxBlocks},
	})
	switch {
	case admin == nil:
	case err != nil:
		admin.Close()
	default:
		m.serveAdmin(admin)
	}
	return err
}

func or(n, def int) int {
	if n == 0 {
		return def
	}
	return n
}

// Epoch is this start's incarnation.
func (m *Manager) Epoch() uint64 { return m.epoch }

// Close ends every session, waits for their goroutines, and gives the pool back. What engines have mapped reads as zeros from then on.
func (m *Manager) Close() error {
	m.server.Close()
	m.copier.close()
	m.quit()
	err := m.stopAdmin()
	m.wg.Wait()
	m.tells.close()
	m.journal.close()
	m.mem.Lock()
	defer m.mem.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.closed = true
	m.mu.core = core.New(core.Config{Epoch: m.epoch}, nil) // who still asks is told of a Manager that has nothing
	m.mu.tables.close()
	clear(m.mem.arenas)
	m.pool.Close()
	return err
}

func (m *Manager) now() core.Time { return time.Since(m.start) }

// step gives the core an event and does what it says. by is who caused it, and gets the answers that are for him.
func (m *Manager) step(ev core.Event, by *asker) {
	s := &m.mu
	now := m.now()
	if s.depth == 0 {
		s.core.Recycle()
	}
	s.acts = s.core.Step(now, ev, s.acts[:0])
	acts := s.acts
	s.acts = nil // what we do about one may step again
	s.depth++
	for _, a := range acts {
		m.do(now, a, by)
	}
	s.depth--
	clear(acts)
	s.acts = acts
	if at, open := s.core.Next(); open && (!s.ticking || at < s.tickAt) {
		s.ticking, s.tickAt = true, at
		select {
		case m.tick <- struct{}{}:
		default:
		}
	}
}

// ticks lets time pass for the core while something in it waits for time.
func (m *Manager) ticks() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-m.tick:
		case <-timer.C:
			m.mu.Lock()
			m.mu.ticking = false // step sees whether another is wanted
			m.step(&core.Tick{}, nil)
			m.mu.Unlock()
			continue
		}
		m.mu.Lock()
		at, open := m.mu.core.Next()
		m.mu.ticking, m.mu.tickAt = open, at
		m.mu.Unlock()
		if open {
			timer.Reset(at - m.now())
		}
	}
}

// Flush drops the blocks of a namespace, or of all if it is zero, and returns how many could be found. What is published meanwhile may stay.
func (m *Manager) Flush(n core.Namespace) (dropped int64) {
	return m.walk(func(p core.Part) core.Event { return &core.Flush{Namespace: n, Part: p} })
}

// walkMost is how many blocks are dropped under one lock: some 300 µs, to gateways' being told included. All of a pool would be seconds.
const walkMost = 512

// walk has the core go over all blocks, part by part, and returns how many have gone from memory. Others have their turns in between.
func (m *Manager) walk(event func(core.Part) core.Event) (removed int64) {
	defer m.tells.hold()()
	p := core.Part{Most: walkMost}
	for more := true; more; {
		m.locked(func() {
			m.mu.walked = core.WalkedTo{}
			removed += m.removedBy(event(p))
			p.From, more = m.mu.walked.Next, m.mu.walked.More
		})
	}
	return removed
}

// removedBy is how many blocks a step has removed. mu is held.
func (m *Manager) removedBy(ev core.Event) (n int64) {
	n = -removals(m.mu.core)
	m.step(ev, nil)
	return n + removals(m.mu.core)
}

func removals(c *core.Core) (n int64) {
	for _, r := range c.Stats().Removed {
		n += r
	}
	return n
}

// Evict drops up to n blocks of each arena, in the order in which a full pool would, and returns how many have gone.
func (m *Manager) Evict(n int) (removed int64) {
	var ids []uint32
	m.locked(func() {
		for _, h := range m.mu.holdings {
			ids = append(ids, h.ids...)
		}
	})
	for _, id := range ids {
		for left, more := n, true; left > 0 && more; left -= walkMost {
			m.locked(func() {
				most := min(left, walkMost)
				gone := m.removedBy(&core.Evict{Arena: id, Blocks: most})
				removed += gone
				more = gone == int64(most)
			})
		}
	}
	return removed
}
