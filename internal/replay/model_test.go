package replay

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/script"
)

// naive follows a run by its events alone, in the plainest way.
type naive struct {
	t        *testing.T
	o        Options
	arrivals []Arrival
	state    []naiveRequest
	ttft     []time.Duration
	inside   []int             // requests that each engine has
	busy     []time.Duration   // time with any
	waiting  int               // in queues
	area     float64           // of waiting over time
	now      time.Duration     // of the last event
	finals   map[EventKind]int // how requests ended
}

type naiveRequest struct {
	arrived, ended, queued, first bool
	engine, uncached              int
	at                            time.Duration
}

func newNaive(t *testing.T, o Options, arrivals []Arrival) *naive {
	return &naive{
		t: t, o: o, arrivals: arrivals, state: make([]naiveRequest, len(arrivals)), inside: make([]int, o.Engines), busy: make([]time.Duration, o.Engines),
		finals: map[EventKind]int{},
	}
}

func (n *naive) observe(e *Event) {
	if e.At < n.now {
		n.t.Fatalf("%s: time goes back from %v", showEvent(e), n.now)
	}
	for i := range n.inside {
		if n.inside[i] > 0 {
			n.busy[i] += e.At - n.now
		}
	}
	n.area += float64(n.waiting) * float64(e.At-n.now)
	n.now = e.At
	r := &n.state[e.Request]
	if r.ended || (e.Kind == Arrived) == r.arrived {
		n.t.Fatalf("%s: after its end, or not in turn", showEvent(e))
	}
	switch e.Kind {
	case Arrived:
		r.arrived, r.at, r.engine = true, e.At, -1
	case Dispatched:
		r.engine, r.queued = e.Engine, true
		n.inside[e.Engine]++
		n.waiting++
	case Admitted:
		r.queued, r.uncached = false, n.arrivals[e.Request].InputTokens-e.Cached
		n.waiting--
	case Preempted:
		r.queued = true
		n.waiting++
	case FirstToken:
		n.firstToken(e, r)
	case Ended, Rejected, Lost, Retried:
		n.leave(r)
		if e.Kind != Retried {
			r.ended = true
			n.finals[e.Kind]++
		}
	}
}

func (n *naive) firstToken(e *Event, r *naiveRequest) {
	ttft := e.At - r.at
	n.ttft = append(n.ttft, ttft)
	least := n.o.Engine.Timing.StepFixed + time.Duration(r.uncached)*n.o.Engine.Timing.PrefillPerToken
	if ttft < least || r.first {
		n.t.Fatalf("%s: a second first token, or sooner than %v after its arrival", showEvent(e), least)
	}
	r.first = true
}

func (n *naive) leave(r *naiveRequest) {
	if r.engine >= 0 {
		n.inside[r.engine]--
		r.engine = -1
	}
	if r.queued {
		n.waiting--
		r.queued = false
	}
}

func randomOptions(rng *rand.Rand) Options {
	o := Options{
		Engines: 1 + rng.IntN(5), Gateways: 1 + rng.IntN(3), Seed: rng.Uint64(), PrefillOnly: rng.IntN(3) == 0,
		Spread: Spread(rng.IntN(2)), Rate: []float64{1, 0.5, 3}[rng.IntN(3)], Reports: Reports(rng.IntN(3)),
		ReportEvery: time.Duration(1+rng.IntN(300)) * time.Millisecond, Attempts: 1 + rng.IntN(3),
		EventDelay: time.Duration(rng.IntN(2)*rng.IntN(500)) * time.Millisecond, EventLoss: float64(rng.IntN(2)) * 0.3,
		Engine: engine.Config{
			BlockSize: 4, KVBlocks: 12 + rng.IntN(60), MaxWaiting: 1 + rng.IntN(20), MaxRunning: 1 + rng.IntN(6), MaxBatchTokens: 16,
			Timing: engine.Timing{StepFixed: 10 * time.Millisecond, PrefillPerToken: time.Millisecond, DecodePerSeq: time.Millisecond, PerKVToken: 1000},
		},
	}
	for i := range o.Engines {
		if rng.IntN(3) == 0 {
			o.Outages = append(o.Outages, Outage{Engine: i, At: time.Duration(rng.IntN(2000)) * time.Millisecond, For: time.Duration(rng.IntN(2)*rng.IntN(900)) * time.Millisecond})
		}
	}
	return o
}

