package client

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
)

// Session is a registered instance, or a process's part of one. Make one with Dial; end it with Close.
type Session struct {
	opt   Options
	cred  Credentials
	parts [][]uint32 // bytes, by group and part
	// Limits is what the Manager told of its bounds.
	Limits wire.Welcome

	query, publish *link
	ops            uint64 // guarded by query.writing
	pubs           uint64 // guarded by publish.writing

	ctx  context.Context // ends with the session
	end  context.CancelFunc
	mu   arenas
	work sync.WaitGroup // calls that may touch arenas; added to under mu
	// copies are those calls for which the Manager copies.
	copies atomic.Int64
}

// arenas is what is mapped.
type arenas struct {
	sync.Mutex
	own    map[uint32]*mapping
	others map[uint32]*mapping
	closed bool
}

type mapping struct {
	wire.Arena
	mem []byte
}

func (m *mapping) slot(i, n uint32) []byte {
	at := uint64(i) * uint64(m.SlotBytes)
	return m.mem[at : at+uint64(n) : at+uint64(n)]
}

// Dial registers an instance, or joins a session, and maps its arenas. The context bounds the start only. Where it ends while the Manager registers, Dial waits for
// that, for a second at most, so as to give back what it was given. Errors: those of this package; *Unfinished, which is to be closed, if it has
// joined by half.
func Dial(ctx context.Context, o Options) (*Session, error) {
	if o.Copiers == 0 {
		o.Copiers = max(1, min(4, runtime.NumCPU()/2))
	}
	s := &Session{opt: o}
	s.mu.own, s.mu.others = map[uint32]*mapping{}, map[uint32]*mapping{}
	s.ctx, s.end = context.WithCancel(context.Background())
	for g := range o.Ranks[0].Layout.Groups {
		var parts []uint32
		for r := range o.Ranks {
			parts = append(parts, uint32(o.Ranks[r].Layout.Groups[g].PageBytes()))
		}
		s.parts = append(s.parts, parts)
	}
	if err := s.open(ctx); err != nil {
		s.shut()
		switch { // else this process lives on, and is waited for
		case s.cred.Session == 0: // it is of no session
		case o.Join == nil: // nobody else has the token
			s.leaveInTime()
		default: // other parts of it may be in this process
			return nil, &Unfinished{err, s}
		}
		return nil, err
	}
	return s, nil
}

func (s *Session) open(ctx context.Context) (err error) {
	if s.query, err = s.hello(ctx); err != nil {
		return err
	}
	if s.opt.Join == nil {
		err = s.register(ctx)
	} else {
		s.cred = *s.opt.Join
		if _, err = s.attach(ctx, s.query, wire.RoleQuery); ClassOf(err) != 0 {
			s.cred = Credentials{} // it has not joined
		}
	}
	if err != nil {
		return err
	}
	if s.publish, err = s.hello(ctx); err != nil {
		return err
	}
	a, err := s.attach(ctx, s.publish, wire.RolePublish)
	if err != nil {
		return err
	}
	attached := a.m.(*wire.Attached)
	return s.mapAll(s.mu.own, attached.Arenas, a.files, true)
}

// hello opens a connection and agrees on the version.
func (s *Session) hello(ctx context.Context) (*link, error) {
	l, err := dial(ctx, s.opt.Socket, func(error) { s.end() })
	if err != nil {
		return nil, err
	}
	a, err := exchange(ctx, l, &wire.Hello{MinVersion: wire.Version, MaxVersion: wire.Version, Client: s.opt.Program}, wire.KindWelcome)
	if err != nil {
		l.close()
		return nil, err
	}
	s.Limits = *a.m.(*wire.Welcome)
	l.writing.Lock()
	l.head.Epoch = a.h.Epoch
	l.writing.Unlock()
	return l, nil
}

// exchange asks for one answer of the kind that is wanted.
func exchange(ctx context.Context, l *link, m wire.Message, want wire.Kind) (answer, error) {
	c, err := l.ask(m, nil)
	if err != nil {
		return answer{}, err
	}
	defer l.forget(c)
	a, err := c.next(ctx)
	if err == nil && a.m.Kind() != want {
		closeAll(a.files)
		l.uc.Close()
		return answer{}, ErrProtocol
	}
	return a, err
}

