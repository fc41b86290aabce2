package main

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"

	"github.com/perigee-llm/perigee/bench/eval/judge"
)

// Result is the file that is kept: version 1. The plan is in it as it was judged, and so is the run, with every sample.
type Result struct {
	Version  int                `json:"version"`
	Verdicts []verdict          `json:"verdicts"`
	Cells    []cellResult       `json:"cells"`
	Plan     *judge.Plan        `json:"plan"`
	Run      *Run               `json:"run"`
	report   judge.Report       // what it was made of
	timeline map[string][]stage // by cell
}

type verdict struct {
	Rule    judge.Rule `json:"rule"`
	Verdict string     `json:"verdict"`
	Got     *interval  `json:"got,omitempty"`
	Reason  string     `json:"reason,omitempty"`
}

// interval is a figure with the ends of its interval; "inf" for a time without end, since JSON has no word for it.
type interval [3]number

type number float64

func (n number) MarshalJSON() ([]byte, error) {
	switch x := float64(n); {
	case math.IsInf(x, 1):
		return []byte(`"inf"`), nil
	case math.IsInf(x, -1):
		return []byte(`"-inf"`), nil
	case math.IsNaN(x):
		return []byte("null"), nil
	default:
		return strconv.AppendFloat(nil, math.Round(x*1e4)/1e4, 'f', -1, 64), nil
	}
}

type cellResult struct {
	Cell     string                `json:"cell"`
	Clusters int                   `json:"clusters"`
	Arms     []armResult           `json:"arms"`
	Compared map[string]comparison `json:"compared"` // the candidate with the baseline
	Timeline []stage               `json:"timeline_p50_ms,omitempty"`
}

type armResult struct {
	Arm     string               `json:"arm"`
	Samples int                  `json:"samples"`
	Failed  int                  `json:"failed"`
	Missed  int                  `json:"missed"`
	Differs int                  `json:"differs"`
	Metrics map[string]quantiles `json:"metrics"`
}

type comparison struct {
	Difference quantiles `json:"difference_ms"`
	Ratio      quantiles `json:"ratio"`
}

// quantiles: null where there are too few samples.
type quantiles struct {
	P50 *interval `json:"p50"`
	P95 *interval `json:"p95"`
	P99 *interval `json:"p99"`
}

func intervalOf(i *judge.Interval) *interval {
	if i == nil {
		return nil
	}
	return &interval{number(i.Value), number(i.Low), number(i.High)}
}

func quantilesOf(q judge.Quantity) quantiles {
	return quantiles{intervalOf(q.P50), intervalOf(q.P95), intervalOf(q.P99)}
}

func newResult(plan *judge.Plan, r *Run) *Result {
	out := &Result{Version: 1, Plan: plan, Run: r, report: plan.Judge(r.judged(plan)), timeline: timelines(r)}
	for _, v := range out.report.Verdicts {
		if !r.Committed { // then nobody can tell what was declared before
			v.Verdict, v.Reason = judge.Unknown, "the plan was not committed before the run"
		}
		out.Verdicts = append(out.Verdicts, verdict{v.Rule, v.Verdict, intervalOf(v.Got), v.Reason})
	}
	for _, c := range out.report.Cells {
		cell := cellResult{Cell: c.Cell.Name, Clusters: c.Clusters, Compared: map[string]comparison{}, Timeline: out.timeline[c.Cell.Name]}
		for _, a := range c.Arms {
			m := map[string]quantiles{}
			for k, q := range a.Metrics {
				m[k] = quantilesOf(q)
			}
			cell.Arms = append(cell.Arms, armResult{a.Name, a.Samples, a.Failed, a.Missed, a.Differs, m})
		}
		for k, x := range c.Compared {
			cell.Compared[k] = comparison{quantilesOf(x.Difference), quantilesOf(x.Ratio)}
		}
		out.Cells = append(out.Cells, cell)
	}
	return out
}

// marshal indents all but the long lists, which have an element a line: a result is looked at by people and compared by git.
func marshal(r *Result) ([]byte, error) {
	run := *r.Run
	samples, load, counters := run.Samples, run.Load, run.Counters
	run.Samples, run.Load, run.Counters = nil, nil, nil
	short := *r
	short.Run = &run
	raw, err := json.MarshalIndent(short, "", " ")
	if err != nil {
		return nil, err
	}
	for name, list := range map[string]any{"load": load, "counters": counters, "samples": samples} {
		lines, err := elements(list)
		if err != nil {
			return nil, err
		}
		raw = bytes.Replace(raw, []byte(`"`+name+`": null`), append([]byte(`"`+name+`": `), lines...), 1)
	}
	return append(raw, '\n'), nil
}

func elements(list any) ([]byte, error) {
	raw, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	var each []json.RawMessage
	if err := json.Unmarshal(raw, &each); err != nil {
		return nil, err
	}
	out := []byte("[")
	for i, e := range each {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(out, '\n'), e...)
	}
	return append(out, ']'), nil
}
