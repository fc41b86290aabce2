package explain_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/explain"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
)

var noon = time.Unix(1_800_000_000, 0)

// selector returns a pick among n engines of one bucket, the first of which has the least load.
func selector(t testing.TB, n int) func(*bucket.Trace) (bucket.Selection, error) {
	return selectorOf(t, n, func(i int) int64 { return int64(i) })
}

// selectorOf returns a pick among n engines of one bucket that have so many requests running.
func selectorOf(t testing.TB, n int, running func(int) int64) func(*bucket.Trace) (bucket.Selection, error) {
	reg := fleet.NewRegistry(fleet.BreakerConfig{}, 0)
	for i := range n {
		w := reg.Put(fleet.Spec{ID: fmt.Sprintf("e%02d", i), URL: "http://x", Kind: fleet.VLLM, Models: []string{"m"}})
		w.Load.Observe(0, load.RankReport{At: noon, Running: load.Known(running(i)), Waiting: load.Known(0)})
	}
	res, err := bucket.NewResolver([]*bucket.Bucket{bucket.NewPlain("all", 0, bucket.Range{}, bucket.NewGroup("m", fleet.Plain, nil, policy.NewLeastLoad(policy.Limits{})))})
	if err != nil {
		t.Fatal(err)
	}
	key := uint64(0)
	return func(tr *bucket.Trace) (bucket.Selection, error) {
		key++
		return res.Select(context.Background(), reg.View(), &bucket.Request{Key: key, Now: noon, InputTokens: 1, Trace: tr})
	}
}

// ids returns the request ids of the records, newest first, those not done in brackets.
func ids(l *explain.Log, q explain.Query) string {
	var out []string
	for _, r := range l.Records(q) {
		id := r.RequestID
		if !r.Done {
			id = "(" + id + ")"
		}
		out = append(out, id)
	}
	return strings.Join(out, " ")
}

// TestLogIsBounded: the newest requests are remembered, those that were pushed out are forgotten while they are still under way, and
// memory that is used again shows nothing of its former request.
func TestLogIsBounded(t *testing.T) {
	l, pick := explain.NewLog(3), selector(t, 2)
	want := func(s string) {
		t.Helper()
		if got := ids(l, explain.Query{}); got != s {
			t.Errorf("got %q, want %q", got, s)
		}
	}
	want("")
	entries := map[string]*explain.Entry{}
	begin := func(id string) {
		entries[id] = l.Begin(explain.Facts{RequestID: id, Started: noon})
	}
	for _, id := range []string{"a", "b", "c"} {
		begin(id)
	}
	want("(c) (b) (a)")
	entries["b"].Finish(explain.End{Status: 200})
	want("(c) b (a)")
	begin("d") // a is pushed out under way
	want("(d) (c) b")
	if _, err := entries["a"].Attempt(noon, pick); err != nil { // and goes on
		t.Fatal(err)
	}
	entries["a"].Outcome("answered")
	entries["a"].Finish(explain.End{Status: 500, Code: "x"})
	want("(d) (c) b")
	for i := range 10 {
		begin(fmt.Sprint(i))
	}
	want("(9) (8) (7)")
	for _, r := range l.Records(explain.Query{}) {
		if len(r.Attempts) != 0 || r.Status != 0 || r.Code != "" {
			t.Errorf("%+v has something of another request", r)
		}
	}
	begin("9") // a client may use an id twice
	if got := ids(l, explain.Query{RequestID: "9"}); got != "(9) (9)" {
		t.Errorf("by id: %q", got)
	}
	if got := ids(l, explain.Query{Limit: 2}); got != "(9) (9)" {
		t.Errorf("limited: %q", got)
	}
}

// TestPickedIsTold: in a group of more engines than are kept, the one that was picked is told with the figures that decided.
func TestPickedIsTold(t *testing.T) {
	for _, n := range []int{17, 100} {
		l, pick := explain.NewLog(1), selectorOf(t, n, func(i int) int64 { return int64(n - i) })
		e := l.Begin(explain.Facts{RequestID: "a", Started: noon})
		if _, err := e.Attempt(noon, pick); err != nil {
			t.Fatal(err)
		}
		try := l.Records(explain.Query{})[0].Attempts[0].Tries[0]
		want := fmt.Sprintf("least_load: 1 vs %d to %d waiting, running and on the way", n-explain.CandidatesKept+2, n)
		if got := try.Because(); got != want {
			t.Errorf("of %d: %s, want %s", n, got, want)
		}
	}
}

// waiting is a policy whose look-up fails.
type waiting struct{ err error }

func (waiting) Name() string { return "waiting" }

func (p waiting) Pick(context.Context, *fleet.Set, *policy.Request) (policy.Pick, error) {
	return policy.Pick{}, p.err
}

