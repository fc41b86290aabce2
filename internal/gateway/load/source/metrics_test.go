package source_test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/perigee-llm/perigee/internal/gateway/fleet/ask"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/load/source"
	"github.com/perigee-llm/perigee/internal/script"
)

func TestParseMetricsRealEngine(t *testing.T) {
	var a source.Answer
	if err := source.ParseMetrics(readFile(t, "vllm_0.32.0_metrics.txt"), &a); err != nil {
		t.Fatal(err)
	}
	want := "started=1795987731.7\nrank 0: running=0 waiting=0 used=0 capacity=524288\nprefilled=33\n"
	if d := gocmp.Diff(want, show(&a)); d != "" {
		t.Error(d)
	}
}

func TestParseMetrics(t *testing.T) {
	lines := func(l ...string) string { return strings.Join(l, "\n") + "\n" }
	many := strings.Builder{}
	for i := range load.MaxRanks + 1 {
		fmt.Fprintf(&many, "vllm:num_requests_running{engine=\"%d\"} 1\n", i)
	}
	config := `vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1.0`
	for _, c := range []struct {
		name, body, want string
		err              error
	}{
		{"without an engine label it is rank 0",
			lines(`vllm:num_requests_running{model_name="m"} 2`, `vllm:num_requests_waiting{model_name="m"} 1`, `vllm:kv_cache_usage_perc{model_name="m"} 0.5`, `vllm:cache_config_info{block_size="16",num_gpu_blocks="10"} 1`),
			"rank 0: running=2 waiting=1 used=80 capacity=160\n", nil},
		{"without any label", lines("vllm:num_requests_running 2", "vllm:num_requests_waiting\t1e+01"), "rank 0: running=2 waiting=10\n", nil},
		{"two ranks", lines(`vllm:num_requests_running{engine="1"} 5`, `vllm:num_requests_running{engine="0"} 4`), "rank 0: running=4\nrank 1: running=5\n", nil},
		{"a rank alone", lines(`vllm:num_requests_running{engine="3"} 5`), "rank 3: running=5\n", nil},
		{"model names of one rank add up", lines(`vllm:num_requests_running{engine="0",model_name="a"} 2`, `vllm:num_requests_running{engine="0",model_name="b"} 3`), "rank 0: running=5\n", nil},
		{"an unreadable addend makes the sum unknown", lines(`vllm:num_requests_running{engine="0",model_name="a"} 2`, `vllm:num_requests_running{engine="0",model_name="b"} NaN`), "rank 0:\n", nil},
		{"not numbers are unknown", lines(`vllm:num_requests_running{engine="0"} NaN`, `vllm:num_requests_waiting{engine="0"} +Inf`, `vllm:prompt_tokens_total{engine="0"} -1`), "rank 0:\n", nil},
		{"fractions and garbage are unknown", lines(`vllm:num_requests_running{engine="0"} 1.5`, `vllm:num_requests_waiting{engine="0"} 12abc`), "rank 0:\n", nil},
		{"usage is rounded", lines(config, `vllm:kv_cache_usage_perc{engine="0"} 0.33337`), "rank 0: used=5334 capacity=16000\n", nil},
		{"usage beyond its range is unknown", lines(config, `vllm:kv_cache_usage_perc{engine="0"} 1.01`), "rank 0: capacity=16000\n", nil},
		{"usage without a capacity is unknown", lines(`vllm:kv_cache_usage_perc{engine="0"} 0.5`), "rank 0:\n", nil},
		{"usages that disagree are unknown", lines(config, `vllm:kv_cache_usage_perc{engine="0",model_name="a"} 0.5`, `vllm:kv_cache_usage_perc{engine="0",model_name="b"} 0.25`), "rank 0: capacity=16000\n", nil},
		{"usages that agree are one", lines(config, `vllm:kv_cache_usage_perc{engine="0",model_name="a"} 0.5`, `vllm:kv_cache_usage_perc{engine="0",model_name="b"} 0.5`), "rank 0: used=8000 capacity=16000\n", nil},
		{"blocks that are not known yet", lines(`vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="None"} 1`, `vllm:kv_cache_usage_perc{engine="0"} 0`), "rank 0:\n", nil},
		{"no blocks", lines(`vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="0"} 1`), "rank 0:\n", nil},
		{"blocks that overflow to a likely number", lines(`vllm:cache_config_info{block_size="8589934592",engine="0",num_gpu_blocks="2147483649"} 1`), "rank 0:\n", nil},
		{"sizes for all ranks", lines(`vllm:cache_config_info{block_size="16",num_gpu_blocks="10"} 1`, `vllm:num_requests_running{engine="0"} 1`, `vllm:num_requests_running{engine="1"} 1`), "rank 0: running=1 capacity=160\nrank 1: running=1 capacity=160\n", nil},
		{"quotes, braces and commas in a label", lines(`vllm:num_requests_running{model_name="a\",engine=\"7\"} 9 {\\",engine="0"} 3`), "rank 0: running=3\n", nil},
		{"blanks, a last comma and a time", lines(`vllm:num_requests_running{ model_name = "m" , engine = "0" , }  3   1700000000000`), "rank 0: running=3\n", nil},
		{"an engine that is no number", lines(`vllm:num_requests_running{engine="zero"} 1`, `vllm:num_requests_running{engine=""} 1`, `vllm:num_requests_running{engine="-1"} 1`, `vllm:num_requests_waiting{engine="0"} 1`), "rank 0: waiting=1\n", nil},
		{"broken lines say nothing",
			lines(`vllm:num_requests_running{engine="0} 1`, `vllm:num_requests_running{engine=0} 1`, `vllm:num_requests_running{engine="0"`, `vllm:num_requests_running{engine="0"}`, `vllm:num_requests_running{engine="0"x="1"} 1`, `vllm:num_requests_running{`, `vllm:`, `vllm:num_requests_waiting{engine="0"} 1`),
			"rank 0: waiting=1\n", nil},
		{"longer names are others", lines(`vllm:num_requests_running_total{engine="0"} 1`, `vllm:num_requests_waiting_by_reason{engine="0"} 1`, `vllm:num_requests_waiting{engine="0"} 4`), "rank 0: waiting=4\n", nil},
		{"comments are no series", lines(`# HELP vllm:num_requests_running x`, `# vllm:num_requests_running 1`, `vllm:num_requests_waiting 4`), "rank 0: waiting=4\n", nil},
		{"carriage returns are garbage", "vllm:num_requests_running 4\r\n", "rank 0:\n", nil},
		{"statistics off", lines(`process_start_time_seconds 1.7e9`, `http_requests_total 3`), "", source.ErrNoLoad},
		{"nothing", "", "", source.ErrNoLoad},
		{"cut within a line", "vllm:num_requests_running 12\nvllm:num_requests_waiting 1", "", ask.ErrUnreachable},
		{"too many ranks", many.String(), "", ask.ErrMalformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			var a source.Answer
			err := source.ParseMetrics([]byte(c.body), &a)
			if !errors.Is(err, c.err) || (err != nil) != (c.err != nil) {
				t.Fatalf("err %v, want %v", err, c.err)
			}
			if err == nil {
				if d := gocmp.Diff(c.want, show(&a)); d != "" {
					t.Error(d)
				}
			}
		})
	}
}

