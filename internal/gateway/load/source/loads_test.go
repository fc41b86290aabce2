package source_test

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/perigee-llm/perigee/internal/gateway/fleet/ask"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/load/source"
)

// show writes an answer as scripts have it: one line a rank, what is unknown left out.
func show(a *source.Answer) string {
	var b strings.Builder
	if a.Expected > 0 {
		b.WriteString("expected=" + strconv.Itoa(a.Expected) + "\n")
	}
	if a.Started > 0 {
		b.WriteString("started=" + strconv.FormatFloat(a.Started, 'f', -1, 64) + "\n")
	}
	for _, r := range a.Ranks {
		b.WriteString("rank " + strconv.Itoa(r.Number) + ":")
		for _, f := range []struct {
			name string
			load.Count
		}{
			{"running", r.Report.Running}, {"waiting", r.Report.Waiting}, {"uncached", r.Report.WaitingUncached},
			{"used", r.Report.Used}, {"total", r.Report.Total}, {"capacity", r.Report.Capacity}, {"max_running", r.Report.MaxRunning},
			{"prefill_tokens", r.Report.PrefillTokens}, {"prefill_busy", r.Report.PrefillBusy},
		} {
			if f.IsKnown() {
				b.WriteString(" " + f.name + "=" + f.String())
			}
		}
		b.WriteString("\n")
	}
	if a.Prefilled.IsKnown() {
		b.WriteString("prefilled=" + a.Prefilled.String() + "\n")
	}
	return b.String()
}

func readFile(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestParseLoadsRealEngine(t *testing.T) {
	var a source.Answer
	if err := source.ParseLoads(readFile(t, "sglang_0.5.23_loads.json"), &a); err != nil {
		t.Fatal(err)
	}
	want := "rank 0: running=0 waiting=0 uncached=0 used=0 total=0 capacity=4096 max_running=2048 prefill_tokens=193 prefill_busy=223697\nprefilled=193\n"
	if d := cmp.Diff(want, show(&a)); d != "" {
		t.Error(d)
	}
}

func TestParseLoads(t *testing.T) {
	many := `{"loads":[{}` + strings.Repeat(`,{}`, load.MaxRanks) + `]}`
	for _, c := range []struct {
		name, body, want string
		err              error
	}{
		{"absent, null and other types are unknown",
			`{"loads":[{"dp_rank":0,"num_running_reqs":null,"num_waiting_reqs":"3","num_used_tokens":true,"num_total_tokens":[1],"num_waiting_uncached_tokens":{"a":1}}]}`,
			"rank 0:\n", nil},
		{"negative, fractional and huge are unknown",
			`{"loads":[{"num_running_reqs":-1,"num_waiting_reqs":1.5,"num_used_tokens":1e30,"num_total_tokens":99999999999999999999,"total_prefill_busy_us":9007199254740993.0}]}`,
			"rank 0: prefill_busy=9007199254740992\n", nil},
		{"zero is zero", `{"loads":[{"num_running_reqs":0,"num_waiting_reqs":-0.0}]}`, "rank 0: running=0 waiting=0\n", nil},
		{"whole floats are numbers", `{"loads":[{"num_running_reqs":3.0,"num_used_tokens":1.2e3}]}`, "rank 0: running=3 used=1200\n", nil},
		{"a size or limit of zero is unknown", `{"loads":[{"max_total_num_tokens":0,"max_running_requests":0,"num_used_tokens":0}]}`, "rank 0: used=0\n", nil},
		{"ranks in any order", `{"dp_rank_count":2,"loads":[{"dp_rank":1,"num_running_reqs":5,"total_prefill_uncached_tokens":7},{"dp_rank":0,"num_running_reqs":4,"total_prefill_uncached_tokens":8}]}`,
			"expected=2\nrank 0: running=4 prefill_tokens=8\nrank 1: running=5 prefill_tokens=7\nprefilled=15\n", nil},
		{"a rank is missing", `{"dp_rank_count":3,"loads":[{"dp_rank":0},{"dp_rank":2}]}`, "expected=3\nrank 0:\nrank 2:\n", nil},
		{"a rank without its counter makes the sum unknown", `{"loads":[{"dp_rank":0,"total_prefill_uncached_tokens":1},{"dp_rank":1}]}`, "rank 0: prefill_tokens=1\nrank 1:\n", nil},
		{"places stand for missing ranks", `{"loads":[{"num_running_reqs":1},{"dp_rank":null,"num_running_reqs":2}]}`, "rank 0: running=1\nrank 1: running=2\n", nil},
		{"a silly rank count is not known", `{"dp_rank_count":100000,"loads":[{"dp_rank":0}]}`, "rank 0:\n", nil},
		{"a rank twice", `{"loads":[{"dp_rank":1},{"dp_rank":1}]}`, "", ask.ErrMalformed},
		{"a place taken", `{"loads":[{"dp_rank":1},{}]}`, "", ask.ErrMalformed},
		{"a silly rank", `{"loads":[{"dp_rank":1024}]}`, "", ask.ErrMalformed},
		{"too many ranks", many, "", ask.ErrMalformed},
		{"no rank", `{"loads":[]}`, "", source.ErrNoLoad},
		{"no list", `{"dp_rank_count":1}`, "", ask.ErrMalformed},
		{"null list", `{"loads":null}`, "", ask.ErrMalformed},
		{"a map for a list", `{"loads":{"0":{}}}`, "", ask.ErrMalformed},
		{"a number for a rank", `{"loads":[1]}`, "", ask.ErrMalformed},
		{"cut", `{"loads":[{"dp_rank":0}]`, "", ask.ErrMalformed},
		{"two answers", `{"loads":[{}]}{"loads":[{}]}`, "", ask.ErrMalformed},
		{"an array", `[]`, "", ask.ErrMalformed},
		{"null", `null`, "", ask.ErrMalformed},
		{"nothing", ``, "", ask.ErrMalformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			var a source.Answer
			a.Ranks = append(a.Ranks, source.Rank{Number: 99}) // what was there before must not show
			err := source.ParseLoads([]byte(c.body), &a)
			if !errors.Is(err, c.err) || (err != nil) != (c.err != nil) {
				t.Fatalf("err %v, want %v", err, c.err)
			}
			if err == nil {
				if d := cmp.Diff(c.want, show(&a)); d != "" {
					t.Error(d)
				}
			}
		})
	}
}

