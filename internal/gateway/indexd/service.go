package indexd

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/introspect"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/keeper"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/stream"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/followed"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/indexer"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/managers"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/warm"
)

// Service is one that runs. Make it with [Start], and close it. All methods may be called at once.
type Service struct {
	o        Options // immutable
	log      *slog.Logger
	registry *fleet.Registry
	keeper   *keeper.Keeper
	client   *http.Client // asks engines
	store    *local.Store
	costs    prefix.Costs // of restores
	follower *events.Follower
	managers *managers.Follower
	warm     *warm.Source // nil: nobody is asked
	server   *indexer.Server
	tls      atomic.Pointer[tls.Config] // of server; nil: plain text
	metrics  *metrics
	listener net.Listener
	admin    *http.Server
	adminAt  net.Addr

	ctx     context.Context
	stop    context.CancelFunc
	changed chan struct{} // one place
	kept    []uint32      // engines that are followed; of reconcile
	failed  chan error
	running sync.WaitGroup // all goroutines that are not of a field
	closing sync.Once
}

// Start opens the listeners and begins to follow. The caller closes the service. The errors are the listeners', [ErrExposed], and those of
// options that contradict each other; nothing runs then.
func Start(o Options) (s *Service, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	s = &Service{o: o, log: o.Log, changed: make(chan struct{}, 1), failed: make(chan error, 2)}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.listener, err = net.Listen(o.listen()); err != nil {
		return nil, err
	}
	var admin net.Listener
	if o.Admin != "" {
		if admin, err = net.Listen("tcp", o.Admin); err != nil {
			_ = s.listener.Close()
			return nil, err
		}
	}
	if err := s.begin(); err != nil {
		_ = s.listener.Close()
		if admin != nil {
			_ = admin.Close()
		}
		return nil, err
	}
	s.running.Go(func() { s.serve(s.server.Serve(s.listener)) })
	if admin != nil {
		s.admin, s.adminAt = s.metrics.serverOf(s), admin.Addr()
		s.running.Go(func() {
			if err := s.admin.Serve(admin); err != http.ErrServerClosed {
				s.serve(err)
			}
		})
	}
	return s, nil
}

// begin starts what is behind the listeners.
func (s *Service) begin() error {
	client := keeper.NewClient()
	s.client = client
	if s.o.Transport != nil {
		client.Transport = s.o.Transport
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	s.registry = fleet.NewRegistry(fleet.BreakerConfig{}, 0)
	s.store = local.New(s.o.Limits)
	var err error
	if len(s.o.SnapshotFrom) > 0 {
		if s.warm, err = warm.New(warm.Options{Endpoints: s.o.SnapshotFrom, Token: s.o.SnapshotToken, TLS: s.o.SnapshotTLS, Log: s.log}); err != nil {
			return err
		}
	}
	s.follower = events.Start(events.Options{Client: client, Log: s.log})
	s.managers = managers.Start(managers.Options{Store: s.store, Costs: &s.costs, Log: s.log})
	s.metrics = newMetrics(s)
	urls := &urls{registry: s.registry}
	s.server = indexer.New(indexer.Options{
		Store: s.store, URL: urls.of, Position: s.position, Costs: &s.costs, MaxInFlight: s.o.MaxInFlight, MaxSnapshots: s.o.MaxSnapshots,
		Token: s.o.Token, TLS: s.handshakes(), Hooks: indexer.Hooks{Answered: s.metrics.answered}, Log: s.log,
	})
	s.server.SetReady(false)
	s.keeper, err = keeper.Start(keeper.Options{
		// The load is nobody's concern here; polling tells of restarts, and five seconds are what it costs next to nothing for.
		Registry: s.registry, Client: client, Targets: targets(s.o.Workers), PollInterval: 5 * time.Second, Log: s.log,
		Events: keeper.Events{
			Asked:     func(keeper.AskInfo) { s.change() },
			Restarted: func(w *fleet.Worker) { s.follower.Renewed(w.No) },
		},
	})
	if err != nil {
		s.follower.Close()
		s.managers.Close()
		s.server.Close(0)
		s.endWarm()
		client.CloseIdleConnections()
		return err
	}
	s.managers.Set(managerTargets(s.o.Managers))
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.running.Go(s.reconcile)
	s.running.Go(s.sweep)
	s.running.Go(s.ready)
	return nil
}

func targets(workers []config.Worker) (out []introspect.Target) {
	for _, w := range workers {
		if w.Role == config.RoleDecode {
			continue
		}
		t := introspect.Target{ID: w.ID, URL: w.URL}
		if w.Role == config.RolePrefill {
			t.Stage = fleet.Prefill
		}
		out = append(out, t)
	}
	return out
}

// handshakes is the server's side of TLS, nil for plain text: each handshake goes by what is presented then.
func (s *Service) handshakes() *tls.Config {
	if s.o.TLS == nil {
		return nil
	}
	s.tls.Store(s.o.TLS)
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.tls.Load(), nil }}
}

// Present has the calls that come from now on present another token, and further handshakes go by another configuration; connections that there
// are stay. A service that was started without the one or the other stays without it.
func (s *Service) Present(token string, t *tls.Config) {
	if s.o.Token != "" && token != "" {
		s.server.SetToken(token)
	}
	if s.o.TLS != nil && t != nil {
		s.tls.Store(t)
	}
}

func managerTargets(all []config.Manager) (out []managers.Target) {
	for _, m := range all {
		out = append(out, managers.Target(m))
	}
	return out
}

// ready waits until each engine was asked once.
func (s *Service) ready() {
	select {
	case <-s.keeper.Registered():
		s.change()
		s.server.SetReady(true)
	case <-s.ctx.Done():
	}
}

// position says how far a rank's events have been applied, where they can be believed.
func (s *Service) position(engine uint32, rank int32) (p indexer.Position, ok bool) {
	st, ok := s.follower.StreamOf(engine, rank)
	if !ok || st.State != stream.Exact || st.Next < 0 {
		return p, false
	}
	about, _, _ := s.store.About(engine, rank)
	return indexer.Position{Next: st.Next, Print: st.Print, Printed: st.Printed, Whole: st.Whole}.In(about.State)
}

// followed is what is said of the streams that fill the index.
func (s *Service) followed() followed.Followed {
	return followed.Followed{Events: s.follower, Managers: s.managers, Store: s.store}
}

// serve takes down what ended a listener.
func (s *Service) serve(err error) {
	if err != nil {
		s.failed <- fmt.Errorf("a listener failed: %w", err)
	}
}

// Addr returns where the service listens: host:port, or unix:/path.
func (s *Service) Addr() string {
	if a := s.listener.Addr(); a.Network() == "unix" {
		return "unix:" + a.String()
	}
	return s.listener.Addr().String()
}

// AdminAddr returns where metrics are, empty if nowhere.
func (s *Service) AdminAddr() string {
	if s.adminAt == nil {
		return ""
	}
	return s.adminAt.String()
}

// Failed delivers what ended a listener.
func (s *Service) Failed() <-chan error { return s.failed }

// Close lets calls that are under way end for so long, then ends all and waits. Closing twice is closing once.
func (s *Service) Close(grace time.Duration) {
	s.closing.Do(func() {
		s.server.Close(grace)
		if s.admin != nil {
			_ = s.admin.Close()
		}
		s.stop()
		s.keeper.Close()
		s.follower.Close()
		s.managers.Close()
		s.running.Wait()
		s.endWarm()
		s.client.CloseIdleConnections()
	})
}

func (s *Service) endWarm() {
	if s.warm != nil {
		s.warm.Close()
	}
}
