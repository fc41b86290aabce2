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

// contextTokens is what the engines' model takes: the longest prompt of the trace has 191,378 tokens.
const contextTokens = 1 << 18

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
}

// startFleet starts the engines and, when they accept connections, the gateway. requests is how many the decision log
// must remember.
func startFleet(ctx context.Context, o *Options, policy string, requests int) (*Fleet, error) {
	f := &Fleet{Buckets: layout(o.Engines)}
	err := f.start(ctx, o, policy, requests)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (f *Fleet) start(ctx context.Context, o *Options, policy string, requests int) error {
	for i := range o.Engines {
		s, err := enginehttp.Start(enginehttp.Options{
			Flavor: flavor(i), Models: []string{Model},
			Engine:   engine.Config{MaxModelLen: contextTokens, Seed: o.Seed, Timing: engine.Timing{Speed: o.Speed}},
			KVEvents: &enginehttp.KVEvents{},
		})
		if err != nil {
			return err
		}
		f.servers = append(f.servers, s)
		f.Engines = append(f.Engines, Engine{ID: engineID(i), Flavor: flavor(i), URL: s.URL()})
	}
	f.Config = configuration(policy, o.Speed, f.Buckets, f.Engines)
	cfg, faults := config.Parse("demo.yaml", []byte(f.Config))
	if err := faults.Err(); err != nil {
		return fmt.Errorf("the demo's own configuration: %w", err)
	}
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	var err error
	f.gateway, err = gateway.Start(ctx, gateway.Options{Config: cfg, Log: log, Seed: o.Seed, DecisionLog: requests})
	return err
}

// URL is the base of the gateway's public listener.
func (f *Fleet) URL() string { return f.gateway.URL() }

// AdminURL is the base of the gateway's admin listener.
func (f *Fleet) AdminURL() string { return f.gateway.AdminURL() }

// ErrHeld: the gateway still counted requests on an engine when all had ended.
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
	return errors.Join(errs...)
}
