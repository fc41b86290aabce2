package gateway

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/api"
	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/introspect"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/keeper"
)

// Source is where another configuration comes from while the gateway runs.
type Source struct {
	// File is the configuration's file, which is watched; empty: there is none, and only the files that it names are watched.
	File string
	// Read reads the configuration anew. The Config is nil when any fault is an error.
	Read func() (*config.Config, config.Faults)
}

// readRegular reads the configuration unless its file is one that a read could wait for, as a pipe is: nothing ends such a wait, and a
// shutdown waits for the reload.
func (s *Source) readRegular() (*config.Config, config.Faults) {
	if info, err := os.Stat(s.File); err == nil && !info.Mode().IsRegular() {
		return nil, config.Faults{{File: s.File, What: "is not a file", Cure: "name a regular file"}}
	}
	return s.Read()
}

// ErrRefused means that another configuration was not taken, and that nothing has changed. The log has every reason.
var ErrRefused = errors.New("the new configuration was refused")

// errNoSource means that the gateway does not know where to read another configuration.
var errNoSource = errors.New("the gateway was started without a source of configurations")

const (
	// watchInterval is how often files are looked at. One look is a stat(2) a file.
	watchInterval = time.Second
	// acquaintance bounds the wait for new engines to say what they are: introspection gives up on a dead one within
	// seven seconds.
	acquaintance = 7 * time.Second
	// maxChangesLogged bounds what one reload writes into the log, in lines.
	maxChangesLogged = 200
)

// RequestReload has the configuration read anew soon. It returns at once; the log tells what came of it.
func (g *Gateway) RequestReload() {
	select {
	case g.nudge <- struct{}{}:
	default: // one is about to begin, and will see what this one would have
	}
}

// Reload reads the configuration and takes it, all or nothing. It returns when the new one is in use, or [ErrRefused]. Calls wait for
// each other.
func (g *Gateway) Reload(ctx context.Context) error {
	if g.source == nil {
		return errNoSource
	}
	g.reloading.Lock()
	defer g.reloading.Unlock()
	g.seen = g.look() // before reading: what changes meanwhile is seen next time
	outcome, err := g.reloadLocked(ctx)
	g.seen = g.seen.with(g.look()) // without files that nothing names any more; of those that it names each was looked at before
	g.metrics.Reloads.WithLabelValues(outcome).Inc()
	ok := 1.0
	if err != nil {
		ok = 0
	}
	g.metrics.ReloadOK.Set(ok)
	return err
}

func (g *Gateway) reloadLocked(ctx context.Context) (outcome string, err error) {
	old := g.cfg.Load()
	next, faults := g.source.readRegular()
	var held *files
	g.wanted = nil
	if next != nil {
		g.wanted = named(next)
		g.seen = g.seen.with(g.look()) // files that are watched from now on, before they are read
		var more config.Faults
		held, more = readFiles(next, g.files)
		faults = append(faults, more...)
	}
	for _, f := range faults {
		level := slog.LevelError
		if f.Warning {
			level = slog.LevelWarn
		}
		g.log.Log(ctx, level, "configuration fault", "fault", f.String())
	}
	if n := len(faults.Errors()); n > 0 {
		g.log.Error("the new configuration has faults; nothing has changed", "faults", n)
		return "refused", ErrRefused
	}
	changes := append(config.Diff(old, next), diffFiles(g.files, held, next)...)
	fixed := 0
	for _, c := range changes {
		if c.NeedsRestart {
			fixed++
			g.log.Error("this change needs a restart", "change", c.String())
		}
	}
	if fixed > 0 {
		g.log.Error("the new configuration needs a restart; nothing has changed", "changes", fixed)
		return "refused", ErrRefused
	}
	if len(changes) == 0 {
		g.log.Info("the configuration was read anew: nothing is different")
		return "unchanged", nil
	}
	models, groups, err := buildModels(next, held, g.seed, g.groups, g.prefixes)
	if err != nil {
		g.log.Error("the new configuration cannot be used; nothing has changed", "err", err)
		return "refused", ErrRefused
	}
	if err := g.apply(ctx, next, held, models); err != nil {
		g.log.Error("the new configuration cannot be used; nothing has changed", "err", err)
		return "refused", ErrRefused
	}
	g.groups = groups
	for i, c := range changes {
		if i == maxChangesLogged {
			g.log.Info("more has changed than is logged", "changes", len(changes)-i)
			break
		}
		g.log.Info("changed", "change", c.String())
	}
	g.log.Info("the configuration was reloaded", "changes", len(changes))
	g.metrics.ReloadedAt.SetToCurrentTime()
	return "applied", nil
}

// apply takes a configuration that has no faults. New engines are introduced first, while requests go on as before; then the
// configuration is swapped; then the engines that it lacks go. Requests that began before keep the engines that they had.
func (g *Gateway) apply(ctx context.Context, next *config.Config, held *files, models []*api.Model) error {
	traces, err := g.tracer.Prepare(buildTracing(next, held))
	if err != nil {
		return err
	}
	old := g.cfg.Load()
	gone, changed, come := diffTargets(buildTargets(&old.Discovery), buildTargets(&next.Discovery))
	g.engineKeys.set(keysByURL(next, held, old, g.files))
	g.server.Pin()
	var ids []string
	for _, t := range changed {
		g.keeper.Remove(t.ID)
	}
	for _, t := range append(changed, come...) {
		g.silent.forget(t.ID)
		if err := g.keeper.Add(t); err != nil {
			g.log.Error("an engine cannot be added", "worker", t.ID, "err", err)
			continue
		}
		ids = append(ids, t.ID)
	}
	g.acquaint(ctx, ids)
	err = g.server.Apply(api.Config{Models: models, Settings: buildSettings(next), Keys: held.keys, AdminKeys: held.adminKeys})
	if err != nil { // two models of one name, which the configuration has refused already
		g.server.Unpin()
		traces.Drop()
		return err
	}
	traces.Use()
	for _, t := range gone {
		g.keeper.Remove(t.ID)
		g.metrics.Forget("worker", t.ID)
	}
	g.public.cert.Store(held.publicCert)
	g.admin.cert.Store(held.adminCert)
	g.prefixes.remote.present(held)
	g.prefixes.shared.present(held)
	g.setLevel(next)
	g.cfg.Store(next)
	g.prefixes.change()
	for w := range g.registry.View().All() {
		g.blind.look(next, w)
	}
	g.files = held
	return nil
}

