package enginehttp

import (
	"strconv"
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
)

// metrics are what the HTTP shell counts beside the core's own figures. They belong to the owner's goroutine.
type metrics struct {
	failed, byLength, aborted         int64
	bootstrapFailed, transferFailed   int64     // of pairs
	prompt, output, maxTokens         histogram // tokens
	ttft, itl, tpot, e2e              histogram // seconds
	queue, inference, prefill, decode histogram // seconds
	rate                              rate
}

// The bounds are those of vLLM 0.32's own histograms of the same names.
var (
	tokenBounds   = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000}
	ttftBounds    = []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	itlBounds     = []float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	requestBounds = []float64{.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
)

func newMetrics() metrics {
	return metrics{
		prompt: newHistogram(tokenBounds), output: newHistogram(tokenBounds), maxTokens: newHistogram(tokenBounds),
		ttft: newHistogram(ttftBounds), itl: newHistogram(itlBounds), tpot: newHistogram(itlBounds), e2e: newHistogram(requestBounds),
		queue: newHistogram(requestBounds), inference: newHistogram(requestBounds),
		prefill: newHistogram(requestBounds), decode: newHistogram(requestBounds),
	}
}

func (m *metrics) submitted(maxTokens int) {
	m.maxTokens.observe(float64(maxTokens))
}

func (m *metrics) token(r *ref, a *engine.Action) {
	r.tokens++
	m.rate.add(a.At)
	if r.tokens == 1 {
		r.first = a.At
		m.ttft.observe((a.At - r.submitted).Seconds())
	} else {
		m.itl.observe((a.At - r.last).Seconds())
	}
	r.last = a.At
}

func (m *metrics) finished(r *ref, a *engine.Action) {
	m.byLength++
	m.prompt.observe(float64(r.prompt))
	m.output.observe(float64(r.tokens))
	m.e2e.observe((a.At - r.submitted).Seconds())
	m.queue.observe((r.started - r.submitted).Seconds())
	m.inference.observe((a.At - r.started).Seconds())
	m.prefill.observe((r.first - r.started).Seconds())
	m.decode.observe((a.At - r.first).Seconds())
	if r.tokens > 1 {
		m.tpot.observe((a.At - r.first).Seconds() / float64(r.tokens-1))
	}
}

// rate is the tokens a second over the last whole second on the core's clock.
type rate struct {
	second       time.Duration // the second that `tokens` counts, in whole seconds
	tokens, last int
}

func (r *rate) add(at time.Duration) {
	r.roll(at)
	r.tokens++
}

func (r *rate) roll(now time.Duration) {
	switch s := now.Truncate(time.Second); {
	case s == r.second+time.Second:
		r.second, r.last, r.tokens = s, r.tokens, 0
	case s > r.second:
		r.second, r.last, r.tokens = s, 0, 0
	}
}

func (r *rate) perSecond(now time.Duration) float64 {
	r.roll(now)
	return float64(r.last)
}

// histogram counts values into Prometheus buckets. A value goes into the first bucket whose bound is not below it.
type histogram struct {
	bounds []float64
	counts []int64 // one more than bounds
	sum    float64
	n      int64
}

func newHistogram(bounds []float64) histogram {
	return histogram{bounds: bounds, counts: make([]int64, len(bounds)+1)}
}

func (h *histogram) observe(v float64) {
	i := 0
	for i < len(h.bounds) && v > h.bounds[i] {
		i++
	}
	h.counts[i]++
	h.n++
	h.sum += v
}

// page writes Prometheus text. Labels are given ready-made, without braces.
type page struct {
	b      []byte
	prefix string // of every name
	labels string // of every sample
}

func (p *page) head(name, kind, help string) {
	p.b = append(p.b, "# HELP "+p.prefix+name+" "+help+"\n# TYPE "+p.prefix+name+" "+kind+"\n"...)
}

// sample writes one line. extra holds more labels or is empty.
func (p *page) sample(name, extra string, v float64) {
	p.b = append(p.b, p.prefix...)
	p.b = append(p.b, name...)
	p.b = append(p.b, '{')
	p.b = append(p.b, p.labels...)
	if extra != "" {
		p.b = append(p.b, ',')
		p.b = append(p.b, extra...)
	}
	p.b = append(p.b, "} "...)
	p.b = append(appendFloat(p.b, v), '\n')
}

// one writes a metric with a single sample.
func (p *page) one(kind, name, help string, v float64) {
	p.head(name, kind, help)
	p.sample(name, "", v)
}

func (p *page) histogram(name, help string, h *histogram) {
	p.head(name, "histogram", help)
	n := int64(0)
	for i, c := range h.counts {
		n += c
		le := "+Inf"
		if i < len(h.bounds) {
			le = string(appendFloat(nil, h.bounds[i]))
		}
		p.sample(name+"_bucket", `le="`+le+`"`, float64(n))
	}
	p.sample(name+"_count", "", float64(h.n))
	p.sample(name+"_sum", "", h.sum)
}

// appendFloat writes v as Python's client does: whole numbers end in ".0".
func appendFloat(b []byte, v float64) []byte {
	n := len(b)
	b = strconv.AppendFloat(b, v, 'g', -1, 64)
	for _, c := range b[n:] {
		if c == '.' || c == 'e' || c == 'I' || c == 'N' {
			return b
		}
	}
	return append(b, ".0"...)
}
