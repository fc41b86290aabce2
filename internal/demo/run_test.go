package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/engine/enginehttp"
	"github.com/perigee-llm/perigee/internal/engine/offload"
	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/explain"
	"github.com/perigee-llm/perigee/internal/gateway/load"
)

// tiny is a demo of a second: the trace's first requests at a speed at which the machine, not the engines, sets the times.
func tiny() Options {
	return Options{Engines: 4, Speed: 100, Requests: 24, Policy: "power_of_two", Seed: 7}
}

func TestRun(t *testing.T) {
	o := tiny()
	var beats, held int
	o.Progress = func(p Progress) {
		beats++
		if p.Total != 24 || p.Done > 24 || p.Errors != 0 || p.Run < 1 || p.Run > 2 || p.Runs != 2 {
			t.Errorf("%+v", p)
		}
	}
	o.Hold = func(r *Report, f *Fleet) error {
		held++
		if n := f.gateway.Held(); n != 0 {
			t.Errorf("the gateway holds %d places at rest", n)
		}
		for i, s := range f.servers {
			if l := s.Stats().Load; l.Running+l.Waiting != 0 {
				t.Errorf("engine %d still works on %d requests", i, l.Running+l.Waiting)
			}
		}
		if _, faults := config.Parse("demo.yaml", []byte(r.Config)); len(faults) > 0 {
			t.Errorf("the printed configuration: %v", faults)
		}
		return nil
	}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if beats < 2 || held != 1 {
		t.Errorf("%d calls of Progress, %d of Hold", beats, held)
	}
	if r.Requests != 48 || r.Errors != 0 || len(r.Runs) != 2 || r.Runs[0].Policy != Baseline || r.Runs[1].Policy != o.Policy {
		t.Fatalf("%+v", r)
	}
	for i := range r.Runs {
		checkReplay(t, &r.Runs[i], r.Conditions.InputTokens)
	}
	if got := r.Runs[0].Reasons; len(got) != 1 || got[0].ID != "rotation" || got[0].Share != 1 {
		t.Errorf("decisions of round_robin: %+v", got)
	}
}

// checkReplay holds what must be true of any run without errors.
func checkReplay(t *testing.T, r *Replay, input int64) {
	t.Helper()
	if r.PromptTokens != load.Known(input) || !r.CachedTokens.IsKnown() {
		t.Errorf("%s: %v prompt tokens, want %d; %v reused", r.Policy, r.PromptTokens, input, r.CachedTokens)
	}
	if r.TTFT.P50 == nil || *r.TTFT.P50 <= 0 || *r.TTFT.P99 < *r.TTFT.P50 || math.Abs(*r.TTFTWall.P50/1000*100-*r.TTFT.P50) > 1e-6 {
		t.Errorf("%s: %+v, on the wall %+v", r.Policy, r.TTFT, r.TTFTWall)
	}
	engines, shares := 0, 0.0
	for _, e := range r.Engines {
		engines, shares = engines+e.Requests, shares+e.Share.Share
	}
	buckets, reasons := 0, 0
	for _, s := range r.Buckets {
		buckets += s.Requests
	}
	for _, s := range r.Reasons {
		reasons += s.Requests
	}
	if engines != r.Requests || buckets != r.Requests || reasons != r.Requests || math.Abs(shares-1) > 1e-9 {
		t.Errorf("%s: %d requests, by engine %d (%g), by bucket %d, by reason %d", r.Policy, r.Requests, engines, shares, buckets, reasons)
	}
}

// TestReportAsJSON holds the shape that scripts rely on.
func TestReportAsJSON(t *testing.T) {
	o := tiny()
	o.Engines, o.Requests, o.Policy = 1, 3, "random"
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if got["requests"] != 6.0 || got["errors"] != 0.0 {
		t.Errorf("requests %v, errors %v", got["requests"], got["errors"])
	}
	runs := got["runs"].([]any)
	for _, path := range []string{"policy", "requests", "errors", "ttft_trace_seconds.p50", "ttft_trace_seconds.p95", "ttft_trace_seconds.p99",
		"ttft_wall_ms.p99", "prompt_tokens", "cached_tokens", "completion_tokens", "device_tokens", "manager_tokens", "computed_tokens", "engines", "buckets", "decisions", "overflowed", "wall_seconds",
		"late_p99_wall_ms"} {
		v := runs[1]
		for _, key := range strings.Split(path, ".") {
			v = v.(map[string]any)[key]
		}
		if v == nil {
			t.Errorf("%s is missing", path)
		}
	}
	for _, key := range []string{"conditions", "warnings", "config", "wrong_pages"} {
		if got[key] == nil {
			t.Errorf("%s is missing", key)
		}
	}
}

