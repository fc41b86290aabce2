package compare

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perigee-llm/perigee/internal/replay"
	"github.com/perigee-llm/perigee/internal/trace"
)

// Progress is how far one run is.
type Progress struct {
	Contender string
	// Now is its virtual time, Arrived the requests that have come.
	Now     time.Duration
	Arrived int
	Done    bool
}

// Job is a comparison to be run.
type Job struct {
	// Trace is read once for each contender, from several goroutines at once.
	Trace iter.Seq2[trace.Request, error]
	// TraceName is told in the report.
	TraceName string
	// Model, if not empty, leaves out the requests that a log gives another model.
	Model      string
	Options    replay.Options // its Progress and Observe are not used
	Contenders []replay.Contender
	// Progress is called from the runs' goroutines, several at once; nil: nobody wants to know. i is the contender's place.
	Progress func(i int, p Progress)
}

// ErrNoRequests: the trace has no request, or none of the model.
var ErrNoRequests = errors.New("the trace has no request to replay")

// ErrNotRepeatable: the trace was not the same each time it was read.
var ErrNotRepeatable = errors.New("the trace was not the same for every contender: it must be one that can be read again and again, such as a file that nobody writes to")

// Run runs every contender, as many at once as there are processors, and reports on them in their order. All goroutines that it
// starts have ended when it returns. The error is the first contender's that failed; the others are then stopped.
func Run(ctx context.Context, j Job) (*Report, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results, errs := make([]*replay.Result, len(j.Contenders)), make([]error, len(j.Contenders))
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(j.Contenders)) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(j.Contenders); i = int(next.Add(1)) - 1 {
				if results[i], errs[i] = j.run(ctx, i); errs[i] != nil {
					cancel()
				}
			}
		})
	}
	workers.Wait()
	if i, err := firstError(errs); err != nil {
		return nil, fmt.Errorf("%s: %w", j.Contenders[i].Name, err)
	}
	if !slices.ContainsFunc(results, func(r *replay.Result) bool { return r.Requests > 0 }) {
		return nil, ErrNoRequests
	}
	for _, r := range results {
		if r.Requests != results[0].Requests {
			return nil, ErrNotRepeatable
		}
	}
	return newReport(&j, results), nil
}

// firstError prefers what went wrong over what was stopped because of it.
func firstError(errs []error) (at int, err error) {
	for i, e := range errs {
		if e != nil && (err == nil || (errors.Is(err, context.Canceled) && !errors.Is(e, context.Canceled))) {
			at, err = i, e
		}
	}
	return at, err
}

func (j *Job) run(ctx context.Context, i int) (*replay.Result, error) {
	c, o := j.Contenders[i], j.Options
	o.Observe, o.Progress = nil, nil
	if j.Progress != nil {
		o.Progress = func(now time.Duration, arrived int) {
			j.Progress(i, Progress{Contender: c.Name, Now: now, Arrived: arrived})
		}
	}
	r, err := replay.Run(ctx, o, c, Arrivals(ofModel(j.Trace, j.Model), o.WithDefaults().Engine.BlockSize))
	if err == nil && j.Progress != nil {
		j.Progress(i, Progress{Contender: c.Name, Now: r.Span, Arrived: r.Requests, Done: true})
	}
	return r, err
}

// ofModel leaves out the requests of other models. A request that names none stays.
func ofModel(seq iter.Seq2[trace.Request, error], model string) iter.Seq2[trace.Request, error] {
	if model == "" {
		return seq
	}
	return func(yield func(trace.Request, error) bool) {
		for r, err := range seq {
			if err == nil && r.Model != "" && r.Model != model {
				continue
			}
			if !yield(r, err) {
				return
			}
		}
	}
}
