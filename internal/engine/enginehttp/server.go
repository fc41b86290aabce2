package enginehttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/engine/offload"
)

// Server is one simulated engine behind HTTP. Its methods may be called at once.
type Server struct {
	opt     Options // with its defaults; immutable after Start
	addr    string  // of the engine's listener; the same after each restart
	owner   *owner
	kv      *publisher // nil without Options.KVEvents
	side    *side      // nil if it is no prefill engine
	http    *http.Server
	control *http.Server // nil without Options.Control
	ctlAddr string
	faults  faults
	started time.Time
	wg      sync.WaitGroup // one for each goroutine that the server has started, handlers included
	quit    context.Context
	stop    context.CancelFunc

	// count is replaced by a restart; a handler keeps to the one that it began with, so that what a restart breaks off is not counted
	// by the engine that comes after it.
	count atomic.Pointer[counts]

	mu struct {
		sync.Mutex
		listener net.Listener // nil while it is down
		closed   bool
		conns    map[net.Conn]http.ConnState
	}
}

// counts are the counters of Stats that the handlers keep.
type counts struct{ requests, completed, clientGone, connections atomic.Int64 }

// Start starts an engine and returns when it accepts connections. The caller must Close it.
func Start(opt Options) (*Server, error) {
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	opt = opt.withDefaults()
	var kv *publisher
	if opt.KVEvents != nil {
		var err error
		if kv, err = newPublisher(opt.KVEvents, opt.Flavor); err != nil {
			return nil, err
		}
	}
	s, err := startWith(opt, kv)
	if err != nil && kv != nil {
		kv.down(true)
	}
	return s, err
}

func startWith(opt Options, kv *publisher) (*Server, error) {
	own, err := newOwner(opt.Engine, kv)
	if err != nil {
		return nil, err
	}
	s := &Server{opt: opt, owner: own, kv: kv, started: time.Now()}
	s.count.Store(new(counts))
	s.quit, s.stop = context.WithCancel(context.Background())
	s.mu.conns = make(map[net.Conn]http.ConnState)
	s.http = &http.Server{
		Handler: s.counted(s.routes()), ConnState: s.trackConn, ErrorLog: log.New(io.Discard, "", 0),
		BaseContext:       func(net.Listener) context.Context { return s.quit },
		ReadHeaderTimeout: 30 * time.Second, // only a client that stalls on purpose needs longer to send a request's head
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
	}
	ln := opt.Listener
	if ln == nil {
		if ln, err = s.listen(opt.Addr); err != nil {
			return nil, fmt.Errorf("engine: %w", err)
		}
	}
	s.addr = ln.Addr().String()
	err = s.startPair()
	if err == nil {
		s.startOuter()
		if opt.Control {
			err = s.startControl()
		}
	}
	if err != nil {
		_ = ln.Close()
		s.closePair()
		s.closeOuter()
		return nil, err
	}
	s.wg.Add(1)
	go func() { defer s.wg.Done(); s.owner.run() }()
	s.serve(ln)
	return s, nil
}

// connKey is the context key of a request's connection.
type connKey struct{}

func (s *Server) listen(addr string) (net.Listener, error) {
	if s.opt.Listen != nil {
		return s.opt.Listen(addr)
	}
	return net.Listen("tcp", addr)
}

// serve accepts connections from ln until it is closed.
func (s *Server) serve(ln net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		_ = ln.Close()
		return
	}
	s.mu.listener = ln
	s.wg.Add(1)
	go func() { defer s.wg.Done(); _ = s.http.Serve(ln) }() // it ends by ln's closing
}

// URL is the engine's base URL.
func (s *Server) URL() string { return "http://" + s.addr }

// ControlURL is the base URL of the fault interface, or empty.
func (s *Server) ControlURL() string {
	if s.control == nil {
		return ""
	}
	return "http://" + s.ctlAddr
}

// Models returns the served model ids.
func (s *Server) Models() []string { return s.opt.Models }

// Close stops the engine: every connection is closed, every request dropped. It returns when all goroutines have ended. Closing twice
// is harmless.
func (s *Server) Close() {
	s.mu.Lock()
	first := !s.mu.closed
	s.mu.closed = true
	s.mu.Unlock()
	if first {
		s.stop()
		_ = s.http.Close()
		if s.control != nil {
			_ = s.control.Close()
		}
		close(s.owner.stop)
		<-s.owner.done // it begins fetches
		s.closePair()
		s.closeOuter()
		if s.kv != nil {
			s.kv.down(true)
		}
	}
	s.wg.Wait()
}

// Stats is what the server has counted. Counters begin at the start or at the latest restart.
type Stats struct {
	Requests        int64       `json:"requests"`         // that generate, refused ones included
	Completed       int64       `json:"completed"`        // answered to the end
	ClientGone      int64       `json:"client_gone"`      // ended because the client had left
	Aborted         int64       `json:"aborted"`          // sequences ended through /abort_request
	Connections     int64       `json:"connections"`      // accepted
	OpenConnections int         `json:"open_connections"` // now
	Down            bool        `json:"down"`             // the listener is closed
	FaultsMet       int64       `json:"faults_met"`       // requests that met a fault
	Load            engine.Load `json:"load"`
	// CacheManager is counted from the server's start, over restarts; nil without Options.CacheManager.
	CacheManager *offload.Stats `json:"cache_manager,omitempty"`
}

