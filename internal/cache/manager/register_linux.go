package manager

import (
	"crypto/rand"
	"errors"
	"log/slog"
	"math"
	"os"
	"slices"

	"github.com/perigee-llm/perigee/internal/cache/channel"
	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/cache/state"
	"github.com/perigee-llm/perigee/internal/cache/storage/pool"
	"github.com/perigee-llm/perigee/internal/cache/storage/pool/layout"
)

// holding is the arenas of one instance. They stay when it has left, with what is in them, for whoever comes next: the same
// namespace takes them over, another one replaces them.
type holding struct {
	namespace core.Namespace
	instance  string // of its last writer
	shapes    []layout.Shape
	ids       []uint32
	writer    *session // nil: vacant
	seq       uint32   // of its last registration; the vacant one with the least goes first
}

func (h *holding) bytes() (n uint64) {
	for _, s := range h.shapes {
		n += s.Bytes()
	}
	return n
}

// identity is what an instance's namespaces say.
type identity struct {
	namespace core.Namespace
	rank0     state.Namespace
	contract  *state.Contract
	tokens    uint64
	parts     [][]uint64 // bytes, by group and part
}

// identify works out an instance's identity. Nothing of it is believed: all follows from the namespaces.
func identify(encoded [][]byte) (identity, error) {
	ranks := make([]state.Namespace, 0, len(encoded))
	for _, b := range encoded {
		n, err := state.DecodeNamespace(b)
		if err != nil {
			return identity{}, err
		}
		ranks = append(ranks, n)
	}
	id, err := state.InstanceID(ranks)
	if err != nil {
		return identity{}, err
	}
	contract, err := state.Compile(id, ranks[0].Layout.BlockTokens, ranks[0].Requirements())
	if err != nil {
		return identity{}, err
	}
	out := identity{namespace: core.Namespace(id), rank0: ranks[0], contract: contract, tokens: uint64(ranks[0].Layout.BlockTokens)}
	for g := range ranks[0].Layout.Groups {
		var parts []uint64
		for r := range ranks {
			parts = append(parts, ranks[r].Layout.Groups[g].PageBytes())
		}
		out.parts = append(out.parts, parts)
	}
	return out, nil
}

// refusal is why a registration was refused.
type refusal struct {
	class wire.Class
	text  string
}

func (m *Manager) register(c *channel.Conn, h wire.Header, msg *wire.Register) {
	s, files, no := m.admit(c, msg)
	if no.class != 0 {
		// The engine goes on without us, and tries again in seconds: this line is the only one that tells the daemon's operator.
		m.journal.say(slog.LevelWarn, "instance refused", "instance", msg.Instance, "class", no.class.String(), "why", no.text)
		m.refuseTo(c, h, no)
		return
	}
	out := &wire.Registered{Token: s.token, Namespace: s.namespace}
	m.mem.RLock()
	out.Arenas = m.arenasOf(s.holding.ids)
	m.mem.RUnlock()
	for g := range s.parts {
		size, _ := layout.SlotBytes(uint64(slices.Max(s.parts[g])))
		at := slices.IndexFunc(s.holding.shapes, func(sh layout.Shape) bool { return sh.SlotBytes == size })
		out.GroupArenas = append(out.GroupArenas, uint32(at))
	}
	c.Send(c.Header(h.Ref, s.id.Number), out, files...)
}

func (m *Manager) refuseTo(c *channel.Conn, h wire.Header, no refusal) {
	c.Send(c.Header(h.Ref, h.Session), &wire.Refused{Of: h.Kind, Class: no.class, Text: no.text})
}