// TestRequestsThatFail: they are counted by kind and leave nothing behind.
func TestRequestsThatFail(t *testing.T) {
	o := tiny()
	o.Engines, o.Requests = 2, 10
	reqs, err := o.slice()
	if err != nil {
		t.Fatal(err)
	}
	f, err := startFleet(t.Context(), &o, variant{policy: Baseline}, len(reqs))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.servers[0].SetFault(enginehttp.Fault{Kind: enginehttp.FaultStatus, Status: 500, Count: 2}); err != nil {
		t.Fatal(err)
	}
	if err := f.servers[1].SetFault(enginehttp.Fault{Kind: enginehttp.FaultResetMidStream, AfterChunks: 1, Count: 1}); err != nil {
		t.Fatal(err)
	}
	r, err := f.measure(t.Context(), &o, variant{policy: Baseline}, 1, reqs)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int{"status 500": 2, errBroken.Error(): 1}, r.ErrorKinds); diff != "" || r.Errors != 3 || r.FirstError == "" {
		t.Errorf("%d errors, first %q: %s", r.Errors, r.FirstError, diff)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o := tiny()
	o.Requests, o.Speed = 2000, 1 // minutes, if nobody ends it
	o.Progress = func(Progress) { cancel() }
	if r, err := Run(ctx, o); !errors.Is(err, context.Canceled) || r != nil {
		t.Errorf("%v, %v", r, err)
	}
	o.Progress = nil
	if _, err := Run(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
}

func TestHoldsError(t *testing.T) {
	o, want := tiny(), errors.New("nobody reads stdout")
	o.Requests = 1
	o.Hold = func(*Report, *Fleet) error { return want }
	if r, err := Run(t.Context(), o); !errors.Is(err, want) || r != nil {
		t.Errorf("%v, %v", r, err)
	}
}

func TestOptions(t *testing.T) {
	for _, tt := range []struct {
		change func(*Options)
		want   string // in the error
	}{
		{func(*Options) {}, ""},
		{func(o *Options) { o.Requests, o.Span = 0, time.Second }, ""},
		{func(o *Options) { o.Engines = 0 }, "engines: 0"},
		{func(o *Options) { o.Engines = 65 }, "engines: 65"},
		{func(o *Options) { o.Speed = 0 }, "speed: 0"},
		{func(o *Options) { o.Speed = math.NaN() }, "speed: NaN"},
		{func(o *Options) { o.Speed = math.Inf(1) }, "speed: +Inf"},
		{func(o *Options) { o.From = -1 }, "from: -1ns"},
		{func(o *Options) { o.Requests = 0 }, "requests, seconds"},
		{func(o *Options) { o.Requests = -1 }, "requests, seconds"},
		{func(o *Options) { o.Policy = "sticky" }, `policy: "sticky"`},
		{func(o *Options) { o.Engines, o.Policy = -1, "" }, "policy: \"\""},
	} {
		o := tiny()
		tt.change(&o)
		err := o.Validate()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want %q", o, err, tt.want)
		}
	}
	o := tiny()
	o.From = time.Hour
	if _, err := Run(t.Context(), o); !errors.Is(err, ErrNoRequests) {
		t.Errorf("behind the end: %v", err)
	}
}

func TestSlice(t *testing.T) {
	o := Options{From: 60 * time.Second, Span: 10 * time.Second}
	all, err := o.slice()
	if err != nil || len(all) < 10 || all[len(all)-1].Arrival >= 10*time.Second {
		t.Fatalf("%d requests, %v", len(all), err)
	}
	o.Requests = 5
	if few, err := o.slice(); err != nil || len(few) != 5 || cmp.Diff(all[:5], few) != "" {
		t.Errorf("%d requests, %v", len(few), err)
	}
	o.Span = 0
	if few, err := o.slice(); err != nil || cmp.Diff(all[:5], few) != "" {
		t.Errorf("%d requests, %v", len(few), err)
	}
}