// Stats returns the counters and the engine's true load, whatever it is told to report.
func (s *Server) Stats() Stats {
	n := s.count.Load()
	st := Stats{
		Requests: n.requests.Load(), Completed: n.completed.Load(), ClientGone: n.clientGone.Load(), Connections: n.connections.Load(),
	}
	_ = s.owner.do(func() { st.Load, st.Aborted = s.owner.core.Load(), s.owner.metrics.aborted }) // zero once stopped
	if s.owner.outer != nil {
		m := s.owner.outer.Stats()
		st.CacheManager = &m
	}
	s.mu.Lock()
	st.OpenConnections, st.Down = len(s.mu.conns), s.mu.listener == nil
	s.mu.Unlock()
	s.faults.mu.Lock()
	st.FaultsMet = s.faults.mu.applied
	s.faults.mu.Unlock()
	return st
}

// SetFault sets a fault, or ends all with FaultNone. It does not need Options.Control. The error says what is wrong with f, or that the
// listener could not be opened again.
func (s *Server) SetFault(f Fault) error {
	if err := f.validate(); err != nil {
		return err
	}
	switch f.Kind {
	case FaultRefuse:
		return s.takeDown(func(c net.Conn, st http.ConnState) {
			if st == http.StateIdle || st == http.StateNew {
				_ = c.Close() // busy ones are closed when they become idle
			}
		})
	case FaultRestart:
		return s.restart(time.Duration(f.DelayMS) * time.Millisecond)
	case FaultLoseEvents, FaultCutEvents:
		return s.disturbEvents(f)
	case FaultNone:
		s.faults.set(f)
		return s.bringUp()
	}
	s.faults.set(f)
	return nil
}

// takeDown closes the listener, and hands every connection to end.
func (s *Server) takeDown(end func(net.Conn, http.ConnState)) error {
	if s.opt.Listen == nil && s.opt.Listener != nil {
		if _, ok := s.opt.Listener.(*net.TCPListener); !ok {
			return errors.New("the engine cannot reopen the listener it was given")
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.listener != nil {
		_ = s.mu.listener.Close()
		s.mu.listener = nil
	}
	for c, st := range s.mu.conns {
		end(c, st)
	}
	return nil
}

// bringUp opens the listener again, on the same address. It does nothing if it is open.
func (s *Server) bringUp() error {
	s.mu.Lock()
	up := s.mu.listener != nil || s.mu.closed
	s.mu.Unlock()
	if up {
		return nil
	}
	if s.kv != nil {
		if err := s.kv.up(); err != nil {
			return err
		}
	}
	if s.side != nil {
		if err := s.side.up(); err != nil {
			return err
		}
	}
	ln, err := s.listen(s.addr)
	if err != nil {
		return fmt.Errorf("engine: open the listener again: %w", err)
	}
	s.serve(ln)
	return nil
}

// disturbEvents loses batches of KV events, or breaks the subscribers' connections.
func (s *Server) disturbEvents(f Fault) error {
	if s.kv == nil {
		return errNoEvents
	}
	if f.Kind == FaultLoseEvents {
		s.kv.loseNext(max(f.Count, 1), f.Forget)
		return nil
	}
	s.kv.down(false)
	return s.kv.up()
}

// restart drops everything, as a process that dies does, and comes back after d with nothing cached.
func (s *Server) restart(d time.Duration) error {
	s.faults.set(Fault{Kind: FaultNone})
	breakSide := func() {}
	if s.side != nil {
		breakSide = s.side.fall() // from now on it tells nobody why requests have ended, as an engine that dies does not
	}
	err := s.takeDown(func(c net.Conn, _ http.ConnState) { reset(c) })
	breakSide()
	if err != nil {
		return err
	}
	stopped := s.owner.do(func() {
		s.owner.dropAll()
		err = s.owner.reset()
		if s.owner.outer != nil {
			s.owner.outer.Restart()
		}
	})
	if err = errors.Join(err, stopped); err != nil {
		return err
	}
	s.count.Store(new(counts))
	if s.kv != nil {
		s.kv.down(true)
	}
	if d == 0 {
		return s.bringUp()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return errStopped
	}
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			_ = s.bringUp() // failing, the engine stays down, which Stats shows
		case <-s.quit.Done():
		}
	}()
	return nil
}

func (s *Server) trackConn(c net.Conn, st http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch st {
	case http.StateNew:
		s.count.Load().connections.Add(1)
		s.mu.conns[c] = st
	case http.StateClosed, http.StateHijacked:
		delete(s.mu.conns, c)
	default:
		s.mu.conns[c] = st
		if st == http.StateIdle && s.mu.listener == nil {
			_ = c.Close() // it was busy when the listener went down
		}
	}
}

// resetConn resets the connection of r and ends its handler.
func (s *Server) resetConn(r *http.Request) {
	if c, ok := r.Context().Value(connKey{}).(net.Conn); ok {
		reset(c)
	}
	panic(http.ErrAbortHandler)
}

// reset closes c so that a TCP peer sees a reset and not an end.
func reset(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // fails only on a connection that is gone already
	}
	_ = c.Close()
}

// counted joins the handlers to Close: net/http's own Close does not wait for them.
func (s *Server) counted(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		if s.mu.closed {
			s.mu.Unlock()
			panic(http.ErrAbortHandler)
		}
		s.wg.Add(1)
		s.mu.Unlock()
		defer s.wg.Done()
		w.Header().Set("Server", "perigee-simulated-engine")
		h.ServeHTTP(w, r)
	})
}
