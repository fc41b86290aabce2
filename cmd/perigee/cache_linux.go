package main

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"syscall"

	"github.com/perigee-llm/perigee/internal/cache/manager"
)

// worthGivingBack is how many bytes have to have been allocated for memory to be given back: less is left for another time.
const worthGivingBack = 256 << 10

// giveBack returns what gives the kernel what the process does not need at rest: garbage, of which there may be as much as the heap may grow by, halves
// of stacks, and what was kept for those who would have asked next. Those go with a second collection. It takes some milliseconds of a processor.
func giveBack() func() {
	all := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	last := uint64(0)
	return func() {
		metrics.Read(all)
		if n := all[0].Value.Uint64(); n-last >= worthGivingBack {
			last = n
			runtime.GC()
			debug.FreeOSMemory()
		}
	}
}

// Run starts the Manager and waits.
func (c *cacheCmd) Run(rc *runContext) error {
	cfg, err := c.read(rc)
	if err != nil {
		return err
	}
	fault, warning := manager.RoomFor(uint64(cfg.PoolBytes), cfg.HugePages, os.DirFS("/"))
	if fault != "" {
		return exitError{code: exitUsage, msg: fault}
	}
	if warning != "" {
		rc.log.Warn(warning)
	}
	signals := c.signalsForTesting
	if signals == nil {
		signals = make(chan os.Signal, 4)
		signal.Notify(signals, syscall.SIGTERM, os.Interrupt, syscall.SIGHUP)
		defer signal.Stop(signals)
	}
	o := cfg.Options()
	o.Log = rc.log
	if os.Getenv("GOGC") == "" { // else the operator has decided
		debug.SetGCPercent(manager.HeapGrowth)
		o.AtRest = giveBack()
	}
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
	for end := false; !end; {
		select {
		case s := <-signals:
			if end = s != syscall.SIGHUP; !end { // it has the other commands read their files anew, and is no reason to drop all pages
				rc.log.Warn("SIGHUP changes nothing: the configuration is read as the Cache Manager starts")
			}
		case <-rc.ctx.Done():
			end = true
		}
	}
	err = m.Close()
	rc.log.Info("stopped")
	return err
}
