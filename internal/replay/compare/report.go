package compare

import (
	"time"

	"github.com/perigee-llm/perigee/internal/replay"
)

// Report is what a comparison measured. Times are in seconds of the trace; a figure that could not be measured is null.
type Report struct {
	Conditions Conditions `json:"conditions"`
	Runs       []Row      `json:"runs"`
}

// Conditions are what the runs have in common.
type Conditions struct {
	Trace       string   `json:"trace"`
	Requests    int      `json:"requests"`
	Rate        float64  `json:"rate"`
	Seed        uint64   `json:"seed"`
	Gateways    int      `json:"gateways"`
	KVBlocks    int      `json:"kv_blocks"`
	BlockSize   int      `json:"block_size"`
	PrefillRate float64  `json:"prefill_tokens_per_second"`
	StepFixed   float64  `json:"step_fixed_seconds"`
	PrefillOnly bool     `json:"prefill_only"`
	Reports     string   `json:"reports"`
	EventDelay  float64  `json:"event_delay_seconds"`
	EventLoss   float64  `json:"event_loss"`
	EventRepair *float64 `json:"event_repair_seconds"` // null: what was lost never comes
	ReportDelay float64  `json:"report_delay_seconds"`
	Peers       *Peers   `json:"peers,omitempty"` // none: the gateways tell each other nothing
	Outages     []Outage `json:"outages"`
}

// Peers is how what gateways tell each other arrives.
type Peers struct {
	Delay float64 `json:"delay_seconds"`
	Loss  float64 `json:"loss"`
}

// Outage is one engine's.
type Outage struct {
	Engine int     `json:"engine"`
	At     float64 `json:"at_seconds"`
	For    float64 `json:"for_seconds"` // 0: it does not return
}

// Row is what one contender reached.
type Row struct {
	Name      string `json:"name"`
	Engines   int    `json:"engines"`
	Requests  int    `json:"requests"`
	Completed int    `json:"completed"`
	Rejected  struct {
		NoBucket  int `json:"no_bucket"`
		NoEngine  int `json:"no_engine"`
		QueueFull int `json:"queue_full"`
		TooLong   int `json:"too_long"`
	} `json:"rejected"`
	Lost    int `json:"lost"`
	Retries int `json:"retries"`

	TTFT Times `json:"ttft_seconds"`
	ITL  Times `json:"itl_seconds"`
	E2E  Times `json:"e2e_seconds"`
	Wait Times `json:"wait_seconds"` // from arrival to admission by the engine

	HitRate      *float64 `json:"hit_rate_tokens"`
	BlockHitRate *float64 `json:"hit_rate_blocks"`

	BusyImbalance    *float64 `json:"imbalance_busy"`     // the busiest engine's time over the mean
	RequestImbalance *float64 `json:"imbalance_requests"` // the same by requests

	QueueMean float64 `json:"queue_mean"` // requests that wait in all engines, over time
	QueueMax  int     `json:"queue_max"`
	// EngineQueueMax is the longest queue of a single engine.
	EngineQueueMax int `json:"queue_max_one_engine"`

	Preemptions int64         `json:"preemptions"`
	ReportEvery float64       `json:"report_every_seconds"`
	ReportsLost int           `json:"reports_lost"`
	ReportsSent int           `json:"reports_sent"`
	SpanSeconds float64       `json:"span_seconds"`
	PerEngine   []EngineShare `json:"per_engine"`

	result *replay.Result // for the plot
}

// EngineShare is one engine's part.
type EngineShare struct {
	ID          string  `json:"id"`
	Requests    int     `json:"requests"`
	BusySeconds float64 `json:"busy_seconds"`
	// PrefillTokens are the prompt tokens that it had to compute when it admitted its requests.
	PrefillTokens int64 `json:"prefill_tokens"`
}

// Times sums up a distribution. Quantiles are nearest-rank, and at most a thousandth too high.
type Times struct {
	Count uint64   `json:"count"`
	Mean  *float64 `json:"mean"`
	P50   *float64 `json:"p50"`
	P95   *float64 `json:"p95"`
	P99   *float64 `json:"p99"`
	Max   *float64 `json:"max"`
}

