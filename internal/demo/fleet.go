package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/engine/enginehttp"
	"github.com/perigee-llm/perigee/internal/gateway"
	"github.com/perigee-llm/perigee/internal/gateway/config"
)

// The engines' caches. The figures are chosen so that four minutes of the trace show what is evicted and what is missed for it.
const (
	// blockTokens is a block: vLLM's on a CPU, and a quarter of what prompts of the trace have in common. With blocks of 16, vLLM's on
	// CUDA, the demo would pass eight times as many pages to the Manager, and show the same.
	blockTokens = 128
	// poolBlocks is an engine's KV pool: 196,608 tokens, since the longest request of the trace has 191,386. An engine of the timing model has
	// several times as much; with that it would take an hour of the trace until the Manager matters.
	poolBlocks = 1536
	// managerPools is the Manager's pool in pools of all engines together: hosts have a few times as much memory as their GPUs.
	managerPools = 4
	// maxManagerBytes bounds it, for demos of many engines: with pages that stand for those of 40 MiB it is enough for 8 million tokens.
	maxManagerBytes = 256 << 20
)

// managerBytes is the Manager's pool for n engines.
func managerBytes(n int) uint64 {
	return uint64(min(n*managerPools*poolBlocks*enginehttp.DefaultPageBytes, maxManagerBytes))
}

// registerWait bounds the engines' registration with the Manager, and their goodbye: it makes their memory, in a second on the slowest machine that we know.
const registerWait = 30 * time.Second

// shutdownGrace bounds how long a fleet that is taken down waits for requests under way: they end within milliseconds,
// unless something is stuck.
const shutdownGrace = 5 * time.Second

// Fleet is a gateway and the engines behind it, on loopback. Whoever started it closes it.
type Fleet struct {
	// Config is the YAML text that the gateway was started from.
	Config  string
	Buckets []Bucket
	Engines []Engine

	servers []*enginehttp.Server
	gateway *gateway.Gateway
	manager *cacheManager // nil: the run has none
}

// startFleet starts the Cache Manager if the run has one, the engines and, when they accept connections and have registered, the
// gateway. requests is how many the decision log must remember.
func startFleet(ctx context.Context, o *Options, v variant, requests int) (*Fleet, error) {
	f := &Fleet{Buckets: layout(o.Engines)}
	err := f.start(ctx, o, v, requests)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (f *Fleet) start(ctx context.Context, o *Options, v variant, requests int) error {
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	var outer *enginehttp.CacheManager
	var tells *managerEndpoints
	if v.manager {
		var err error
		if f.manager, err = startManager(o.Engines, managerBytes(o.Engines), log); err != nil {
			return err
		}
		w := o.waitsForTesting
		outer, tells = &enginehttp.CacheManager{Socket: f.manager.socket(), LookupWait: w, RestoreWait: w, HangAfter: w}, f.manager.endpoints()
	}
	for i := range o.Engines {
		s, err := enginehttp.Start(enginehttp.Options{
			Flavor: flavor(i), Models: []string{Model},
			Engine: engine.Config{
				BlockSize: blockTokens, KVBlocks: poolBlocks, MaxModelLen: blockTokens * poolBlocks, Seed: o.Seed, Timing: engine.Timing{Speed: o.Speed},
			},
			KVEvents: &enginehttp.KVEvents{}, CacheManager: outer,
		})
		if err != nil {
			return err
		}
		f.servers = append(f.servers, s)
		f.Engines = append(f.Engines, Engine{ID: engineID(i), Flavor: flavor(i), URL: s.URL()})
	}
	if err := f.awaitManager(ctx); err != nil {
		return err
	}
	f.Config = configuration(v.policy, o.Speed, f.Buckets, f.Engines, tells)
	cfg, faults := config.Parse("demo.yaml", []byte(f.Config))
	if err := faults.Err(); err != nil {
		return fmt.Errorf("the demo's own configuration: %w", err)
	}
	var err error
	f.gateway, err = gateway.Start(ctx, gateway.Options{Config: cfg, Log: log, Seed: o.Seed, DecisionLog: requests})
	return err
}

// awaitManager waits until all engines have registered with the Manager, if there is one.
func (f *Fleet) awaitManager(ctx context.Context) error {
	if f.manager == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, registerWait)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for i := 0; i < len(f.servers); {
		m := f.servers[i].Stats().CacheManager
		if m.Registered {
			i++
			continue
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s has not registered with the Cache Manager (%s): %w; --no-manager leaves it out", f.Engines[i].ID, m.Error, ctx.Err())
		}
	}
	return nil
}

// ManagerURL is the base of the Cache Manager's admin listener, empty without one.
func (f *Fleet) ManagerURL() string {
	if f.manager == nil {
		return ""
	}
	return f.manager.AdminURL()
}

// URL is the base of the gateway's public listener.
func (f *Fleet) URL() string { return f.gateway.URL() }

// AdminURL is the base of the gateway's admin listener.
func (f *Fleet) AdminURL() string { return f.gateway.AdminURL() }

// ErrHeld: the gateway still counted requests on an engine, or the Cache Manager pages for one, when all had ended.
var ErrHeld = errors.New("the accounts are not empty at rest")

// Close takes everything down and returns when it is. Its error is ErrHeld's, or that of the gateway's shutdown.
func (f *Fleet) Close() error {
	var errs []error
	if f.gateway != nil {
		ctx, cancel := context.WithTimeout(context.Background(), shutdownGrace)
		defer cancel()
		errs = append(errs, f.gateway.Shutdown(ctx))
		if n := f.gateway.Held(); n != 0 {
			errs = append(errs, fmt.Errorf("%w: the gateway holds %d places", ErrHeld, n))
		}
	}
	for _, s := range f.servers {
		s.Close()
	}
	if f.manager != nil {
		held, err := f.manager.close()
		if errs = append(errs, err); held != 0 {
			errs = append(errs, fmt.Errorf("%w: the Cache Manager holds %d bytes", ErrHeld, held))
		}
	}
	return errors.Join(errs...)
}
