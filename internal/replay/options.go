package replay

import (
	"errors"
	"iter"
	"strconv"
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
)

// Arrival is one request of a trace.
type Arrival struct {
	// At is its time from the start of the trace; arrivals come in this order.
	At time.Duration
	// InputTokens and OutputTokens are the lengths of prompt and answer, both at least 1.
	InputTokens, OutputTokens int
	// Blocks has a hash for each block of the engines' block size that the prompt begins; see [engine.Request]. It belongs to
	// the run.
	Blocks []engine.BlockHash
	// Session is the same for requests of one conversation; 0: none is known.
	Session uint64
}

// Source yields the arrivals of a trace; an error ends it.
type Source = iter.Seq2[Arrival, error]

// Reports is what engines tell of their load.
type Reports uint8

// What engines tell.
const (
	SGLangReports Reports = iota // everything that SGLang's /v1/loads has
	VLLMReports                  // what vLLM's /metrics has: requests and KV use, but neither uncached tokens nor prefill speed
	NoReports                    // nothing: a gateway knows what itself has in flight
)

// Spread says which gateway a request comes in at.
type Spread uint8

// How requests are spread.
const (
	SpreadRoundRobin Spread = iota // by the request's number
	SpreadHash                     // by a hash of its session, or of its number where it has none
)

// Outage is an engine that fails: what runs on it is lost, its cache is empty when it returns.
type Outage struct {
	Engine int // from 0
	At     time.Duration
	For    time.Duration // 0: it does not return
}

// Options are the conditions of a run, the same for all contenders. The zero value of a field takes the default that its
// comment names; Seed and what says "0: none" have none.
type Options struct {
	// Engines is how many there are; default 8. A contender that names its engines has as many as it names.
	Engines int
	// Engine shapes each of them, less PageBytes, which is off, and KVEvents, which is on where they may be late or lost. A zero MaxModelLen means the pool's capacity.
	Engine engine.Config
	// PrefillOnly has each request end with its first token and each engine compute one prompt at a time: a plain serial queue.
	PrefillOnly bool
	// Gateways is how many there are; default 1. Each knows only its own requests, and what the engines tell it.
	Gateways int
	Spread   Spread
	// Rate divides the arrivals' times: 2 replays the trace twice as fast; default 1. The engines stay as they are.
	Rate float64
	// Seed fixes every random choice.
	Seed uint64

	Reports Reports
	// ReportEvery is how often each gateway asks each engine for its load; default 1 s, the gateway's.
	ReportEvery time.Duration
	// EventDelay is how long what an engine tells is under way to a gateway, EventLoss the share that never arrives, 0 to 1.
	// 0: none.
	EventDelay time.Duration
	EventLoss  float64
	// EventRepair is how long it takes to get KV events that were missed, from when the next ones show it; default 1 s. Below 0: they never
	// come, and what was known of the engine's cache before them is withdrawn.
	EventRepair time.Duration
	// ReportDelay is how long load reports are under way beyond EventDelay. 0: none.
	ReportDelay time.Duration

	// Peers has gateways tell each other what they send. PeerDelay is how long that is under way, default 50 ms; below 0: no time. PeerLoss is the share
	// that never arrives, 0 to 1. Everything is told again once a second.
	Peers     bool
	PeerDelay time.Duration
	PeerLoss  float64

	Outages []Outage
	// Attempts is how many selections a request gets, 1 to 3; default 3, the gateway's.
	Attempts int
	// Breaker and Freshness are the gateway's; their zero values are its defaults.
	Breaker   fleet.BreakerConfig
	Freshness time.Duration

	// Observe gets every event of a request, in order; nil: nobody wants to know. It must not keep the pointer.
	Observe func(*Event)
	// Progress is called now and then with the virtual time and the requests that have arrived; nil: nobody wants to know.
	Progress func(now time.Duration, arrived int)
}

