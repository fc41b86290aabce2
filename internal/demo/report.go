package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/perigee-llm/perigee/internal/engine/enginehttp"
	"github.com/perigee-llm/perigee/internal/gateway/explain"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/trace"
)

// Report is what a demo has measured. A figure that could not be measured is null.
type Report struct {
	// Requests and Errors are of all runs together.
	Requests   int        `json:"requests"`
	Errors     int        `json:"errors"`
	Conditions Conditions `json:"conditions"`
	// WrongPages is how many restored pages did not hold what they must, of all runs together.
	WrongPages int64 `json:"wrong_pages"`
	// Runs are the baseline's, the policy's, and the policy's with a Cache Manager if it was asked for, in this order.
	Runs []Replay `json:"runs"`
	// Warnings say what keeps the figures from being the engines' own.
	Warnings []string `json:"warnings"`
	// Config is the YAML text that the gateway of the last run was started from.
	Config string `json:"config"`
}

// Conditions are what the runs have in common.
type Conditions struct {
	Trace       string   `json:"trace"`
	FromSeconds float64  `json:"from_seconds"`
	SpanSeconds float64  `json:"span_seconds"` // from the first arrival to the last
	Requests    int      `json:"requests_per_run"`
	InputTokens int64    `json:"input_tokens_per_run"`
	Speed       float64  `json:"speed"`
	Seed        uint64   `json:"seed"`
	Buckets     []Bucket `json:"buckets"`
	// PoolTokens is what an engine's cache holds, ManagerTokens what the Manager's pool does, in ManagerBytes; 0: no run has one.
	PoolTokens    int64  `json:"pool_tokens"`
	ManagerTokens int64  `json:"manager_tokens,omitempty"`
	ManagerBytes  uint64 `json:"manager_bytes,omitempty"`
}

// Replay is what was measured in one run.
type Replay struct {
	// Name is the policy's, with " + Manager" where a Cache Manager had part in it.
	Name     string `json:"name"`
	Policy   string `json:"policy"`
	Manager  bool   `json:"manager"`
	Requests int    `json:"requests"`
	Errors   int    `json:"errors"`
	// ErrorKinds counts the errors by what they are.
	ErrorKinds map[string]int `json:"error_kinds,omitempty"`
	// FirstError is the text of the first request's error; empty: none failed.
	FirstError string `json:"first_error,omitempty"`
	// TTFT is the time to the first token, from when the trace says that a request comes, in seconds of the trace and in
	// milliseconds on the wall; requests without a first token are not in it.
	TTFT     Quantiles `json:"ttft_trace_seconds"`
	TTFTWall Quantiles `json:"ttft_wall_ms"`
	// Tokens, as the engines' usage tells them, of the requests without an error.
	PromptTokens     load.Count `json:"prompt_tokens"`
	CachedTokens     load.Count `json:"cached_tokens"`
	CompletionTokens load.Count `json:"completion_tokens"`
	// Where prompt tokens came from, by the engines' own counts: their own caches, the Cache Manager, and their steps. Together they are
	// more than the prompts if requests were preempted, since what is computed again counts again.
	DeviceTokens   int64 `json:"device_tokens"`
	ManagerTokens  int64 `json:"manager_tokens"`
	ComputedTokens int64 `json:"computed_tokens"`
	// Pages that were restored and compared byte by byte, those of them that were wrong, restores that came to nothing, and blocks that
	// could not be published.
	RestoredPages  int64 `json:"restored_pages"`
	WrongPages     int64 `json:"wrong_pages"`
	FailedRestores int64 `json:"failed_restores"`
	DroppedBlocks  int64 `json:"dropped_blocks"`

	Engines []EngineShare `json:"engines"`
	Buckets []Share       `json:"buckets"`
	Reasons []Share       `json:"decisions"` // by the policy's reason
	// Overflowed is how many requests a bucket refused before another one took them.
	Overflowed int `json:"overflowed"`

	WallSeconds float64 `json:"wall_seconds"`
	// LateP99 is how late requests were sent, 99th percentile, in milliseconds on the wall.
	LateP99 *float64 `json:"late_p99_wall_ms"`
	// CPUs is how many processors the whole process used on average, client and engines included.
	CPUs *float64 `json:"cpus_used"`
}

