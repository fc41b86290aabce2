package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perigee-llm/perigee/bench/eval/judge"
)

const testPlan = `{"version": 1, "name": "t", "about": "A test.", "seed": 3, "arms": ["without", "perigee"], "baseline": "without", "candidate": "perigee",
 "confidence": 0.95, "resamples": 1000, "least": {"p50": 10, "p95": 59, "p99": 299, "clusters": 10},
 "setup": {"blocks": 1, "block_tokens": 32, "max_len": 2000, "max_seqs": 1, "pool_bytes": 1, "lookup_ms": 1, "save_ms": 1, "load_ms": 1},
 "cells": [{"name": "warm", "kind": "restored", "tokens": 1000, "answer": 2, "concurrency": 1, "clusters": 12}],
 "rules": [{"cell": "warm", "metric": "ttft_ms", "stat": "p50", "at_most": 0.8, "why": "else it is not worth it"},
  {"cell": "warm", "metric": "failures", "arm": "perigee", "at_most": 0, "why": "none"}]}`

// files writes a plan and a run of it, and gives their names and a prefix for results.
func files(t *testing.T, change func(r *Run)) (plan, run, prefix string) {
	t.Helper()
	folder := t.TempDir()
	plan, run, prefix = filepath.Join(folder, "plan.json"), filepath.Join(folder, "run.json"), filepath.Join(folder, "out")
	write(t, plan, []byte(testPlan))
	_, sum, err := readPlan(plan)
	if err != nil {
		t.Fatal(err)
	}
	r := Run{Version: 1, Plan: sum, Committed: true, Started: "2026-11-30T10:00:00Z", Ended: "2026-11-30T10:01:00Z", Where: Where{CPU: "a CPU", Cores: 2},
		Load: []LoadPoint{{0, 3}, {1, 9}, {2, 4}}, Versions: [][2]string{{"vllm", "0"}}, Counters: []Counter{{"warm", "manager", "restores", 3}}}
	for i := range 12 {
		for arm, ms := range map[string]float64{"without": 100, "perigee": 50} {
			r.Samples = append(r.Samples, Sample{Cell: "warm", Arm: arm, Pair: i, Cluster: i, TTFT: ms + float64(i), Total: 200, Tokens: 2, Cached: 900, Expect: 900, Answer: "a"})
		}
	}
	change(&r)
	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	write(t, run, raw)
	return plan, run, prefix
}

func write(t *testing.T, name string, raw []byte) {
	t.Helper()
	if err := os.WriteFile(name, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(r *Run)
		failed bool
		want   string // in what is printed or in the Markdown
	}{
		{"it holds", func(*Run) {}, false, "pass     warm: p50 of ttft_ms, candidate by baseline, at most 0.8"},
		{"the load is said", func(*Run) {}, false, "Load average of a minute 3.0 to 9.0, median 4.0."},
		{"a failure of ours", func(r *Run) {
			for i := range r.Samples {
				if r.Samples[i].Arm == "perigee" && r.Samples[i].Pair == 4 {
					r.Samples[i].Failed, r.Samples[i].TTFT, r.Samples[i].Total = "timed out", 0, 0
				}
			}
		}, true, "| perigee | 12 | 1 | 0 | 0 |"},
		{"nothing was declared", func(r *Run) { r.Committed = false }, false, "nothing here is a verdict"},
		{"what was there and was not found", func(r *Run) {
			for i := range r.Samples {
				r.Samples[i].Cached = 0
			}
		}, false, "| perigee | 12 | 0 | 12 | 0 |"},
		{"other answers", func(r *Run) {
			for i := range r.Samples {
				r.Samples[i].Answer = r.Samples[i].Arm
			}
		}, false, "| perigee | 12 | 0 | 0 | 12 |"},
		{"stages", func(r *Run) { r.Samples[0].Timeline = map[string]float64{"host_ready": 3, "enqueue": 1.5} }, false, "enqueue 1.5 (1), host_ready 3.0 (1)"},
	} {
		plan, file, prefix := files(t, c.change)
		var out bytes.Buffer
		failed, err := run([]string{"judge", "-plan", plan, "-run", file, "-out", prefix}, &out)
		md, _ := os.ReadFile(prefix + ".md")
		raw, _ := os.ReadFile(prefix + ".json")
		if err != nil || failed != c.failed || !strings.Contains(out.String()+string(md), c.want) {
			t.Errorf("%s: %v %v\n%s\n%s", c.name, failed, err, out.String(), md)
		}
		var kept struct{ Run Run }
		if err := json.Unmarshal(raw, &kept); err != nil || len(kept.Run.Samples) != 24 || len(kept.Run.Load) != 3 || len(kept.Run.Counters) != 1 {
			t.Errorf("%s: what is kept: %v, %d samples", c.name, err, len(kept.Run.Samples))
		}
	}
}

