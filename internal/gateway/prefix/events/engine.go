package events

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/perigee-llm/perigee/internal/zmtp"
)

// discoverTimeout bounds one question to an engine. One that is busy answers within its event loop's stalls, half a second or so.
const discoverTimeout = 3 * time.Second

// engine is what is followed of one engine. Its goroutine starts and ends its feeds.
type engine struct {
	f       *Follower
	target  Target
	applier *applier
	ctx     context.Context
	cancel  context.CancelFunc
	done    chan struct{} // closed by run at its end
	gone    chan struct{} // closed when its applier has ended too, if nobody else uses it

	mu    sync.Mutex // guards what follows; only run changes it
	feeds map[int32]*feed
	loads map[int32]*loadReader
	fault error // of the last question where it publishes
}

// run follows the engine until its context ends.
func (e *engine) run() {
	defer close(e.done)
	defer e.adopt(&Sources{})
	if s := e.target.Sources; s != nil {
		e.adopt(s)
		<-e.ctx.Done()
		return
	}
	backoff := zmtp.Backoff{Min: time.Second, Max: e.f.o.Rediscover}
	for e.ctx.Err() == nil {
		if e.discover() {
			backoff = zmtp.Backoff{Min: e.f.o.Rediscover, Max: e.f.o.Rediscover}
		}
		_ = backoff.Wait(e.ctx) // its error is the end of the loop
	}
}

// discover asks the engine where it publishes and goes on there. An engine that does not answer keeps what it has.
func (e *engine) discover() (answered bool) {
	ctx, cancel := context.WithTimeout(e.ctx, discoverTimeout)
	s, err := Discover(ctx, e.f.o.Client, e.target.Worker)
	cancel()
	if e.ctx.Err() != nil {
		return false
	}
	e.mu.Lock()
	before := e.fault
	e.fault = err
	e.mu.Unlock()
	if err != nil && (before == nil || before.Error() != err.Error()) {
		e.f.o.Log.Warn("engine does not say where it publishes", "worker", e.target.Worker.ID, "error", err)
	}
	switch {
	case err == nil:
		e.adopt(s)
	case errors.Is(err, ErrNoEvents):
		e.adopt(&Sources{})
	}
	return err == nil || errors.Is(err, ErrNoEvents)
}

// adopt makes the feeds those of the sources: what is the same stays, what is gone or elsewhere ends.
func (e *engine) adopt(s *Sources) {
	want, wantLoad := map[int32]Source{}, map[int32]Source{}
	for _, src := range s.Ranks {
		if e.target.Needs.Prefix && src.Events != "" {
			want[src.Rank] = Source{Rank: src.Rank, Events: src.Events, Listen: src.Listen, Topic: src.Topic, Replay: src.Replay}
		}
		if e.target.Needs.Load && src.Load != "" {
			wantLoad[src.Rank] = Source{Rank: src.Rank, Load: src.Load, LoadTopic: src.LoadTopic}
		}
	}
	for rank, fd := range e.feeds {
		if src, there := want[rank]; !there || src != fd.src {
			fd.end()
			e.mu.Lock()
			delete(e.feeds, rank)
			e.mu.Unlock()
		}
	}
	for rank, l := range e.loads {
		if src, there := wantLoad[rank]; !there || src != l.src {
			l.end()
			e.mu.Lock()
			delete(e.loads, rank)
			e.mu.Unlock()
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for rank, src := range want {
		if e.feeds[rank] == nil {
			e.feeds[rank] = e.startFeed(src)
		}
	}
	for rank, src := range wantLoad {
		if e.loads[rank] == nil {
			e.loads[rank] = e.startLoad(src)
		}
	}
}

func (e *engine) renewed() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, fd := range e.feeds {
		fd.renewed()
	}
}

// parts are what an engine's status is made of, as they were at one moment.
type parts struct {
	e     *engine
	feeds []*feed
	loads map[int32]*loadReader
	fault error
}

func (e *engine) parts() parts {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := parts{e: e, loads: maps.Clone(e.loads), fault: e.fault}
	for _, fd := range e.feeds {
		p.feeds = append(p.feeds, fd)
	}
	return p
}

// status appends the engine's, whose feeds' are those given.
func (p *parts) status(out, feeds []Status) []Status {
	out = append(out, feeds...)
	for i := range feeds {
		s := &out[len(out)-len(feeds)+i]
		if l := p.loads[s.Rank]; l != nil {
			s.Load = l.status()
			delete(p.loads, s.Rank)
		}
	}
	of := Status{Engine: p.e.target.Worker.No, ID: p.e.target.Worker.ID}
	for rank, l := range p.loads {
		s := of
		s.Rank, s.Load = rank, l.status()
		out = append(out, s)
	}
	if len(feeds)+len(p.loads) == 0 {
		of.Prefix, of.Fault = p.e.target.Needs.Prefix, p.fault
		out = append(out, of)
	}
	return out
}
