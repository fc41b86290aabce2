package gateway

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/remote"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/remote/pagehash"
	"github.com/perigee-llm/perigee/internal/telemetry"
)

// countedSource counts the look-ups of a source, and how long they take.
type countedSource struct {
	prefix.Source
	hits, misses, rejected prometheus.Counter
	seconds                prometheus.Observer
	m                      *telemetry.Metrics
}

func newCountedSource(s prefix.Source, m *telemetry.Metrics) *countedSource {
	count := func(outcome string) prometheus.Counter { return m.PrefixLookups.WithLabelValues(s.Name(), outcome) }
	return &countedSource{
		Source: s, m: m, hits: count("hit"), misses: count("miss"), rejected: count("rejected"),
		seconds: m.PrefixLookupSeconds.WithLabelValues(s.Name()),
	}
}

// Lookup implements prefix.Source.
func (c *countedSource) Lookup(ctx context.Context, q *prefix.Query, into *prefix.Match) error {
	began := time.Now()
	err := c.Source.Lookup(ctx, q, into)
	c.seconds.Observe(time.Since(began).Seconds())
	unavailable, away := errors.AsType[*prefix.Unavailable](err)
	switch {
	case err == nil && len(into.Held) > 0:
		c.hits.Inc()
	case err == nil:
		c.misses.Inc()
	case away:
		c.m.PrefixLookups.WithLabelValues(c.Name(), string(unavailable.Reason)).Inc()
	default:
		c.rejected.Inc()
	}
	return err
}

// remoteSources are the indexers that policies ask, each once: what is configured equally is one source, also after a reload. One that
// no configuration in use names any more is kept, idle, until the gateway ends: requests of an earlier one may still ask it.
type remoteSources struct {
	metrics *telemetry.Metrics
	mu      struct {
		sync.Mutex
		sources map[remoteKey]*remoteSource
	}
}

type remoteKey struct {
	provider config.PrefixProvider
	indexer  config.KVIndexer
}

// remoteSource is one of them, with what it presents.
type remoteSource struct {
	counted *countedSource
	close   func()
	secrets atomic.Pointer[remote.Secrets]
}

// get returns the source of a configuration, and makes it if it is new.
func (r *remoteSources) get(provider config.PrefixProvider, k config.KVIndexer, held *files, p *prefixes) (*countedSource, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := remoteKey{provider, k}
	if s := r.mu.sources[key]; s != nil {
		return s.counted, nil
	}
	endpoints, err := remote.ParseEndpoints(k.Endpoint)
	if err != nil {
		return nil, err
	}
	own := &remoteSource{}
	own.secrets.Store(held.indexers[k.IndexerFiles].secrets())
	o := remote.Options{
		Endpoints: endpoints, Engines: p.enginesOf, Costs: &p.costs, Timeout: k.QueryTimeout, MaxInFlight: k.QueryMaxInflight, Log: p.log,
		Secrets: func() remote.Secrets { return *own.secrets.Load() },
	}
	var s prefix.Source
	if provider == config.PerigeeIndex {
		x, err := remote.NewIndex(o)
		if err != nil {
			return nil, err
		}
		s, own.close = x, x.Close
	} else {
		x, err := remote.NewKVIndexer(o, p.pages)
		if err != nil {
			return nil, err
		}
		s, own.close = x, x.Close
	}
	if r.mu.sources == nil {
		r.mu.sources = map[remoteKey]*remoteSource{}
	}
	own.counted = newCountedSource(s, r.metrics)
	r.mu.sources[key] = own
	return own.counted, nil
}

// present has the sources present what the files hold now. One whose files nothing names any more goes on as it was.
func (r *remoteSources) present(held *files) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, s := range r.mu.sources {
		if is, there := held.indexers[key.indexer.IndexerFiles]; there {
			s.secrets.Store(is.secrets())
		}
	}
}

func (r *remoteSources) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.mu.sources {
		s.close()
	}
	r.mu.sources = nil
}

// enginesOf returns the engines that serve a model, by their URLs. The answer is shared until the fleet changes.
func (p *prefixes) enginesOf(model string) map[string]uint32 {
	v := p.registry.View()
	p.urls.Lock()
	defer p.urls.Unlock()
	p.urls.look(v)
	m := p.urls.byModel[model]
	if m == nil {
		m = map[string]uint32{}
		for w := range v.All() {
			if w.Serves(model) {
				m[w.URL] = w.No
			}
		}
		if len(p.urls.byModel) < maxModelNames {
			p.urls.byModel[model] = m
		}
	}
	return m
}

// maxModelNames bounds the models whose engines are remembered; more than that are not configured, and a look-up of another works them out.
const maxModelNames = 1024

// urls remembers engines by URL, and URLs by engines, for one view of the fleet.
type urls struct {
	sync.Mutex
	view    *fleet.View
	byModel map[string]map[string]uint32
	byNo    map[uint32]string // nil: not worked out yet
}

// look forgets what belongs to another view.
func (u *urls) look(v *fleet.View) {
	if u.view != v {
		u.view, u.byModel, u.byNo = v, map[string]map[string]uint32{}, nil
	}
}

// pages says how the SGLang engines of a model cut their pages: as the first that says so.
func (p *prefixes) pages(model string) (pagehash.Scheme, bool) {
	for w := range p.registry.View().All() {
		if size, ok := w.PageSize.Get(); ok && w.Serves(model) {
			return pagehash.Scheme{PageSize: int(size), Bigram: w.Bigram}, true
		}
	}
	return pagehash.Scheme{}, false
}
