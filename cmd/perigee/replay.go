package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/gateway/assemble"
	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/replay"
	"github.com/perigee-llm/perigee/internal/replay/compare"
	"github.com/perigee-llm/perigee/internal/trace"
)

// replayCmd tries policies on a trace, in virtual time.
type replayCmd struct {
	Trace  string   `placeholder:"FILE" help:"A trace in Mooncake's format, or a log as docs/replay.md describes it; may be compressed with gzip. Default: the Mooncake trace that is built in."`
	Policy []string `placeholder:"A,B" help:"The policies to compare. Default: all, or none where --config is given. prefix_affinity, power_of_two_work, plain_cost and oracle are for comparison only."`
	Config []string `placeholder:"FILE" sep:"none" help:"A gateway's configuration to compare with; may be repeated. It says how many engines it has."`
	Model  string   `placeholder:"ID" help:"The model of the configuration, and of a log's requests."`

	Engines     int           `default:"8" help:"How many engines, where no configuration says it."`
	KVBlocks    int           `name:"kv-blocks" default:"3000" help:"KV blocks of each engine."`
	BlockSize   int           `default:"512" help:"Tokens of a KV block; must divide the trace's block size, which is 512 in Mooncake's format."`
	PrefillRate float64       `default:"8000" help:"Prompt tokens that an engine computes in a second."`
	Step        time.Duration `default:"20ms" help:"Fixed time of an engine's step."`
	MaxRunning  int           `default:"256" help:"Requests in an engine's batch."`
	MaxWaiting  int           `default:"1000" help:"Requests that may wait in an engine; more are refused."`
	PrefillOnly bool          `help:"Each request ends with its first token, and an engine computes one prompt at a time: a plain queue, as in published simulations of routers."`

	Gateways int     `default:"1" help:"How many gateways, each with its own view."`
	Spread   string  `enum:"round_robin,hash" default:"round_robin" help:"How requests are spread over gateways: by number, or by a hash of their session (${enum})."`
	Rate     float64 `default:"1" help:"Divides the times of arrival: 2 is twice the load."`
	Seed     uint64  `default:"1" help:"Fixes every random choice."`

	Reports     string        `enum:"sglang,vllm,none" default:"sglang" help:"What engines tell of their load: as SGLang, as vLLM, or nothing (${enum})."`
	ReportEvery time.Duration `placeholder:"1s" help:"How often each gateway asks each engine for it. Default: as the configuration says, or 1s."`
	EventDelay  time.Duration `default:"0s" help:"How long what an engine tells is under way to a gateway."`
	EventLoss   float64       `default:"0" help:"The share of it that never arrives, 0 to 1."`
	EventRepair time.Duration `default:"1s" help:"How long it takes to get news of an engine's cache that were lost, once their loss is noticed; 0: they never come, and what was known of it is withdrawn."`
	ReportDelay time.Duration `default:"0s" help:"How long load reports are under way beyond --event-delay."`
	Peers       bool          `help:"The gateways tell each other what they send."`
	PeerDelay   time.Duration `default:"50ms" help:"How long that is under way."`
	PeerLoss    float64       `default:"0" help:"The share of it that never arrives, 0 to 1; all is told again once a second."`
	Fail        []string      `placeholder:"engine=N,at=D,for=D" sep:"none" help:"Engine N, from 0, fails at a time and returns empty after another, or never without for; may be repeated."`
	Attempts    int           `placeholder:"3" help:"Selections that a request gets when engines fail, 1 to 3. Default: as the configuration says, or 3."`

	JSON  bool   `name:"json" help:"Print one JSON object instead of a table."`
	SVG   string `name:"svg" placeholder:"FILE" help:"Write a plot: the distribution of TTFT, and the queues over time."`
	Quiet bool   `help:"No progress on stderr."`
}

// Help says what is to be seen.
func (replayCmd) Help() string {
	return `Sends a trace through gateways and simulated engines in virtual time, once for each policy, and prints what each reached. The
policies, the accounting and the engines are those of perigee serve and perigee engine; only the clock is a number. The same
trace and flags give the same bytes. docs/replay.md has a worked example: which policy for my traffic.

Examples:
  perigee replay
  perigee replay --policy round_robin,load_based,oracle --gateways 4 --event-delay 2s --svg plot.svg
  perigee replay --policy load_based --fail engine=3,at=100s,for=30s
  perigee replay --prefill-only --prefill-rate 9000 --json`
}

