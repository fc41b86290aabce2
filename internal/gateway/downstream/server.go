package downstream

import (
	"container/list"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// The reasons for which the server ends a connection without, or before, an answer of the handler's.
const (
	// CutSlowHead: a head did not come in time.
	CutSlowHead = "slow_head"
	// CutBadHead: a head was refused.
	CutBadHead = "bad_head"
	// CutIdle: no further request came.
	CutIdle = "idle"
	// CutHandshake: a handshake failed, took too long, or was the oldest of too many.
	CutHandshake = "tls_handshake"
)

// Options are what a [Server] works with. Every field must be set, but for what says otherwise.
type Options struct {
	Handler http.Handler
	// HeaderTimeout bounds a head from its first byte to its last, the first one of a connection from the connection's beginning.
	HeaderTimeout time.Duration
	// IdleTimeout bounds the wait for another request.
	IdleTimeout time.Duration
	// MaxHeaderBytes bounds a head, its request line and its end included.
	MaxHeaderBytes int
	// Refuse returns the whole answer to a request that no handler sees. It ends the connection, and must say so.
	Refuse func(Refusal) []byte
	// Cut is told of each connection that is ended for one of the reasons; nil: nobody is.
	Cut func(reason string)
	// ConnContext is as [http.Server]'s: it gives a connection's requests their values; nil: they have none.
	ConnContext func(ctx context.Context, c net.Conn) context.Context
	// Log gets handlers' panics and, for who looks for such, handshakes that fail.
	Log *slog.Logger
	// TLS is what connections begin with; nil: they are plain.
	TLS *TLS
}

// Waiter is what a connection of a listener's may be that its owner may close while it waits for a request. It is told, not asked: closing is
// its owner's to do.
type Waiter interface {
	// Waits says that a connection has waited for a further request since then. A new one waits from its beginning on without being told.
	Waits(since time.Time)
	// Begins says that a request has begun to come. False: its owner has closed it, or is about to.
	Begins() bool
}

// Server serves HTTP/1.0 and HTTP/1.1. Make one with [New], and end it with Close and Wait. Its methods may be called by any goroutine.
type Server struct {
	o        Options
	watching sync.WaitGroup // of the watcher
	wg       sync.WaitGroup // of connections
	draining atomic.Bool
	turns    chan struct{} // of handshakes

	mu struct {
		sync.Mutex
		listeners []net.Listener
		conns     map[*conn]struct{}
		shakes    list.List // of *shake, the oldest first
		closed    bool
		watch     *watcher      // nil: no connection needed it yet, or the system has none
		empty     chan struct{} // closed when the last connection has gone; nil: nobody waits
	}
}

// New returns a server.
func New(o Options) *Server {
	s := &Server{o: o, turns: make(chan struct{}, turnsPerProcessor*runtime.GOMAXPROCS(0))}
	s.mu.conns = map[*conn]struct{}{}
	return s
}

// watcher returns the one that learns of clients that leave, which is started with the first connection that it can know; nil: the system has none.
func (s *Server) watcher() *watcher {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.watch == nil {
		w, err := newWatcher()
		if err != nil {
			return nil
		}
		s.mu.watch = w
		s.watching.Go(w.run)
	}
	return s.mu.watch
}

// longestBackoff bounds the wait after a failure to accept that passes, as net/http does.
const longestBackoff = time.Second

// Serve takes connections from a listener until the listener fails or the server ends, which is [http.ErrServerClosed]. What is accepted may
// be around another connection, which it returns as NetConn: then that is read and written, and the outer one closed.
func (s *Server) Serve(ln net.Listener) error {
	s.mu.Lock()
	if s.mu.closed || s.draining.Load() {
		s.mu.Unlock()
		_ = ln.Close()
		return http.ErrServerClosed
	}
	s.mu.listeners = append(s.mu.listeners, ln)
	s.mu.Unlock()
	pause := time.Duration(0)
	for {
		nc, err := ln.Accept()
		switch {
		case err == nil:
			pause = 0
			s.begin(nc)
			continue
		case s.over():
			return http.ErrServerClosed
		case !passing(err):
			return err
		}
		pause = min(max(2*pause, 5*time.Millisecond), longestBackoff)
		s.o.Log.Warn("no connection can be accepted for now", "err", err, "again_in", pause)
		<-time.After(pause)
	}
}

// passing tells whether a failure to accept is one of the moment.
func passing(err error) bool {
	for _, e := range [...]error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED, syscall.ECONNRESET, syscall.EINTR, syscall.EAGAIN} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (s *Server) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.closed || s.draining.Load()
}

