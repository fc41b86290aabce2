package main

import (
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/perigee-llm/perigee/internal/cache/manager"
)

// gcPercent is by how much the heap may grow before it is collected: the Manager's is a few large arrays without pointers, so that a collection costs
// little, and memory is what it must not take from engines. GOGC goes before it.
const gcPercent = 10

// Run starts the Manager and waits.
func (c *cacheCmd) Run(rc *runContext) error {
	cfg, err := c.read(rc)
	if err != nil {
		return err
	}
	signals := c.signalsForTesting
	if signals == nil {
		signals = make(chan os.Signal, 4)
		signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
		defer signal.Stop(signals)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	o := cfg.Options()
	o.Log = rc.log
	m, err := manager.Start(o)
	if err != nil {
		return err
	}
	line := "perigee cache listens on " + o.Socket
	if admin := m.AdminURL(); admin != "" {
		line += ", admin on " + admin
	}
	if at := m.EventsAt(); at.Listen != "" {
		line += ", events on " + at.Listen + ", replay on " + at.Replay + ", snapshot on " + at.Snapshot
	}
	if _, err := fmt.Fprintln(rc.stdout, line); err != nil {
		rc.log.Warn("nobody reads stdout", "err", err)
	}
	select {
	case <-signals:
	case <-rc.ctx.Done():
	}
	err = m.Close()
	rc.log.Info("stopped")
	return err
}
