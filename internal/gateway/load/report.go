package load

import (
	"time"
)

// DefaultFreshness is how long a report counts: five polls at the default interval of a second, so that one lost answer
// does not blind a policy, and short enough that an engine which stopped reporting is not judged by its past.
const DefaultFreshness = 5 * time.Second

// MaxRanks bounds the data-parallel ranks of one engine, so that a report cannot make the gateway allocate at will. The
// largest public deployments run a few hundred ranks.
const MaxRanks = 1024

// RankReport is what one data-parallel rank of an engine said of itself. A field that the engine did not give is unknown.
type RankReport struct {
	// At is when the figures were true at the latest that we can prove, in the gateway's clock: the moment at which it
	// asked. What was dispatched after it may be missing from the figures.
	At time.Time
	// Running and Waiting are requests.
	Running, Waiting Count
	// WaitingUncached is the part of the waiting prompts that no cache covers, in tokens.
	WaitingUncached Count
	// Used is the KV tokens that running requests occupy, Total the same with what is queued, Capacity the pool's size.
	Used, Total, Capacity Count
	// MaxRunning is the engine's limit of running requests.
	MaxRunning Count
	// PrefillTokens and PrefillBusy accumulate since the engine started: uncached tokens prefilled, and the
	// microseconds spent on them.
	PrefillTokens, PrefillBusy Count
}

// Report is an engine's load, all ranks summed. It is immutable once published.
type Report struct {
	// At is the oldest rank's time.
	At time.Time
	// Running, Waiting, WaitingUncached, Used, Total, Capacity and MaxRunning are the sums of the ranks' fields, each
	// unknown if one rank did not give it.
	Running, Waiting, WaitingUncached, Used, Total, Capacity, MaxRunning Count
	// QueueMicros estimates how long the waiting uncached tokens take to prefill, in microseconds: their sum over the
	// sum of the ranks' prefill rates, a rank's rate being the uncached tokens it prefilled between its last two
	// reports over the busy time that took. Unknown while a rank has no such pair, as it does while it is idle.
	QueueMicros Count
	// PrefillRate is the uncached tokens that the engine prefills in a second of work, as its average token had it over some 20 s of work:
	// the ranks' rates summed. It is a property of the engine rather than of the moment, so it outlasts idle times; unknown while a rank has none.
	PrefillRate Count
	// Ranks is how many ranks are in the sums.
	Ranks int
}

// Basic tells whether the request counts are known: enough for admission by requests and for load_based.
func (r *Report) Basic() bool { return r != nil && r.Running.IsKnown() && r.Waiting.IsKnown() }

// Native tells whether the report can be compared with another engine's in detail: request counts, and a KV pool whose use
// and size are known and whose size is not zero. (An engine that publishes a size of zero means that it does not know.)
//
// The specification also asks for the waiting uncached tokens and the limit of running requests, since the publisher that
// it has in mind sends all or none. vLLM gives neither, so we ask for what both engine families give and let a comparison
// skip a figure that one side lacks; otherwise two vLLM engines could never be compared by their reports.
func (r *Report) Native() bool {
	if !r.Basic() || !r.Used.IsKnown() {
		return false
	}
	c, ok := r.Capacity.Get()
	return ok && c > 0
}

// rank is one rank's last two reports.
type rank struct {
	last, before RankReport
	have         int // 0, 1 or 2 of them

	// tokens that were prefilled, and the sum of the rates that they were prefilled at; what is further back counts less.
	tokens, rates float64
}

// rateMemory is how far back the prefill rate reaches, in seconds of work.
const rateMemory = 20

// learn takes the work between the last two reports into the rate. Each token weighs the same, not each second: a step's fixed cost makes
// short prompts look slow, and by seconds an engine that has much in its cache would look like a slow machine.
func (k *rank) learn() {
	t, b, ok := k.worked()
	if !ok {
		return
	}
	b /= 1e6
	keep := rateMemory / (rateMemory + b)
	k.tokens, k.rates = k.tokens*keep+t, k.rates*keep+t*t/b
}

