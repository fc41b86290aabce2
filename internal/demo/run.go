package demo

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/explain"
	"github.com/perigee-llm/perigee/internal/trace"
)

// runGrace is how long a run may take beyond the trace's own length, on the wall: overloaded engines need a while to
// empty their queues, but a demo that hangs must end.
const runGrace = 60 * time.Second

// Progress is how far a demo is.
type Progress struct {
	// Name is the run's, Run its number from 1, of Runs.
	Name      string
	Run, Runs int
	// Total is the requests of the run, Done how many of them have ended, Errors how many of these failed.
	Total, Done, Errors int
	// Elapsed is the wall time since the run began.
	Elapsed time.Duration
	// Sample is a recent decision worth showing; nil: none just now.
	Sample *explain.Record
}

// variant is what one run has of its own.
type variant struct {
	policy  string
	manager bool
}

// name is what the report calls the run.
func (v variant) name() string {
	if v.manager {
		return v.policy + " + Manager"
	}
	return v.policy
}

// variants are the runs, in their order.
func (o *Options) variants() []variant {
	all := []variant{{policy: Baseline}, {policy: o.Policy}}
	if o.Manager && managerHere {
		all = append(all, variant{o.Policy, true})
	}
	return all
}

// Run replays the slice under [Baseline] and under the options' policy, with and without a Cache Manager, and returns the report. The error of ctx comes
// back if it ends first, that of Options.Hold if it returns one. Requests that failed are no error here: Report.Errors
// counts them.
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	reqs, err := o.slice()
	if err != nil {
		return nil, err
	}
	report := &Report{}
	all := o.variants()
	for i, v := range all {
		f, err := startFleet(ctx, &o, v, len(reqs))
		if err != nil {
			return nil, err
		}
		run, err := f.measure(ctx, &o, v, i+1, reqs)
		if err == nil {
			report.add(run)
			if i == len(all)-1 {
				report.Conditions, report.Config = conditions(&o, f, reqs), f.Config
				report.Warnings = warnings(o.Speed, runtime.GOMAXPROCS(0), report.Runs)
				if o.Hold != nil {
					err = o.Hold(report, f)
				}
			}
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
	}
	return report, nil
}

func (r *Report) add(run Replay) {
	r.Runs = append(r.Runs, run)
	r.Requests += run.Requests
	r.Errors += run.Errors
	r.WrongPages += run.WrongPages
}

// measure replays the requests once.
func (f *Fleet) measure(ctx context.Context, o *Options, v variant, number int, reqs []trace.Request) (Replay, error) {
	span := o.wall(reqs[len(reqs)-1].Arrival - reqs[0].Arrival)
	play, cancel := context.WithTimeout(ctx, span+runGrace)
	defer cancel()
	transport := &http.Transport{MaxIdleConnsPerHost: len(reqs), DisableCompression: true}
	defer transport.CloseIdleConnections()
	p := &player{transport: transport, url: f.URL(), speed: o.Speed}

	var m measured
	count := counter{name: v.name(), run: number, total: len(reqs), began: time.Now()}
	cpu, known := cpuTime()
	stop := f.watch(o, &count)
	m.outcomes = p.play(play, reqs, count.done)
	m.wall = time.Since(count.began)
	stop()
	if after, ok := cpuTime(); ok && known {
		used := after - cpu
		m.cpu = &used
	}
	if err := ctx.Err(); err != nil {
		return Replay{}, err
	}
	f.settle(ctx)
	m.records = f.gateway.Explain().Records(explain.Query{})
	for _, s := range f.servers {
		m.engines = append(m.engines, s.Stats())
	}
	return summarize(o, v, f, &m), nil
}

// settle waits until the gateway has closed its books on requests whose answers the client has already: a moment, and
// bounded since [Fleet.Close] judges what is left.
func (f *Fleet) settle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for f.gateway.Held() > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// counter counts a run's requests as they end.
type counter struct {
	name       string
	run, total int
	began      time.Time
	ended      atomic.Int64
	failed     atomic.Int64
}

func (c *counter) done(o *outcome) {
	if o.err != nil {
		c.failed.Add(1)
	}
	c.ended.Add(1)
}

// Beats of the progress, on the wall.
const (
	progressEvery = 250 * time.Millisecond
	// samplesEvery is how many beats lie between two sample decisions: a reader needs a few seconds for each.
	samplesEvery = 10
)

// watch reports the progress until the function that it returns is called, which waits for its goroutine.
func (f *Fleet) watch(o *Options, c *counter) (stop func()) {
	if o.Progress == nil {
		return func() {}
	}
	quit := make(chan struct{})
	var wg sync.WaitGroup
	tell := func(sample *explain.Record) {
		o.Progress(Progress{
			Name: c.name, Run: c.run, Runs: len(o.variants()), Total: c.total, Done: int(c.ended.Load()), Errors: int(c.failed.Load()),
			Elapsed: time.Since(c.began), Sample: sample,
		})
	}
	wg.Go(func() {
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for n := 1; ; n++ {
			select {
			case <-quit:
				tell(nil)
				return
			case <-tick.C:
			}
			var sample *explain.Record
			if n%samplesEvery == samplesEvery/2 {
				sample = choose(f.gateway.Explain().Records(explain.Query{Limit: sampled}), n/samplesEvery%2 == 0)
			}
			tell(sample)
		}
	})
	return func() {
		close(quit)
		wg.Wait()
	}
}
