package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/api"
	"github.com/perigee-llm/perigee/internal/gateway/assemble"
	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/explain"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/keeper"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/peers"
	"github.com/perigee-llm/perigee/internal/gateway/tracing"
	"github.com/perigee-llm/perigee/internal/gateway/upstream"
	"github.com/perigee-llm/perigee/internal/telemetry"
)

// Options are what a Gateway is made from.
type Options struct {
	// Config is complete: from Parse or Flags.Config.
	Config *config.Config
	// Log gets what happens; required.
	Log *slog.Logger
	// Access gets a line for each request, a JSON object, each with one Write, which may be called at once and must not keep what it is
	// given; nil: none.
	Access io.Writer
	// Seed fixes the random choices.
	Seed uint64
	// Source is where another configuration is read; nil: the gateway keeps the one it has.
	Source *Source
	// WatchInterval is how often watched files are looked at; 0: a second.
	WatchInterval time.Duration
	// Level is set to the configuration's log level; nil: the log's level is somebody else's business.
	Level *slog.LevelVar
	// DecisionLog is how many requests the decision log remembers; 0: explain.DefaultSize.
	DecisionLog int
	// SparePerEngine is how much memory is set aside for each engine and never touched, in bytes; see [keeper.Options]. 0: none.
	SparePerEngine int
}

// Gateway is one running gateway. Start one with [Start]; end it with Shutdown.
type Gateway struct {
	cfg       atomic.Pointer[config.Config] // the one in use
	log       *slog.Logger
	level     *slog.LevelVar
	metrics   *telemetry.Metrics
	seed      uint64
	server    *api.Server
	registry  *fleet.Registry
	tracker   *load.Tracker
	explain   *explain.Log
	keeper    *keeper.Keeper
	absent    *absentees
	prefixes  *prefixes
	peers     *peers.Peers // nil: none
	tracer    *tracing.Tracer
	transport *upstream.Transport
	// engineKeys stand before both ways to engines; asking is the keeper's, over questions.
	engineKeys engineKeys
	questions  questions
	asking     *http.Client
	silent     silent
	blind      blindCaps

	source    *Source
	nudge     chan struct{}
	stopWatch context.CancelFunc
	watching  sync.WaitGroup
	reloading sync.Mutex // guards what follows
	files     *files
	groups    assemble.Groups
	seen      sight    // the watched files when the configuration was last read
	wanted    []string // the files that it named

	public, admin listener
	serving       sync.WaitGroup
	failed        chan error // a listener that ended by itself; one place for each
}

type listener struct {
	server server
	addr   net.Addr                        // nil: there is none
	cert   atomic.Pointer[tls.Certificate] // nil: plain HTTP
}

// url returns the listener's base.
func (l *listener) url() string {
	if l.cert.Load() != nil {
		return "https://" + l.addr.String()
	}
	return "http://" + l.addr.String()
}

// Start starts a gateway: it listens, registers the engines, and returns when each was asked once. ctx bounds the start
// only. An engine that does not answer is no failure.
func Start(ctx context.Context, o Options) (*Gateway, error) {
	c := o.Config
	var seen sight
	if o.Source != nil {
		seen = lookAt(o.Source.File, named(c)) // before they are read: what changes meanwhile is seen later
	}
	held, faults := readFiles(c, nil)
	for _, f := range faults.Warnings() {
		o.Log.Warn("configuration fault", "fault", f.String())
	}
	if errs := faults.Errors(); len(errs) > 0 {
		return nil, &FilesError{Faults: errs}
	}
	g := assembled(&o, held, seen)
	g.prefixes = startPrefixes(g.registry, g.cfg.Load, g.asking, g.metrics, o.Log)
	models, built, err := buildModels(c, held, o.Seed, nil, g.prefixes)
	if err == nil {
		err = g.prefixes.share(&c.PrefixIndex, held, g.failed)
	}
	if err == nil {
		err = g.beginTracing(c, held)
	}
	if err != nil {
		g.abandon()
		return nil, err
	}
	g.groups = built
	g.server, err = api.New(api.Options{
		Config:   api.Config{Models: models, Settings: buildSettings(c), Keys: held.keys, AdminKeys: held.adminKeys},
		Registry: g.registry, Tracker: g.tracker, Engines: g.engineKeys.over(g.transport), Metrics: g.metrics, Explain: g.explain, Log: o.Log, Access: o.Access, Seed: o.Seed,
		Tracer: g.tracer,
		Absent: func(id string) { g.absent.missed(id, time.Now()) }, Prefixes: g.prefixes.serveStatus,
	})
	if err != nil {
		g.abandon()
		return nil, err
	}
	if err := g.introduce(&o); err != nil {
		g.server.Close()
		g.abandon()
		return nil, err
	}
	select {
	case <-g.keeper.Registered():
		g.prefixes.shared.ready()
		if err = g.meetPeers(c.Peers); err == nil {
			err = g.listen(ctx)
		}
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		g.close()
		return nil, err
	}
	g.metrics.ReloadOK.Set(1)
	g.metrics.ReloadedAt.SetToCurrentTime()
	if o.Source != nil {
		g.startWatch(o.WatchInterval)
	}
	return g, nil
}

