package api

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/api/body"
	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/explain"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/keyring"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/tokens"
	"github.com/perigee-llm/perigee/internal/gateway/tracing"
	"github.com/perigee-llm/perigee/internal/telemetry"
)

// Model is one model that the gateway serves.
type Model struct {
	// ID is the base model's id; Aliases are its other names.
	ID      string
	Aliases []string
	// Resolver holds its buckets.
	Resolver *bucket.Resolver
	// Contract are the operator's sampling rules; nil: none.
	Contract *body.Contract
	// Tokens measures its requests; nil: there is no tokenizer, and lengths are estimated or asked for.
	Tokens *tokens.Model
	// ForwardIDs sends the ids of conversations along to engines that take them, where that is safe.
	ForwardIDs bool
	// AskEngines has an engine count prompts where there is no tokenizer.
	AskEngines bool
	// Prefixes says that a policy of the model's looks prefixes up, so that prompts' token ids are worth keeping.
	Prefixes bool
}

// Settings are the limits of the request path. Every field must be set.
type Settings struct {
	// MaxBody is the longest request body, in bytes.
	MaxBody int64
	// MaxBuffered is how much of request bodies, and of answers held back, is in memory at once, all requests together, in bytes.
	MaxBuffered int64
	// MaxAttempts is how many engines a request may be tried on in all.
	MaxAttempts int
	// RequestTimeout bounds an engine's whole answer that is not streamed, and the wait for the headers of one that is.
	RequestTimeout time.Duration
	// StreamIdle bounds an engine's silence within a stream.
	StreamIdle time.Duration
	// Stale bounds the whole life of a request; then the janitor gives it up.
	Stale time.Duration
	// BodyStall bounds a client's silence while it sends a body.
	BodyStall time.Duration
	// ClientStall bounds how long a client may read nothing while there is something for it.
	ClientStall time.Duration
	// Refused are the fields that a client may not set: a request with one gets a 400. Stripped are those that are taken out.
	Refused, Stripped body.Keys
	// PublicMetrics and PublicFlush put /metrics and /flush_cache on the public handler too.
	PublicMetrics, PublicFlush bool
	// ForwardAuthorization passes the client's Authorization on to engines although it is one of our keys. Without keys it is
	// always passed on.
	ForwardAuthorization bool
}

// Options are what a Server works with.
type Options struct {
	// Config is what it serves by at first.
	Config   Config
	Registry *fleet.Registry
	Tracker  *load.Tracker
	// Engines sends requests to engines; what it fails with before an answer is an *upstream.Error, any other error counts as
	// one without a connection. It is done with a request's body when it has failed or the answer's body is closed. The server does not close it.
	Engines http.RoundTripper
	Metrics *telemetry.Metrics
	Explain *explain.Log
	Log     *slog.Logger
	// Tracer makes the spans of requests for completions; nil: there are none.
	Tracer *tracing.Tracer
	// Access gets a line for each request, a JSON object, each with one Write, which may be called at once and must not keep what it is
	// given; nil: none.
	Access io.Writer
	// Absent is told of each engine to which no connection could be made; nil: nobody is. It may be called at once, and must not block.
	Absent func(worker string)
	// Prefixes answers GET /debug/prefixes on the admin handler: how engines' KV events are followed. Nil: there is no such path.
	Prefixes http.HandlerFunc
	// Seed starts the random choices: with the same seed and the same order of arrival, selection repeats.
	Seed uint64
}

// Server is the request path. Make one with [New]; Close it when its listeners are closed.
type Server struct {
	Options
	current atomic.Pointer[served]
	retired struct {
		sync.Mutex
		list []*served // replaced, and perhaps with requests under way
	}
	created int64 // Unix seconds, for the model list

	draining atomic.Bool
	requests atomic.Uint64 // ever, for the keys of random choices
	active   atomic.Int64  // under way
	buffered atomic.Int64  // bytes of request bodies and answers that are held
	left     leftovers     // prefill halves whose clients have left

	decided  counters // by policy and reason, which no configuration takes away
	encoders encoders
	aborts   aborter
	life     context.Context // ends with Close
	stop     context.CancelFunc
	wg       sync.WaitGroup
}

// New returns a server and starts its janitor.
func New(o Options) (*Server, error) {
	first, err := newServed(o.Config)
	if err != nil {
		return nil, err
	}
	o.Config = Config{} // what is in use is s.current
	s := &Server{Options: o, encoders: newEncoders(), created: time.Now().Unix()}
	s.current.Store(first)
	ctx, stop := context.WithCancel(context.Background())
	s.life, s.stop = ctx, stop
	s.aborts.start(ctx, s)
	s.wg.Go(func() { s.janitor(ctx) })
	o.Metrics.Registry().MustRegister(newCollector(s))
	return s, nil
}

// Close stops the janitor, drops the aborts that were not sent yet, and ends the prefill halves whose clients have left. It
// waits for all of them, not for requests.
func (s *Server) Close() {
	s.stop()
	s.aborts.close()
	s.wg.Wait()
}

// Drain makes the server not ready, so that load balancers stop sending; it goes on serving.
func (s *Server) Drain() { s.draining.Store(true) }

// Active returns the requests under way.
func (s *Server) Active() int64 { return s.active.Load() }