// randomArrivals are conversations: prompts that extend, or repeat, one of a few beginnings. Some come at the same instant, and
// some never fit.
func randomArrivals(rng *rand.Rand, n int) []Arrival {
	var out []Arrival
	at := time.Duration(0)
	for range n {
		at += time.Duration(rng.IntN(3)*rng.IntN(60)) * time.Millisecond
		a := Arrival{At: at, InputTokens: 1 + rng.IntN(60), OutputTokens: 1 + rng.IntN(12), Session: uint64(rng.IntN(4))}
		h := engine.BlockHash{Hi: uint64(rng.IntN(4))}
		for i := range (a.InputTokens + 3) / 4 {
			step := uint64(i)
			if i > 6 {
				step = rng.Uint64()
			}
			h = h.Link(engine.BlockHash{Hi: step})
			a.Blocks = append(a.Blocks, h)
		}
		out = append(out, a)
	}
	return out
}

// TestRandomRuns holds what must be true of every run, whatever the options: each request ends once, no guard is left (Run itself
// looks), engines that have requests work, nobody is faster than the model, and the sums are those of the events.
func TestRandomRuns(t *testing.T) {
	rng := script.Rand(t)
	for range 150 {
		name := Names()[rng.IntN(len(Names()))]
		c, err := ByName(name)
		if err != nil {
			t.Fatal(err)
		}
		o, arrivals := randomOptions(rng), randomArrivals(rng, 1+rng.IntN(80))
		n := newNaive(t, o, arrivals)
		o.Observe = n.observe
		r, err := Run(context.Background(), o, c, (&replayScript{arrivals: arrivals}).source())
		if err != nil {
			t.Fatalf("%s, %+v: %v", name, o, err)
		}
		n.compare(name, r)
	}
}

func (n *naive) compare(name string, r *Result) {
	t := n.t
	t.Helper()
	if r.Requests != len(n.arrivals) || r.Completed != n.finals[Ended] || r.Rejected.Total() != n.finals[Rejected] || r.Lost != n.finals[Lost] ||
		r.Completed+r.Rejected.Total()+r.Lost != r.Requests {
		t.Fatalf("%s: %d requests, %d completed, %d rejected, %d lost; the events say %v", name, r.Requests, r.Completed, r.Rejected.Total(), r.Lost, n.finals)
	}
	if int(r.TTFT.Count()) != len(n.ttft) {
		t.Fatalf("%s: %d first tokens, the events say %d", name, r.TTFT.Count(), len(n.ttft))
	}
	for i := range r.Engines {
		if r.Engines[i].Busy != n.busy[i] {
			t.Fatalf("%s: engine %d was busy for %v, and had requests for %v", name, i, r.Engines[i].Busy, n.busy[i])
		}
	}
	if n.now > 0 {
		if want := n.area / float64(n.now); math.Abs(r.Queue.Mean()-want) > 1e-9*(1+want) {
			t.Fatalf("%s: mean queue %v, the events say %v", name, r.Queue.Mean(), want)
		}
	}
	checkQuantiles(t, &r.TTFT, n.ttft)
}

