package explain

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/perigee-llm/perigee/internal/gateway/load"
)

// TestText holds the text of each record in testdata against the file beside it. The records are JSON as a gateway sends it,
// so that reading them is tested too.
func TestText(t *testing.T) {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no records: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var r Record
			if err := json.Unmarshal(text, &r); err != nil {
				t.Fatal(err)
			}
			got := r.Text()
			want, err := os.ReadFile(strings.TrimSuffix(file, ".json") + ".txt")
			if err != nil {
				t.Errorf("%v; what it should hold:\n%s", err, got)
			} else if diff := cmp.Diff(string(want), got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestRecordsSurviveJSON: what the listener writes, perigee explain reads.
func TestRecordsSurviveJSON(t *testing.T) {
	ms := 1.5
	in := Record{
		Time: time.Unix(5, 0).UTC(), RequestID: "a", InputTokens: 7, PeakTokens: load.Known(9), Done: true, Status: 200, TTFTMillis: &ms,
		CachedTokens: load.Known(0), Attempts: []Attempt{{Bucket: "b", Outcome: "answered", Tries: []Try{{
			Bucket: "b", Picked: "e", Considered: []Candidate{{Engine: "e", Report: &Report{Waiting: load.Known(3)}}},
		}}}},
	}
	text, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var out Record
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(in, out, cmp.AllowUnexported(load.Count{})); diff != "" {
		t.Error(diff)
	}
}

func TestBecause(t *testing.T) {
	n := load.Known
	candidate := func(engine string, inFlight int64, score load.Count, r *Report) Candidate {
		return Candidate{Engine: engine, InFlight: inFlight, Score: score, Report: r}
	}
	pair := func(a, b *Report) []Candidate {
		return []Candidate{candidate("b", 0, load.Count{}, b), candidate("a", 0, load.Count{}, a)}
	}
	for _, tt := range []struct {
		stage, reason string
		seen          []Candidate
		want          string
	}{
		{"plain", "rotation", pair(nil, nil), "rotation"},
		{"plain", "only_candidate", pair(nil, nil)[1:], "only_candidate"},
		{"plain", "tie", pair(&Report{Waiting: n(1)}, &Report{Waiting: n(1)}), "tie"},
		{"plain", "lower_pressure", pair(&Report{Waiting: n(1)}, &Report{Waiting: n(3)}), "lower_pressure: 1 vs 3 waiting"},
		{"plain", "lower_pressure", pair(&Report{Waiting: n(1), Running: n(2)}, &Report{Waiting: n(1), Running: n(5)}), "lower_pressure: 2 vs 5 running"},
		// A figure that one side lacks does not decide.
		{"plain", "lower_pressure", pair(&Report{WaitingUncached: n(0), Waiting: n(1)}, &Report{Waiting: n(3)}), "lower_pressure: 1 vs 3 waiting"},
		{"plain", "lower_pressure", pair(&Report{WaitingUncached: n(0), Waiting: n(9)}, &Report{WaitingUncached: n(4096), Waiting: n(3)}),
			"lower_pressure: 0 vs 4,096 waiting uncached tokens"},
		{"prefill", "lower_pressure", pair(&Report{QueueMicros: n(1500)}, &Report{QueueMicros: n(2500000)}), "lower_pressure: 1.5 ms vs 2.50 s of queue"},
		{"decode", "lower_pressure", pair(&Report{QueueMicros: n(9), Used: n(1)}, &Report{QueueMicros: n(8), Used: n(2)}), "lower_pressure: 1 vs 2 KV tokens used"},
		{"plain", "lower_pressure", pair(nil, &Report{}), "lower_pressure"},
		{"plain", "fewer_in_flight", []Candidate{candidate("a", 2, load.Count{}, nil), candidate("b", 3, load.Count{}, nil)}, "fewer_in_flight: 2 vs 3 in flight"},
		{"plain", "least_load", []Candidate{candidate("b", 0, n(9), nil), candidate("a", 0, n(4), nil), candidate("c", 0, n(5), nil)},
			"least_load: 4 vs 5 to 9 waiting, running and on the way"},
		{"plain", "least_load", []Candidate{candidate("a", 0, n(4), nil), candidate("c", 0, n(4), nil)}, "least_load: all tied at 4 waiting, running and on the way"},
		{"plain", "least_load", []Candidate{candidate("a", 0, n(4), nil), candidate("c", 0, n(4), nil), candidate("d", 0, n(6), nil)},
			"least_load: 4 vs 4 to 6 waiting, running and on the way"},
		{"plain", "least_in_flight", []Candidate{candidate("a", 0, n(0), nil), candidate("c", 1, n(1), nil)}, "least_in_flight: 0 vs 1 in flight"},
	} {
		try := Try{Stage: tt.stage, Reason: tt.reason, Considered: tt.seen, Picked: "a"}
		if got := try.Because(); got != tt.want {
			t.Errorf("%s, %+v: %q, want %q", tt.reason, tt.seen, got, tt.want)
		}
	}
	if got := (&Try{Error: "no_candidates"}).Because(); got != "" {
		t.Errorf("nothing was picked because %q", got)
	}
}

func TestGrouped(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0", 999: "999", 1000: "1,000", 23115: "23,115", 1234567: "1,234,567", -999: "-999", -1000: "-1,000",
		-9223372036854775808: "-9,223,372,036,854,775,808",
	} {
		if got := Grouped(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
