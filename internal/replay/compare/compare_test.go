package compare

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"iter"
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/replay"
	"github.com/perigee-llm/perigee/internal/trace"
)

// referenceOptions are the conditions of the public router simulations: 8 engines that are plain queues, 9,000 tokens a second,
// 20 ms a prompt, 3,000 blocks of 512 tokens. The last two are defaults.
func referenceOptions(seed uint64) replay.Options {
	return replay.Options{
		PrefillOnly: true, Seed: seed,
		Engine: engine.Config{Timing: engine.Timing{PrefillPerToken: time.Second / 9000}},
	}
}

func contenders(t testing.TB, names ...string) (out []replay.Contender) {
	t.Helper()
	for _, n := range names {
		c, err := replay.ByName(n)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, c)
	}
	return out
}

// wholeTrace reads the embedded trace once for all tests.
var wholeTrace = sync.OnceValues(func() ([]trace.Request, error) {
	var all []trace.Request
	for r, err := range trace.Synthetic() {
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
})

// requests yields the embedded trace up to a time.
func requests(t testing.TB, to time.Duration) iter.Seq2[trace.Request, error] {
	t.Helper()
	all, err := wholeTrace()
	if err != nil {
		t.Fatal(err)
	}
	return trace.Slice(func(yield func(trace.Request, error) bool) {
		for _, r := range all {
			if !yield(r, nil) {
				return
			}
		}
	}, 0, to)
}

func mustRun(t testing.TB, j Job) *Report {
	t.Helper()
	r, err := Run(context.Background(), j)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestReference repeats published figures on the same trace. Each is of one run. round_robin, and the cost form (which our oracle
// is), leave little to chance. Two random choices do: over a hundred seeds the mean TTFT of a run goes from 2.48 to 2.96 s and its p99
// from 9.4 to 13.3 s, with the published 9.8 s among the lowest; so means over seeds are compared, and p99 loosely. For the hash
// of the first blocks chance decides which heavy beginnings share an engine: only its hit rate is a property of the policy.
func TestReference(t *testing.T) {
	for _, c := range []struct {
		name                   string
		seeds                  int
		mean, p99, hit         float64 // published: seconds, seconds, share of blocks
		meanTo, p99To, hitDiff float64 // how far ours may be off: shares, and a difference
	}{
		{"round_robin", 1, 4.99, 29.5, 0.146, 0.02, 0.02, 0.005},
		{replay.PowerOfTwoWork, 4, 2.61, 9.8, 0.139, 0.10, 0.20, 0.01},
		{replay.Oracle, 1, 0.80, 5.9, 0.575, 0.05, 0.05, 0.02},
		{replay.PrefixAffinity, 3, 1.49, 10.0, 0.599, 0.25, 0.35, 0.01},
	} {
		mean, p99, hit := 0.0, 0.0, 0.0
		for seed := range c.seeds {
			r := mustRun(t, Job{Trace: requests(t, time.Hour), Options: referenceOptions(uint64(seed)), Contenders: contenders(t, c.name)})
			x := &r.Runs[0]
			mean, p99, hit = mean+*x.TTFT.Mean, p99+*x.TTFT.P99, hit+*x.BlockHitRate
		}
		n := float64(c.seeds)
		mean, p99, hit = mean/n, p99/n, hit/n
		t.Logf("%s: mean %.3f s (published %.2f), p99 %.2f s (%.1f), hit %.3f (%.3f)", c.name, mean, c.mean, p99, c.p99, hit, c.hit)
		if math.Abs(mean/c.mean-1) > c.meanTo || math.Abs(p99/c.p99-1) > c.p99To || math.Abs(hit-c.hit) > c.hitDiff {
			t.Errorf("%s: mean %.3f s, p99 %.2f s, hit %.3f; published %.2f s, %.1f s, %.3f", c.name, mean, p99, hit, c.mean, c.p99, c.hit)
		}
	}
}

// TestOracleIsTheCeiling: nobody has a lower mean TTFT than the oracle, in either kind of engine. But for cost, which weighs a request's own
// work for the sake of those behind it, where the oracle is greedy: that is worth a hundredth or two.
func TestOracleIsTheCeiling(t *testing.T) {
	full := replay.Options{Seed: 3, Rate: 0.9}
	stale := replay.Options{Seed: 3, Gateways: 4, EventDelay: 2 * time.Second, EventLoss: 0.2}
	for name, o := range map[string]replay.Options{"prefill only": referenceOptions(3), "full": full, "stale": stale} {
		part := requests(t, 200*time.Second)
		r := mustRun(t, Job{Trace: part, Options: o, Contenders: contenders(t, replay.Names()...)})
		oracle := r.Runs[len(r.Runs)-1]
		for _, x := range r.Runs[:len(r.Runs)-1] {
			ceiling := *oracle.TTFT.Mean
			if x.Name == "cost" {
				ceiling *= 0.97
			}
			if *x.TTFT.Mean <= ceiling {
				t.Errorf("%s: %s has a mean TTFT of %v s, the oracle %v s", name, x.Name, *x.TTFT.Mean, *oracle.TTFT.Mean)
			}
		}
	}
}

// everything writes a report in all its forms.
func everything(t testing.TB, j Job) []byte {
	t.Helper()
	r := mustRun(t, j)
	out, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return append(out, r.Text()+r.SVG()...)
}

// TestSameBytes: neither the number of processors, nor the order in which runs end, nor that of maps shows in the output.
func TestSameBytes(t *testing.T) {
	j := Job{
		Trace: requests(t, 40*time.Second), TraceName: "slice",
		Contenders: contenders(t, "round_robin", "cost", "power_of_two", replay.PrefixAffinity, replay.PowerOfTwoWork, replay.Oracle),
		Options: replay.Options{
			Seed: 7, Gateways: 3, Spread: replay.SpreadHash, EventDelay: 300 * time.Millisecond, EventLoss: 0.1, Peers: true, PeerLoss: 0.1,
			// Many requests are orphans at once here, which a map holds.
			Outages: []replay.Outage{{Engine: 2, At: 15 * time.Second, For: 10 * time.Second}, {Engine: 5, At: 25 * time.Second}},
		},
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	want := everything(t, j)
	for _, procs := range []int{2, 1, 8} {
		runtime.GOMAXPROCS(procs)
		if got := everything(t, j); !bytes.Equal(got, want) {
			t.Fatalf("other bytes with GOMAXPROCS %d", procs)
		}
	}
	j.Options.Seed = 8
	if bytes.Equal(everything(t, j), want) {
		t.Error("another seed gives the same bytes")
	}
	// Among other contenders a run is the same.
	j.Options.Seed = 7
	one := mustRun(t, Job{Trace: j.Trace, Options: j.Options, Contenders: contenders(t, "power_of_two")})
	all := mustRun(t, j)
	a, _ := json.Marshal(one.Runs[0])
	b, _ := json.Marshal(all.Runs[2])
	if !bytes.Equal(a, b) {
		t.Error("a run depends on the others")
	}
}

// synthetic yields n requests, one each 500 ms, in conversations that grow.
func synthetic(n int) iter.Seq2[trace.Request, error] {
	return func(yield func(trace.Request, error) bool) {
		for i := range n {
			r := trace.Request{Arrival: time.Duration(i) * 500 * time.Millisecond, InputTokens: 1024 + 512*(i%7), OutputTokens: 1 + i%3}
			for b := range (r.InputTokens + 511) / 512 {
				r.Blocks = append(r.Blocks, uint64(i/7)<<16+uint64(b))
			}
			if !yield(r, nil) {
				return
			}
		}
	}
}

// liveHeap replays and returns the live heap near the end of the trace, in bytes.
func liveHeap(t *testing.T, n int) uint64 {
	var heap uint64
	seq := func(yield func(trace.Request, error) bool) {
		i := 0
		for r, err := range synthetic(n) {
			if i++; i == n-1 {
				var m runtime.MemStats
				runtime.GC()
				runtime.GC() // what pools keep survives one
				runtime.ReadMemStats(&m)
				heap = m.HeapAlloc
			}
			if !yield(r, err) {
				return
			}
		}
	}
	r := mustRun(t, Job{Trace: seq, Options: replay.Options{Engines: 2}, Contenders: contenders(t, "load_based")})
	if r.Runs[0].Completed != n {
		t.Fatalf("%d of %d completed", r.Runs[0].Completed, n)
	}
	return heap
}

// TestMemoryDoesNotGrow compares traces of 10,000 and 100,000 requests. Kept requests would be some hundred bytes each.
func TestMemoryDoesNotGrow(t *testing.T) {
	short, long := liveHeap(t, 10_000), liveHeap(t, 100_000)
	t.Logf("%d KiB and %d KiB", short>>10, long>>10)
	if long > short+2<<20 { // maps double now and then, whatever they hold
		t.Errorf("live heap %d KiB after 10,000 requests, %d KiB after 100,000", short>>10, long>>10)
	}
}

func TestReportForms(t *testing.T) {
	j := Job{
		Trace: requests(t, 60*time.Second), TraceName: "a <b> & c", Contenders: contenders(t, replay.Names()...),
		Options: replay.Options{Seed: 1, Peers: true, Outages: []replay.Outage{{Engine: 1, At: time.Second, For: 2 * time.Second}}},
	}
	j.Contenders[0].Name = "round <robin>"
	r := mustRun(t, j)
	text := r.Text()
	for _, want := range []string{"engine 1 down from 1 s to 3 s", "gateways tell each other what they send, 0.05 s under way, 0 % lost", "round <robin>", "oracle", "TTFT mean", "rejected"} {
		if !strings.Contains(text, want) {
			t.Errorf("the table has no %q:\n%s", want, text)
		}
	}
	svg := r.SVG()
	d := xml.NewDecoder(strings.NewReader(svg))
	lines := 0
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("the plot is no XML: %v", err)
		}
		if s, ok := tok.(xml.StartElement); ok && s.Name.Local == "polyline" {
			lines++
		}
	}
	if lines != 2*len(r.Runs) || strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
		t.Errorf("%d lines in the plot, want %d, and no figure that is none", lines, 2*len(r.Runs))
	}
}

// TestNothingMeasured: when no request gets a token the figures are unknown, not zero, and there is a plot all the same.
func TestNothingMeasured(t *testing.T) {
	r := mustRun(t, Job{
		Trace: synthetic(3), Contenders: contenders(t, "round_robin"),
		Options: replay.Options{Engines: 1, Outages: []replay.Outage{{Engine: 0}}},
	})
	x := r.Runs[0]
	if x.TTFT.Mean != nil || x.HitRate != nil || x.BusyImbalance != nil || x.Lost+x.rejected() != 3 {
		t.Errorf("%+v", x)
	}
	if svg := r.SVG(); strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
		t.Error("the plot has figures that are none")
	}
	if !strings.Contains(r.Text(), "–") {
		t.Error(r.Text())
	}
}