func (s *Session) register(ctx context.Context) error {
	m := &wire.Register{
		Instance: s.opt.Instance, Model: s.opt.Model, URL: s.opt.URL, DataRank: s.opt.DataRank, Scope: s.opt.Scope,
		QueryBytes: s.opt.QueryBytes, PoolBytes: s.opt.PoolBytes,
	}
	for i := range s.opt.Ranks {
		b, err := s.opt.Ranks[i].Encode()
		if err != nil {
			return err
		}
		m.Ranks = append(m.Ranks, b)
	}
	c, err := s.query.ask(m, nil)
	if err != nil {
		return err
	}
	defer s.query.forget(c)
	a, late := c.next(ctx)
	if late != nil {
		if ctx.Err() == nil {
			return late
		}
		// It may be registered by now, and while this process lives nobody but who has the token gives its memory back: it is taken back, and where that
		// comes too late the answer comes before the connection's end.
		s.query.uc.CloseWrite()
		wait, cancel := context.WithTimeout(context.Background(), goodbyeWait)
		defer cancel()
		if a, err = c.next(wait); err != nil {
			return late
		}
	}
	closeAll(a.files) // the publishing connection gets them, too
	r, ok := a.m.(*wire.Registered)
	if !ok {
		s.query.uc.Close()
		return ErrProtocol
	}
	s.cred = Credentials{Epoch: a.h.Epoch, Session: a.h.Session, Token: r.Token}
	s.enter(s.query)
	return late
}

// enter puts the session into the heads of what a link sends.
func (s *Session) enter(l *link) {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.head.Epoch, l.head.Session = s.cred.Epoch, s.cred.Session
}

func (s *Session) attach(ctx context.Context, l *link, role wire.Role) (answer, error) {
	s.enter(l)
	return exchange(ctx, l, &wire.Attach{Token: s.cred.Token, Role: role}, wire.KindAttached)
}

// mapAll maps arenas and closes their descriptors.
func (s *Session) mapAll(to map[uint32]*mapping, list []wire.Arena, files []*os.File, write bool) error {
	defer closeAll(files)
	if len(files) != len(list) {
		return ErrProtocol
	}
	prot := unix.PROT_READ
	if write {
		prot |= unix.PROT_WRITE
	}
	for i, a := range list {
		if uint64(a.Slots)*uint64(a.SlotBytes) > a.MapBytes {
			return ErrProtocol
		}
		mem, err := unix.Mmap(int(files[i].Fd()), 0, int(a.MapBytes), prot, unix.MAP_SHARED)
		if err != nil {
			return err
		}
		keepFromChildren(mem)
		to[a.ID] = &mapping{a, mem}
	}
	return nil
}

// begin counts a call that may touch arenas; end it with s.work.Done.
func (s *Session) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed || s.ctx.Err() != nil {
		return ErrLost
	}
	s.work.Add(1)
	return nil
}

// reading returns the mapping of an arena that is read from, and maps it if it is not.
func (s *Session) reading(ctx context.Context, id uint32) (*mapping, error) {
	s.mu.Lock()
	m := s.mu.own[id]
	if m == nil {
		m = s.mu.others[id]
	}
	s.mu.Unlock()
	if m != nil {
		return m, nil
	}
	a, err := exchange(ctx, s.query, &wire.MapArenas{Arenas: []uint32{id}}, wire.KindArenas)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.mu.others[id]; m != nil { // somebody was faster
		closeAll(a.files)
		return m, nil
	}
	if err := s.mapAll(s.mu.others, a.m.(*wire.Arenas).Arenas, a.files, false); err != nil {
		return nil, err
	}
	if m = s.mu.others[id]; m == nil {
		return nil, ErrProtocol
	}
	return m, nil
}

// Credentials let another process of the instance join; see Options.Join.
func (s *Session) Credentials() Credentials { return s.cred }