// admit makes the session, its holding and the memory.
func (m *Manager) admit(c *channel.Conn, msg *wire.Register) (*session, []*os.File, refusal) {
	if !c.Fenceable() {
		return nil, nil, refusal{wire.Unfenceable, "no pidfd of the process: share its pid namespace, or use Linux 6.5"}
	}
	id, err := identify(msg.Ranks)
	if err != nil {
		return nil, nil, refusal{wire.BadIdentity, err.Error()}
	}
	share := m.opt.PoolBytes / uint64(m.opt.Instances)
	if msg.PoolBytes > 0 {
		share = min(share, msg.PoolBytes)
	}
	plan, ok := layout.Carve(share, id.parts)
	if !ok {
		return nil, nil, refusal{wire.PoolTooSmall, ""}
	}
	m.opening.Lock()
	defer m.opening.Unlock()
	m.makeWay(msg, id, plan)
	s, victims, no := m.settle(msg, id, plan)
	if no.class != 0 {
		return nil, nil, no
	}
	for _, a := range victims { // hundreds of milliseconds for some GiB: only registrations wait for it
		a.Close()
	}
	files, err := m.memoryOf(s.holding)
	if err != nil {
		for _, a := range m.undo(s) {
			a.Close()
		}
		m.journal.say(slog.LevelError, "no memory for an arena", "instance", s.instance, "err", err)
		return nil, nil, refusal{wire.NoPool, err.Error()}
	}
	if c.HungUp() {
		m.forsake(s)
		return nil, nil, refusal{wire.Overdue, "who asked has hung up meanwhile"}
	}
	if plan.Full() {
		m.journal.say(slog.LevelWarn, "an arena has as many slots as one may have: what is left of the instance's part of the pool stays unused", "instance", s.instance, "slots", layout.MaxSlots, "bytes", plan.Bytes(), "part", share)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.takeNumbers(s)
	m.mu.sessions[s.id.Number], m.mu.tokens[s.token] = s, s
	m.join(c, s, wire.RoleQuery)
	m.tells.attach(s, msg.DataRank)
	m.journal.say(slog.LevelInfo, "instance registered", "instance", s.instance, "session", s.id.Number, "namespace", state.NamespaceID(s.namespace), "bytes", s.holding.bytes())
	return s, files, refusal{}
}

// takeNumbers keeps the session's number and its new arenas' from being given again: only what a client is told of uses them up.
func (m *Manager) takeNumbers(s *session) {
	m.mu.session = s.id.Number
	m.takeArenas(s)
}

func (m *Manager) takeArenas(s *session) {
	for _, id := range s.holding.ids {
		m.mu.arena = max(m.mu.arena, id+1)
	}
}

// undo takes back what settle has done for a session whose arenas found no memory, and returns the arenas that did, to be closed. Only a new
// holding lacks memory: it is empty, and nobody was told of it.
func (m *Manager) undo(s *session) []*pool.Arena {
	m.mem.Lock()
	defer m.mem.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unsettle(s)
	for _, id := range s.holding.ids {
		m.step(&core.Retire{Arena: id}, nil)
	}
	return m.retire([]*holding{s.holding})
}

// forsake ends a session whose client has hung up while its memory was made, which can take longer than an engine waits. It has no descriptor of it, so its
// process, which lives on and asks again, is no reason to keep the memory from others. The holding stays, vacant, and is there when it does.
func (m *Manager) forsake(s *session) {
	m.mem.Lock()
	defer m.mem.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unsettle(s)
	m.takeArenas(s)
}

// unsettle ends a session that nobody was told of, and so nobody has to be waited for. It is for who holds mem and mu.
func (m *Manager) unsettle(s *session) {
	s.lost = true
	m.step(&core.Lost{Session: s.id}, nil)
	m.step(&core.Fenced{Session: s.id}, nil)
	s.holding.writer = nil
}

// settle makes the session and its holding, and returns the arenas that go for it: nobody finds them any more, and they are to be closed. Until
// then the pool counts their bytes.
func (m *Manager) settle(msg *wire.Register, id identity, plan layout.Plan) (s *session, victims []*pool.Arena, no refusal) {
	m.mem.Lock()
	defer m.mem.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.closed {
		return nil, nil, refusal{wire.Stopping, ""}
	}
	if m.mu.session == math.MaxUint32 || m.mu.arena > math.MaxUint32-uint32(len(plan.Arenas)) {
		return nil, nil, refusal{wire.TooMany, "every number of a session or an arena was given: the Manager has to be started anew"}
	}
	p, no := m.propose(msg, id, plan)
	if no.class != 0 {
		return nil, nil, no
	}
	if class := m.registerCore(p.ev); class != 0 {
		return nil, nil, refusal{class, ""}
	}
	victims = m.retire(p.victims)
	s = p.s
	if !p.taken {
		m.mu.holdings = append(m.mu.holdings, s.holding)
	}
	s.holding.writer, s.holding.instance, s.holding.seq = s, s.instance, s.id.Number
	return s, victims, refusal{}
}

// proposal is what a registration would come to.
type proposal struct {
	s       *session
	taken   bool       // its holding is another's that has left
	victims []*holding // that go for it
	ev      *core.Register
}

// propose works out a registration, and changes nothing. mu is held.
func (m *Manager) propose(msg *wire.Register, id identity, plan layout.Plan) (p proposal, no refusal) {
	old, victims, ok := m.place(id.namespace, msg.Instance, plan)
	if !ok {
		return p, refusal{wire.NoPool, "every part of the pool is an instance's"}
	}
	p = proposal{s: m.newSession(msg, id), taken: old != nil, victims: victims}
	p.s.holding = old
	if old == nil {
		p.s.holding = m.newHolding(id.namespace, plan)
	}
	p.ev = registration(p.s, msg, plan, victims)
	return p, refusal{}
}

// makeWay empties what will go for an instance, in parts: in the one step that registers it everybody would wait for as long as dropping a million blocks takes. What
// will be refused has nothing emptied.
func (m *Manager) makeWay(msg *wire.Register, id identity, plan layout.Plan) {
	var ids []uint32
	m.locked(func() {
		if p, no := m.propose(msg, id, plan); no.class == 0 && m.mu.core.MayRegister(p.ev) == core.NoClass {
			ids = p.ev.Instead
		}
	})
	for _, arena := range ids {
		m.walk(func(part core.Part) core.Event { return &core.Empty{Arena: arena, Part: part} })
	}
}

// place finds a holding for an instance: one to take over, or else room for a new one, at the expense of vacant ones if need be.
func (m *Manager) place(n core.Namespace, instance string, p layout.Plan) (old *holding, victims []*holding, ok bool) {
	var vacant []*holding
	free := m.pool.Free()
	for _, h := range m.mu.holdings {
		if h.writer != nil {
			continue
		}
		if h.namespace == n && slices.Equal(h.shapes, p.Arenas) && (old == nil || h.instance == instance) {
			old = h
		}
		vacant = append(vacant, h)
	}
	if old != nil {
		return old, nil, true
	}
	slices.SortFunc(vacant, func(a, b *holding) int { return int(a.seq) - int(b.seq) })
	for p.Bytes() > free && len(vacant) > 0 {
		free += vacant[0].bytes() // it has all its memory: see undo
		victims, vacant = append(victims, vacant[0]), vacant[1:]
	}
	return nil, victims, p.Bytes() <= free
}

// newSession makes a session with the next number, which is its own once takeNumbers is called: opening is held till then.
func (m *Manager) newSession(msg *wire.Register, id identity) *session {
	s := &session{
		id: core.SessionID{Epoch: m.epoch, Number: m.mu.session + 1}, instance: msg.Instance, model: msg.Model, url: msg.URL,
		namespace: id.namespace, rank0: id.rank0, contract: id.contract, tokens: id.tokens,
		conns: map[*channel.Conn]wire.Role{}, publish: map[uint64]*publishing{},
		queries: map[uint64]*asker{}, restores: map[core.LeaseID]*restoring{},
	}
	rand.Read(s.token[:])
	for _, g := range id.parts {
		var parts []uint32
		for _, n := range g {
			parts = append(parts, uint32(n)) // Carve has refused what a slot cannot hold
		}
		s.parts = append(s.parts, parts)
	}
	s.space = spaceOf(s)
	return s
}

// newHolding makes a holding with the next numbers of arenas, as newSession does.
func (m *Manager) newHolding(n core.Namespace, p layout.Plan) *holding {
	h := &holding{namespace: n, shapes: p.Arenas}
	for i := range p.Arenas {
		h.ids = append(h.ids, m.mu.arena+uint32(i))
	}
	return h
}

// registration is what introduces a session to the core, with its arenas, and has the victims' forgotten. An arena's id is never used for other memory, since
// clients keep their maps of arenas by it.
func registration(s *session, msg *wire.Register, p layout.Plan, victims []*holding) *core.Register {
	ev := &core.Register{
		Session: s.id, Instance: s.instance, Namespace: s.namespace, Scope: msg.Scope, QueryBytes: int64(min(msg.QueryBytes, math.MaxInt64)),
	}
	for g, parts := range s.parts {
		ev.Layout = append(ev.Layout, core.Group{Arena: p.Groups[g], PartBytes: parts})
	}
	for i, id := range s.holding.ids {
		sh := s.holding.shapes[i]
		ev.Arenas = append(ev.Arenas, core.Arena{ID: id, Slots: sh.Slots, SlotBytes: sh.SlotBytes})
	}
	for _, v := range victims {
		ev.Instead = append(ev.Instead, v.ids...)
	}
	return ev
}

// registerCore introduces a session to the core, and says why it is refused; 0: it is not.
func (m *Manager) registerCore(ev *core.Register) (class wire.Class) {
	now := m.now()
	m.mu.acts = m.mu.core.Step(now, ev, m.mu.acts[:0])
	for _, a := range m.mu.acts {
		if r, ok := a.(core.Refused); ok {
			class = wire.ClassOf(r.Class)
			continue
		}
		m.do(now, a, nil)
	}
	return class
}

// retire takes the victims' arenas away, and returns them.
func (m *Manager) retire(victims []*holding) (out []*pool.Arena) {
	for _, v := range victims {
		for _, id := range v.ids {
			if a := m.mem.arenas[id]; a != nil {
				delete(m.mem.arenas, id)
				out = append(out, a)
			}
		}
		m.mu.holdings = slices.DeleteFunc(m.mu.holdings, func(h *holding) bool { return h == v })
	}
	return out
}

// memoryOf returns the writable descriptors of a holding's arenas, and makes what is not there. It is called with opening alone held, and
// the holding is the caller's: nobody else makes its arenas or takes them away.
func (m *Manager) memoryOf(h *holding) ([]*os.File, error) {
	var files []*os.File
	for i, id := range h.ids {
		m.mem.RLock()
		a := m.mem.arenas[id]
		m.mem.RUnlock()
		if a == nil {
			var err error
			if a, err = m.pool.Open(h.shapes[i]); err != nil {
				if errors.Is(err, pool.ErrFull) {
					err = errors.New("the pool is full")
				}
				return nil, err
			}
			m.mem.Lock()
			m.mem.arenas[id] = a
			m.mem.Unlock()
		}
		files = append(files, a.Writable())
	}
	return files, nil
}

// arenasOf tells clients of arenas. mem is held.
func (m *Manager) arenasOf(ids []uint32) []wire.Arena {
	var out []wire.Arena
	for _, id := range ids {
		if a := m.mem.arenas[id]; a != nil {
			out = append(out, wire.Arena{ID: id, Slots: a.Shape.Slots, SlotBytes: a.Shape.SlotBytes, MapBytes: a.MapBytes})
		}
	}
	return out
}

func (m *Manager) attach(c *channel.Conn, h wire.Header, msg *wire.Attach) {
	if !c.Fenceable() {
		m.refuseTo(c, h, refusal{wire.Unfenceable, "no pidfd of the process"})
		return
	}
	m.mem.RLock()
	defer m.mem.RUnlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.mu.tokens[msg.Token]
	switch {
	case h.Epoch != m.epoch || s == nil || s.id.Number != h.Session:
		m.refuseTo(c, h, refusal{wire.StaleSession, ""})
	case msg.Role != wire.RoleQuery && msg.Role != wire.RolePublish:
		m.refuseTo(c, h, refusal{wire.WrongRole, ""})
	case len(s.conns) >= maxConns, len(s.procs) >= maxConns:
		m.refuseTo(c, h, refusal{wire.TooMany, ""})
	default:
		m.join(c, s, msg.Role)
		out := &wire.Attached{}
		var files []*os.File
		if msg.Role == wire.RolePublish {
			out.Arenas = m.arenasOf(s.holding.ids)
			for _, id := range s.holding.ids {
				files = append(files, m.mem.arenas[id].Writable())
			}
		}
		c.Send(c.Header(h.Ref, s.id.Number), out, files...)
	}
}

// maxConns bounds a session's connections: two a rank, and the scheduler's.
const maxConns = 2*core.MaxParts + 2

func (m *Manager) mapArenas(c *channel.Conn, h wire.Header, s *session, msg *wire.MapArenas) {
	m.mem.RLock()
	defer m.mem.RUnlock()
	m.mu.Lock()
	var allowed []uint32
	for _, held := range m.mu.holdings {
		if held.namespace == s.namespace { // pages of others are of no use, and not to be read
			allowed = append(allowed, held.ids...)
		}
	}
	m.mu.Unlock()
	out := &wire.Arenas{}
	var files []*os.File
	for i, id := range msg.Arenas {
		a := m.mem.arenas[id]
		if a == nil || !slices.Contains(allowed, id) {
			c.Send(c.Header(h.Ref, s.id.Number), &wire.Refused{Of: h.Kind, Class: wire.Invalid, Item: uint32(i), Text: "no such arena of the namespace"})
			return
		}
		out.Arenas = append(out.Arenas, m.arenasOf([]uint32{id})...)
		files = append(files, a.ReadOnly())
	}
	c.Send(c.Header(h.Ref, s.id.Number), out, files...)
}