func newReport(j *Job, results []*replay.Result) *Report {
	o := j.Options.WithDefaults()
	t := o.Engine.Timing.Filled()
	r := &Report{Conditions: Conditions{
		Trace: j.TraceName, Requests: results[0].Requests, Rate: o.Rate, Seed: o.Seed, Gateways: o.Gateways,
		KVBlocks: o.Engine.KVBlocks, BlockSize: o.Engine.BlockSize,
		PrefillRate: round(t.Speed*float64(time.Second)/float64(max(t.PrefillPerToken, 1)), 1), StepFixed: t.StepFixed.Seconds(),
		PrefillOnly: o.PrefillOnly, Reports: reportsName(o.Reports),
		EventDelay: o.EventDelay.Seconds(), EventLoss: o.EventLoss, Outages: []Outage{},
	}}
	r.Conditions.EventRepair, r.Conditions.ReportDelay = known(o.EventRepair.Seconds(), o.EventRepair >= 0), o.ReportDelay.Seconds()
	if o.Peers {
		r.Conditions.Peers = &Peers{Delay: max(o.PeerDelay, 0).Seconds(), Loss: o.PeerLoss}
	}
	for _, x := range o.Outages {
		r.Conditions.Outages = append(r.Conditions.Outages, Outage{x.Engine, x.At.Seconds(), x.For.Seconds()})
	}
	for i, x := range results {
		r.Runs = append(r.Runs, newRow(j.Contenders[i].Name, x))
	}
	return r
}

func newRow(name string, x *replay.Result) Row {
	r := Row{
		Name: name, Engines: len(x.Engines), Requests: x.Requests, Completed: x.Completed, Lost: x.Lost, Retries: x.Retries,
		TTFT: times(&x.TTFT), ITL: times(&x.ITL), E2E: times(&x.E2E), Wait: times(&x.Wait),
		HitRate: known(x.HitRate()), BlockHitRate: known(x.BlockHitRate()),
		BusyImbalance: known(x.BusyImbalance()), RequestImbalance: known(x.RequestImbalance()),
		QueueMean: round(x.Queue.Mean(), 1e6), QueueMax: x.Queue.Peak(), EngineQueueMax: x.QueuePeak,
		Preemptions: x.Preemptions, ReportEvery: x.ReportEvery.Seconds(), ReportsLost: x.ReportsLost, ReportsSent: x.ReportsSent, SpanSeconds: x.Span.Seconds(),
		result: x,
	}
	r.Rejected.NoBucket, r.Rejected.NoEngine = x.Rejected.NoBucket, x.Rejected.NoEngine
	r.Rejected.QueueFull, r.Rejected.TooLong = x.Rejected.QueueFull, x.Rejected.TooLong
	for _, e := range x.Engines {
		r.PerEngine = append(r.PerEngine, EngineShare{e.ID, e.Requests, e.Busy.Seconds(), e.PrefillTokens})
	}
	return r
}

func times(h *replay.Histogram) Times {
	t := Times{Count: h.Count()}
	sec := func(d time.Duration, ok bool) *float64 { return known(round(d.Seconds(), 1e6), ok) }
	t.Mean = sec(h.Mean())
	t.P50, t.P95, t.P99 = sec(h.Quantile(0.50)), sec(h.Quantile(0.95)), sec(h.Quantile(0.99))
	t.Max = sec(h.Max(), h.Count() > 0)
	return t
}

// known returns a figure, rounded to what is meant by it, or nil.
func known(v float64, ok bool) *float64 {
	if !ok {
		return nil
	}
	v = round(v, 1e6)
	return &v
}

// round rounds to 1/per, so that machines whose last bit differs write the same.
func round(v, per float64) float64 { return float64(int64(v*per+0.5)) / per }

func reportsName(r replay.Reports) string {
	return [...]string{"sglang", "vllm", "none"}[r]
}