// TestConfigurationIsGood: for any fleet and speed, the YAML text is one that perigee check has nothing to say about, and no
// bucket is empty.
func TestConfigurationIsGood(t *testing.T) {
	for n := 1; n <= maxEngines; n++ {
		var engines []Engine
		for i := range n {
			engines = append(engines, Engine{ID: engineID(i), URL: fmt.Sprintf("http://127.0.0.1:%d", 9000+i)})
		}
		for _, speed := range []float64{0.01, 1, 20, 1e9} {
			var m *managerEndpoints
			policy := "load_based"
			if n%2 == 0 {
				policy = "cost"
				m = &managerEndpoints{"tcp://127.0.0.1:9800", "tcp://127.0.0.1:9801", "tcp://127.0.0.1:9802"}
			}
			text := configuration(policy, speed, layout(n), engines, m)
			c, faults := config.Parse("demo.yaml", []byte(text))
			if len(faults) > 0 {
				t.Fatalf("%d engines at speed %g: %v\n%s", n, speed, faults, text)
			}
			for _, b := range c.Models[0].Buckets {
				if len(b.Plain.Workers) == 0 {
					t.Errorf("%d engines: bucket %s has none", n, b.ID)
				}
			}
		}
	}
}

// busy is an engine that has computed prompts for so long.
func busy(d time.Duration) enginehttp.Stats {
	return enginehttp.Stats{Load: engine.Load{PrefillBusy: d, CacheHitTokens: 256, PrefillUncachedTokens: 744}}
}

// exampleReport is made of figures that a person can check.
func exampleReport() *Report {
	o := Options{Engines: 2, Speed: 10, Seed: 1, From: 5 * time.Second}
	f := &Fleet{Buckets: layout(2), Engines: []Engine{{ID: "engine-1", Flavor: enginehttp.VLLM}, {ID: "engine-2", Flavor: enginehttp.SGLang}}}
	cpu := 3 * time.Second
	record := func(bucket, engine, reason string, refused ...string) explain.Record {
		a := explain.Attempt{Bucket: bucket}
		for _, b := range refused {
			a.Tries = append(a.Tries, explain.Try{Bucket: b, Error: "admission_rejected"})
		}
		a.Tries = append(a.Tries, explain.Try{Bucket: bucket, Picked: engine, Reason: reason})
		return explain.Record{Attempts: []explain.Attempt{a}}
	}
	good := func(ttft time.Duration) outcome {
		return outcome{ttft: ttft, late: time.Millisecond, prompt: load.Known(1000), cached: load.Known(256), completion: load.Known(10)}
	}
	first := summarize(&o, variant{policy: Baseline}, f, &measured{
		outcomes: []outcome{good(200 * time.Millisecond), good(400 * time.Millisecond), {err: &statusError{503, "no engine is free"}}, {ttft: time.Second, err: errBroken}},
		records: []explain.Record{
			record("short", "engine-1", "rotation"), record("short", "engine-2", "rotation"), {Attempts: []explain.Attempt{{Outcome: "not selected"}}},
			record("long", "engine-1", "rotation", "short"),
		},
		engines: []enginehttp.Stats{busy(time.Second), busy(500 * time.Millisecond)}, wall: 2 * time.Second, cpu: &cpu,
	})
	blind := good(100 * time.Millisecond)
	blind.cached = load.Count{}
	second := summarize(&o, variant{policy: "power_of_two"}, f, &measured{
		outcomes: []outcome{good(100 * time.Millisecond), good(300 * time.Millisecond), good(700 * time.Millisecond), blind},
		records: []explain.Record{
			record("short", "engine-1", "lower_pressure"), record("short", "engine-2", "lower_pressure"), record("short", "engine-2", "tie"),
			record("long", "engine-1", "lower_pressure"),
		},
		engines: []enginehttp.Stats{busy(time.Second), busy(time.Second)}, wall: 2 * time.Second,
	})
	third := summarize(&o, variant{"power_of_two", true}, f, &measured{
		outcomes: []outcome{good(50 * time.Millisecond), good(60 * time.Millisecond), good(70 * time.Millisecond), good(80 * time.Millisecond)},
		records:  []explain.Record{record("short", "engine-1", "tie"), record("short", "engine-2", "tie"), record("short", "engine-2", "tie"), record("long", "engine-1", "tie")},
		engines: []enginehttp.Stats{
			{Load: engine.Load{CacheHitTokens: 256, RestoredTokens: 512, PrefillUncachedTokens: 1232}, CacheManager: &offload.Stats{RestoredPages: 4}},
			{Load: engine.Load{PrefillUncachedTokens: 2000, CorruptPages: 1}, CacheManager: &offload.Stats{RestoresFailed: 2, Dropped: 7, Published: 20}},
		},
		wall: 2 * time.Second,
	})
	c := conditions(&o, f, requests(0, 1, 2, 30))
	c.ManagerBytes, c.ManagerTokens = 64<<20, 2_097_152
	r := &Report{Conditions: c}
	r.add(first)
	r.add(second)
	r.add(third)
	r.Warnings = warnings(o.Speed, 1, r.Runs)
	return r
}