// Run replays and prints.
func (c *replayCmd) Run(rc *runContext) error {
	job, err := c.job()
	if err != nil {
		return exitError{exitUsage, "replay: " + err.Error()}
	}
	ctx, stop := signal.NotifyContext(rc.ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	var meter *replayMeter
	if !c.Quiet {
		meter = newReplayMeter(rc.stderr, len(job.Contenders))
		job.Progress = meter.show
	}
	report, err := compare.Run(ctx, job)
	meter.end()
	if err != nil {
		return replayError(err)
	}
	if c.SVG != "" {
		if err := os.WriteFile(c.SVG, []byte(report.SVG()), 0o644); err != nil {
			return fmt.Errorf("replay: %w", err)
		}
	}
	if c.JSON {
		enc := json.NewEncoder(rc.stdout)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(report)
	}
	_, err = io.WriteString(rc.stdout, report.Text())
	return err
}

// replayError tells what the caller got wrong from what went wrong.
func replayError(err error) error {
	var line *trace.LineError
	var size *compare.BlockSizeError
	switch {
	case errors.Is(err, context.Canceled):
		return exitError{exitRun, "replay: interrupted"}
	case errors.As(err, &line), errors.As(err, &size), errors.Is(err, compare.ErrNoRequests), errors.Is(err, os.ErrNotExist), errors.Is(err, replay.ErrPD):
		return exitError{exitUsage, "replay: " + err.Error()}
	}
	return fmt.Errorf("replay: %w", err)
}

// job turns the flags into a comparison.
func (c *replayCmd) job() (compare.Job, error) {
	o, err := c.options()
	if err != nil {
		return compare.Job{}, err
	}
	job := compare.Job{Trace: trace.Synthetic(), TraceName: "mooncake synthetic", Model: c.Model, Options: o}
	if c.Trace != "" {
		job.Trace, job.TraceName = trace.Open(c.Trace), c.Trace
	}
	names := c.Policy
	if len(names) == 0 && len(c.Config) == 0 {
		names = replay.Names()
	}
	for _, name := range names {
		x, err := replay.ByName(name)
		if err != nil {
			return compare.Job{}, fmt.Errorf("policy: %w", err)
		}
		job.Contenders = append(job.Contenders, x)
	}
	for _, file := range c.Config {
		x, err := c.configured(file)
		if err != nil {
			return compare.Job{}, err
		}
		if slices.ContainsFunc(job.Contenders, func(y replay.Contender) bool { return y.Name == x.Name }) {
			x.Name = file
		}
		job.Contenders = append(job.Contenders, x)
	}
	if info, err := os.Stat(c.Trace); err == nil && !info.Mode().IsRegular() && len(job.Contenders) > 1 {
		return compare.Job{}, fmt.Errorf("trace: %s is no regular file, and it is read once for each policy; write it to a file, or choose one policy", c.Trace)
	}
	for _, x := range job.Contenders {
		// What a configuration's own number of engines makes wrong is found here, not in the middle of the runs.
		p := o.For(x)
		if err := p.Validate(); err != nil {
			return compare.Job{}, err
		}
	}
	return job, nil
}

func (c *replayCmd) options() (replay.Options, error) {
	if !(c.PrefillRate > 0) || c.PrefillRate > 1e9 {
		return replay.Options{}, errors.New("prefill-rate: choose a number above 0, and at most 1e9")
	}
	for name, n := range map[string]int{"engines": c.Engines, "kv-blocks": c.KVBlocks, "block-size": c.BlockSize, "max-running": c.MaxRunning, "max-waiting": c.MaxWaiting, "gateways": c.Gateways} {
		if n < 1 {
			return replay.Options{}, fmt.Errorf("%s: choose a number from 1", name)
		}
	}
	o := replay.Options{
		Engines: c.Engines, Gateways: c.Gateways, Rate: c.Rate, Seed: c.Seed, PrefillOnly: c.PrefillOnly,
		Engine: engine.Config{
			BlockSize: c.BlockSize, KVBlocks: c.KVBlocks, MaxRunning: c.MaxRunning, MaxWaiting: c.MaxWaiting,
			Timing: engine.Timing{StepFixed: c.Step, PrefillPerToken: max(time.Duration(float64(time.Second)/c.PrefillRate+0.5), 1)},
		},
		Reports: map[string]replay.Reports{"sglang": replay.SGLangReports, "vllm": replay.VLLMReports, "none": replay.NoReports}[c.Reports],
		Spread:  map[string]replay.Spread{"round_robin": replay.SpreadRoundRobin, "hash": replay.SpreadHash}[c.Spread],

		ReportEvery: c.ReportEvery, EventDelay: c.EventDelay, EventLoss: c.EventLoss, Attempts: c.Attempts,
		EventRepair: c.EventRepair, ReportDelay: c.ReportDelay, Peers: c.Peers, PeerDelay: c.PeerDelay, PeerLoss: c.PeerLoss,
	}
	if c.PeerDelay == 0 {
		o.PeerDelay = -1
	}
	if c.EventRepair == 0 {
		o.EventRepair = -1
	}
	if c.Step == 0 {
		o.Engine.Timing.StepFixed = -1 // the engine's word for nothing
	}
	if !(c.Rate > 0) || c.ReportEvery < 0 || c.EventRepair < 0 || c.PeerDelay < 0 {
		return replay.Options{}, errors.New("rate, report-every, event-repair, peer-delay: choose a number above 0")
	}
	for _, text := range c.Fail {
		f, err := parseOutage(text)
		if err != nil {
			return replay.Options{}, err
		}
		o.Outages = append(o.Outages, f)
	}
	return o, nil
}

// parseOutage reads engine=3,at=100s,for=30s.
func parseOutage(text string) (replay.Outage, error) {
	f := replay.Outage{Engine: -1, At: -1}
	for part := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(part, "=")
		var err error
		switch key {
		case "engine":
			f.Engine, err = strconv.Atoi(value)
		case "at":
			f.At, err = time.ParseDuration(value)
		case "for":
			if f.For, err = time.ParseDuration(value); err == nil && f.For <= 0 {
				err = errors.New("not above 0")
			}
		default:
			err = errors.New("unknown")
		}
		if err != nil {
			return f, fmt.Errorf("fail: %q: %s: %v; write engine=3,at=100s,for=30s", text, key, err)
		}
	}
	if f.Engine < 0 || f.At < 0 {
		return f, fmt.Errorf("fail: %q: engine and at are needed and not negative; write engine=3,at=100s,for=30s", text)
	}
	return f, nil
}