// checkQuantiles compares a histogram with the sorted values.
func checkQuantiles(t *testing.T, h *Histogram, all []time.Duration) {
	t.Helper()
	slices.Sort(all)
	sum := 0.0
	for _, d := range all {
		sum += float64(d)
	}
	mean, ok := h.Mean()
	if ok != (len(all) > 0) || (ok && math.Abs(float64(mean)-sum/float64(len(all))) > 1) {
		t.Fatalf("mean %v %v of %d values", mean, ok, len(all))
	}
	for _, q := range []float64{0.001, 0.25, 0.5, 0.95, 0.99, 1} {
		got, ok := h.Quantile(q)
		if ok != (len(all) > 0) {
			t.Fatalf("quantile %v of %d values: %v", q, len(all), ok)
		}
		if !ok {
			continue
		}
		want := all[max(int(math.Ceil(q*float64(len(all)))), 1)-1]
		if got < want || float64(got) > float64(want)*(1+1.0/1024) {
			t.Fatalf("quantile %v is %v, want %v", q, got, want)
		}
	}
}

func TestHistogram(t *testing.T) {
	rng := script.Rand(t)
	var h Histogram
	checkQuantiles(t, &h, nil)
	var all []time.Duration
	for range 3000 {
		d := time.Duration(rng.Uint64() >> (1 + rng.IntN(63)))
		if rng.IntN(10) == 0 {
			d = time.Duration(rng.IntN(3000)) // small ones are exact
		}
		if d > time.Duration(1)<<50 {
			continue
		}
		h.Add(d)
		all = append(all, d)
	}
	checkQuantiles(t, &h, all)
	if h.Max() != all[len(all)-1] {
		t.Errorf("max %v, want %v", h.Max(), all[len(all)-1])
	}
	for _, d := range all {
		if c := classOf(d); upper(c) < d || (c > 0 && upper(c-1) >= d) {
			t.Fatalf("%d is in class %d, which ends at %d", d, c, upper(c))
		}
	}
}

// TestTimeline: a long one keeps the mean of a short one, in bounded space.
func TestTimeline(t *testing.T) {
	rng := script.Rand(t)
	var line Timeline
	now, value, area, peak := time.Duration(0), 0, 0.0, 0
	for range 20000 {
		step := time.Duration(rng.IntN(400)) * time.Millisecond
		area += float64(value) * float64(step)
		now += step
		value = rng.IntN(100)
		peak = max(peak, value)
		line.Set(now, value)
	}
	if got, want := line.Mean(), area/float64(now); math.Abs(got-want) > 1e-6 || line.Peak() != peak {
		t.Errorf("mean %v, peak %d, want %v, %d", got, line.Peak(), want, peak)
	}
	slots, width := line.Slots()
	if len(slots) > timelineSlots || time.Duration(len(slots))*width < now || time.Duration(len(slots)-1)*width > now {
		t.Errorf("%d slots of %v for %v", len(slots), width, now)
	}
	sum := 0.0
	for i, v := range slots {
		sum += v * float64(min(width, now-time.Duration(i)*width))
	}
	if math.Abs(sum-area) > 1e-6*area {
		t.Errorf("the slots hold %v, want %v", sum, area)
	}
}

// TestQueueOrder compares the heap with a sorted slice.
func TestQueueOrder(t *testing.T) {
	rng := script.Rand(t)
	var q queue
	var sorted []event
	for range 5000 {
		if rng.IntN(5) < 3 {
			e := event{at: time.Duration(rng.IntN(50))}
			q.push(e)
			e.seq = q.seq
			at, _ := slices.BinarySearchFunc(sorted, e, func(a, b event) int {
				if a.before(&b) {
					return -1
				}
				return 1
			})
			sorted = slices.Insert(sorted, at, e)
			continue
		}
		at, ok := q.next()
		if ok != (len(sorted) > 0) {
			t.Fatalf("next %v with %d events", ok, len(sorted))
		}
		if !ok {
			continue
		}
		if got := q.pop(); got != sorted[0] || at != got.at {
			t.Fatalf("got %+v, want %+v", got, sorted[0])
		}
		sorted = sorted[1:]
	}
}
