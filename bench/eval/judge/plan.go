package judge

import (
	"errors"
	"math"
	"slices"
	"strconv"
)

// Plan is what is declared before a run. The zero value is not valid.
type Plan struct {
	Version int    `json:"version"` // 1
	Name    string `json:"name"`    // of the results' files: letters, digits and hyphens
	About   string `json:"about"`
	// Seed of everything that is drawn: prompts, orders, resamples.
	Seed uint64 `json:"seed"`
	// Candidate is compared with Baseline; both are among Arms.
	Arms      []string `json:"arms"`
	Baseline  string   `json:"baseline"`
	Candidate string   `json:"candidate"`
	// Confidence of all intervals, two-sided.
	Confidence float64 `json:"confidence"`
	// Resamples of the bootstrap.
	Resamples int    `json:"resamples"`
	Least     Least  `json:"least"`
	Setup     Setup  `json:"setup"`
	Cells     []Cell `json:"cells"`
	Rules     []Rule `json:"rules"`
}

// Least is how many samples of an arm a percentile needs, and how many clusters.
type Least struct {
	P50      int `json:"p50"`
	P95      int `json:"p95"`
	P99      int `json:"p99"`
	Clusters int `json:"clusters"`
}

// Setup is what the driver makes the engines and the Manager of.
type Setup struct {
	Blocks      int   `json:"blocks"`       // of an engine's KV cache
	BlockTokens int   `json:"block_tokens"` // of one block
	MaxLen      int   `json:"max_len"`      // tokens of prompt and answer
	MaxSeqs     int   `json:"max_seqs"`     // requests that an engine runs at once
	PoolBytes   int64 `json:"pool_bytes"`   // of the Manager
	LookupMS    int   `json:"lookup_ms"`    // the adapter's budgets
	SaveMS      int   `json:"save_ms"`
	LoadMS      int   `json:"load_ms"`
}

// The kinds of cells.
const (
	// Restored: prompts that were computed before; every engine's own cache is empty. One at a time.
	Restored = "restored"
	// Cold: prompts that nobody has seen: what a cache costs that cannot help. One at a time.
	Cold = "cold"
	// Pressure: bursts of requests over prefixes that together do not fit into an engine, caches as they come. If Warm, each prefix was computed once before.
	Pressure = "pressure"
)

// Cell is one kind of request in one number at once.
type Cell struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
	// Tokens of a prompt; of a prefix with Pressure, where Tail more follow that are nobody else's.
	Tokens int `json:"tokens"`
	Tail   int `json:"tail,omitempty"`
	// Answer is how many tokens are asked for, at least 2.
	Answer int `json:"answer"`
	// Prefixes that Pressure draws from, the n-th with a weight of 1/n.
	Prefixes int `json:"prefixes,omitempty"`
	// Warm: each arm has computed each of Prefixes once before the first burst, the most frequent last, and those are no samples. Without it the first
	// request of each prefix is cold in every arm, a quarter of 80 samples, so that p95 says nothing of a cache.
	Warm bool `json:"warm,omitempty"`
	// Concurrency is the size of a burst, 1 for the other kinds.
	Concurrency int `json:"concurrency"`
	// Clusters that each arm runs: pairs, or bursts. Samples are Clusters times Concurrency.
	Clusters int `json:"clusters"`
}

// Samples is how many an arm has if nothing was cut off.
func (c Cell) Samples() int { return c.Clusters * c.Concurrency }

// The figures that rules are about.
const (
	TTFT     = "ttft_ms"  // from the arrival, waiting included, to the first token
	Total    = "total_ms" // from the arrival to the end
	Gap      = "gap_ms"   // between tokens, the mean of each request's
	Failures = "failures" // share of requests that failed
	Missed   = "missed"   // share of requests that found less than is there: they were computed
	Differs  = "differs"  // share of requests that were answered otherwise than the baseline's
)

// Rule is one thing that is judged, in one cell.
type Rule struct {
	Cell   string `json:"cell"`
	Metric string `json:"metric"`
	// Stat is p50, p95 or p99 of a time, and empty for a share.
	Stat string `json:"stat,omitempty"`
	// Arm is whose; empty: the candidate's by the baseline's, as a ratio, which only times have.
	Arm    string  `json:"arm,omitempty"`
	AtMost float64 `json:"at_most"`
	Why    string  `json:"why"`
}

var quantiles = []struct {
	name string
	q    float64
}{{"p50", 0.5}, {"p95", 0.95}, {"p99", 0.99}}

func quantile(name string) (float64, bool) {
	for _, x := range quantiles {
		if x.name == name {
			return x.q, true
		}
	}
	return 0, false
}

// of is how many samples a percentile needs; 0 for a name that is none.
func (l Least) of(stat string) int {
	return map[string]int{"p50": l.P50, "p95": l.P95, "p99": l.P99}[stat]
}