func TestErrors(t *testing.T) {
	bad := trace.Read(strings.NewReader(`{"time":0,"input_tokens":5,"output_tokens":2}` + "\nx"))
	var le *trace.LineError
	if _, err := Run(context.Background(), Job{Trace: bad, Contenders: contenders(t, "random")}); !errors.As(err, &le) || le.Line != 2 {
		t.Errorf("a broken line: %v", err)
	}
	if _, err := Run(context.Background(), Job{Trace: synthetic(0), Contenders: contenders(t, "random", "oracle")}); !errors.Is(err, ErrNoRequests) {
		t.Errorf("an empty trace: %v", err)
	}
	once := trace.Read(strings.NewReader(strings.Repeat(`{"time":0,"input_tokens":5,"output_tokens":2}`+"\n", 5)))
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // two would read it at the same time
	if _, err := Run(context.Background(), Job{Trace: once, Contenders: contenders(t, "random", "oracle")}); !errors.Is(err, ErrNotRepeatable) {
		t.Errorf("a trace that can be read once: %v", err)
	}
	var size *BlockSizeError
	o := replay.Options{Engine: engine.Config{BlockSize: 100}}
	if _, err := Run(context.Background(), Job{Trace: synthetic(9), Options: o, Contenders: contenders(t, "random")}); !errors.As(err, &size) {
		t.Errorf("blocks that do not fit: %v", err)
	}
	runtime.GOMAXPROCS(2)
	broken := contenders(t, "oracle", "random")
	noBuckets := errors.New("no buckets")
	broken[1].Build = func(string, uint64, *replay.Baselines) (*bucket.Resolver, error) { return nil, noBuckets }
	// The trace of the first one has no end: only the second one's failure stops it.
	if _, err := Run(context.Background(), Job{Trace: synthetic(1 << 40), Contenders: broken}); !errors.Is(err, noBuckets) || !strings.Contains(err.Error(), "random") {
		t.Errorf("a contender without buckets: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var first sync.Once
	_, err := Run(ctx, Job{Trace: synthetic(1 << 30), Contenders: contenders(t, "random", "oracle"), Progress: func(int, Progress) { first.Do(cancel) }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}

// TestModels: a log's requests of other models are left out; those without a model stay.
func TestModels(t *testing.T) {
	log := `{"time":0,"input_tokens":5,"output_tokens":2,"model":"a"}
{"time":1,"input_tokens":5,"output_tokens":2,"model":"b"}
{"time":2,"input_tokens":5,"output_tokens":2}
`
	for model, want := range map[string]int{"": 3, "a": 2, "c": 1} {
		r := mustRun(t, Job{Trace: trace.Read(strings.NewReader(log)), Model: model, Contenders: contenders(t, "random")})
		if r.Runs[0].Requests != want {
			t.Errorf("model %q: %d requests, want %d", model, r.Runs[0].Requests, want)
		}
	}
}

// TestBlocks: the blocks of a trace become the engines', whatever the sizes.
func TestBlocks(t *testing.T) {
	arrival := func(r trace.Request, size int) replay.Arrival {
		for a, err := range Arrivals(func(yield func(trace.Request, error) bool) {
			_ = yield(trace.Request{InputTokens: 1}, nil) && yield(r, nil)
		}, size) {
			if err != nil {
				t.Fatal(err)
			}
			if a.InputTokens == r.InputTokens {
				return a
			}
		}
		panic("no arrival")
	}
	same := func(a, b replay.Arrival) (n int) {
		for i := range min(len(a.Blocks), len(b.Blocks)) {
			if a.Blocks[i] == b.Blocks[i] {
				n++
			}
		}
		return n
	}
	long := trace.Request{InputTokens: 1500, Blocks: []uint64{7, 8, 9}}
	for _, c := range []struct {
		name       string
		other      trace.Request
		size       int
		want, most int // equal blocks, and blocks
	}{
		{"equal", trace.Request{InputTokens: 1501, Blocks: []uint64{7, 8, 9}}, 512, 3, 3},
		{"two of three", trace.Request{InputTokens: 1501, Blocks: []uint64{7, 8, 10}}, 512, 2, 3},
		{"a block's id alone does not make it equal", trace.Request{InputTokens: 1501, Blocks: []uint64{1, 8, 9}}, 512, 0, 3},
		{"smaller blocks", trace.Request{InputTokens: 1501, Blocks: []uint64{7, 8, 10}}, 128, 8, 12},
		{"ids for the first block only", trace.Request{InputTokens: 1501, Blocks: []uint64{7}}, 512, 1, 3},
		{"no ids", trace.Request{InputTokens: 1501}, 512, 0, 3},
	} {
		a, b := arrival(long, c.size), arrival(c.other, c.size)
		if n := same(a, b); n != c.want || len(b.Blocks) != c.most {
			t.Errorf("%s: %d of %d blocks are equal, want %d of %d", c.name, n, len(b.Blocks), c.want, c.most)
		}
	}
	x, y := arrival(trace.Request{InputTokens: 9, Session: "a"}, 512), arrival(trace.Request{InputTokens: 9, Session: "b"}, 512)
	if x.Session == 0 || x.Session == y.Session {
		t.Error("sessions are lost")
	}
}

// BenchmarkReplay is the whole embedded trace, 1,022 s, over 8 engines under one policy.
func BenchmarkReplay(b *testing.B) {
	for _, name := range []string{"round_robin", "load_based", replay.Oracle} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				mustRun(b, Job{Trace: trace.Synthetic(), Options: replay.Options{Seed: 1}, Contenders: contenders(b, name)})
			}
			b.ReportMetric(1022*float64(b.N)/b.Elapsed().Seconds(), "x-real-time")
		})
	}
}
