package main

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/perigee-llm/perigee/bench/eval/judge"
)

// Run is what a driver writes: version 1 of it. Whatever it could not find out it leaves out or says in words; it never makes up a figure.
type Run struct {
	Version int    `json:"version"`
	Plan    string `json:"plan_sha256"`
	// Committed: the plan was in the repository, unchanged, before the run. Without it nothing was declared, and every verdict is unknown.
	Committed bool        `json:"plan_committed"`
	Started   string      `json:"started"` // RFC 3339
	Ended     string      `json:"ended"`
	Where     Where       `json:"where"`
	Versions  [][2]string `json:"versions"` // (what, version)
	Load      []LoadPoint `json:"load"`
	Counters  []Counter   `json:"counters"`
	Samples   []Sample    `json:"samples"`
}

// Where is the machine.
type Where struct {
	CPU         string  `json:"cpu"`
	Cores       int     `json:"cores"`
	MemoryBytes int64   `json:"memory_bytes"`
	Kernel      string  `json:"kernel"`
	Note        string  `json:"note,omitempty"` // what else ran there
	CPUSeconds  float64 `json:"cpu_seconds"`    // that all cores had during the run: cores times its length
	Others      float64 `json:"others_seconds"` // of them used by processes that are not of the run
}

// LoadPoint is the load average of a minute as it was seconds after the start.
type LoadPoint struct {
	At    float64 `json:"at_s"`
	Load1 float64 `json:"load1"`
}

// Counter is by how much a counter of an engine or of the Manager grew during a cell.
type Counter struct {
	Cell  string  `json:"cell"`
	Of    string  `json:"of"` // an arm, or "manager"
	Name  string  `json:"name"`
	Delta float64 `json:"delta"`
}

// Sample is one request. Times are milliseconds after its arrival.
type Sample struct {
	Cell    string  `json:"cell"`
	Arm     string  `json:"arm"`
	Pair    int     `json:"pair"`
	Cluster int     `json:"cluster"`
	Order   int     `json:"order"` // its arm's place in the cluster, from 0
	Prompt  int     `json:"prompt_tokens"`
	TTFT    float64 `json:"ttft_ms"`
	Total   float64 `json:"total_ms"`
	Tokens  int     `json:"tokens"`
	Cached  int     `json:"cached"`           // tokens that the engine says it did not compute; -1: it did not say
	Expect  int     `json:"expect"`           // tokens that were there to be found; -1: nobody knows
	Failed  string  `json:"failed,omitempty"` // in words
	Answer  string  `json:"answer"`           // a hash of its tokens
	// Timeline is when its stages were reached, by name, where the adapter's trace was on.
	Timeline map[string]float64 `json:"timeline,omitempty"`
}

// mostRun bounds what is read: a sample is some 300 bytes, and half a million are more than anybody runs.
const mostRun = 256 << 20

func readRun(name string, plan *judge.Plan, sum string) (*Run, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if info.Size() > mostRun {
		return nil, fmt.Errorf("%d bytes, at most %d", info.Size(), mostRun)
	}
	raw, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var r Run
	if err := decode(raw, &r); err != nil {
		return nil, err
	}
	return &r, r.check(plan, sum)
}

// check says whether a run is one of the plan's.
func (r *Run) check(plan *judge.Plan, sum string) error {
	if r.Version != 1 {
		return errors.New("version: 1 is the only one")
	}
	if r.Plan != sum {
		return fmt.Errorf("it was made by another plan, %.16s…, and not by %.16s…", r.Plan, sum)
	}
	for i, s := range r.Samples {
		if !slices.ContainsFunc(plan.Cells, func(c judge.Cell) bool { return c.Name == s.Cell }) || !slices.Contains(plan.Arms, s.Arm) {
			return fmt.Errorf("sample %d: cell %q of arm %q is not in the plan", i, s.Cell, s.Arm)
		}
		if s.Failed == "" && (s.TTFT <= 0 || s.Total < s.TTFT || s.Tokens < 1) {
			return fmt.Errorf("sample %d: %v ms to the first of %d tokens and %v ms in all is not an answer, and it is not said to have failed", i, s.TTFT, s.Tokens, s.Total)
		}
	}
	return nil
}

// judged are the samples as the core wants them.
func (r *Run) judged(plan *judge.Plan) []judge.Sample {
	type key struct {
		cell string
		pair int
	}
	baseline := map[key]string{}
	for _, s := range r.Samples {
		if s.Arm == plan.Baseline && s.Failed == "" {
			baseline[key{s.Cell, s.Pair}] = s.Answer
		}
	}
	out := make([]judge.Sample, 0, len(r.Samples))
	for _, s := range r.Samples {
		want, known := baseline[key{s.Cell, s.Pair}]
		out = append(out, judge.Sample{
			Cell: s.Cell, Arm: s.Arm, Pair: s.Pair, Cluster: s.Cluster, TTFT: s.TTFT, Total: s.Total, Tokens: s.Tokens, Failed: s.Failed != "",
			Missed: s.Arm == plan.Candidate && s.Expect >= 0 && s.Cached < s.Expect, Differs: s.Failed == "" && known && s.Answer != want,
		})
	}
	return out
}
