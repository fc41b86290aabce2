// Package warm is where a follower of engines that has just begun gets what others know already: snapshots of a `perigee index` service or of
// a gateway that serves its own index (perigee.index.v1), for events.Target.Past.
//
// It promises that a rank is asked for once, unless whoever wanted it has gone before there was an answer; that nobody waits longer than [Options.Timeout], the wait for his turn included; that nothing is
// asked when [Options.Window] is over; and that of a snapshot which breaks off, or is void, nothing is used. Whether the claims are true it
// does not know: the engine's own replay proves that they are of its process, and nothing proves that the source told them right.
//
// One snapshot is taken at a time: others that start want some too, and the index that it goes into has one writer.
package warm

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/remote"
)

// Outcome says what came of asking. It labels metrics.
type Outcome string

// The outcomes.
const (
	Taken  Outcome = "taken"
	None   Outcome = "none"   // everybody answered, and nobody follows the rank exactly
	Failed Outcome = "failed" // nobody could be reached in time, or what came was of no use
)

// Outcomes are all of them.
var Outcomes = []Outcome{Taken, None, Failed}

// Options say who is asked. Endpoints are needed.
type Options struct {
	// Endpoints are as of remote.Options, the preferred one first.
	Endpoints []string
	// Token goes along, if it is not empty. TLS is for https endpoints; nil: the system's roots.
	Token string
	TLS   *tls.Config
	// Timeout bounds the wait of one rank. 0 means 5 s: until then the engine is blind, which costs more than it can bring soon.
	Timeout time.Duration
	// Window is how long after New something is asked for. 0 means a minute: by then each engine was asked twice what it is, and one that comes
	// later has all it ever published in its replay buffer.
	Window time.Duration
	// Log gets what was taken; nil: nowhere. Hook is told what came of each rank; it may be called at once; nil: nobody.
	Log  *slog.Logger
	Hook func(o Outcome, claims int)
}

// Source asks. Make it with [New], and close it. All methods may be called at once.
type Source struct {
	o     Options // immutable
	index *remote.Index
	until time.Time
	turn  chan struct{} // one place

	mu    sync.Mutex
	asked map[rank]struct{}
}

type rank struct {
	engine uint32
	rank   int32
}

// New returns a source that has no connection yet. The caller closes it. The error names all faults of the options.
func New(o Options) (*Source, error) {
	o.Timeout, o.Window = cmp.Or(o.Timeout, 5*time.Second), cmp.Or(o.Window, time.Minute)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Hook == nil {
		o.Hook = func(Outcome, int) {}
	}
	x, err := remote.NewIndex(remote.Options{
		Endpoints: o.Endpoints, Secrets: func() remote.Secrets { return remote.Secrets{Token: o.Token, TLS: o.TLS} }, Log: o.Log,
		Engines: func(string) map[string]uint32 { return nil }, // it looks nothing up
	})
	if err != nil {
		return nil, err
	}
	return &Source{o: o, index: x, until: time.Now().Add(o.Window), turn: make(chan struct{}, 1), asked: map[rank]struct{}{}}, nil
}

// Close breaks off what is under way.
func (s *Source) Close() { s.index.Close() }

// Of returns what asks for the ranks of an engine: its number here, its base URL by which the others know it, and its base model.
func (s *Source) Of(no uint32, url, base string) events.PastOf {
	return func(ctx context.Context, rank int32, into events.Adopting) (events.Past, bool) {
		w := remote.Wanted{Model: base, URL: url, Engine: no, Rank: rank}
		if time.Now().After(s.until) || !s.first(w) { // in this order: what is remembered ends with the window
			return events.Past{}, false
		}
		return s.take(ctx, w, into)
	}
}

func (s *Source) first(w remote.Wanted) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := rank{w.Engine, w.Rank}
	_, before := s.asked[k]
	s.asked[k] = struct{}{}
	return !before
}

func (s *Source) take(ctx context.Context, w remote.Wanted, into events.Adopting) (events.Past, bool) {
	began := time.Now()
	t := &taking{base: w.Model, into: into}
	err := s.ask(ctx, w, t)
	log := s.o.Log.With("engine", w.URL, "rank", w.Rank, "took", time.Since(began).Round(time.Millisecond))
	switch {
	case ctx.Err() != nil: // nobody wants it any more, and whoever follows the rank next has had nothing
		s.mu.Lock()
		delete(s.asked, rank{w.Engine, w.Rank})
		s.mu.Unlock()
		return events.Past{}, false
	case t.done:
		log.Info("what an engine holds was taken over", "claims", t.claims, "next", t.past.Next, "through", t.past.Through, "whole", t.past.Whole)
		s.o.Hook(Taken, t.claims)
	case err == nil && !t.begun:
		log.Info("nobody knows what an engine holds: it is followed from its own replay on")
		s.o.Hook(None, 0)
	default:
		if err == nil {
			err = errVoid
		}
		log.Warn("what an engine holds could not be taken over: it is followed from its own replay on", "error", err)
		s.o.Hook(Failed, 0)
	}
	return t.past, t.done
}

var errVoid = errors.New("the snapshot was void in the end")

// retry is the pause before a service that has its hands full is asked again.
const retry = 50 * time.Millisecond

func (s *Source) ask(ctx context.Context, w remote.Wanted, t *taking) error {
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		begun, err := s.index.SnapshotOf(ctx, w, t)
		var away *prefix.Unavailable
		if begun || !errors.As(err, &away) || away.Reason != prefix.Overloaded {
			return err
		}
		select {
		case <-time.After(retry):
		case <-ctx.Done():
			return err
		}
	}
}

// taking is a remote.Sink of one rank.
type taking struct {
	base        string
	into        events.Adopting
	past        events.Past
	begun, done bool
	claims      int
	fault       error
}

// Begin implements remote.Sink.
func (t *taking) Begin(r remote.Rank) bool {
	if t.begun || r.Base != t.base { // twice, or of a model that the engine no longer is
		return false
	}
	t.begun = true
	t.past = events.Past{Next: r.Next, Print: r.Print, Printed: r.Printed, Whole: r.Whole}
	t.fault = t.into.Begin(r.BlockSize, r.Groups)
	return true
}

// Claims implements remote.Sink.
func (t *taking) Claims(claims []index.Claim) error {
	if t.fault == nil {
		t.claims += len(claims)
		t.fault = t.into.Claims(claims)
	}
	if t.fault != nil {
		return fmt.Errorf("the claims cannot be used: %w", t.fault)
	}
	return nil
}

// End implements remote.Sink.
func (t *taking) End(through int64) { t.past.Through, t.done = through, t.fault == nil }

// Void implements remote.Sink.
func (t *taking) Void() {}