// known drops figures below zero: nothing that is counted here can be, so they say nothing.
func (r RankReport) known() RankReport {
	for _, c := range []*Count{
		&r.Running, &r.Waiting, &r.WaitingUncached, &r.Used, &r.Total, &r.Capacity, &r.MaxRunning, &r.PrefillTokens, &r.PrefillBusy,
	} {
		if c.n < 0 {
			*c = Count{}
		}
	}
	return r
}

func (k *rank) observe(r RankReport) bool {
	if k.have > 0 && !r.At.After(k.last.At) {
		return false // an answer that was overtaken
	}
	k.before, k.last = k.last, r.known()
	k.have = min(k.have+1, 2)
	k.learn()
	return true
}

// rate is the rank's prefill speed in tokens a second between its last two reports, and false where either counter is
// missing or did not grow.
func (k *rank) rate() (float64, bool) {
	t, b, ok := k.worked()
	return 1e6 * t / b, ok
}

// worked is the tokens prefilled between the last two reports, and the microseconds spent on them.
func (k *rank) worked() (tokens, micros float64, ok bool) {
	if k.have < 2 {
		return 0, 1, false
	}
	t1, ok1 := k.last.PrefillTokens.Get()
	t0, ok0 := k.before.PrefillTokens.Get()
	b1, ok3 := k.last.PrefillBusy.Get()
	b0, ok2 := k.before.PrefillBusy.Get()
	if !ok0 || !ok1 || !ok2 || !ok3 || t1 <= t0 || b1 <= b0 {
		return 0, 1, false
	}
	return float64(t1 - t0), float64(b1 - b0), true
}

// sum adds the ranks up. It returns nil unless every expected rank has reported.
func sum(ranks []rank, expected int) *Report {
	if expected > len(ranks) || len(ranks) == 0 {
		return nil
	}
	out, rate, rated := Report{}, 0.0, true
	speed, sped := 0.0, true
	for i := range ranks {
		k := &ranks[i]
		if k.have == 0 {
			if expected > 0 {
				return nil
			}
			continue // nobody said how many there are: those that report are all we know of
		}
		r := &k.last
		if out.Ranks == 0 {
			out = Report{
				At: r.At, Running: r.Running, Waiting: r.Waiting, WaitingUncached: r.WaitingUncached,
				Used: r.Used, Total: r.Total, Capacity: r.Capacity, MaxRunning: r.MaxRunning, Ranks: 1,
			}
		} else {
			out.add(r)
		}
		v, ok := k.rate()
		rate, rated = rate+v, rated && ok
		if sped = sped && k.tokens > 0; sped {
			speed += k.rates / k.tokens
		}
	}
	if out.Ranks == 0 {
		return nil
	}
	if sped && speed >= 1 && speed < 1e12 {
		out.PrefillRate = Known(int64(speed))
	}
	if w, ok := out.WaitingUncached.Get(); ok && rated && rate > 0 {
		if us := 1e6 * float64(w) / rate; us < 1e15 { // 30 years: beyond it the figure says nothing
			out.QueueMicros = Known(int64(us))
		}
	}
	return &out
}

func (r *Report) add(k *RankReport) {
	if k.At.Before(r.At) {
		r.At = k.At
	}
	r.Running = r.Running.Plus(k.Running)
	r.Waiting = r.Waiting.Plus(k.Waiting)
	r.WaitingUncached = r.WaitingUncached.Plus(k.WaitingUncached)
	r.Used = r.Used.Plus(k.Used)
	r.Total = r.Total.Plus(k.Total)
	r.Capacity = r.Capacity.Plus(k.Capacity)
	r.MaxRunning = r.MaxRunning.Plus(k.MaxRunning)
	r.Ranks++
}
