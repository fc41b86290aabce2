package api

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/keyring"
)

// Config is what a [Server] serves by, and what can change while it runs.
type Config struct {
	// Models are the models, in the order in which they are listed.
	Models   []*Model
	Settings Settings
	// Keys are the API keys of the public handler, AdminKeys those of the admin handler; nil: none is asked for.
	Keys, AdminKeys *keyring.Ring
}

// served is one configuration in use. It never changes, but for what is atomic. A request reads the server's pointer once and
// ends under what it began with.
type served struct {
	Config
	number uint64            // each has another
	models map[string]*Model // by id and alias
	series map[*Model]*series

	// pinned is the fleet as it was when this configuration was about to be replaced: a request that is still under way
	// finds its engines although they were taken out since. Nil: the fleet as it is.
	pinned atomic.Pointer[fleet.View]
	active atomic.Int64 // requests under way
}

func newServed(c Config) (*served, error) {
	v := &served{Config: c, models: map[string]*Model{}, series: map[*Model]*series{}}
	for _, m := range c.Models {
		v.series[m] = new(series)
		for _, name := range m.names() {
			if v.models[name] != nil {
				return nil, errors.New("two models are called " + name)
			}
			v.models[name] = m
		}
	}
	return v, nil
}

// names returns the model's id and its aliases.
func (m *Model) names() []string { return append([]string{m.ID}, m.Aliases...) }

// allows tells whether a caller may use a model; nil stands for a caller who needs no key.
func (v *served) allows(caller *keyring.Key, m *Model) bool {
	return caller == nil || caller.Models == nil || caller.Allows(m.names()...)
}

// view returns the fleet for one selection.
func (v *served) view(r *fleet.Registry) *fleet.View {
	now := r.View() // before the pin is looked at: a view without the engines that were taken out is read after the pin was set
	if p := v.pinned.Load(); p != nil {
		return p
	}
	return now
}

// Pin keeps the engines of now for the requests of the configuration in use, until [Server.Apply] replaces it. Engines that the next
// configuration does not have are taken out after it, so that no request fails for that.
func (s *Server) Pin() { s.current.Load().pinned.Store(s.Registry.View()) }

// Unpin undoes Pin where nothing is to be applied after all.
func (s *Server) Unpin() { s.current.Load().pinned.Store(nil) }

// Apply replaces the configuration. Requests under way end under the one that they began with. An error changes nothing.
// One caller at a time.
func (s *Server) Apply(c Config) error {
	next, err := newServed(c)
	if err != nil {
		return err
	}
	old := s.current.Load()
	next.number = old.number + 1
	old.pinned.CompareAndSwap(nil, s.Registry.View())
	s.retired.Lock()
	s.retired.list = append(s.retired.list, old)
	s.current.Store(next) // within the lock: forgetAgain must not drop series that the next one's requests have looked up and keep
	s.retired.Unlock()
	s.forget(old, next)
	return nil
}

// forget drops the series of models and keys that are gone.
func (s *Server) forget(old, next *served) {
	for _, m := range old.Models {
		if again := next.models[m.ID]; again == nil || again.ID != m.ID {
			s.Metrics.Forget("model", m.ID)
		}
	}
	kept := map[string]bool{}
	if next.Keys != nil {
		for _, k := range next.Keys.Keys() {
			kept[k.Name] = true
		}
	}
	if old.Keys == nil {
		return
	}
	for _, k := range old.Keys.Keys() {
		if !kept[k.Name] {
			s.Metrics.Forget("key", k.Name)
		}
	}
}

// forgetAgain drops what requests of a configuration that is out of use have brought back since it was replaced.
func (s *Server) forgetAgain(old *served) {
	s.forget(old, s.current.Load())
	for w := range old.pinned.Load().All() {
		if s.Registry.View().Get(w.ID) == nil {
			s.Metrics.Forget("worker", w.ID)
		}
	}
}

// longestLife returns how long a request may live: the stale time-out, or that of an earlier configuration while requests of
// it are under way. It drops what is no longer needed; the janitor alone calls it.
func (s *Server) longestLife() time.Duration {
	longest := s.current.Load().Settings.Stale
	s.retired.Lock()
	defer s.retired.Unlock()
	kept := s.retired.list[:0]
	for _, v := range s.retired.list {
		if v.active.Load() > 0 {
			kept = append(kept, v)
			longest = max(longest, v.Settings.Stale)
			continue
		}
		s.forgetAgain(v)
	}
	clear(s.retired.list[len(kept):])
	s.retired.list = kept
	return longest
}