// Public returns the handler of the public listener.
func (s *Server) Public() http.Handler {
	mux := s.routes(publicKeys)
	mux.handle("/v1/chat/completions", s.completions(body.Chat))
	mux.handle("/v1/completions", s.completions(body.Completion))
	for _, prefix := range []string{"", "/v1"} { // engines have them at the root, sgl-router below /v1
		mux.handle(prefix+"/tokenize", s.measured(prefix+"/tokenize", s.only(http.MethodPost, s.tokenizeText)))
		mux.handle(prefix+"/detokenize", s.measured(prefix+"/detokenize", s.only(http.MethodPost, s.detokenizeIDs)))
	}
	mux.handle("/v1/models", s.only(http.MethodGet, s.keyed(publicKeys, s.listModels)))
	mux.handle("/healthz", s.only(http.MethodGet, s.healthz))
	mux.handle("/readyz", s.only(http.MethodGet, s.readyz))
	mux.handle("/metrics", s.keyed(publicKeys, s.where(func(c *Settings) bool { return c.PublicMetrics }, s.metricsHandler().ServeHTTP)))
	mux.handle("/flush_cache", s.keyed(publicKeys, s.where(func(c *Settings) bool { return c.PublicFlush }, s.only(http.MethodPost, s.flushCache))))
	return s.bounded(mux)
}

// Admin returns the handler of the admin listener.
func (s *Server) Admin() http.Handler {
	mux := s.routes(adminKeys)
	for path, h := range map[string]http.HandlerFunc{
		"/metrics":         s.metricsHandler().ServeHTTP,
		"/flush_cache":     s.only(http.MethodPost, s.flushCache),
		"/debug/decisions": s.only(http.MethodGet, s.decisions),
		"/debug/workers":   s.only(http.MethodGet, s.workers),
	} {
		mux.handle(path, s.keyed(adminKeys, anyCaller(h)))
	}
	if s.Prefixes != nil {
		mux.handle("/debug/prefixes", s.keyed(adminKeys, anyCaller(s.only(http.MethodGet, s.Prefixes))))
	}
	mux.handle("/healthz", s.only(http.MethodGet, s.healthz))
	mux.handle("/readyz", s.only(http.MethodGet, s.adminReadyz))
	return s.bounded(mux)
}

// bounded gives the client's side of every request a time-out for each way, which a handler may move. Without the one for
// reading, a server would wait for ever for a body that nobody reads. While it drains each answer says that it is the last on its
// connection: a connection that is kept until the listener closes may take a further request with it.
//
// So does an answer to a request in chunks. If it had a Content-Length too, RFC 9112 (6.3) wants the connection closed, since a proxy before
// us may have seen another end of it; net/http, which serves TLS, takes that field out and tells nobody. Clients of language models send lengths, not chunks.
func (s *Server) bounded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		now := time.Now()
		c := &s.current.Load().Settings
		rc := deadlines(w)
		_ = rc.SetWriteDeadline(now.Add(c.ClientStall))
		if r.ContentLength != 0 {
			_ = rc.SetReadDeadline(now.Add(c.BodyStall))
		}
		if s.draining.Load() || len(r.TransferEncoding) > 0 {
			w.Header()["Connection"] = closeConnection
		}
		switch {
		case r.Method == http.MethodConnect: // the mux would answer these two in text
			s.refuse(w, errMethod)
		case r.RequestURI == "*":
			s.refuse(w, errNotFound)
		default:
			h.ServeHTTP(w, r)
		}
	})
}

// timed is a ResponseWriter whose connection has deadlines, as those of both servers are.
type timed interface {
	SetReadDeadline(deadline time.Time) error
	SetWriteDeadline(deadline time.Time) error
}

// deadlines returns what moves the deadlines of w's connection.
func deadlines(w http.ResponseWriter) timed {
	if t, ok := w.(timed); ok {
		return t
	}
	return http.NewResponseController(w)
}

var closeConnection = []string{"close"} // servers only read it

// only answers 405 to other methods; HEAD counts as GET.
func (s *Server) only(method string, h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method == method || (method == http.MethodGet && r.Method == http.MethodHead) {
			h(w, r)
			return
		}
		w.Header().Set("Allow", method)
		s.refuse(w, errMethod)
	}
}

// refuse answers with an error of our own, and counts it. Requests that have an id by then keep it.
func (s *Server) refuse(w http.ResponseWriter, e *Error) {
	if h := w.Header(); h[headerRequestID] == nil {
		h[headerRequestID] = []string{randomHex()}
	}
	s.Metrics.Refused.WithLabelValues(e.Code).Inc()
	e.Write(w)
}

// routes are the handlers of paths. A path is met as it was written: [http.ServeMux] would send who writes //v1/models on to /v1/models, in HTML and
// before anybody has asked for a key, and engines do not.
type routes struct {
	at    map[string]http.Handler
	other http.Handler
}

// routes returns those of a listener at which there is nothing yet, which only those with a key are told.
func (s *Server) routes(ring func(*served) *keyring.Ring) routes {
	return routes{at: map[string]http.Handler{}, other: s.keyed(ring, anyCaller(func(w http.ResponseWriter, _ *http.Request) { s.refuse(w, errNotFound) }))}
}

func (m routes) handle(path string, h http.Handler) { m.at[path] = h }

// ServeHTTP implements http.Handler.
func (m routes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h := m.at[r.URL.Path]; h != nil && r.URL.RawPath == "" {
		h.ServeHTTP(w, r)
		return
	}
	m.other.ServeHTTP(w, r)
}

// janitor gives up requests that outlived the stale time-out, ten times within it, at most once a second and at least once a
// minute: the reference's rhythm, which lets nothing live much longer than it may.
func (s *Server) janitor(ctx context.Context) {
	rhythm := func() time.Duration { return min(max(s.current.Load().Settings.Stale/10, time.Second), time.Minute) }
	every := rhythm()
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			if next := rhythm(); next != every { // the configuration was replaced
				every = next
				t.Reset(every)
			}
			life := s.longestLife()
			if n := s.Tracker.Expire(now, life); n > 0 {
				s.Log.Warn("requests outlived the stale time-out and were given up", "guards", n, "after", life)
			}
		}
	}
}
