package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/perigee-llm/perigee/bench/eval/judge"
)

// stage is when the median request that reached a stage reached it, in milliseconds after its arrival.
type stage struct {
	Stage    string `json:"stage"`
	P50      number `json:"ms"`
	Requests int    `json:"requests"`
}

func timelines(r *Run) map[string][]stage {
	at := map[string]map[string][]float64{}
	for _, s := range r.Samples {
		for name, ms := range s.Timeline {
			if at[s.Cell] == nil {
				at[s.Cell] = map[string][]float64{}
			}
			at[s.Cell][name] = append(at[s.Cell][name], ms)
		}
	}
	out := map[string][]stage{}
	for cell, stages := range at {
		for name, all := range stages {
			slices.Sort(all)
			out[cell] = append(out[cell], stage{name, number(judge.Percentile(all, 0.5)), len(all)})
		}
		slices.SortFunc(out[cell], func(a, b stage) int { return cmp.Or(cmp.Compare(a.P50, b.P50), cmp.Compare(a.Stage, b.Stage)) })
	}
	return out
}

func describe(r judge.Rule) string {
	what := r.Metric
	if r.Stat != "" {
		what = r.Stat + " of " + what
	}
	who := r.Arm
	if who == "" {
		who = "candidate by baseline"
	}
	return fmt.Sprintf("%s: %s, %s, at most %v", r.Cell, what, who, r.AtMost)
}

func show(i *interval, digits int) string {
	if i == nil {
		return "unknown"
	}
	f := func(n number) string {
		if math.IsInf(float64(n), 0) {
			return "∞"
		}
		return fmt.Sprintf("%.*f", digits, float64(n))
	}
	return fmt.Sprintf("%s (%s to %s)", f(i[0]), f(i[1]), f(i[2]))
}

func writeMarkdown(w io.Writer, plan *judge.Plan, r *Run, res *Result) {
	p := func(format string, args ...any) { fmt.Fprintf(w, format, args...) }
	p("# %s\n\n%s\n\n", plan.Name, plan.About)
	p("Plan `%.16s` (seed %d), run from %s to %s.", r.Plan, plan.Seed, r.Started, r.Ended)
	if !r.Committed {
		p(" **The plan was not committed before the run: nothing here is a verdict.**")
	}
	p("\n\nWhere: %s, %d cores, %.0f GiB, Linux %s. Load average of a minute %s.", r.Where.CPU, r.Where.Cores, float64(r.Where.MemoryBytes)/(1<<30), r.Where.Kernel, loads(r.Load))
	if r.Where.CPUSeconds > 0 {
		p(" Other processes used %.0f %% of the processor time.", 100*r.Where.Others/r.Where.CPUSeconds)
	}
	if r.Where.Note != "" {
		p(" %s", r.Where.Note)
	}
	p("\n\n")
	for _, v := range r.Versions {
		p("- %s: %s\n", v[0], v[1])
	}
	p("\nIntervals are of %.0f %%. All times are milliseconds from a request's arrival, waiting included; a request that failed counts as one without end.\n\n", 100*plan.Confidence)
	p("## Verdicts\n\n| | rule | measured | declared because |\n|---|---|---|---|\n")
	for _, v := range res.Verdicts {
		digits := 3
		if v.Rule.Stat != "" && v.Rule.Arm != "" {
			digits = 0
		}
		got := show(v.Got, digits)
		if v.Rule.Stat == "" && v.Got != nil { // a share is of what was run, and has no interval
			got = fmt.Sprintf("%.3f", float64(v.Got[0]))
		}
		if v.Reason != "" {
			got += "; " + v.Reason
		}
		p("| **%s** | %s | %s | %s |\n", v.Verdict, describe(v.Rule), got, v.Rule.Why)
	}
	for _, c := range res.Cells {
		writeCell(p, plan, c)
	}
}

func writeCell(p func(string, ...any), plan *judge.Plan, c cellResult) {
	cell := plan.Cells[slices.IndexFunc(plan.Cells, func(x judge.Cell) bool { return x.Name == c.Cell })]
	p("\n## %s\n\n%s\n\n", c.Cell, cellInWords(cell))
	p("| time to first token | requests | failed | missed | other answers | p50 | p95 | p99 |\n|---|---|---|---|---|---|---|---|\n")
	for _, a := range c.Arms {
		q := a.Metrics[judge.TTFT]
		p("| %s | %d | %d | %d | %d | %s | %s | %s |\n", a.Arm, a.Samples, a.Failed, a.Missed, a.Differs, show(q.P50, 0), show(q.P95, 0), show(q.P99, 0))
	}
	p("\n| %s by %s | p50 | p95 | p99 |\n|---|---|---|---|\n", plan.Candidate, plan.Baseline)
	for _, m := range []struct{ metric, words string }{{judge.TTFT, "first token"}, {judge.Total, "whole answer"}, {judge.Gap, "between tokens"}} {
		x := c.Compared[m.metric]
		p("| %s, ratio | %s | %s | %s |\n", m.words, show(x.Ratio.P50, 3), show(x.Ratio.P95, 3), show(x.Ratio.P99, 3))
		p("| %s, difference in ms | %s | %s | %s |\n", m.words, show(x.Difference.P50, 1), show(x.Difference.P95, 1), show(x.Difference.P99, 1))
	}
	if len(c.Timeline) > 0 {
		var parts []string
		for _, s := range c.Timeline {
			parts = append(parts, fmt.Sprintf("%s %.1f (%d)", s.Stage, float64(s.P50), s.Requests))
		}
		p("\nStages of %s, median in ms after the arrival (requests that reached it): %s.\n", plan.Candidate, strings.Join(parts, ", "))
	}
}

func cellInWords(c judge.Cell) string {
	switch c.Kind {
	case judge.Restored:
		return fmt.Sprintf("%d prompts of %d tokens that were computed before, one at a time, with the engine's own cache emptied before each; %d tokens are answered.", c.Samples(), c.Tokens, c.Answer)
	case judge.Cold:
		return fmt.Sprintf("%d prompts of %d tokens that nobody has seen, one at a time; %d tokens are answered.", c.Samples(), c.Tokens, c.Answer)
	default:
		before := ""
		if c.Warm {
			before = " Each prefix was computed once before."
		}
		return fmt.Sprintf("%d bursts of %d requests at once, each one of %d prefixes of %d tokens and %d tokens of its own; %d tokens are answered. Caches are left as they are.%s", c.Clusters, c.Concurrency, c.Prefixes, c.Tokens, c.Tail, c.Answer, before)
	}
}

func loads(points []LoadPoint) string {
	if len(points) == 0 {
		return "unknown"
	}
	all := make([]float64, 0, len(points))
	for _, x := range points {
		all = append(all, x.Load1)
	}
	slices.Sort(all)
	return fmt.Sprintf("%.1f to %.1f, median %.1f", all[0], all[len(all)-1], judge.Percentile(all, 0.5))
}
