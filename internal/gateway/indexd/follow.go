package indexd

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
)

// change has the fleet looked at again, soon.
func (s *Service) change() {
	select {
	case s.changed <- struct{}{}:
	default: // it will be
	}
}

// reconcile compares the fleet with what is followed whenever it may have changed.
func (s *Service) reconcile() {
	var seen *fleet.View
	for {
		select {
		case <-s.changed:
		case <-s.ctx.Done():
			return
		}
		if v := s.registry.View(); v != seen {
			seen = v
			s.follow(v)
		}
	}
}

func (s *Service) follow(v *fleet.View) {
	said := map[string]*events.Config{}
	for _, w := range s.o.Workers {
		if k := w.KVEvents; k != nil {
			said[w.ID] = &events.Config{Endpoint: k.Endpoint, Listen: k.Listen, Topic: k.Topic, ReplayEndpoint: k.ReplayEndpoint, Ranks: k.Ranks}
		}
	}
	var known []local.Engine
	var kept []uint32
	for w := range v.All() {
		if len(w.Models) == 0 { // it has not said what it is
			continue
		}
		e := local.Engine{No: w.No, URL: strings.TrimRight(w.URL, "/"), Base: w.Base(), Names: w.Models, Adapters: w.Adapters}
		known, kept = append(known, e), append(kept, w.No)
		t := events.Target{Worker: w, Domain: e.Base, Needs: events.Needs{Prefix: true}, Open: func(rank int32) events.Claims { return s.store.Open(e, rank) }}
		if s.warm != nil {
			t.Past = s.warm.Of(w.No, w.URL, e.Base)
		}
		if from := said[w.ID]; from != nil {
			sources, err := from.Sources(w.URL, w.Ranks)
			if err != nil {
				s.log.Warn("an engine's kv_events cannot be used", "worker", w.ID, "error", err)
				sources = &events.Sources{}
			}
			t.Sources = sources
		}
		if s.follower.Follow(t) != nil {
			return // closed
		}
	}
	s.store.Know(known)
	s.follower.Keep(kept)
	for _, no := range s.kept {
		if !slices.Contains(kept, no) {
			s.costs.Forget(no) // numbers are never given again
		}
	}
	s.kept = kept
}

// Times of the sweep, which are the gateway's: a slice holds events up for as long as a large batch does, and no reader.
const (
	sweepBlocks = 4096
	sweepPause  = 4 * time.Millisecond
	sweepRest   = 500 * time.Millisecond
)

// sweep frees the memory of claims that were dropped, in slices.
func (s *Service) sweep() {
	t := time.NewTimer(sweepRest)
	defer t.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-t.C:
		}
		pause := sweepRest
		if s.store.Sweep(sweepBlocks) {
			pause = sweepPause
		}
		t.Reset(pause)
	}
}

// urls finds engines' URLs by their numbers.
type urls struct {
	registry *fleet.Registry
	mu       struct {
		sync.Mutex
		view *fleet.View
		by   map[uint32]string
	}
}

func (u *urls) of(no uint32) (string, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if v := u.registry.View(); v != u.mu.view {
		u.mu.view, u.mu.by = v, map[uint32]string{}
		for w := range v.All() {
			u.mu.by[w.No] = w.URL
		}
	}
	url, ok := u.mu.by[no]
	return url, ok
}
