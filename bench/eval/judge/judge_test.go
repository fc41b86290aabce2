package judge_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/perigee-llm/perigee/bench/eval/judge"
)

func plan(rules ...judge.Rule) *judge.Plan {
	if rules == nil {
		rules = []judge.Rule{{Cell: "warm", Metric: judge.Failures, Arm: "with", Why: "x"}}
	}
	return &judge.Plan{
		Version: 1, Name: "test", Seed: 7, Arms: []string{"without", "with"}, Baseline: "without", Candidate: "with",
		Confidence: 0.95, Resamples: 1000, Least: judge.Least{P50: 10, P95: 60, P99: 300, Clusters: 10},
		Setup: judge.Setup{MaxLen: 8192},
		Cells: []judge.Cell{{Name: "warm", Kind: judge.Restored, Tokens: 1000, Answer: 2, Concurrency: 1, Clusters: 60}}, Rules: rules,
	}
}

// pairs makes n pairs; f gives the times of one.
func pairs(n int, f func(i int) (without, with float64)) []judge.Sample {
	var out []judge.Sample
	for i := range n {
		a, b := f(i)
		for arm, x := range map[string]float64{"without": a, "with": b} {
			out = append(out, judge.Sample{Cell: "warm", Arm: arm, Pair: i, Cluster: i, TTFT: x, Total: x + 10, Tokens: 2, Failed: math.IsInf(x, 1)})
		}
	}
	return out
}

