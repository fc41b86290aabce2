package judge

import (
	"cmp"
	"math"
	"slices"
	"strconv"
)

// Sample is one request of one arm. Times are milliseconds from the request's arrival.
type Sample struct {
	Cell, Arm string
	// Pair is the same for the same prompt in each arm; Cluster for what was run side by side.
	Pair, Cluster int
	TTFT, Total   float64
	Tokens        int // of the answer
	// Failed: there was no whole answer. Its times are taken to be without end, whatever they are.
	Failed bool
	// Missed: it found less than there was to be found.
	Missed bool
	// Differs: another answer than the baseline's to the same prompt.
	Differs bool
}

func (s Sample) value(metric string) float64 {
	if s.Failed {
		return math.Inf(1)
	}
	switch metric {
	case TTFT:
		return s.TTFT
	case Total:
		return s.Total
	default:
		return (s.Total - s.TTFT) / float64(max(s.Tokens-1, 1))
	}
}

// Interval is a figure with the ends of its interval. A time without end is +Inf.
type Interval struct{ Value, Low, High float64 }

// Quantity is what one arm's requests took, by percentile; nil where there are too few samples.
type Quantity struct{ P50, P95, P99 *Interval }

// Arm is one arm's samples of a cell. Counts are requests.
type Arm struct {
	Name                             string
	Samples, Failed, Missed, Differs int
	Metrics                          map[string]Quantity // by TTFT, Total and Gap
}

// Comparison is the candidate's percentiles less the baseline's, in milliseconds, and by the baseline's.
type Comparison struct{ Difference, Ratio Quantity }

// CellReport is what a cell has shown. Compared is by TTFT, Total and Gap.
type CellReport struct {
	Cell     Cell
	Clusters int
	Arms     []Arm
	Compared map[string]Comparison
}

// A verdict.
const (
	Pass    = "pass"
	Fail    = "fail"
	Unknown = "unknown"
)

// Verdict is a rule, and what became of it. Got is nil if there is no figure.
type Verdict struct {
	Rule    Rule
	Verdict string
	Got     *Interval
	Reason  string
}

// Report is a judged run, in the plan's order.
type Report struct {
	Cells    []CellReport
	Verdicts []Verdict
}

// Judge judges samples by a valid plan. Samples of cells or arms that the plan does not have are not looked at; their order does not matter.
func (p *Plan) Judge(samples []Sample) Report {
	var r Report
	for i, c := range p.Cells {
		r.Cells = append(r.Cells, p.cell(c, samples, p.Seed+uint64(i)))
	}
	for _, rule := range p.Rules {
		for _, c := range r.Cells {
			if c.Cell.Name == rule.Cell {
				r.Verdicts = append(r.Verdicts, p.verdict(rule, c))
			}
		}
	}
	return r
}

func (p *Plan) cell(c Cell, samples []Sample, seed uint64) CellReport {
	t := tableOf(p.Arms, c, samples)
	out := CellReport{Cell: c, Clusters: len(t.clusters), Compared: map[string]Comparison{}}
	for a, name := range p.Arms {
		arm := Arm{Name: name, Metrics: map[string]Quantity{}}
		for _, s := range t.all(a) {
			arm.Samples++
			arm.Failed += count(s.Failed)
			arm.Missed += count(s.Missed)
			arm.Differs += count(s.Differs)
		}
		out.Arms = append(out.Arms, arm)
	}
	base, cand := slices.Index(p.Arms, p.Baseline), slices.Index(p.Arms, p.Candidate)
	for _, metric := range []string{TTFT, Total, Gap} {
		b := p.bootstrap(t, metric, seed)
		var x Comparison
		for i, stat := range quantiles {
			if n := p.Least.of(stat.name); out.Clusters < p.Least.Clusters || slices.ContainsFunc(out.Arms, func(a Arm) bool { return a.Samples < n }) {
				continue
			}
			for a := range p.Arms {
				q := out.Arms[a].Metrics[metric]
				q.set(stat.name, b.interval(p.Confidence, func(v [][3]float64) float64 { return v[a][i] }))
				out.Arms[a].Metrics[metric] = q
			}
			x.Difference.set(stat.name, b.interval(p.Confidence, func(v [][3]float64) float64 { return less(v[cand][i], v[base][i]) }))
			x.Ratio.set(stat.name, b.interval(p.Confidence, func(v [][3]float64) float64 { return by(v[cand][i], v[base][i]) }))
		}
		out.Compared[metric] = x
	}
	return out
}

