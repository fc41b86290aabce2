package gateway

import (
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/stream"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/indexer"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/remote"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/warm"
)

// shared is what the index gives to others and takes from them. The zero value does neither.
type shared struct {
	warm    *warm.Source                    // nil: nobody is asked
	server  *indexer.Server                 // nil: nothing is served
	cert    atomic.Pointer[tls.Certificate] // of server; nil: plain text
	addr    net.Addr                        // of server
	serving sync.WaitGroup
}

// share begins both, as the configuration says. It comes before any engine is followed. The error is the listener's; what has begun ends
// with close. A listener that ends by itself is told to failed.
func (p *prefixes) share(c *config.PrefixIndex, held *files, failed chan<- error) error {
	if c.SnapshotFrom != "" {
		endpoints, err := remote.ParseEndpoints(c.SnapshotFrom)
		if err != nil {
			return err
		}
		taken := prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "perigee_prefix_snapshots_total", Help: "Ranks of engines of which a snapshot was asked for at the start: taken, none, failed.",
		}, []string{"outcome"})
		claims := prometheus.NewCounter(prometheus.CounterOpts{Name: "perigee_prefix_snapshot_claims_total", Help: "Claims that were taken over with snapshots."})
		p.metrics.Registry().MustRegister(taken, claims)
		for _, o := range warm.Outcomes {
			taken.WithLabelValues(string(o))
		}
		presents := held.snapshot.secrets()
		p.shared.warm, err = warm.New(warm.Options{
			Endpoints: endpoints, Token: presents.Token, TLS: presents.TLS, Timeout: c.SnapshotTimeout, Log: p.log,
			Hook: func(o warm.Outcome, n int) {
				taken.WithLabelValues(string(o)).Inc()
				claims.Add(float64(n))
			},
		})
		if err != nil {
			return err
		}
	}
	if c.Listen == "" {
		return nil
	}
	p.shared.present(held)
	return p.serve(c.Listen, held.indexToken, failed)
}

// serve answers others from the gateway's own index.
func (p *prefixes) serve(listen, token string, failed chan<- error) error {
	network, address := "tcp", listen
	if path, ok := strings.CutPrefix(listen, "unix:"); ok {
		network, address = "unix", path
	}
	l, err := net.Listen(network, address)
	if err != nil {
		return fmt.Errorf("prefix_index listener: %w", err)
	}
	calls := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "perigee_index_calls_total", Help: "Calls of others to this gateway's prefix index that are over, by method and gRPC status.",
	}, []string{"method", "code"})
	p.metrics.Registry().MustRegister(calls)
	p.shared.addr = l.Addr()
	p.shared.server = indexer.New(indexer.Options{
		Store: p.store, URL: p.urlOf, Position: p.position, Costs: &p.costs, Token: token, TLS: p.shared.tls(), Log: p.log,
		Hooks: indexer.Hooks{Answered: func(method string, code codes.Code, _ time.Duration) {
			calls.WithLabelValues(method, code.String()).Inc()
		}},
	})
	p.shared.server.SetReady(false)
	p.shared.serving.Go(func() {
		if err := p.shared.server.Serve(l); err != nil {
			failed <- fmt.Errorf("prefix_index listener: %w", err)
		}
	})
	p.log.Info("the prefix index is served", "address", l.Addr().String())
	return nil
}

// present has the listener show the certificate that the files hold now. A listener that had none goes on without: that needs a restart.
func (s *shared) present(held *files) { s.cert.Store(held.indexCert) }

// tls is the listener's side of TLS, nil without a certificate.
func (s *shared) tls() *tls.Config {
	if s.cert.Load() == nil {
		return nil
	}
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.cert.Load(), nil },
	}
}

// ready says to others that each engine was asked once.
func (s *shared) ready() {
	if s.server != nil {
		s.server.SetReady(true)
	}
}

// pastOf is who knows an engine that is about to be followed.
func (s *shared) pastOf(no uint32, url, base string) events.PastOf {
	if s.warm == nil {
		return nil
	}
	return s.warm.Of(no, url, base)
}

// close ends both: calls that are under way are broken off, and whoever made them asks the next.
func (s *shared) close() {
	if s.server != nil {
		s.server.Close(0)
	}
	s.serving.Wait()
	if s.warm != nil {
		s.warm.Close()
	}
}

// position says how far a rank's events have been applied, where they can be believed.
func (p *prefixes) position(engine uint32, rank int32) (at indexer.Position, ok bool) {
	st, ok := p.follower.StreamOf(engine, rank)
	if !ok || st.State != stream.Exact || st.Next < 0 {
		return at, false
	}
	about, _, _ := p.store.About(engine, rank)
	return indexer.Position{Next: st.Next, Print: st.Print, Printed: st.Printed, Whole: st.Whole}.In(about.State)
}

// urlOf finds an engine's URL by its number.
func (p *prefixes) urlOf(no uint32) (string, bool) {
	v := p.registry.View()
	p.urls.Lock()
	defer p.urls.Unlock()
	p.urls.look(v)
	if p.urls.byNo == nil {
		p.urls.byNo = map[uint32]string{}
		for w := range v.All() {
			p.urls.byNo[w.No] = w.URL
		}
	}
	url, ok := p.urls.byNo[no]
	return url, ok
}