// The model: the same page read with regular expressions and maps, one series at a time.
var (
	modelLine  = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:\s*[a-zA-Z_]\w*\s*=\s*"(?:[^"\\]|\\.)*"\s*,?)*\s*)\})?\s+(\S+)(?:\s+\S+)?\s*$`)
	modelLabel = regexp.MustCompile(`([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"`)
)

func modelParse(page string) string {
	sums := map[string]map[int]load.Count{}
	usage, capacity := map[int][]float64{}, map[int][]int64{}
	ranks := map[int]bool{}
	out := ""
	for line := range strings.Lines(page) {
		m := modelLine.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if m == nil {
			continue
		}
		labels := map[string]string{}
		for _, l := range modelLabel.FindAllStringSubmatch(m[2], -1) {
			labels[l[1]] = l[2]
		}
		rank, err := strconv.Atoi(labels["engine"])
		value, verr := strconv.ParseFloat(m[3], 64)
		if m[1] == "process_start_time_seconds" {
			out = "started=" + strconv.FormatFloat(value, 'f', -1, 64) + "\n"
		}
		if err != nil {
			continue
		}
		switch m[1] {
		case "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:prompt_tokens_total":
			c := load.Count{}
			if n, err := strconv.ParseInt(m[3], 10, 64); err == nil && n >= 0 {
				c = load.Known(n)
			} else if verr == nil && value >= 0 && value == math.Trunc(value) && value <= 1<<53 {
				c = load.Known(int64(value))
			}
			if sums[m[1]] == nil {
				sums[m[1]] = map[int]load.Count{}
			}
			if old, seen := sums[m[1]][rank]; seen {
				c = old.Plus(c)
			}
			sums[m[1]][rank] = c
		case "vllm:kv_cache_usage_perc":
			if verr != nil || !(value >= 0 && value <= 1) {
				value = -1
			}
			usage[rank] = append(usage[rank], value)
		case "vllm:cache_config_info":
			size, err1 := strconv.ParseInt(labels["block_size"], 10, 64)
			blocks, err2 := strconv.ParseInt(labels["num_gpu_blocks"], 10, 64)
			n := size * blocks
			if err1 != nil || err2 != nil || n <= 0 {
				n = -1
			}
			capacity[rank] = append(capacity[rank], n)
		default:
			continue
		}
		ranks[rank] = true
	}
	prefilled := load.Known(0)
	for _, r := range slices.Sorted(maps.Keys(ranks)) {
		out += fmt.Sprintf("rank %d:", r)
		if c := sums["vllm:num_requests_running"][r]; c.IsKnown() {
			out += " running=" + c.String()
		}
		if c := sums["vllm:num_requests_waiting"][r]; c.IsKnown() {
			out += " waiting=" + c.String()
		}
		pool, poolOK := agreed(capacity[r])
		if used, ok := agreed(usage[r]); ok && poolOK {
			out += fmt.Sprintf(" used=%.0f", math.Round(used*float64(pool)))
		}
		if poolOK {
			out += fmt.Sprintf(" capacity=%d", pool)
		}
		prefilled = prefilled.Plus(sums["vllm:prompt_tokens_total"][r])
		out += "\n"
	}
	if prefilled.IsKnown() && len(ranks) > 0 {
		out += "prefilled=" + prefilled.String() + "\n"
	}
	return out
}