func TestText(t *testing.T) {
	const golden = "report.txt"
	got := exampleReport().Text()
	want, err := os.ReadFile(filepath.Join("testdata", golden))
	if err != nil {
		t.Errorf("%v; what it should hold:\n%s", err, got)
	} else if diff := cmp.Diff(string(want), got); diff != "" {
		t.Error(diff)
	}
}

func TestQuantile(t *testing.T) {
	if quantile(nil, 0.5) != nil {
		t.Error("a quantile of nothing")
	}
	var hundred []float64
	for i := 100; i > 0; i-- {
		hundred = append(hundred, float64(i))
	}
	for q, want := range map[float64]float64{0: 1, 0.5: 50, 0.95: 95, 0.99: 99, 1: 100} {
		if got := quantile(hundred, q); *got != want {
			t.Errorf("quantile %g of 1 to 100 is %g, want %g", q, *got, want)
		}
	}
	if got := quantile([]float64{3}, 0.99); *got != 3 {
		t.Errorf("of one value: %g", *got)
	}
}

func TestWarnings(t *testing.T) {
	f := func(v float64) *float64 { return &v }
	for _, tt := range []struct {
		run  Replay
		want []string
	}{
		{Replay{LateP99: f(49), CPUs: f(1.7)}, nil},
		{Replay{LateP99: f(51), CPUs: f(1.7)}, []string{"fell behind"}},
		{Replay{LateP99: f(49), CPUs: f(1.9)}, []string{"1.9 of 2 processors"}},
		{Replay{LateP99: f(51), CPUs: f(1.9)}, []string{"fell behind", "processors"}},
		{Replay{}, nil},
	} {
		got := warnings(20, 2, []Replay{tt.run})
		ok := len(got) == len(tt.want)
		for i := range tt.want {
			ok = ok && strings.Contains(got[i], tt.want[i])
		}
		if !ok {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}

func TestSamples(t *testing.T) {
	try := func(bucket, engine, reason string) explain.Try {
		return explain.Try{Bucket: bucket, Stage: "plain", Picked: engine, Reason: reason}
	}
	record := func(id string, input int64, tries ...explain.Try) explain.Record {
		bucket := tries[len(tries)-1].Bucket
		if tries[len(tries)-1].Picked == "" {
			bucket = ""
		}
		return explain.Record{RequestID: id, InputTokens: input, Attempts: []explain.Attempt{{Bucket: bucket, Tries: tries}}}
	}
	pressed := try("long", "engine-2", "lower_pressure")
	pressed.Considered = []explain.Candidate{
		{Engine: "engine-2", Report: &explain.Report{Waiting: load.Known(1)}}, {Engine: "engine-1", Report: &explain.Report{Waiting: load.Known(3)}},
	}
	refused := explain.Try{Bucket: "short", Error: "admission_rejected", Rejections: []explain.Rejection{{Engine: "engine-1", Limit: "max_waiting_requests"}}}
	empty := explain.Try{Bucket: "short", Error: "no_candidates"}
	all := []explain.Record{
		record("demo-1", 50, try("short", "engine-1", "tie")),
		record("demo-17", 23115, pressed),
		record("demo-18", 11, try("short", "engine-1", "lower_pressure")),
		record("demo-20", 12, refused, try("long", "engine-3", "rotation")),
		record("demo-21", 13, empty, try("long", "engine-3", "rotation")),
		record("other", 14, empty),
	}
	for i, want := range []string{
		"request 1: 50 tokens → bucket short → engine-1 (tie)",
		"request 17: 23,115 tokens → bucket long → engine-2 (lower_pressure: 1 vs 3 waiting)",
		"request 18: 11 tokens → bucket short → engine-1 (lower_pressure)",
		"request 20: 12 tokens → bucket short refuses (engine-1 at its max_waiting_requests) → bucket long → engine-3 (rotation)",
		"request 21: 13 tokens → bucket short refuses (no_candidates) → bucket long → engine-3 (rotation)",
		"request other: 14 tokens → no engine",
	} {
		if got := Sentence(&all[i]); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
	for _, tt := range []struct {
		from    []explain.Record
		longest bool
		want    string
	}{
		{all[:1], true, "demo-1"},
		{all[:3], true, "demo-17"},
		{all[:3], false, "demo-18"},
		{all, true, "demo-21"},
		{all, false, "demo-20"},
	} {
		if got := choose(tt.from, tt.longest); got == nil || got.RequestID != tt.want {
			t.Errorf("%+v, want %s", got, tt.want)
		}
	}
	if got := choose(all[5:], true); got != nil {
		t.Errorf("a sample without an engine: %+v", got)
	}
}
