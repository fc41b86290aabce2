package demo

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/trace"
)

// Model is the id of the model that the demo's engines serve.
const Model = "perigee-sim"

// Baseline is the policy that the other one is compared with: it looks at nothing.
const Baseline = string(config.RoundRobin)

// Policies are those that Options.Policy may name.
func Policies() []string {
	return []string{string(config.Cost), string(config.CacheAware), string(config.PowerOfTwo), string(config.LoadBased), string(config.Random), string(config.RoundRobin)}
}

// maxEngines bounds a demo: each engine costs two goroutines and a listener, and a fleet that is larger than the trace's
// load needs would only idle.
const maxEngines = 64

// Options say what is replayed, on what, and how fast. Seconds are of the trace unless said otherwise.
type Options struct {
	// Engines is how many engines run, at least 1, their flavours in turn vLLM's and SGLang's.
	Engines int
	// Speed divides all times: the trace's arrivals, the engines' steps and the gateway's polling, so that the load stays
	// true to the trace. Above 0.
	Speed float64
	// From is where in the trace the slice begins, Span how long it is, Requests how many it may have at most; 0: no
	// such bound. One of the last two must be set.
	From, Span time.Duration
	Requests   int
	// Policy is shown, one of Policies.
	Policy string
	// Manager adds a run of Policy with a Cache Manager, where there is one for the system: Linux.
	Manager bool
	// Seed fixes the gateway's random choices and the engines' answers.
	Seed uint64

	// waitsForTesting lengthens what requests wait for the Manager, for machines that are busy with other tests; 0: as it is.
	waitsForTesting time.Duration

	// Log gets the gateway's log; nil: nobody.
	Log *slog.Logger
	// Progress is called a few times a second from one goroutine at a time; nil: nobody wants to know. A call that
	// takes long delays the next, and nothing else.
	Progress func(Progress)
	// Hold is called at the end with the finished report, before the last run's engines and gateway are taken down;
	// nil: they are at once.
	Hold func(*Report, *Fleet) error
}

// Validate reports every option that is out of range, joined.
func (o *Options) Validate() error {
	var errs []error
	say := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.Engines < 1 || o.Engines > maxEngines {
		say("engines: %d is out of range; choose 1 to %d", o.Engines, maxEngines)
	}
	if !(o.Speed > 0) || math.IsInf(o.Speed, 0) {
		say("speed: %g is out of range; choose a number above 0", o.Speed)
	}
	if o.From < 0 {
		say("from: %v is before the trace's start", o.From)
	}
	if o.Requests < 0 || o.Span < 0 || (o.Requests == 0 && o.Span == 0) {
		say("requests, seconds: a slice needs a number of requests or a length above 0")
	}
	if !slices.Contains(Policies(), o.Policy) {
		say("policy: %q is not one of %v", o.Policy, Policies())
	}
	return errors.Join(errs...)
}

// ErrNoRequests: the slice that was asked for is behind the end of the trace.
var ErrNoRequests = errors.New("the trace has no request in this slice")

// slice reads the requests that the options ask for.
func (o *Options) slice() ([]trace.Request, error) {
	to := time.Duration(math.MaxInt64)
	if o.Span > 0 && o.Span < to-o.From {
		to = o.From + o.Span
	}
	var all []trace.Request
	for r, err := range trace.Slice(trace.Synthetic(), o.From, to) {
		if err != nil {
			return nil, err
		}
		all = append(all, r)
		if len(all) == o.Requests {
			break
		}
	}
	if len(all) == 0 {
		return nil, ErrNoRequests
	}
	return all, nil
}

// wall turns a time of the trace into the wall time that it takes here.
func (o *Options) wall(d time.Duration) time.Duration { return time.Duration(float64(d) / o.Speed) }