// assembled is a gateway in which nothing runs yet.
func assembled(o *Options, held *files, seen sight) *Gateway {
	c := o.Config
	g := &Gateway{
		log: o.Log, level: o.Level, seed: o.Seed, tracker: &load.Tracker{}, explain: explain.NewLog(o.DecisionLog), failed: make(chan error, 3),
		registry:  fleet.NewRegistry(assemble.Breaker(&c.Breaker), c.Load.Freshness),
		transport: upstream.New(upstream.Options{}), questions: newQuestions(), metrics: telemetry.New(),
		source: o.Source, nudge: make(chan struct{}, 1), files: held, seen: seen,
	}
	g.absent = &absentees{registry: g.registry, log: o.Log, gone: map[string]absence{}}
	g.blind = blindCaps{log: o.Log, told: map[blindCap]bool{}}
	g.cfg.Store(c)
	g.setLevel(c)
	g.engineKeys.set(keysByURL(c, held, nil, nil))
	g.asking = &http.Client{Transport: g.engineKeys.over(g.questions)}
	g.public.cert.Store(held.publicCert)
	g.admin.cert.Store(held.adminCert)
	return g
}

// abandon takes down what there is of a gateway that has no server yet.
func (g *Gateway) abandon() {
	g.prefixes.close()
	g.tracer.Close()
	g.transport.Close()
	g.questions.Close()
}

// beginTracing makes the tracer, and turns it on where the configuration has it on.
func (g *Gateway) beginTracing(c *config.Config, held *files) error {
	g.tracer = tracing.New(tracing.Options{Log: g.log, Count: countSpans(g.metrics)})
	next, err := g.tracer.Prepare(buildTracing(c, held))
	if err != nil {
		return err
	}
	next.Use()
	return nil
}

// introduce begins to keep the engines.
func (g *Gateway) introduce(o *Options) (err error) {
	g.keeper, err = keeper.Start(keeper.Options{
		Registry: g.registry, Client: g.asking, Targets: buildTargets(&o.Config.Discovery), PollInterval: o.Config.Load.PollInterval, Log: g.log, Spare: o.SparePerEngine,
		Events: keeper.Events{Asked: g.asked, Restarted: g.restarted, Polled: func(p keeper.PollInfo) {
			outcome := "ok"
			if p.Err != nil {
				outcome = "failed"
			}
			g.metrics.LoadPolls.WithLabelValues(p.ID, outcome).Inc()
			g.absent.polled(p)
		}},
	})
	return err
}

// restarted takes in that another process answers: what the one before did is over, its failures among it.
func (g *Gateway) restarted(w *fleet.Worker) {
	g.prefixes.follower.Renewed(w.No)
	g.absent.returned(w.ID)
}

// asked takes in one introspection.
func (g *Gateway) asked(a keeper.AskInfo) {
	g.silent.asked(a)
	g.prefixes.change()
	if w := g.registry.View().Get(a.ID); w != nil {
		g.blind.look(g.cfg.Load(), w)
	}
}

// startWatch begins to look at the configuration's files.
func (g *Gateway) startWatch(every time.Duration) {
	if every <= 0 {
		every = watchInterval
	}
	var ctx context.Context
	ctx, g.stopWatch = context.WithCancel(context.Background())
	g.watching.Go(func() { g.watch(ctx, every) })
}