// begin serves a connection, unless the server has ended.
func (s *Server) begin(nc net.Conn) {
	if s.o.TLS != nil {
		s.beginTLS(nc)
		return
	}
	c := newConn(s, nc, nil)
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		_ = nc.Close()
		return
	}
	s.mu.conns[c] = struct{}{}
	s.wg.Add(1)
	s.mu.Unlock()
	go c.serve() // joined by Wait; done counts it off
}

// done forgets a connection.
func (s *Server) done(c *conn) {
	s.mu.Lock()
	delete(s.mu.conns, c)
	s.wakeIfEmpty()
	s.mu.Unlock()
	s.wg.Done()
}

func (s *Server) cut(reason string) {
	if s.o.Cut != nil {
		s.o.Cut(reason)
	}
}

// freshPatience is how long Shutdown waits for the first request of a connection that has just been made: net/http's.
const freshPatience = 5 * time.Second

// Shutdown closes the listeners and the connections that wait for a request, and waits for the others: each ends after its answer, which says so
// if its head was not sent yet. When ctx ends first it returns the context's error.
func (s *Server) Shutdown(ctx context.Context) error {
	s.draining.Store(true)
	s.closeListeners()
	empty := make(chan struct{})
	s.mu.Lock()
	s.mu.empty = empty
	s.wakeIfEmpty()
	s.mu.Unlock()
	s.closeWaiting(time.Now().Add(-freshPatience))
	t := time.NewTimer(freshPatience) // then all that were fresh have begun, or have had their time
	defer t.Stop()
	for {
		select {
		case <-empty:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
			s.closeWaiting(time.Now())
		}
	}
}

// wakeIfEmpty is for who holds mu.
func (s *Server) wakeIfEmpty() {
	if len(s.mu.conns) == 0 && s.mu.shakes.Len() == 0 && s.mu.empty != nil {
		close(s.mu.empty)
		s.mu.empty = nil
	}
}

// closeWaiting closes the connections that wait for a further request, and those that wait for their first one or shake hands and began before a time.
func (s *Server) closeWaiting(before time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.mu.conns {
		if c.state.CompareAndSwap(idle, ended) || !c.began.After(before) && c.state.CompareAndSwap(fresh, ended) {
			c.hangUp()
		}
	}
	s.closeShakes(before)
}

func (s *Server) closeListeners() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ln := range s.mu.listeners {
		_ = ln.Close()
	}
	s.mu.listeners = nil
}

// Close closes the listeners and all connections; their requests' contexts end. It does not wait for handlers: Wait does.
func (s *Server) Close() error {
	s.mu.Lock()
	s.mu.closed = true
	s.mu.Unlock()
	s.closeListeners()
	s.mu.Lock()
	conns := make([]*conn, 0, len(s.mu.conns))
	for c := range s.mu.conns {
		conns = append(conns, c)
	}
	s.closeShakes(time.Now())
	s.mu.Unlock()
	for _, c := range conns {
		c.state.Store(ended)
		_ = c.nc.Close()
		c.leave()
	}
	return nil
}

// Wait returns when all goroutines have ended, handlers included. It is for after Close.
func (s *Server) Wait() {
	s.wg.Wait()
	s.mu.Lock()
	w := s.mu.watch
	s.mu.Unlock()
	if w != nil {
		w.close()
		s.watching.Wait()
	}
}
