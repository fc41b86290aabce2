package api

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/perigee-llm/perigee/internal/telemetry"
)

// series are those of one model that nearly every request counts on, looked up once for one configuration: a look-up hashes labels and compares them, and a request
// made eight of them. Another configuration may have dropped the model's, and looks them up anew; a request that ends under the one before then counts where
// nobody sees it.
type series struct {
	ends   atomic.Pointer[endSeries]
	inputs counters // by model and source
}

// endSeries are those of a request's end. They are there from the first end on.
type endSeries struct {
	duration                   prometheus.Observer
	prompt, cached, completion prometheus.Counter
}

// endsOf returns the model's.
func (k *series) endsOf(m *telemetry.Metrics, model string) *endSeries {
	if e := k.ends.Load(); e != nil {
		return e
	}
	e := &endSeries{m.Duration.WithLabelValues(model), m.Prompt.WithLabelValues(model), m.Cached.WithLabelValues(model), m.Completion.WithLabelValues(model)}
	k.ends.Store(e) // another's are the same
	return e
}

// counters keeps those of one vector with two labels that were asked for, in the order in which they came, up to a bound. The zero value is ready; any goroutine may
// ask.
type counters struct{ list atomic.Pointer[[]keptCounter] }

type keptCounter struct {
	a, b  string
	count prometheus.Counter
}

// countersKept bounds those that are kept: the reasons of a policy and the sources of a model's lengths are a handful. What is beyond is looked up each time.
const countersKept = 8

// of returns the counter of two labels' values, whose texts are kept.
func (k *counters) of(vec *prometheus.CounterVec, a, b string) prometheus.Counter {
	kept := k.list.Load()
	if kept != nil {
		for i := range *kept {
			if c := &(*kept)[i]; c.b == b && c.a == a {
				return c.count
			}
		}
	}
	c := vec.WithLabelValues(a, b)
	switch {
	case kept == nil:
		k.list.CompareAndSwap(nil, &[]keptCounter{{a, b, c}}) // what another request kept meanwhile stays, and this one is looked up again
	case len(*kept) < countersKept:
		next := append((*kept)[:len(*kept):len(*kept)], keptCounter{a, b, c})
		k.list.CompareAndSwap(kept, &next)
	}
	return c
}