// PartBytes is how long a part of a group's pages is, in bytes.
func (s *Session) PartBytes(group, part uint32) uint32 { return s.parts[group][part] }

// Done is closed when the session is lost or closed.
func (s *Session) Done() <-chan struct{} { return s.ctx.Done() }

// goodbyeWait bounds the wait for the Manager's Bye. If it does not come, the process's end will do.
const goodbyeWait = time.Second

// Close ends the session: it waits for the copies that are under way, unmaps everything, and says so. Calling it again does nothing. A Manager
// that does not answer, or does not even read, holds it for a second or two, or for five if the session was lost; one that copies for us until it has ended.
func (s *Session) Close() error {
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		return nil
	}
	s.mu.closed = true
	s.mu.Unlock()
	alive := s.ctx.Err() == nil
	s.end()
	s.settle()
	// A Manager that has stopped reading holds whoever writes to it: after a while the connections are cut.
	stuck := time.AfterFunc(goodbyeWait, s.cut)
	defer stuck.Stop()
	s.unmap()
	if alive {
		ctx, cancel := context.WithTimeout(context.Background(), goodbyeWait)
		defer cancel()
		if _, err := exchange(ctx, s.query, &wire.Goodbye{}, wire.KindBye); err == nil || ctx.Err() != nil {
			s.shut() // if it has not answered in time, it will hear it when it listens again
			return nil
		}
	}
	s.shut()
	s.leaveInTime()
	return nil
}

// leaveWait bounds the wait of a process whose session was lost, and that has a connection again: longer than goodbyeWait, since its word is not on
// the way before the Manager has said Welcome.
const leaveWait = 5 * time.Second

func (s *Session) leaveInTime() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveWait)
	defer cancel()
	s.leave(ctx)
}

// leave says goodbye of a session that was lost, so that its arenas need not wait for this process's end. A Manager that is another
// one, or none, wants to hear nothing.
func (s *Session) leave(ctx context.Context) {
	l, err := dial(ctx, s.opt.Socket, func(error) {})
	if err != nil {
		return
	}
	defer l.close()
	a, err := exchange(ctx, l, &wire.Hello{MinVersion: wire.Version, MaxVersion: wire.Version, Client: s.opt.Program}, wire.KindWelcome)
	if err != nil || a.h.Epoch != s.cred.Epoch {
		return
	}
	l.writing.Lock()
	l.head.Epoch = a.h.Epoch
	l.writing.Unlock()
	exchange(ctx, l, &wire.Leave{Token: s.cred.Token}, wire.KindBye)
}

func (s *Session) unmap() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, all := range []map[uint32]*mapping{s.mu.own, s.mu.others} {
		for _, m := range all {
			unix.Munmap(m.mem)
		}
		clear(all)
	}
}

// settle waits for all calls. What waits to be read is cut off after a while, as in Close; but not while the Manager copies for us: the connection's
// end is its word that it does not any more.
func (s *Session) settle() {
	done := make(chan struct{})
	go func() {
		s.work.Wait()
		close(done)
	}()
	for {
		select {
		case <-done:
			return
		case <-time.After(goodbyeWait):
			if s.copies.Load() == 0 {
				s.cut()
			}
		}
	}
}

// cut ends the connections, and with them every write that waits.
func (s *Session) cut() {
	for _, l := range []*link{s.query, s.publish} {
		if l != nil {
			l.uc.Close()
		}
	}
}

func (s *Session) shut() {
	s.end()
	for _, l := range []*link{s.query, s.publish} {
		if l != nil {
			l.close()
		}
	}
	s.unmap()
}

// lost turns the end of the session's context into its own error.
func (s *Session) lost(err error) error {
	if s.ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return ErrLost
	}
	return err
}

// both is a context that ends with the caller's or the session's.
func (s *Session) both(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// Lease is a right to restore blocks, once a consumer. It ends with its restores, Release, or the session.
type Lease struct {
	ID core.LeaseID
	// Hits is blocks from the first on, by group of the query.
	Hits []uint32
	// Arenas are those that the pages are in.
	Arenas []uint32
}