func TestPlanFaults(t *testing.T) {
	if err := plan().Validate(); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(p *judge.Plan){
		"version":              func(p *judge.Plan) { p.Version = 2 },
		"name:":                func(p *judge.Plan) { p.Name = "a/b" },
		"baseline":             func(p *judge.Plan) { p.Candidate = p.Baseline },
		"confidence":           func(p *judge.Plan) { p.Confidence = 1 },
		"resamples":            func(p *judge.Plan) { p.Resamples = 10 },
		"least.clusters":       func(p *judge.Plan) { p.Least.Clusters = 2 },
		"least.p95: fewer":     func(p *judge.Plan) { p.Least.P95 = 5 },
		"cells: none":          func(p *judge.Plan) { p.Cells = nil },
		"nothing is declared":  func(p *judge.Plan) { p.Rules = nil },
		"twice":                func(p *judge.Plan) { p.Cells = append(p.Cells, p.Cells[0]) },
		"kind:":                func(p *judge.Plan) { p.Cells[0].Kind = "hot" },
		"clusters and concurr": func(p *judge.Plan) { p.Cells[0].Clusters = 0 },
		"concurrency: 1, but":  func(p *judge.Plan) { p.Cells[0].Concurrency = 2 },
		"prefixes and tail":    func(p *judge.Plan) { p.Cells[0].Kind = judge.Pressure },
		"warm:":                func(p *judge.Plan) { p.Cells[0].Warm = true },
		"answer:":              func(p *judge.Plan) { p.Cells[0].Answer = 1 },
		"tokens:":              func(p *judge.Plan) { p.Cells[0].Tokens = 8191 },
		"no such cell":         func(p *judge.Plan) { p.Rules[0].Cell = "else" },
		"no such arm":          func(p *judge.Plan) { p.Rules[0].Arm = "else" },
		"no such metric":       func(p *judge.Plan) { p.Rules[0].Metric = "else" },
		"why?":                 func(p *judge.Plan) { p.Rules[0].Why = "" },
		"at_most":              func(p *judge.Plan) { p.Rules[0].AtMost = math.NaN() },
		"a share has":          func(p *judge.Plan) { p.Rules[0].Stat = "p50" },
		"stat: p50":            func(p *judge.Plan) { p.Rules[0].Metric = judge.TTFT },
		"too few samples":      func(p *judge.Plan) { p.Rules[0].Metric, p.Rules[0].Stat = judge.TTFT, "p99" },
	} {
		p := plan()
		spoil(p)
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// TestNeeded: five samples say nothing of a tail.
func TestNeeded(t *testing.T) {
	for q, want := range map[float64]int{0.5: 5, 0.95: 59, 0.99: 299} {
		if got := judge.Needed(q, 0.95); got != want {
			t.Errorf("%v: %d, want %d", q, got, want)
		}
	}
}

// TestPercentile compares with the definition, word by word.
func TestPercentile(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	for range 2000 {
		v := make([]float64, 1+r.IntN(120))
		for i := range v {
			v[i] = float64(r.IntN(50))
		}
		slices.Sort(v)
		q := float64(1+r.IntN(100)) / 100
		want := math.NaN()
		for _, x := range v {
			below := 0
			for _, y := range v {
				if y <= x {
					below++
				}
			}
			if float64(below)/float64(len(v)) >= q-1e-12 {
				want = x
				break
			}
		}
		if got := judge.Percentile(v, q); got != want {
			t.Fatalf("seed %d: %v of %v is %v, want %v", seed, q, v, got, want)
		}
	}
	if !math.IsNaN(judge.Percentile(nil, 0.5)) {
		t.Error("of nothing")
	}
}

func TestVerdicts(t *testing.T) {
	ratio := func(stat string, most float64) judge.Rule {
		return judge.Rule{Cell: "warm", Metric: judge.TTFT, Stat: stat, AtMost: most, Why: "x"}
	}
	slo := func(stat string, most float64) judge.Rule {
		return judge.Rule{Cell: "warm", Metric: judge.TTFT, Stat: stat, Arm: "with", AtMost: most, Why: "x"}
	}
	lost := func(most float64) judge.Rule {
		return judge.Rule{Cell: "warm", Metric: judge.Failures, Arm: "with", AtMost: most, Why: "x"}
	}
	noise := func(i int) float64 { return float64(i*37%60) / 10 }
	half := pairs(60, func(i int) (float64, float64) { return 200 + noise(i), 100 + noise(i) })
	mixed := pairs(60, func(i int) (float64, float64) { return 100, 60 + 80*float64(i%2) })
	fourLost := pairs(60, func(i int) (float64, float64) {
		if i < 4 {
			return 200, math.Inf(1)
		}
		return 200, 100
	})
	for _, c := range []struct {
		name    string
		rule    judge.Rule
		samples []judge.Sample
		want    string
		reason  string
	}{
		{"half the time", ratio("p50", 0.6), half, judge.Pass, ""},
		{"not a third", ratio("p50", 0.33), half, judge.Fail, ""},
		{"the tail, too", ratio("p95", 0.6), half, judge.Pass, ""},
		{"who can say", ratio("p50", 1), mixed, judge.Unknown, "within"},
		{"a level", slo("p95", 110), half, judge.Pass, ""},
		{"a level that is missed", slo("p50", 90), half, judge.Fail, ""},
		{"failures are the slowest", slo("p95", 110), fourLost, judge.Unknown, "within"},
		{"the median does not see them", slo("p50", 110), fourLost, judge.Pass, ""},
		{"none may fail", lost(0), fourLost, judge.Fail, ""},
		{"a tenth may", lost(0.1), fourLost, judge.Pass, ""},
		{"a sample short", ratio("p50", 0.6), half[:len(half)-1], judge.Unknown, "were declared"},
		{"no samples", lost(0), nil, judge.Unknown, "were declared"},
		{"one too many", ratio("p50", 0.6), append(slices.Clone(half), half[0]), judge.Unknown, "were declared"},
	} {
		v := plan(c.rule).Judge(c.samples).Verdicts[0]
		if v.Verdict != c.want || !strings.Contains(v.Reason, c.reason) {
			t.Errorf("%s: %s (%s) %+v, want %s (%s)", c.name, v.Verdict, v.Reason, v.Got, c.want, c.reason)
		}
	}
}

// TestNoPassByChance: of arms that do not differ, "at most 0.9 of the baseline" is hardly ever said to hold, and "at most 1.0" in no more than the half of α.
func TestNoPassByChance(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 2))
	passed, failed := 0, 0
	const runs = 60
	for range runs {
		p := plan(judge.Rule{Cell: "warm", Metric: judge.TTFT, Stat: "p50", AtMost: 1, Why: "x"})
		samples := pairs(60, func(int) (float64, float64) { return 100 + 20*r.NormFloat64(), 100 + 20*r.NormFloat64() })
		switch p.Judge(samples).Verdicts[0].Verdict {
		case judge.Pass:
			passed++
		case judge.Fail:
			failed++
		}
	}
	// 2.5 % each, and a bootstrap of medians of 60 is not exact: 15 % of 60 is more than four standard deviations above twice that.
	if passed > runs*15/100 || failed > runs*15/100 {
		t.Errorf("seed %d: of %d runs without a difference %d pass and %d fail", seed, runs, passed, failed)
	}
}