// Defaults of Options.
const (
	DefaultEngines     = 8
	DefaultReportEvery = time.Second
	DefaultAttempts    = 3
	// DefaultPeerDelay is a batch of 20 ms and a slow network.
	DefaultPeerDelay = 50 * time.Millisecond
	// DefaultKVBlocks of DefaultBlockSize tokens: 1.5 million tokens an engine, those of the public router simulations that we
	// compare with.
	DefaultKVBlocks  = 3000
	DefaultBlockSize = 512
)

// For returns o as a contender meets it: with what that brings along, and with the defaults.
func (o Options) For(c Contender) Options {
	if c.Workers != nil {
		o.Engines = len(c.Workers)
	}
	def(&o.Breaker, c.Breaker)
	def(&o.Freshness, c.Freshness)
	def(&o.ReportEvery, c.ReportEvery)
	def(&o.Attempts, c.Attempts)
	return o.WithDefaults()
}

// WithDefaults returns o with its defaults filled in.
func (o Options) WithDefaults() Options {
	def(&o.Engines, DefaultEngines)
	def(&o.Gateways, 1)
	def(&o.Rate, 1)
	def(&o.ReportEvery, DefaultReportEvery)
	def(&o.Attempts, DefaultAttempts)
	def(&o.EventRepair, DefaultEventRepair)
	def(&o.PeerDelay, DefaultPeerDelay)
	def(&o.Engine.KVBlocks, DefaultKVBlocks)
	def(&o.Engine.BlockSize, DefaultBlockSize)
	capacity := o.Engine.KVBlocks * o.Engine.BlockSize
	def(&o.Engine.MaxModelLen, capacity)
	if o.PrefillOnly {
		o.Engine.MaxRunning, o.Engine.MaxBatchTokens, o.Engine.MaxWaiting = 1, max(capacity, 1), 1<<30
	}
	o.Engine.PageBytes, o.Engine.KVEvents = 0, !o.perfectNews()
	return o
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// Limits of Options, against slips of the keyboard: beyond them a run takes hours or all memory.
const (
	maxEngines  = 4096
	maxGateways = 256
)

// Validate reports every option that is out of range, joined. o must have its defaults.
func (o *Options) Validate() error {
	var errs []error
	say := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New(what))
		}
	}
	say(o.Engines >= 1 && o.Engines <= maxEngines, "engines: choose 1 to "+strconv.Itoa(maxEngines))
	say(o.Gateways >= 1 && o.Gateways <= maxGateways, "gateways: choose 1 to "+strconv.Itoa(maxGateways))
	say(o.Rate >= 0.01 && o.Rate <= 1e6, "rate: choose 0.01 to a million") // below it a year of trace is beyond what a Duration holds
	say(o.ReportEvery >= time.Millisecond, "report interval: choose 1ms or more")
	say(o.EventDelay >= 0 && o.EventDelay <= time.Hour, "event delay: choose 0 to 1h")
	say(o.EventRepair <= time.Hour, "event repair: choose up to 1h")
	say(o.ReportDelay >= 0 && o.ReportDelay <= time.Hour, "report delay: choose 0 to 1h")
	say(o.PeerDelay <= time.Hour, "peer delay: choose 0 to 1h")
	say(o.PeerLoss >= 0 && o.PeerLoss <= 1, "peer loss: choose 0 to 1")
	say(o.EventLoss >= 0 && o.EventLoss <= 1, "event loss: choose 0 to 1")
	say(o.Attempts >= 1 && o.Attempts <= DefaultAttempts, "attempts: choose 1 to 3")
	for i, f := range o.Outages {
		say(f.Engine >= 0 && f.Engine < o.Engines, "fail: there is no engine "+strconv.Itoa(f.Engine)+", they go from 0 to "+strconv.Itoa(o.Engines-1))
		say(f.At >= 0 && f.For >= 0, "fail: times are not negative")
		for _, g := range o.Outages[:i] {
			overlap := f.Engine == g.Engine && (g.For == 0 || f.At < g.At+g.For) && (f.For == 0 || g.At < f.At+f.For)
			say(!overlap, "fail: engine "+strconv.Itoa(f.Engine)+" fails while it is down")
		}
	}
	if err := o.Engine.Validate(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