func (q *Quantity) set(stat string, v Interval) {
	switch stat {
	case "p50":
		q.P50 = &v
	case "p95":
		q.P95 = &v
	default:
		q.P99 = &v
	}
}

func (q Quantity) get(stat string) *Interval {
	switch stat {
	case "p50":
		return q.P50
	case "p95":
		return q.P95
	default:
		return q.P99
	}
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// less and by compare two times, of which either may be without end: a candidate without an end is worse than anything, also than another.
func less(candidate, baseline float64) float64 {
	if math.IsInf(candidate, 1) {
		return candidate
	}
	return candidate - baseline
}

func by(candidate, baseline float64) float64 {
	if math.IsInf(candidate, 1) {
		return candidate
	}
	return candidate / baseline
}

func (p *Plan) verdict(rule Rule, c CellReport) Verdict {
	v := Verdict{Rule: rule, Verdict: Unknown}
	for _, a := range c.Arms {
		if n := c.Cell.Samples(); a.Samples != n {
			v.Reason = a.Name + " has " + strconv.Itoa(a.Samples) + " samples, and " + strconv.Itoa(n) + " were declared"
			return v
		}
	}
	i := slices.IndexFunc(c.Arms, func(a Arm) bool { return a.Name == rule.Arm })
	switch {
	case rule.Metric == Failures || rule.Metric == Missed || rule.Metric == Differs:
		return share(v, c.Arms[i])
	case i < 0:
		v.Got = c.Compared[rule.Metric].Ratio.get(rule.Stat)
	default:
		v.Got = c.Arms[i].Metrics[rule.Metric].get(rule.Stat)
	}
	switch {
	case v.Got == nil:
		v.Reason = "too few samples"
	case v.Got.High <= rule.AtMost:
		v.Verdict = Pass
	case v.Got.Low > rule.AtMost:
		v.Verdict = Fail
	default:
		v.Reason = "the interval has the bound within it"
	}
	return v
}

// share judges what was counted: it is about the requests of this run, not about others, so that there is no interval.
func share(v Verdict, a Arm) Verdict {
	n := map[string]int{Failures: a.Failed, Missed: a.Missed, Differs: a.Differs}[v.Rule.Metric]
	x := float64(n) / float64(a.Samples)
	v.Got, v.Verdict = &Interval{x, x, x}, Pass
	if x > v.Rule.AtMost {
		v.Verdict = Fail
	}
	return v
}

// table is a cell's samples by cluster and arm.
type table struct{ clusters [][][]Sample }

func tableOf(arms []string, c Cell, samples []Sample) table {
	byCluster := map[int][][]Sample{}
	for _, s := range samples {
		a := slices.Index(arms, s.Arm)
		if s.Cell != c.Name || a < 0 {
			continue
		}
		if byCluster[s.Cluster] == nil {
			byCluster[s.Cluster] = make([][]Sample, len(arms))
		}
		byCluster[s.Cluster][a] = append(byCluster[s.Cluster][a], s)
	}
	var t table
	names := make([]int, 0, len(byCluster))
	for k := range byCluster {
		names = append(names, k)
	}
	slices.Sort(names)
	for _, k := range names {
		for _, of := range byCluster[k] {
			slices.SortFunc(of, func(a, b Sample) int { return cmp.Compare(a.Pair, b.Pair) })
		}
		t.clusters = append(t.clusters, byCluster[k])
	}
	return t
}

func (t table) all(arm int) []Sample {
	var out []Sample
	for _, c := range t.clusters {
		out = append(out, c[arm]...)
	}
	return out
}
