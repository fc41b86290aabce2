package source_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/ask"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/load/source"
)

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func body(s string) io.Reader { return strings.NewReader(s) }

// TestPoll: what is asked, and that the reports carry the moment before the question, however long the answer takes.
func TestPoll(t *testing.T) {
	clock := time.Unix(1000, 0)
	now := func() time.Time { return clock }
	const loads, metrics = `{"loads":[{"num_running_reqs":3}]}`, "vllm:num_requests_running{engine=\"0\"} 3\n"
	cut := func(s string) io.Reader { return io.MultiReader(body(s), iotest.ErrReader(io.ErrUnexpectedEOF)) }
	for _, c := range []struct {
		name string
		kind fleet.Kind
		url  string
		code int
		body io.Reader
		err  error
	}{
		{"sglang", fleet.SGLang, "http://e:1/v1/loads?include=core", 200, body(loads), nil},
		{"vllm", fleet.VLLM, "http://e:1/metrics", 200, body(metrics), nil},
		{"sglang cut after a whole object", fleet.SGLang, "http://e:1/v1/loads?include=core", 200, cut(loads), ask.ErrUnreachable},
		{"vllm cut after a whole line", fleet.VLLM, "http://e:1/metrics", 200, cut(metrics), ask.ErrUnreachable},
		{"an error page is no answer", fleet.VLLM, "http://e:1/metrics", 500, body(metrics), ask.ErrStatus},
		{"too long", fleet.VLLM, "http://e:1/metrics", 200, io.MultiReader(body(metrics), io.LimitReader(spaces{}, 9<<20)), ask.ErrTooLarge},
		{"a fault in the second rank", fleet.SGLang, "http://e:1/v1/loads?include=core", 200, body(`{"loads":[{"dp_rank":0},{"dp_rank":1024}]}`), ask.ErrMalformed},
		{"a kind without load", fleet.UnknownKind, "", 0, nil, source.ErrNoLoad},
	} {
		t.Run(c.name, func(t *testing.T) {
			asked := ""
			client := &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
				asked = r.URL.String()
				clock = clock.Add(time.Second)
				return &http.Response{StatusCode: c.code, ContentLength: -1, Body: io.NopCloser(c.body), Request: r}, nil
			})}
			began := clock
			a := source.Answer{Ranks: []source.Rank{{Number: 5}}, Expected: 5}
			err := source.Poll(t.Context(), client, c.kind, "http://e:1", now, &a)
			if !errors.Is(err, c.err) || (err != nil) != (c.err != nil) || asked != c.url {
				t.Fatalf("asked %q, err %v; want %q, %v", asked, err, c.url, c.err)
			}
			if err != nil {
				if len(a.Ranks) != 0 || a.Expected != 0 {
					t.Errorf("a failed poll leaves %+v", a)
				}
				return
			}
			if len(a.Ranks) != 1 || !a.Ranks[0].Report.At.Equal(began) || a.Ranks[0].Report.Running != load.Known(3) {
				t.Errorf("got %+v, want one report of %v", a.Ranks, began)
			}
		})
	}
}

type spaces struct{}

func (spaces) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

func TestPollEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	client := &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
		cancel()
		<-r.Context().Done()
		return nil, r.Context().Err()
	})}
	err := source.Poll(ctx, client, fleet.VLLM, "http://e:1", time.Now, new(source.Answer))
	if !errors.Is(err, context.Canceled) || !errors.Is(err, ask.ErrUnreachable) {
		t.Errorf("got %v", err)
	}
}

// TestObserve: ranks are observed by their place, and an answer is complete if all that are known of are in it.
func TestObserve(t *testing.T) {
	at := time.Unix(1000, 0)
	report := func(running int64) load.RankReport { return load.RankReport{At: at, Running: load.Known(running)} }
	a := source.Answer{Ranks: []source.Rank{{Number: 4, Report: report(1)}, {Number: 7, Report: report(2)}}}
	for expected, want := range map[int]bool{0: true, 1: true, 2: true, 3: false} {
		if a.Complete(expected) != want {
			t.Errorf("complete with %d expected: %v", expected, !want)
		}
	}
	e := load.NewEngine(0, nil)
	e.Expect(2)
	a.Observe(e)
	if r := e.Report(at); r == nil || r.Ranks != 2 || r.Running != load.Known(3) {
		t.Errorf("observed %+v", r)
	}
	if a.Expected = 3; a.Complete(0) || a.RankCount() != 3 {
		t.Error("the engine speaks of a third rank")
	}
}

func TestRestartedSince(t *testing.T) {
	answer := func(started float64, prefilled load.Count) *source.Answer {
		return &source.Answer{Started: started, Prefilled: prefilled}
	}
	known, unknown := load.Known, load.Count{}
	for _, c := range []struct {
		name        string
		before, now *source.Answer
		want        bool
	}{
		{"nothing known", answer(0, unknown), answer(0, unknown), false},
		{"first answer", answer(0, unknown), answer(5, known(0)), false},
		{"same process", answer(5, known(3)), answer(5, known(4)), false},
		{"other process", answer(5, known(3)), answer(6, known(4)), true},
		{"a clock set back is another process too", answer(6, unknown), answer(5, unknown), true},
		{"same process whose counters were reset", answer(5, known(3)), answer(5, known(0)), false},
		{"counter fell", answer(0, known(3)), answer(0, known(2)), true},
		{"counter stood", answer(0, known(3)), answer(0, known(3)), false},
		{"counter went missing", answer(0, known(3)), answer(0, unknown), false},
		{"start went missing, counter fell", answer(5, known(3)), answer(0, known(1)), true},
	} {
		if got := c.now.RestartedSince(c.before.Life()); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