// agreed is the one value that all series have, if none of them is unreadable (negative).
func agreed[T cmp.Ordered](all []T) (T, bool) {
	var zero T
	if len(all) == 0 || slices.Min(all) != slices.Max(all) || all[0] < zero {
		return zero, false
	}
	return all[0], true
}

func randomPage(rng *rand.Rand) string {
	pick := func(s ...string) string { return s[rng.IntN(len(s))] }
	var b strings.Builder
	for range rng.IntN(40) {
		name := pick("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:cache_config_info",
			"vllm:prompt_tokens_total", "vllm:num_requests_waiting_by_reason", "vllm:kv_cache_usage", "# vllm:num_requests_running", "process_start_time_seconds", "vllm:x", "python_info")
		labels := []string{`engine="` + pick("0", "1", "2", "11") + `"`}
		if rng.IntN(2) == 0 {
			labels = append(labels, `model_name="`+pick("m", `a,b`, `a\"} 5`, `{engine=\"9\"}`, `\\`, ``)+`"`)
		}
		if name == "vllm:cache_config_info" {
			labels = append(labels, `block_size="`+pick("16", "32")+`"`, `num_gpu_blocks="`+pick("1000", "1000", "1000", "None", "-4", "0")+`"`, `my_block_size="7"`)
		}
		rng.Shuffle(len(labels), func(i, j int) { labels[i], labels[j] = labels[j], labels[i] })
		value := pick("0", "1", "2.0", "17", "0.5", "0.25", "1e2", "NaN", "+Inf", "-1", "1.5", "abc", "9007199254740994")
		if name == "process_start_time_seconds" {
			value = pick("1.7e9", "1.8e9")
		}
		b.WriteString(name + "{" + strings.Join(labels, pick(",", ", ", " ,")) + pick("", ",") + "}" + pick(" ", "\t", "  ") + value + pick("", " 1700000000") + "\n")
	}
	return b.String()
}

func TestParseMetricsAgainstModel(t *testing.T) {
	rng := script.Rand(t)
	var a source.Answer
	for range 1000 {
		page := randomPage(rng)
		got := ""
		switch err := source.ParseMetrics([]byte(page), &a); {
		case err == nil:
			got = show(&a)
			wantSound(t, &a)
		case !errors.Is(err, source.ErrNoLoad):
			t.Fatalf("%v\n%s", err, page)
		}
		want := modelParse(page)
		if !strings.Contains(want, "rank") {
			want = ""
		}
		if d := gocmp.Diff(want, got); d != "" {
			t.Fatalf("%s\n%s", d, page)
		}
	}
}

func FuzzParseMetrics(f *testing.F) {
	var short bytes.Buffer // the real page without its histograms, which only slow the fuzzer down
	for line := range bytes.Lines(readFile(f, "vllm_0.32.0_metrics.txt")) {
		if !bytes.Contains(line, []byte("_bucket")) && !bytes.HasPrefix(line, []byte("#")) {
			short.Write(line)
		}
	}
	f.Add(short.Bytes())
	f.Add([]byte("vllm:num_requests_running{engine=\"1\",model_name=\"a\\\"b\"} 2 17\nvllm:num_requests_waiting 1e1\n"))
	f.Add([]byte("vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"9\"} 1\nvllm:kv_cache_usage_perc{engine=\"0\"} .5\n"))
	f.Add([]byte("vllm:num_requests_running{engine=\"\\"))
	f.Fuzz(func(t *testing.T, body []byte) {
		var a source.Answer
		if source.ParseMetrics(body, &a) == nil {
			wantSound(t, &a)
		}
	})
}

// TestParseMetricsAllocates: a page of 700 lines costs the list of its ranks and nothing a line.
func TestParseMetricsAllocates(t *testing.T) {
	page := readFile(t, "vllm_0.32.0_metrics.txt")
	var a source.Answer
	n := testing.AllocsPerRun(100, func() {
		if err := source.ParseMetrics(page, &a); err != nil {
			t.Fatal(err)
		}
	})
	if n > 1 {
		t.Errorf("%v allocations a page, want at most 1", n)
	}
}

func BenchmarkParseMetrics(b *testing.B) {
	page := readFile(b, "vllm_0.32.0_metrics.txt")
	b.SetBytes(int64(len(page)))
	b.ReportAllocs()
	var a source.Answer
	for b.Loop() {
		if err := source.ParseMetrics(page, &a); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParseLoads(b *testing.B) {
	body := readFile(b, "sglang_0.5.23_loads.json")
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	var a source.Answer
	for b.Loop() {
		if err := source.ParseLoads(body, &a); err != nil {
			b.Fatal(err)
		}
	}
}
