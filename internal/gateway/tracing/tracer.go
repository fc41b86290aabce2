package tracing

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Settings say where spans go, and which. What is left zero is taken from the environment, as OpenTelemetry's SDK reads it, and then from its
// defaults, or those that are named here.
type Settings struct {
	// Endpoint is the collector's URL; one without a path gets the usual one. Empty: the environment, then http://localhost:4318.
	Endpoint string
	// Ratio is the share of traces that is recorded, of those that a client did not begin; nil: the environment, then all.
	Ratio *float64
	// Service is the name by which the collector knows this gateway; empty: the environment, then perigee.
	Service string
	// Headers go with every export; nil: those of the environment.
	Headers map[string]string
	// Authorities are the certificates by which an https collector is known, as PEM; nil: the environment, then the system's.
	Authorities []byte
	// Timeout bounds the export of one batch, all tries together; 0: the environment, then 10 s a try and 30 s together.
	Timeout time.Duration
	// Queue is how many spans may wait or be on their way; 0: the environment, then DefaultQueue.
	Queue int
}

// equal tells whether two settings make the same tracing; nil is off.
func (s *Settings) equal(o *Settings) bool {
	if s == nil || o == nil {
		return s == o
	}
	sameRatio := (s.Ratio == nil) == (o.Ratio == nil) && (s.Ratio == nil || *s.Ratio == *o.Ratio)
	return sameRatio && s.Endpoint == o.Endpoint && s.Service == o.Service && maps.Equal(s.Headers, o.Headers) &&
		slices.Equal(s.Authorities, o.Authorities) && s.Timeout == o.Timeout && s.Queue == o.Queue
}

// Options are what a Tracer works with. All are required.
type Options struct {
	Log *slog.Logger
	// Count is told what became of spans: Exported, or why they were dropped. It may be called at once, and must not block.
	Count func(outcome string, spans int)
}

// What becomes of spans.
const (
	Exported  = "exported"
	QueueFull = "queue_full" // as many waited as may
	Failed    = "failed"     // the collector could not be reached, did not answer in time, or refused the batch
	Rejected  = "rejected"   // the collector took the rest of the batch
	Late      = "late"       // they ended when this tracing was over
)

// Outcomes are all of them.
var Outcomes = []string{Exported, QueueFull, Failed, Rejected, Late}

// Tracer begins the traces of requests. Make one with [New]; all methods may be called at once, but Prepare, Use and Close by one caller at a time. A
// nil Tracer is off for ever, and so is none that Use has not turned on.
type Tracer struct {
	options Options
	current atomic.Pointer[provider] // nil: off
	wg      sync.WaitGroup
	closing chan struct{}
	once    sync.Once // closes it
}

// New returns a tracer that is off.
func New(o Options) *Tracer { return &Tracer{options: o, closing: make(chan struct{})} }

// Prepared are settings that can be used.
type Prepared struct {
	t    *Tracer
	next *provider // nil: off
	kept bool      // it is the one in use
}

// Prepare makes what settings ask for (nil: nothing), without using it yet. Its Use or Drop must be called.
func (t *Tracer) Prepare(s *Settings) (*Prepared, error) {
	now := t.current.Load()
	var used *Settings
	if now != nil {
		used = now.settings
	}
	if s.equal(used) {
		return &Prepared{t: t, next: now, kept: true}, nil
	}
	if s == nil {
		return &Prepared{t: t}, nil
	}
	p, err := newProvider(s, t.options)
	if err != nil {
		return nil, err
	}
	t.wg.Go(func() {
		select {
		case <-p.idle:
		case <-t.closing:
		}
		p.shutdown()
	})
	return &Prepared{t: t, next: p}, nil
}

// Use has requests that begin from now on traced by these settings. Those that are under way end under what they began with.
func (p *Prepared) Use() {
	if p.kept {
		return
	}
	if old := p.t.current.Swap(p.next); old != nil {
		old.release()
	}
}

// Drop gives up what was prepared.
func (p *Prepared) Drop() {
	if !p.kept && p.next != nil {
		p.next.release()
	}
}

// Close turns tracing off and exports what waits, which takes some five seconds at most. All requests should have ended. It may be called again.
func (t *Tracer) Close() {
	if t == nil {
		return
	}
	if old := t.current.Swap(nil); old != nil {
		old.release()
	}
	t.once.Do(func() { close(t.closing) })
	t.wg.Wait()
}

// acquire returns what is in use, which lasts until release is called on it; nil: tracing is off.
func (t *Tracer) acquire() *provider {
	for {
		p := t.current.Load()
		if p == nil || p.acquire() {
			return p
		}
	}
}
