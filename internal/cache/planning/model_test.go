package planning

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/cache/state"
	"github.com/perigee-llm/perigee/internal/script"
)

// TestAgainstDefinition plans random evidence, and compares with what the rules say page by page.
func TestAgainstDefinition(t *testing.T) {
	rng := script.Rand(t)
	runs := map[int]int{}
	for range 5000 {
		n := rng.IntN(5)
		q := Question{
			Span: state.Span{Start: 64, End: 64 + 64*uint64(n)}, PageTokens: 64, Format: "raw",
			Required: rng.IntN(n + 1), Routes: Routes(rng.IntN(16)) | Only(FromMemory), Now: 10 * time.Second, MaxAge: time.Duration(rng.IntN(3)) * 4 * time.Second,
		}
		sets := make([]Set, n)
		for i := range sets {
			sets[i] = NewSet(key(i), self)
			for range 1 + rng.IntN(6) {
				sets[i].Add(randomReplica(rng, i))
			}
			checkSet(t, &sets[i])
		}
		p := Choose(q, sets)
		want := 0
		for want < n && len(usable(&q, want, &sets[want])) > 0 {
			want++
		}
		runs[want]++
		if p.Found != want || (want >= q.Required && len(p.Steps) != want) || (want < q.Required && p.Steps != nil) {
			t.Fatalf("%+v, %+v: found %d with %d steps, want %d", q, sets, p.Found, len(p.Steps), want)
		}
		if (want == n) != (p.Refused == nil) {
			t.Fatalf("%d of %d pages, and the refusals are %+v", want, n, p.Refused)
		}
		for i, st := range p.Steps {
			for _, r := range usable(&q, i, &sets[i]) {
				if route := sets[i].route(&r); route < st.Route || (route == st.Route && r.Seen > st.Replica.Seen) {
					t.Fatalf("page %d: %+v is chosen before %+v", i, st, r)
				}
			}
		}
	}
	if runs[0] < 100 || runs[3] < 100 {
		t.Errorf("runs of pages: %v: the test does not test much", runs)
	}
}

func usable(q *Question, page int, s *Set) (out []state.Replica) {
	for _, r := range s.Replicas() {
		ours := r.Endpoint.Owner == self
		fresh := ours || q.MaxAge == 0 || r.Seen >= q.Now-q.MaxAge
		format := r.Format == "raw" || (r.Format == "" && !ours)
		if fresh && format && q.Routes.Has(s.route(&r)) && r.Coverage.Start == q.Span.Start+64*uint64(page) {
			out = append(out, r)
		}
	}
	return out
}

func checkSet(t *testing.T, s *Set) {
	t.Helper()
	owners := map[state.Endpoint]bool{}
	for _, r := range s.Replicas() {
		e := state.Endpoint{Owner: r.Endpoint.Owner}
		if r.Endpoint.Owner == self {
			e.Medium = r.Endpoint.Medium
		}
		if owners[e] || r.Key != s.Key() || r.Version == 0 {
			t.Fatalf("%+v is twice or wrong in %+v", r, s)
		}
		owners[e] = true
	}
	if len(owners) > MaxPeers+2 {
		t.Fatalf("%d replicas", len(owners))
	}
}

func randomReplica(rng *rand.Rand, page int) state.Replica {
	names := []string{"self", "self", "self", "a", "b", "c", "d", "e", "f"}
	r := state.Replica{
		Key: key(page), Version: rng.Uint64N(8), Format: "raw", Seen: time.Duration(rng.IntN(10)) * time.Second,
		Endpoint: state.Endpoint{Owner: owner(names[rng.IntN(len(names))]), Medium: state.Medium(1 + rng.IntN(3))},
		Coverage: state.Span{Start: 64 + 64*uint64(page), End: 128 + 64*uint64(page)},
	}
	switch rng.IntN(12) {
	case 0:
		r.Format = ""
	case 1:
		r.Format = "ans1"
	case 2:
		r.Coverage = state.Span{Start: 0, End: 64}
	}
	return r
}

func TestAllOrNone(t *testing.T) {
	good, bad := Plan{Steps: make([]Step, 1)}, Plan{Found: 3}
	for _, c := range []struct {
		groups []Plan
		want   bool
	}{{nil, false}, {[]Plan{good}, true}, {[]Plan{good, good}, true}, {[]Plan{good, bad}, false}, {[]Plan{bad}, false}} {
		if got := AllOrNone(c.groups); got != c.want {
			t.Errorf("%+v: %v", c.groups, got)
		}
	}
}
