package gateway

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/assemble"
	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/peers"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/managers"
	"github.com/perigee-llm/perigee/internal/telemetry"
)

// prefixes follows what engines and Cache Managers publish, as far as the policies in use want to know it, and holds the indexes that come of it. One
// goroutine compares the fleet with what is followed whenever it is told of a change; another frees the memory of dropped claims.
type prefixes struct {
	registry *fleet.Registry
	config   func() *config.Config
	log      *slog.Logger
	store    *local.Store
	own      *countedSource // the store as policies see it
	remote   remoteSources
	shared   shared
	metrics  *telemetry.Metrics
	urls     urls
	costs    prefix.Costs // of restores
	follower *events.Follower
	managers *managers.Follower
	others   atomic.Pointer[peers.Peers] // other gateways, to be shown; nil: none

	changed chan struct{} // one place: a change while another is looked at is looked at after it
	stop    context.CancelFunc
	running sync.WaitGroup
	seen    *fleet.View // that was looked at last; of the goroutine
	under   *config.Config
	there   []uint32 // all engines of seen
}

// Times of the sweep. Freeing costs up to a microsecond a block, for which a writer waits and no reader: four thousand hold up events
// for as long as a large batch does.
const (
	sweepBlocks = 4096
	sweepPause  = 4 * time.Millisecond   // between two slices: half a core at most, and a million blocks in two seconds
	sweepRest   = 500 * time.Millisecond // while there is nothing to free
)

// startPrefixes begins to follow nobody. It is closed by its owner.
func startPrefixes(r *fleet.Registry, c func() *config.Config, client *http.Client, m *telemetry.Metrics, log *slog.Logger) *prefixes {
	p := &prefixes{registry: r, config: c, log: log, metrics: m, store: local.New(local.Options{}), changed: make(chan struct{}, 1)}
	p.own, p.remote.metrics = newCountedSource(p.store, m), m
	p.follower = events.Start(events.Options{Client: client, Log: log})
	p.managers = managers.Start(managers.Options{Store: p.store, Costs: &p.costs, Log: log})
	m.Registry().MustRegister(p.followed().Collector(), p.managers.Collector())
	var ctx context.Context
	ctx, p.stop = context.WithCancel(context.Background())
	p.running.Go(func() { p.reconcile(ctx) })
	p.running.Go(func() { p.sweep(ctx) })
	return p
}

// source is the prefix source of a policy. What it presents is in the files that are held.
func (p *prefixes) source(c *config.Policy, held *files) prefix.Source {
	provider, indexer := c.Prefixes()
	if provider == config.RadixTree {
		return p.own
	}
	s, err := p.remote.get(provider, indexer, held, p)
	if err != nil { // the configuration has refused what can be wrong with it
		p.log.Error("an indexer cannot be used", "endpoint", indexer.Endpoint, "error", err)
		return nil
	}
	return s
}

// change has the fleet and the configuration looked at again, soon.
func (p *prefixes) change() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

func (p *prefixes) reconcile(ctx context.Context) {
	for {
		select {
		case <-p.changed:
		case <-ctx.Done():
			return
		}
		v, c := p.registry.View(), p.config()
		if v == p.seen && c == p.under {
			continue
		}
		p.seen, p.under = v, c
		p.follow(v, c)
	}
}

// follow follows the engines of which something is needed, and no others.
func (p *prefixes) follow(v *fleet.View, c *config.Config) {
	wants := assemble.WantsOf(c)
	sources := eventSources(c)
	var known []local.Engine
	var there, kept []uint32
	for w := range v.All() {
		there = append(there, w.No)
		n := events.Needs(wants.Of(w))
		if n == (events.Needs{}) {
			continue
		}
		e := local.Engine{No: w.No, URL: strings.TrimRight(w.URL, "/"), Base: w.Base(), Names: w.Models, Adapters: w.Adapters}
		if n.Prefix {
			known = append(known, e)
		}
		kept = append(kept, w.No)
		t := events.Target{Worker: w, Domain: e.Base, Needs: n, Open: func(rank int32) events.Claims { return p.store.Open(e, rank) }}
		t.Past = p.shared.pastOf(w.No, w.URL, e.Base)
		if from := sources[w.ID]; from != nil {
			s, err := from.Sources(w.URL, w.Ranks)
			if err != nil { // a path for several ranks, say, which the configuration cannot know
				p.log.Warn("an engine's kv_events cannot be used", "worker", w.ID, "error", err)
				s = &events.Sources{}
			}
			t.Sources = s
		}
		if p.follower.Follow(t) != nil {
			return // closed
		}
	}
	p.store.Know(known)
	p.follower.Keep(kept)
	for _, no := range p.there {
		if !slices.Contains(there, no) {
			p.costs.Forget(no) // numbers are never given again
		}
	}
	p.there = there
	// Cache Managers are followed where somebody looks prefixes up here, and none elsewhere.
	if wants.Prefix() {
		p.managers.Set(managerTargets(c))
	} else {
		p.managers.Set(nil)
	}
}

// sweep frees the memory of claims that were dropped, in slices.
func (p *prefixes) sweep(ctx context.Context) {
	t := time.NewTimer(sweepRest)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if p.store.Sweep(sweepBlocks) {
			t.Reset(sweepPause)
		} else {
			t.Reset(sweepRest)
		}
	}
}

// close ends all subscriptions, and waits.
func (p *prefixes) close() {
	p.stop()
	p.follower.Close() // first: reconcile may wait for a subscription to end
	p.managers.Close()
	p.running.Wait()
	p.remote.close()
	p.shared.close()
}

// eventSources returns the blocks of workers that say where they publish, by their ids.
func eventSources(c *config.Config) map[string]*events.Config {
	if c.Discovery.Static == nil {
		return nil
	}
	out := map[string]*events.Config{}
	for i := range c.Discovery.Static.Workers {
		w := &c.Discovery.Static.Workers[i]
		if k := w.KVEvents; k != nil {
			out[w.ID] = &events.Config{
				Endpoint: k.Endpoint, Listen: k.Listen, Topic: k.Topic, ReplayEndpoint: k.ReplayEndpoint,
				LoadEndpoint: k.LoadEndpoint, LoadTopic: k.LoadTopic, Ranks: k.Ranks,
			}
		}
	}
	return out
}