// TestPairsStayTogether: where prompts differ more than arms do, a resample that mixed pairs would be blind to a difference that each pair has.
func TestPairsStayTogether(t *testing.T) {
	p := plan(judge.Rule{Cell: "warm", Metric: judge.TTFT, Stat: "p50", AtMost: 0.99, Why: "x"})
	s := pairs(60, func(i int) (float64, float64) { x := 100 + 10*float64(i); return x, x * 0.95 })
	v := p.Judge(s).Verdicts[0]
	if v.Verdict != judge.Pass || v.Got.Low < 0.9 || v.Got.High > 0.99 {
		t.Errorf("%s %+v", v.Verdict, v.Got)
	}
}

// TestBursts: ten clusters of ten that are slow or quick together are ten samples, not a hundred.
func TestBursts(t *testing.T) {
	p := plan(judge.Rule{Cell: "warm", Metric: judge.TTFT, Stat: "p50", Arm: "with", AtMost: 150, Why: "x"})
	c := &p.Cells[0]
	c.Kind, c.Prefixes, c.Tail, c.Concurrency, c.Clusters = judge.Pressure, 4, 8, 10, 10
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	s := pairs(100, func(i int) (float64, float64) { return 100, 100 + 100*float64(i/10%2) })
	width := func(s []judge.Sample) float64 {
		q := p.Judge(s).Cells[0].Arms[1].Metrics[judge.TTFT].P50
		return q.High - q.Low
	}
	for i := range s {
		s[i].Cluster = s[i].Pair / 10
	}
	if got := width(s); got != 100 {
		t.Errorf("an interval of %v", got)
	}
}

// TestOrderDoesNotMatter, nor does when it is judged: the same report of the same samples.
func TestOrderDoesNotMatter(t *testing.T) {
	p := plan()
	s := pairs(60, func(i int) (float64, float64) { return 100 + float64(i%7), 90 + float64(i%5) })
	want := fmt.Sprintf("%+v", flat(p.Judge(s)))
	rand.Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] })
	if got := fmt.Sprintf("%+v", flat(p.Judge(s))); got != want {
		t.Errorf("%s\n%s", got, want)
	}
}

// flat follows the pointers of a report.
func flat(r judge.Report) (out []any) {
	for _, c := range r.Cells {
		for _, m := range []string{judge.TTFT, judge.Total, judge.Gap} {
			for _, q := range []judge.Quantity{c.Compared[m].Difference, c.Compared[m].Ratio, c.Arms[0].Metrics[m], c.Arms[1].Metrics[m]} {
				for _, i := range []*judge.Interval{q.P50, q.P95, q.P99} {
					if i != nil {
						out = append(out, *i)
					}
				}
			}
		}
	}
	return out
}

func TestCounts(t *testing.T) {
	s := pairs(60, func(int) (float64, float64) { return 100, 50 })
	for i := range s {
		if s[i].Arm == "with" && s[i].Pair < 6 {
			s[i].Missed, s[i].Differs = true, s[i].Pair < 3
		}
	}
	p := plan(judge.Rule{Cell: "warm", Metric: judge.Missed, Arm: "with", AtMost: 0.1, Why: "x"}, judge.Rule{Cell: "warm", Metric: judge.Differs, Arm: "with", Why: "x"})
	r := p.Judge(s)
	if got := []string{r.Verdicts[0].Verdict, r.Verdicts[1].Verdict}; !reflect.DeepEqual(got, []string{judge.Pass, judge.Fail}) {
		t.Error(got)
	}
	if a := r.Cells[0].Arms[1]; a.Missed != 6 || a.Differs != 3 || a.Samples != 60 || a.Metrics[judge.Gap].P50.Value != 10 {
		t.Errorf("%+v", a)
	}
}