func TestRefused(t *testing.T) {
	for want, change := range map[string]func(r *Run){
		"another plan":       func(r *Run) { r.Plan = strings.Repeat("0", 64) },
		"not in the plan":    func(r *Run) { r.Samples[0].Arm = "else" },
		"is not an answer":   func(r *Run) { r.Samples[0].TTFT = 0 },
		"version":            func(r *Run) { r.Version = 2 },
		"cell \"cold\" of a": func(r *Run) { r.Samples[3].Cell = "cold" },
	} {
		plan, file, prefix := files(t, change)
		_, err := run([]string{"judge", "-plan", plan, "-run", file, "-out", prefix}, &bytes.Buffer{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
		if _, err := os.Stat(prefix + ".json"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: there is a result", want)
		}
	}
}

func TestArguments(t *testing.T) {
	for _, args := range [][]string{nil, {"check"}, {"judge"}, {"judge", "-plan", "x"}, {"judge", "-else"}, {"guess"}} {
		if _, err := run(args, &bytes.Buffer{}); !errors.Is(err, errUsage) {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// TestPlans: every plan that is kept here can be judged.
func TestPlans(t *testing.T) {
	plans, _ := filepath.Glob("plans/*.json")
	if len(plans) == 0 {
		t.Fatal("no plans")
	}
	for _, name := range plans {
		var out bytes.Buffer
		if _, err := run([]string{"check", name}, &out); err != nil || out.Len() != 65 {
			t.Errorf("%v %q", err, out.String())
		}
	}
}

func TestNumbers(t *testing.T) {
	for x, want := range map[float64]string{1.23456789: "1.2346", 100: "100", math.Inf(1): `"inf"`, math.Inf(-1): `"-inf"`} {
		if got, err := json.Marshal(number(x)); err != nil || string(got) != want {
			t.Errorf("%v: %s %v", x, got, err)
		}
	}
	if got, err := json.Marshal(number(math.NaN())); err != nil || string(got) != "null" {
		t.Errorf("%s %v", got, err)
	}
}

// FuzzPlan: whatever a file says, a plan that is accepted can be judged.
func FuzzPlan(f *testing.F) {
	f.Add([]byte(testPlan))
	f.Add([]byte(`{"version": 1, "rules": [{}], "cells": [{}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var p judge.Plan
		if decode(raw, &p) != nil || p.Validate() != nil || p.Resamples > 2000 {
			return
		}
		r := Run{Version: 1, Plan: "x"}
		for i, c := range p.Cells {
			for _, a := range p.Arms {
				r.Samples = append(r.Samples, Sample{Cell: c.Name, Arm: a, Pair: i, TTFT: 1, Total: 2, Tokens: 2})
			}
		}
		res := newResult(&p, &r)
		var md bytes.Buffer
		writeMarkdown(&md, &p, &r, res)
		if _, err := marshal(res); err != nil {
			t.Error(fmt.Errorf("%w of %s", err, raw))
		}
	})
}

// TestDriver runs the driver's own checks, which need no engine.
func TestDriver(t *testing.T) {
	if out, err := exec.Command("python3", "-I", "-B", "drive_vllm_check.py").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