// TestRejectionsAreBounded: however many engines are full, an entry keeps the first ones and counts the others.
func TestRejectionsAreBounded(t *testing.T) {
	for _, n := range []int{63, 64, 65, 1000} {
		l, pick := explain.NewLog(1), fullBuckets(t, 1, n)
		_, err := l.Begin(explain.Facts{}).Attempt(noon, pick)
		var full *bucket.ExhaustedError
		if !errors.As(err, &full) || len(full.Rejections) != n {
			t.Fatalf("the request itself is told %v", err)
		}
		record := l.Records(explain.Query{})[0]
		try, kept := record.Attempts[0].Tries[0], min(n, bucket.RejectionsKept)
		if len(try.Rejections) != kept || try.MoreRejections != n-kept || try.Error != "no_admissible_engine" {
			t.Errorf("of %d, %d are kept and %d counted", n, len(try.Rejections), try.MoreRejections)
		}
		if more := fmt.Sprintf("      refused %d more engine", n-kept); strings.Contains(strings.ReplaceAll(record.Text(), ",", ""), more) != (n > kept) {
			t.Errorf("of %d: told as\n%s", n, record.Text())
		}
	}
}

// TestOtherErrorsAreTold: a pick that failed for another reason than a policy's own classes is told with that.
func TestOtherErrorsAreTold(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("a look-up: %w", context.DeadlineExceeded), "context_ended: a look-up: context deadline exceeded"},
		{context.Canceled, "context_ended: context canceled"},
		{errors.New("no answer"), "other_error: no answer"},
		{fmt.Errorf("wrapped: %w", &policy.PickError{Class: policy.InvalidSignal, Detail: "odd"}), "invalid_signal: odd"},
	} {
		reg := fleet.NewRegistry(fleet.BreakerConfig{}, 0)
		reg.Put(fleet.Spec{ID: "e", Models: []string{"m"}})
		b := bucket.NewPlain("b", 0, bucket.Range{}, bucket.NewGroup("m", fleet.Plain, nil, waiting{tt.err}))
		l := explain.NewLog(1)
		_, err := l.Begin(explain.Facts{}).Attempt(noon, func(tr *bucket.Trace) (bucket.Selection, error) {
			return b.Pick(context.Background(), reg.View(), &bucket.Request{Now: noon, InputTokens: 1, Trace: tr})
		})
		if !errors.Is(err, tt.err) {
			t.Errorf("got %v, want %v", err, tt.err)
		}
		record := l.Records(explain.Query{})[0]
		if try := record.Attempts[0].Tries[0]; try.Error+": "+try.Detail != tt.want || !strings.Contains(record.Text(), "picked nothing: "+tt.want) {
			t.Errorf("told as %q, %q, want %s", try.Error, try.Detail, tt.want)
		}
	}
}

// TestManyCandidates: the first ones are kept, the others counted.
func TestManyCandidates(t *testing.T) {
	l, pick := explain.NewLog(1), selector(t, 40)
	e := l.Begin(explain.Facts{RequestID: "a", Started: noon})
	if _, err := e.Attempt(noon.Add(time.Second), pick); err != nil {
		t.Fatal(err)
	}
	try := l.Records(explain.Query{})[0].Attempts[0].Tries[0]
	if len(try.Considered) != explain.CandidatesKept || try.Omitted != 40-explain.CandidatesKept || try.Live != 40 || try.Picked != "e00" {
		t.Errorf("%d considered, %d omitted of %d, picked %s", len(try.Considered), try.Omitted, try.Live, try.Picked)
	}
	c := try.Considered[3]
	if c.Engine != "e03" || c.Report == nil || c.Report.Running != load.Known(3) || c.Report.AgeMillis != 1000 || c.Report.Used.IsKnown() {
		t.Errorf("got %+v", c)
	}
}

// TestAskedMeanwhile: requests and questions at once, for the race detector; what is told is always whole.
func TestAskedMeanwhile(t *testing.T) {
	l, pick := explain.NewLog(8), selector(t, 4)
	var mu sync.Mutex // of pick
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 500 {
				id := fmt.Sprint(g, "-", i)
				e := l.Begin(explain.Facts{RequestID: id, Started: noon})
				for range 1 + i%3 {
					_, err := e.Attempt(noon, func(tr *bucket.Trace) (bucket.Selection, error) {
						mu.Lock()
						defer mu.Unlock()
						return pick(tr)
					})
					if err != nil {
						t.Error(err)
					}
					e.Outcome("outcome of " + id)
				}
				e.Finish(explain.End{Status: 200, Code: id})
			}
		})
	}
	wg.Go(func() {
		for range 500 {
			for _, r := range l.Records(explain.Query{}) {
				if r.Done && r.Code != r.RequestID {
					t.Errorf("%s ended as %s", r.RequestID, r.Code)
				}
				for _, a := range r.Attempts {
					if a.Outcome != "dispatching" && a.Outcome != "outcome of "+r.RequestID || len(a.Tries) != 1 || a.Tries[0].Picked == "" {
						t.Errorf("%s has the attempt %+v", r.RequestID, a)
					}
				}
			}
		}
	})
	wg.Wait()
}

// TestLogAllocs: once its memory is there, a request costs no allocation.
func TestLogAllocs(t *testing.T) {
	l, pick := explain.NewLog(4), selector(t, 4)
	one := func() {
		e := l.Begin(explain.Facts{RequestID: "a", Started: noon})
		if _, err := e.Attempt(noon, pick); err != nil {
			t.Fatal(err)
		}
		e.Outcome("answered")
		e.Finish(explain.End{Status: 200})
	}
	for range 100 {
		one()
	}
	if n := testing.AllocsPerRun(1000, one); n > 1 { // the context-free request that the test itself makes
		t.Errorf("%.1f allocations", n)
	}
}
