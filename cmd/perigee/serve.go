package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway"
	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/telemetry"
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
SIGINT leaves out the pause. SIGHUP, or a change of the configuration's file or of a file that it names, has all of them
read anew: the whole is taken, or nothing when there is a fault; the log says what has changed.

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
	level := new(slog.LevelVar)
	log := newLogger(rc.stderr, cfg.Log, level)
	signals := c.signalsForTesting
	if signals == nil {
		signals = make(chan os.Signal, 4) // room for an impatient operator
		signal.Notify(signals, syscall.SIGTERM, os.Interrupt, syscall.SIGHUP)
		defer signal.Stop(signals)
	}

	ctx, cancel := context.WithCancel(rc.ctx)
	defer cancel()
	floor, perEngine := raiseHeap()
	defer runtime.KeepAlive(floor)
	access := telemetry.NewLines(rc.stderr)
	defer access.Close()
	g, err := startUnless(ctx, signals, gateway.Options{
		Config: cfg, Log: log, Access: access, Seed: uint64(time.Now().UnixNano()),
		Level: level, SparePerEngine: perEngine, Source: &gateway.Source{File: c.Flags.File(), Read: c.Flags.Config},
	})
	if unusable := new(gateway.FilesError); errors.As(err, &unusable) {
		for _, f := range unusable.Faults {
			fmt.Fprintln(rc.stderr, f)
		}
		return exitError{code: exitUsage, msg: "the gateway was not started: files that its configuration names have faults"}
	}
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
	return c.wait(rc, g, signals, log)
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
	for {
		select {
		case s := <-done:
			return s.g, s.err
		case sig := <-signals:
			if sig == syscall.SIGHUP {
				continue // what is read at the start is as new as can be
			}
			cancel()
			if s := <-done; s.g != nil {
				return nil, s.g.Shutdown(context.Background())
			}
			return nil, nil
		}
	}
}

// wait serves until a signal or a fault, then drains.
func (c *serveCmd) wait(rc *runContext, g *gateway.Gateway, signals <-chan os.Signal, log *slog.Logger) error {
	var fault error
	for waiting := true; waiting; {
		waiting = false
		select {
		case sig := <-signals:
			if sig == syscall.SIGHUP {
				g.RequestReload()
				waiting = true
				break
			}
			g.Drain()
			if sig == syscall.SIGTERM {
				pause(g, signals, log)
			}
		case <-rc.ctx.Done():
		case fault = <-g.Failed():
			log.Error("a listener failed", "err", fault)
		}
	}
	log.Info("no new requests from here on")
	if err := g.Shutdown(context.Background()); err != nil {
		return err
	}
	log.Info("stopped")
	return fault
}

// pause goes on accepting while load balancers notice that the gateway is not ready.
func pause(g *gateway.Gateway, signals <-chan os.Signal, log *slog.Logger) {
	d := g.Config().Server.ShutdownDrain
	if d == 0 {
		return
	}
	log.Info("draining: not ready, still accepting", "for", d)
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			return
		case sig := <-signals:
			if sig == syscall.SIGHUP {
				g.RequestReload()
				continue
			}
			log.Info("second signal: the pause ends now")
			return
		}
	}
}

// newLogger returns the log, whose level can be changed. The gateway sets it, so that it is what the configuration in use says.
func newLogger(w interface{ Write([]byte) (int, error) }, c config.Log, level slog.Leveler) *slog.Logger {
	o := &slog.HandlerOptions{Level: level}
	if c.Format == config.LogJSON {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