// Needed is the least number of samples of which the greatest is, with the given confidence, not below the q-quantile: q^n ≤ 1 − confidence. With fewer, a percentile
// is a statement about requests that were not seen. 59 for p95 and 299 for p99 at 95 %.
func Needed(q, confidence float64) int { return int(math.Ceil(math.Log(1-confidence) / math.Log(q))) }

// With fewer clusters the intervals of a bootstrap are far too narrow; with fewer resamples the ends of an interval are a handful of draws.
const (
	leastClusters  = 10
	leastResamples = 1000
)

// Validate says all that is wrong with a plan, or nil.
func (p *Plan) Validate() error {
	var f faults
	f.unless(p.Version == 1, "version: 1 is the only one")
	f.unless(p.Name != "" && !slices.ContainsFunc([]byte(p.Name), notInName), "name: letters, digits and hyphens")
	f.unless(slices.Contains(p.Arms, p.Baseline) && slices.Contains(p.Arms, p.Candidate) && p.Baseline != p.Candidate, "baseline and candidate: two of arms")
	f.unless(p.Confidence > 0.5 && p.Confidence < 1, "confidence: between 0.5 and 1")
	f.unless(p.Resamples >= leastResamples, "resamples: at least "+strconv.Itoa(leastResamples))
	f.unless(p.Least.Clusters >= leastClusters, "least.clusters: at least "+strconv.Itoa(leastClusters))
	if f.list == nil {
		for _, x := range quantiles {
			n := Needed(x.q, p.Confidence)
			f.unless(p.Least.of(x.name) >= n, "least."+x.name+": fewer than "+strconv.Itoa(n)+" samples say nothing of it")
		}
	}
	f.unless(len(p.Cells) > 0, "cells: none")
	f.unless(len(p.Rules) > 0, "rules: nothing is declared")
	seen := map[string]bool{}
	for _, c := range p.Cells {
		f.unless(!seen[c.Name], "cell "+c.Name+": twice")
		seen[c.Name] = true
		p.checkCell(&f, c)
	}
	for i, r := range p.Rules {
		p.checkRule(&f, "rule "+strconv.Itoa(i+1)+" ("+r.Cell+" "+r.Metric+")", r)
	}
	return errors.Join(f.list...)
}

func (p *Plan) checkCell(f *faults, c Cell) {
	name := "cell " + c.Name + ": "
	f.unless(c.Name != "", "cell: no name")
	f.unless(c.Kind == Restored || c.Kind == Cold || c.Kind == Pressure, name+"kind: restored, cold or pressure")
	f.unless(c.Clusters > 0 && c.Concurrency > 0, name+"clusters and concurrency: at least 1")
	f.unless(c.Kind == Pressure || c.Concurrency == 1, name+"concurrency: 1, but for pressure")
	f.unless(c.Kind != Pressure || c.Prefixes > 0 && c.Tail > 0, name+"prefixes and tail: at least 1")
	f.unless(c.Kind == Pressure || !c.Warm, name+"warm: of pressure only")
	f.unless(c.Answer >= 2, name+"answer: at least 2 tokens, or there is nothing between them")
	f.unless(c.Tokens > 0 && c.Tokens+c.Tail+c.Answer <= p.Setup.MaxLen, name+"tokens: more than none, and with tail and answer no more than setup.max_len")
}

func (p *Plan) checkRule(f *faults, name string, r Rule) {
	i := slices.IndexFunc(p.Cells, func(c Cell) bool { return c.Name == r.Cell })
	f.unless(i >= 0, name+": no such cell")
	f.unless(r.Why != "", name+": why?")
	f.unless(r.Arm == "" || slices.Contains(p.Arms, r.Arm), name+": no such arm")
	f.unless(r.AtMost >= 0 && !math.IsInf(r.AtMost, 0), name+": at_most: a number")
	switch r.Metric {
	case TTFT, Total, Gap:
		_, known := quantile(r.Stat)
		f.unless(known, name+": stat: p50, p95 or p99")
		if known && i >= 0 {
			f.unless(p.Cells[i].Samples() >= p.Least.of(r.Stat) && p.Cells[i].Clusters >= p.Least.Clusters, name+": the cell has too few samples or clusters to judge this by least")
		}
	case Failures, Missed, Differs:
		f.unless(r.Stat == "" && r.Arm != "", name+": a share has an arm and no stat")
	default:
		f.unless(false, name+": no such metric")
	}
}

func notInName(b byte) bool {
	return b != '-' && (b < '0' || b > '9') && (b < 'a' || b > 'z') && (b < 'A' || b > 'Z')
}

type faults struct{ list []error }

func (f *faults) unless(good bool, text string) {
	if !good {
		f.list = append(f.list, errors.New(text))
	}
}