// Quantiles are nearest-rank percentiles; null where there is no value.
type Quantiles struct {
	P50 *float64 `json:"p50"`
	P95 *float64 `json:"p95"`
	P99 *float64 `json:"p99"`
}

// Share is a part of a run's requests.
type Share struct {
	ID       string  `json:"id"`
	Requests int     `json:"requests"`
	Share    float64 `json:"share"` // 0 to 1
}

// EngineShare is an engine's part of a run.
type EngineShare struct {
	Share
	Flavor enginehttp.Flavor `json:"flavor"`
	// PrefillBusy is the share of the run in which its steps computed prompt tokens, 0 to 1.
	PrefillBusy float64 `json:"prefill_busy"`
}

// measured is what one run leaves behind, before it is summed up.
type measured struct {
	outcomes []outcome
	records  []explain.Record
	engines  []enginehttp.Stats // of each
	wall     time.Duration
	cpu      *time.Duration
}

// summarize is pure.
func summarize(o *Options, v variant, f *Fleet, m *measured) Replay {
	r := Replay{
		Name: v.name(), Policy: v.policy, Manager: v.manager, Requests: len(m.outcomes), WallSeconds: m.wall.Seconds(),
		PromptTokens: load.Known(0), CachedTokens: load.Known(0), CompletionTokens: load.Known(0),
	}
	var ttft, late []float64
	for i := range m.outcomes {
		x := &m.outcomes[i]
		late = append(late, ms(x.late))
		if x.ttft > 0 {
			ttft = append(ttft, ms(x.ttft))
		}
		if x.err != nil {
			r.Errors++
			if r.ErrorKinds == nil {
				r.ErrorKinds = map[string]int{}
			}
			r.ErrorKinds[errorKind(x.err)]++
			r.FirstError = cmp.Or(r.FirstError, x.err.Error())
			continue
		}
		r.PromptTokens = r.PromptTokens.Plus(x.prompt)
		r.CachedTokens = r.CachedTokens.Plus(x.cached)
		r.CompletionTokens = r.CompletionTokens.Plus(x.completion)
	}
	r.TTFTWall = quantiles(ttft, 1)
	r.TTFT = quantiles(ttft, o.Speed/1000)
	r.LateP99 = quantile(late, 0.99)
	if m.cpu != nil && m.wall > 0 {
		n := m.cpu.Seconds() / m.wall.Seconds()
		r.CPUs = &n
	}
	for i := range m.engines {
		r.origins(&m.engines[i])
	}
	r.shares(f, m)
	return r
}

// origins adds what one engine says of where its tokens came from.
func (r *Replay) origins(s *enginehttp.Stats) {
	r.DeviceTokens += s.Load.CacheHitTokens
	r.ManagerTokens += s.Load.RestoredTokens
	r.ComputedTokens += s.Load.PrefillUncachedTokens
	r.WrongPages += s.Load.CorruptPages
	if c := s.CacheManager; c != nil {
		r.RestoredPages += c.RestoredPages
		r.FailedRestores += c.RestoresFailed
		r.DroppedBlocks += c.Dropped
	}
}

// shares counts the decisions of the gateway's own log.
func (r *Replay) shares(f *Fleet, m *measured) {
	engines, buckets, reasons := map[string]int{}, map[string]int{}, map[string]int{}
	for i := range m.records {
		a, t := lastPick(&m.records[i])
		if t == nil {
			continue
		}
		engines[t.Picked]++
		buckets[a.Bucket]++
		reasons[t.Reason]++
		if len(a.Tries) > 1 {
			r.Overflowed++
		}
	}
	share := func(id string, n int) Share {
		return Share{ID: id, Requests: n, Share: float64(n) / float64(r.Requests)}
	}
	for i, e := range f.Engines {
		s := EngineShare{Share: share(e.ID, engines[e.ID]), Flavor: e.Flavor}
		if m.wall > 0 {
			s.PrefillBusy = m.engines[i].Load.PrefillBusy.Seconds() / m.wall.Seconds()
		}
		r.Engines = append(r.Engines, s)
	}
	for _, b := range f.Buckets {
		r.Buckets = append(r.Buckets, share(b.ID, buckets[b.ID]))
	}
	for _, id := range slices.Sorted(maps.Keys(reasons)) {
		r.Reasons = append(r.Reasons, share(id, reasons[id]))
	}
	slices.SortStableFunc(r.Reasons, func(a, b Share) int { return cmp.Compare(b.Requests, a.Requests) })
}