func (c *replayCmd) configured(file string) (replay.Contender, error) {
	cfg, faults := config.ParseFile(file)
	if cfg == nil {
		lines := make([]string, 0, len(faults))
		for _, f := range faults {
			lines = append(lines, f.String())
		}
		return replay.Contender{}, fmt.Errorf("config:\n%s", strings.Join(lines, "\n"))
	}
	x, err := compare.Configured(file, cfg, c.Model)
	if err != nil {
		return x, fmt.Errorf("config: %s: %w", file, err)
	}
	x.Breaker = assemble.Breaker(&cfg.Breaker)
	x.Freshness, x.ReportEvery, x.Attempts = cfg.Load.Freshness, cfg.Load.PollInterval, cfg.Server.MaxAttempts
	return x, nil
}

// replayMeter shows how far the runs are: one line that is written over on a terminal, a line for each run that ends elsewhere.
type replayMeter struct {
	w        io.Writer
	terminal bool
	runs     int

	mu   sync.Mutex
	done int
	now  []compare.Progress
	last time.Time
	open bool // the terminal's line has no end yet
}

// meterEvery is how often the terminal's line is written: as often as an eye follows.
const meterEvery = 100 * time.Millisecond

func newReplayMeter(w io.Writer, runs int) *replayMeter {
	return &replayMeter{w: w, terminal: isTerminal(w), runs: runs, now: make([]compare.Progress, runs)}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// show is compare.Job.Progress. What cannot be written is not worth ending a replay for.
func (m *replayMeter) show(i int, p compare.Progress) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now[i] = p
	if p.Done {
		m.done++
	}
	switch {
	case !m.terminal && p.Done:
		fmt.Fprintf(m.w, "%s: %d requests, %.0f s of the trace (%d of %d)\n", p.Contender, p.Arrived, p.Now.Seconds(), m.done, m.runs)
	case m.terminal && (p.Done || time.Since(m.last) >= meterEvery):
		m.last, m.open = time.Now(), true
		line := fmt.Sprintf("%d of %d done", m.done, m.runs)
		at := slices.IndexFunc(m.now, func(x compare.Progress) bool { return x.Arrived > 0 && !x.Done })
		if at >= 0 {
			x := m.now[at]
			line += fmt.Sprintf("; %s: %d requests, %.0f s of the trace", x.Contender, x.Arrived, x.Now.Seconds())
		}
		fmt.Fprint(m.w, "\r\x1b[K"+line)
	}
}

// end takes the terminal's line away: the result follows. m may be nil.
func (m *replayMeter) end() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open {
		fmt.Fprint(m.w, "\r\x1b[K")
		m.open = false
	}
}
