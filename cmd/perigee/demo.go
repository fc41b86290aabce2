package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/perigee-llm/perigee/internal/demo"
	"github.com/perigee-llm/perigee/internal/gateway/explain"
)

// demoCmd shows the main job on one machine.
type demoCmd struct {
	Engines  int     `default:"6" help:"How many simulated engines to run, vLLM's and SGLang's shapes in turn. Six are just enough for the trace."`
	Speed    float64 `default:"25" help:"Divides all times, the trace's and the engines', so that the load stays true."`
	From     float64 `default:"0" help:"Where in the trace to begin, in its seconds."`
	Requests int     `help:"How many requests to replay, from there. 0: as --seconds says."`
	Seconds  float64 `help:"How much of the trace to replay, in its seconds. 0, and no --requests: 200."`
	Policy   string  `default:"cost" help:"The policy that is compared with round_robin: cost, cache_aware, power_of_two, load_based, random or round_robin."`
	Manager  bool    `default:"true" negatable:"" help:"Add a run of the policy with a Cache Manager (Linux)."`
	Seed     uint64  `default:"1" help:"Fixes the random choices."`
	JSON     bool    `name:"json" help:"Print one JSON object instead of a table."`
	Keep     bool    `help:"Leave engines and gateway running at the end, until SIGINT."`
	Quiet    bool    `help:"No progress on stderr."`
}

// Help says what is to be seen.
func (demoCmd) Help() string {
	return `Starts engines and a gateway on loopback, replays a slice of a real trace through them over HTTP, under round_robin, under --policy,
and under --policy with a Cache Manager, and prints the runs side by side. docs/demo.md says how to read it.

Examples:
  perigee demo
  perigee demo --policy power_of_two --seconds 100 --json
  perigee demo --requests 50 --keep`
}

// defaultSeconds is the slice of the trace: 728 requests, enough for a 99th percentile and for prefixes to be evicted and missed, and with the
// default speed three runs of 9 s each.
const defaultSeconds = 200

func (c *demoCmd) options() demo.Options {
	o := demo.Options{
		Engines: c.Engines, Speed: c.Speed, From: secondsOf(c.From), Span: secondsOf(c.Seconds), Requests: c.Requests, Policy: c.Policy, Seed: c.Seed, Manager: c.Manager,
	}
	if c.Requests == 0 && c.Seconds == 0 {
		o.Span = defaultSeconds * time.Second
	}
	return o
}

func secondsOf(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Run replays the trace and prints the report.
func (c *demoCmd) Run(rc *runContext) error {
	o := c.options()
	if err := o.Validate(); err != nil {
		return exitError{exitUsage, "demo: " + err.Error()}
	}
	ctx, stop := signal.NotifyContext(rc.ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	o.Log = slog.New(slog.NewTextHandler(rc.stderr, &slog.HandlerOptions{Level: slog.LevelError})) // a poll that comes late shows in the report
	var p *progress
	if !c.Quiet {
		p = newProgress(rc.stderr, c.Speed)
		o.Progress = p.show
	}
	o.Hold = func(r *demo.Report, f *demo.Fleet) error {
		p.end()
		if err := c.print(rc.stdout, r); err != nil {
			return err
		}
		if c.Keep {
			return keep(ctx, rc.stderr, f)
		}
		return nil
	}
	report, err := demo.Run(ctx, o)
	p.end()
	switch {
	case errors.Is(err, demo.ErrNoRequests):
		return exitError{exitUsage, "demo: " + err.Error()}
	case errors.Is(err, context.Canceled):
		return exitError{exitRun, "demo: ended before it was done"}
	case err != nil:
		return fmt.Errorf("demo: %w", err)
	case report.WrongPages > 0:
		return exitError{exitRun, fmt.Sprintf("demo: %d pages from the Cache Manager held other bytes than they must", report.WrongPages)}
	case report.Errors > 0:
		return exitError{exitRun, fmt.Sprintf("demo: %d of %d requests failed", report.Errors, report.Requests)}
	}
	return nil
}

func (c *demoCmd) print(w io.Writer, r *demo.Report) error {
	if c.JSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	_, err := io.WriteString(w, r.Text())
	return err
}

// keep tells what can be tried and waits.
func keep(ctx context.Context, w io.Writer, f *demo.Fleet) error {
	const chat = `{"model":"` + demo.Model + `","messages":[{"role":"user","content":"Hello"}],"max_tokens":16`
	_, err := fmt.Fprintf(w, `
Engines and gateway go on running; Ctrl-C ends them. Try:

  curl -s %[1]s/v1/chat/completions -H 'Content-Type: application/json' -d '%[3]s}'
  curl -sN %[1]s/v1/chat/completions -H 'Content-Type: application/json' -H 'X-Request-Id: mine' -d '%[3]s,"stream":true}'
  perigee explain --url %[2]s --request mine
  perigee explain --url %[2]s --limit 3
`, f.URL(), f.AdminURL(), chat)
	if m := f.ManagerURL(); m != "" && err == nil {
		_, err = fmt.Fprintf(w, "  curl -s %s/status                 the Cache Manager\n", m)
	}
	if err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// progress shows how far the demo is: one line that is written over on a terminal, a line every few seconds elsewhere.
type progress struct {
	w        io.Writer
	terminal bool
	speed    float64
	last     time.Time
	run      int
	open     bool // the terminal's line has no end yet
}

// linesEvery is how often a line is written where it cannot be written over.
const linesEvery = 5 * time.Second

func newProgress(w io.Writer, speed float64) *progress {
	p := &progress{w: w, speed: speed}
	if f, ok := w.(*os.File); ok {
		info, err := f.Stat()
		p.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return p
}

// show is demo.Options.Progress. What cannot be written is not worth ending a demo for.
func (p *progress) show(x demo.Progress) {
	line := fmt.Sprintf("run %d of %d, %s: %s of %s requests, %.0f s of the trace", x.Run, x.Runs, x.Name,
		explain.Grouped(int64(x.Done)), explain.Grouped(int64(x.Total)), x.Elapsed.Seconds()*p.speed)
	if x.Errors > 0 {
		line += fmt.Sprintf(", %d failed", x.Errors)
	}
	if x.Sample != nil {
		p.clear()
		fmt.Fprintln(p.w, "  "+demo.Sentence(x.Sample))
	}
	switch {
	case p.terminal:
		fmt.Fprint(p.w, "\r\x1b[K"+line)
		p.open = true
	case x.Run != p.run || x.Done == x.Total || time.Since(p.last) >= linesEvery:
		fmt.Fprintln(p.w, line)
		p.last = time.Now()
	}
	if x.Run != p.run {
		p.run = x.Run
	}
}

func (p *progress) clear() {
	if p.open {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.open = false
	}
}

// end leaves the terminal's line behind. p may be nil.
func (p *progress) end() {
	if p != nil && p.open {
		fmt.Fprintln(p.w)
		p.open = false
	}
}