// lastPick returns the attempt that gave the request its engine and the group that picked it, or nil.
func lastPick(r *explain.Record) (*explain.Attempt, *explain.Try) {
	for i := len(r.Attempts) - 1; i >= 0; i-- {
		a := &r.Attempts[i]
		if a.Bucket == "" || len(a.Tries) == 0 {
			continue
		}
		if t := &a.Tries[len(a.Tries)-1]; t.Picked != "" {
			return a, t
		}
	}
	return nil, nil
}

// errorKind names an error's class: what happened, without what differs from request to request.
func errorKind(err error) string {
	var s *statusError
	switch {
	case errors.As(err, &s):
		return fmt.Sprintf("status %d", s.status)
	case errors.Is(err, errBroken):
		return errBroken.Error()
	case errors.Is(err, errWrong):
		return errWrong.Error()
	case errors.Is(err, errNotSent):
		return errNotSent.Error()
	case errors.Is(err, context.DeadlineExceeded):
		return "no whole answer in time"
	}
	return "no answer"
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func quantiles(values []float64, factor float64) Quantiles {
	at := func(q float64) *float64 {
		v := quantile(values, q)
		if v != nil {
			*v *= factor
		}
		return v
	}
	return Quantiles{P50: at(0.50), P95: at(0.95), P99: at(0.99)}
}

// quantile is the nearest-rank quantile, nil of no values. It sorts them.
func quantile(values []float64, q float64) *float64 {
	if len(values) == 0 {
		return nil
	}
	slices.Sort(values)
	v := values[max(int(math.Ceil(q*float64(len(values))))-1, 0)]
	return &v
}

func conditions(o *Options, f *Fleet, reqs []trace.Request) Conditions {
	c := Conditions{
		Trace: "Mooncake, synthetic (FAST '25)", FromSeconds: o.From.Seconds(), SpanSeconds: (reqs[len(reqs)-1].Arrival - reqs[0].Arrival).Seconds(),
		Requests: len(reqs), Speed: o.Speed, Seed: o.Seed, Buckets: f.Buckets, PoolTokens: blockTokens * poolBlocks,
	}
	if f.manager != nil {
		c.ManagerBytes = managerBytes(o.Engines)
		c.ManagerTokens = int64(c.ManagerBytes/enginehttp.DefaultPageBytes) * blockTokens
	}
	for i := range reqs {
		c.InputTokens += int64(reqs[i].InputTokens)
	}
	return c
}

// Limits beyond which the wall clock fell behind.
const (
	// lateLimit is how late a request may be sent, in seconds of the trace. Below it lateness is lost in the engines'
	// steps, which take up to a second each with a full batch.
	lateLimit = 1.0
	// busyLimit is the share of the processors that this process may use. Above it steps and events queue for a processor.
	busyLimit = 0.9
)

// warnings judges whether the figures are the engines' or the machine's. processors is how many this process may use.
func warnings(speed float64, processors int, runs []Replay) []string {
	list := []string{}
	for i := range runs {
		r := &runs[i]
		if r.LateP99 != nil && *r.LateP99/1000*speed > lateLimit {
			list = append(list, fmt.Sprintf("%s: the wall clock fell behind: one request in a hundred was sent %.2f s of trace time late or more; "+
				"its times are partly this machine's, choose a lower --speed", r.Name, *r.LateP99/1000*speed))
		}
		if r.CPUs != nil && *r.CPUs > busyLimit*float64(processors) {
			list = append(list, fmt.Sprintf("%s: the demo itself used %.1f of %d processors: times to first token are partly this machine's; "+
				"choose a lower --speed", r.Name, *r.CPUs, processors))
		}
	}
	return list
}