// listen opens the listeners and begins to serve.
func (g *Gateway) listen(ctx context.Context) error {
	s := &g.cfg.Load().Server
	if err := g.serve(ctx, &g.public, "public", s.Host, s.Port, g.server.Public()); err != nil {
		return err
	}
	if s.Admin.Port == nil {
		return nil
	}
	return g.serve(ctx, &g.admin, "admin", s.Admin.Host, *s.Admin.Port, g.server.Admin())
}

func (g *Gateway) serve(ctx context.Context, l *listener, name, host string, port int, h http.Handler) error {
	ln, err := (&net.ListenConfig{Control: boundUnread}).Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return fmt.Errorf("%s listener: %w", name, err)
	}
	l.addr = ln.Addr()
	d := &door{Listener: ln, name: name, secure: l.cert.Load() != nil, limits: g.cfg.Load().Server.Clients, metrics: g.metrics}
	d.send = func() time.Duration { return g.cfg.Load().Server.Clients.SendTimeout }
	l.server = d.server(h, l.cert.Load, g.log)
	d.register(g.metrics.Registry())
	g.serving.Go(func() {
		if err := l.server.Serve(d); !errors.Is(err, http.ErrServerClosed) {
			g.failed <- fmt.Errorf("%s listener: %w", name, err)
		}
	})
	return nil
}

// URL returns the base of the public listener.
func (g *Gateway) URL() string { return g.public.url() }

// Config returns the configuration in use. It must not be changed.
func (g *Gateway) Config() *config.Config { return g.cfg.Load() }

// AdminURL returns the base of the admin listener, or the empty string where there is none.
func (g *Gateway) AdminURL() string {
	if g.admin.addr == nil {
		return ""
	}
	return g.admin.url()
}

// Explain returns the decision log.
func (g *Gateway) Explain() *explain.Log { return g.explain }

// Registry returns the engines.
func (g *Gateway) Registry() *fleet.Registry { return g.registry }

// Held returns how many places in engines' accounts are held; zero at rest.
func (g *Gateway) Held() int { return g.tracker.Held() }

// Failed delivers the error of a listener that ended by itself.
func (g *Gateway) Failed() <-chan error { return g.failed }

// Drain makes the gateway report that it is not ready, while it goes on serving.
func (g *Gateway) Drain() { g.server.Drain() }

// heartbeat is how often Shutdown says what it waits for: the reference's.
const heartbeat = 5 * time.Second

// patience is from when on Shutdown warns instead: the reference's.
const patience = 30 * time.Second

// Shutdown closes the listeners, waits for the requests under way, and takes everything down. When ctx ends first the
// connections that are left are closed, and it returns the context's error; everything is taken down all the same.
func (g *Gateway) Shutdown(ctx context.Context) error {
	g.server.Drain()
	g.endWatch()
	done := make(chan struct{})
	var beat sync.WaitGroup
	beat.Go(func() { g.tellProgress(done) })
	err := g.public.server.Shutdown(ctx)
	close(done)
	beat.Wait()
	if err != nil {
		_ = g.public.server.Close()
	}
	g.close()
	return err
}

// tellProgress logs what is still under way until done.
func (g *Gateway) tellProgress(done <-chan struct{}) {
	began := time.Now()
	t := time.NewTicker(heartbeat)
	defer t.Stop()
	for {
		select {
		case <-done:
			return
		case <-t.C:
			level := slog.LevelInfo
			if time.Since(began) >= patience {
				level = slog.LevelWarn
			}
			g.log.Log(context.Background(), level, "waiting for requests to end", "active", g.server.Active(), "for", time.Since(began).Round(time.Second))
		}
	}
}

// endWatch gives up a reload that waits for engines, and waits for the rest.
func (g *Gateway) endWatch() {
	if g.stopWatch != nil {
		g.stopWatch()
	}
	g.watching.Wait()
}

// close takes down what Start began, whatever of it there is.
func (g *Gateway) close() {
	for _, l := range []*listener{&g.public, &g.admin} {
		if l.server != nil {
			_ = l.server.Close()
		}
	}
	g.serving.Wait()
	g.endWatch()
	for _, l := range []*listener{&g.public, &g.admin} {
		if l.server != nil {
			l.server.Wait()
		}
	}
	g.leavePeers()
	g.keeper.Close()
	g.prefixes.close()
	g.server.Close()
	g.tracer.Close() // when no span is under way any more
	g.transport.Close()
	g.questions.Close()
}