// wantSound holds what is true of every answer that a parser lets through.
func wantSound(t *testing.T, a *source.Answer) {
	t.Helper()
	if len(a.Ranks) == 0 || len(a.Ranks) > load.MaxRanks || a.Expected < 0 || a.Expected > load.MaxRanks || a.Started < 0 {
		t.Fatalf("%d ranks, expected %d, started %v", len(a.Ranks), a.Expected, a.Started)
	}
	for i, r := range a.Ranks {
		if r.Number < 0 || (i > 0 && r.Number <= a.Ranks[i-1].Number) {
			t.Fatalf("rank %d in place %d", r.Number, i)
		}
		q := &r.Report
		for _, f := range []load.Count{q.Running, q.Waiting, q.WaitingUncached, q.Used, q.Total, q.Capacity, q.MaxRunning, q.PrefillTokens, q.PrefillBusy} {
			if n, ok := f.Get(); ok && n < 0 {
				t.Fatalf("a negative figure: %+v", r)
			}
		}
		if n, ok := q.Capacity.Get(); ok && n == 0 {
			t.Fatalf("a capacity of zero: %+v", r)
		}
	}
}

func FuzzParseLoads(f *testing.F) {
	f.Add(readFile(f, "sglang_0.5.23_loads.json"))
	for _, s := range []string{
		`{"dp_rank_count":2,"loads":[{"dp_rank":1,"num_running_reqs":5},{"dp_rank":0,"max_total_num_tokens":0}]}`,
		`{"loads":[{"num_running_reqs":-1.5e300},{"dp_rank":null}]}`, `{"loads":[{"num_used_tokens":18446744073709551616}]}`, `{"loads":[null]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var a source.Answer
		if source.ParseLoads(body, &a) == nil {
			wantSound(t, &a)
		}
	})
}
