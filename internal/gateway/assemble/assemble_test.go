package assemble

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
)

const text = `
models:
  - id: m
    buckets:
      - {id: short, max_input_tokens: 100, max_context_tokens: 200, plain: {policy: round_robin, workers: [a, b]}}
      - {id: long, min_input_tokens: 50, rank: 3, plain: {policy: POLICY, admission: {max_inflight_requests: 0}}}
      - {id: pairs, pd: {prefill: {policy: random}, decode: {policy: power_of_two}}}
discovery: {static: {workers: [{id: a, url: "http://a:1"}, {id: b, url: "http://b:1"}, {id: c, url: "http://c:1"}]}}
`

func parse(t *testing.T, long string) *config.Model {
	t.Helper()
	c, faults := config.Parse("test.yaml", []byte(strings.Replace(text, "POLICY", long, 1)))
	if c == nil {
		t.Fatal(faults)
	}
	return &c.Models[0]
}

// TestResolver holds that everything of the configuration arrives.
func TestResolver(t *testing.T) {
	u := Builder{Seed: 1}
	r, err := u.Resolver("m", parse(t, "load_based"), nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, b := range r.Buckets() {
		line := fmt.Sprint(b.ID(), b.Limits())
		for _, g := range b.Groups() {
			line += fmt.Sprintf(" %s %s", g.Stage(), g.Policy().Name())
		}
		got = append(got, line)
	}
	want := []string{
		"short{0 100 200} plain round_robin",
		"pairs{0 0 0} prefill random decode power_of_two", // unbounded as long is, and of a lower rank
		"long{50 0 0} plain load_based",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	reg := fleet.NewRegistry(fleet.BreakerConfig{}, 0)
	for _, id := range []string{"a", "b", "c"} {
		reg.Put(fleet.Spec{ID: id, Models: []string{"m"}})
	}
	now := time.Unix(1_800_000_000, 0)
	for i, want := range []string{"a", "b", "a"} { // members a and b; no limit
		s, err := r.Select(context.Background(), reg.View(), &bucket.Request{Now: now, InputTokens: 10})
		if err != nil || s.Plain.Engine.ID != want {
			t.Errorf("pick %d: %v %v, want %s", i, s.Plain.Engine, err, want)
		}
	}
	// long alone takes this one besides the pairs, who have no engines, and its limit of 0 refuses everybody.
	_, err = r.Select(context.Background(), reg.View(), &bucket.Request{Now: now, InputTokens: 1000})
	if err == nil || err.Error() != "max_inflight_requests rejected 3 engines" {
		t.Errorf("err %v", err)
	}
}

func TestBucketsThatAreNotTaken(t *testing.T) {
	r, err := (&Builder{}).Resolver("m", parse(t, "random"), func(b *config.Bucket) bool { return b.PD == nil })
	if err != nil || len(r.Buckets()) != 2 {
		t.Errorf("%v, %v", r, err)
	}
}

// TestKept holds that a group keeps its instance as long as its policy is configured as before, and no longer.
func TestKept(t *testing.T) {
	policies := func(r *bucket.Resolver) map[string]any {
		out := map[string]any{}
		for _, b := range r.Buckets() {
			for _, g := range b.Groups() {
				out[b.ID()+" "+g.Stage().String()] = g.Policy()
			}
		}
		return out
	}
	before := Builder{Seed: 1}
	r1, err := before.Resolver("m", parse(t, "load_based"), nil)
	if err != nil {
		t.Fatal(err)
	}
	after := Builder{Seed: 1, Kept: before.Groups()}
	r2, err := after.Resolver("m", parse(t, "random"), nil)
	if err != nil {
		t.Fatal(err)
	}
	was, is := policies(r1), policies(r2)
	for name := range was {
		if kept := was[name] == is[name]; kept != (name != "long plain") {
			t.Errorf("%s: kept %v", name, kept)
		}
	}
}

func TestUnknownPolicy(t *testing.T) {
	m := parse(t, "random")
	m.Buckets[0].Plain.Policy.Name = "by_colour"
	if _, err := (&Builder{}).Resolver("m", m, nil); err == nil || err.Error() != "bucket short: this version has no policy by_colour" {
		t.Error(err)
	}
}