// acquaint waits until each of the engines has said what it is, or has not, so that no request goes without one for want of a moment.
func (g *Gateway) acquaint(ctx context.Context, ids []string) {
	ctx, cancel := context.WithTimeout(ctx, acquaintance)
	defer cancel()
	t := time.NewTicker(5 * time.Millisecond) // soon enough for a person, and nothing for a machine
	defer t.Stop()
	for _, id := range ids {
		for !g.silent.has(id) {
			if w := g.registry.View().Get(id); w != nil && len(w.Models) > 0 {
				break
			}
			select {
			case <-t.C:
			case <-ctx.Done():
				return
			}
		}
	}
}

// silent are the engines whose last introspection failed.
type silent struct {
	mu  sync.Mutex
	ids map[string]bool
}

func (s *silent) asked(a keeper.AskInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ids == nil {
		s.ids = map[string]bool{}
	}
	if delete(s.ids, a.ID); a.Err != nil {
		s.ids[a.ID] = true
	}
}

func (s *silent) has(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ids[id]
}

func (s *silent) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ids, id)
}

// diffTargets sorts engines by their ids: those that go, those that are another under their id, and those that are new.
func diffTargets(old, next []introspect.Target) (gone, changed, come []introspect.Target) {
	was, is := map[string]introspect.Target{}, map[string]bool{}
	for _, t := range old {
		was[t.ID] = t
	}
	for _, t := range next {
		is[t.ID] = true
		if before, there := was[t.ID]; !there {
			come = append(come, t)
		} else if before != t {
			changed = append(changed, t)
		}
	}
	for _, t := range old {
		if !is[t.ID] {
			gone = append(gone, t)
		}
	}
	return gone, changed, come
}

// keysByURL returns the engines' keys, and those of engines that are only in the configuration before: requests to them may be under way.
func keysByURL(next *config.Config, held *files, old *config.Config, oldHeld *files) map[string]string {
	out := map[string]string{}
	if old != nil {
		for _, w := range staticWorkers(old) {
			out[w.URL] = oldHeld.engineKeys[w.ID]
		}
	}
	for _, w := range staticWorkers(next) {
		out[w.URL] = held.engineKeys[w.ID]
	}
	return out
}

// watch reloads when it is asked to and when a watched file has changed, until the context ends.
func (g *Gateway) watch(ctx context.Context, every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	var s settling
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.nudge:
			s = settling{}
		case <-t.C:
			g.reloading.Lock()
			changed := s.changed(g.seen, g.look())
			g.reloading.Unlock()
			if !changed {
				continue
			}
			g.log.Info("a file has changed; the configuration is read anew")
		}
		_ = g.Reload(ctx) // the log and a metric tell
	}
}

// settling tells a change that is over from one that goes on: a change counts when a second look finds the same, so that a file which is
// being written is not read half, and a certificate and its key may be replaced one after the other.
type settling struct {
	before sight // the last look, if it found a change
}

// changed takes in a look; seen is what there was when the files were last read.
func (s *settling) changed(seen, now sight) bool {
	switch {
	case now.same(seen):
		s.before = nil
	case now.same(s.before):
		s.before = nil
		return true
	default:
		s.before = now
	}
	return false
}

// sight is what watched files look like from outside.
type sight map[string]fs.FileInfo // nil: it could not be looked at

// look looks at the configuration's file, and at those that the one in use and the one that was last refused name.
func (g *Gateway) look() sight {
	return lookAt(g.source.File, append(named(g.cfg.Load()), g.wanted...))
}

func lookAt(file string, more []string) sight {
	out := sight{}
	for _, name := range append(more, file) {
		if name == "" {
			continue
		}
		info, err := os.Stat(name) // follows links: a mounted ConfigMap changes by one
		if err != nil {
			info = nil
		}
		out[name] = info
	}
	return out
}

// with returns what was seen, and from later what was not looked at before.
func (s sight) with(later sight) sight {
	for name := range later {
		if _, ok := s[name]; ok {
			later[name] = s[name]
		}
	}
	return later
}

// same tells whether two looks found the same. A nil sight is like no other.
func (s sight) same(other sight) bool {
	if s == nil || other == nil || len(s) != len(other) {
		return false
	}
	for name, a := range s {
		b, ok := other[name]
		if !ok || (a == nil) != (b == nil) {
			return false
		}
		if a != nil && !(os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && a.Mode() == b.Mode()) {
			return false
		}
	}
	return true
}

// setLevel sets the log's level where that is the gateway's business.
func (g *Gateway) setLevel(c *config.Config) {
	if g.level == nil {
		return
	}
	g.level.Set(map[config.LogLevel]slog.Level{
		config.LogDebug: slog.LevelDebug, config.LogInfo: slog.LevelInfo, config.LogWarn: slog.LevelWarn, config.LogError: slog.LevelError,
	}[c.Log.Level])
}
