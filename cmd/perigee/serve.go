package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway"
	"github.com/perigee-llm/perigee/internal/gateway/config"
)

// serveCmd runs the gateway until a signal ends it.
type serveCmd struct {
	config.Flags

	signalsForTesting chan os.Signal // nil in production: the process's own
}

// Help shows what a run looks like.
func (serveCmd) Help() string {
	return `Prints one line on stdout when it accepts requests. SIGTERM drains: not ready at once, still accepting for
--shutdown-drain-secs (a second signal cuts that short), then no new requests, and the end when the last is answered.
SIGINT leaves out the pause.

Examples:
  perigee serve --model-id llama-3.1-8b --worker-urls http://10.0.0.1:8000 http://10.0.0.2:8000 --policy power_of_two
  perigee serve --config examples/buckets.yaml --admin-port 30001`
}

// Run reads the configuration, starts the gateway and waits.
func (c *serveCmd) Run(rc *runContext) error {
	cfg, faults := c.Flags.Config()
	for _, f := range faults {
		fmt.Fprintln(rc.stderr, f)
	}
	if cfg == nil {
		return exitError{code: exitUsage, msg: "the gateway was not started: its configuration has faults"}
	}
	log := newLogger(rc.stderr, cfg.Log)
	signals := c.signalsForTesting
	if signals == nil {
		signals = make(chan os.Signal, 4) // room for an impatient operator
		signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
		defer signal.Stop(signals)
	}

	ctx, cancel := context.WithCancel(rc.ctx)
	defer cancel()
	g, err := startUnless(ctx, signals, gateway.Options{
		Config: cfg, Log: log, Access: slog.New(slog.NewJSONHandler(rc.stderr, nil)), Seed: uint64(time.Now().UnixNano()),
	})
	if err != nil || g == nil {
		return err
	}
	line := "perigee serves on " + g.URL()
	if admin := g.AdminURL(); admin != "" {
		line += ", admin on " + admin
	}
	if _, err := fmt.Fprintln(rc.stdout, line); err != nil {
		log.Warn("nobody reads stdout", "err", err)
	}
	if g.AdminURL() == "" {
		log.Info("the admin listener is off: no metrics, no decisions; --admin-port opens it")
	}
	return c.wait(rc, cfg, g, signals, log)
}

// startUnless starts the gateway unless a signal comes first; then it returns nil without an error.
func startUnless(ctx context.Context, signals <-chan os.Signal, o gateway.Options) (*gateway.Gateway, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type started struct {
		g   *gateway.Gateway
		err error
	}
	done := make(chan started, 1)
	go func() {
		g, err := gateway.Start(ctx, o)
		done <- started{g, err}
	}()
	select {
	case s := <-done:
		return s.g, s.err
	case <-signals:
		cancel()
		if s := <-done; s.g != nil {
			return nil, s.g.Shutdown(context.Background())
		}
		return nil, nil
	}
}

// wait serves until a signal or a fault, then drains.
func (c *serveCmd) wait(rc *runContext, cfg *config.Config, g *gateway.Gateway, signals <-chan os.Signal, log *slog.Logger) error {
	var fault error
	select {
	case sig := <-signals:
		g.Drain()
		if sig == syscall.SIGTERM {
			pause(cfg, signals, log)
		}
	case <-rc.ctx.Done():
	case fault = <-g.Failed():
		log.Error("a listener failed", "err", fault)
	}
	log.Info("no new requests from here on")
	if err := g.Shutdown(context.Background()); err != nil {
		return err
	}
	log.Info("stopped")
	return fault
}

// pause goes on accepting while load balancers notice that the gateway is not ready.
func pause(cfg *config.Config, signals <-chan os.Signal, log *slog.Logger) {
	d := cfg.Server.ShutdownDrain
	if d == 0 {
		return
	}
	log.Info("draining: not ready, still accepting", "for", d)
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-signals:
		log.Info("second signal: the pause ends now")
	}
}

func newLogger(w interface{ Write([]byte) (int, error) }, c config.Log) *slog.Logger {
	levels := map[config.LogLevel]slog.Level{
		config.LogDebug: slog.LevelDebug, config.LogInfo: slog.LevelInfo, config.LogWarn: slog.LevelWarn, config.LogError: slog.LevelError,
	}
	o := &slog.HandlerOptions{Level: levels[c.Level]}
	if c.Format == config.LogJSON {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
