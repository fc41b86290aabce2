package keeper

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/ask"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/introspect"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/load/source"
	"github.com/perigee-llm/perigee/internal/script"
)

// memberScript runs one engine's state machine at given times. Polls are at whole seconds, refreshes at whole half minutes.
//
//	asked at=D [fail=unreachable|404|malformed|unroutable] [kind=vllm|sglang|unknown] [models=A,B] [ranks=N] [stage=…]
//	polled at=D [fail=unreachable|503|404|malformed|large|noload] [ranks=N] [expected=N] [running=N] [started=N] [prefilled=N]
//	       [uncached=N] (with prefilled, each token of which took 10 µs, this gives a queue)
//	report at=D
type memberScript struct {
	m      *member
	origin time.Time
}

func TestMember(t *testing.T) {
	script.Run(t, "testdata/scripts/*.txt", func(*testing.T) script.Interpreter {
		s := &memberScript{origin: time.Unix(1_000_000, 0)}
		s.m = newMember(introspect.Target{ID: "e", URL: "http://e", Stage: fleet.Decode},
			fleet.NewRegistry(fleet.BreakerConfig{}, 0), s.origin, time.Second, 30*time.Second)
		s.m.polls.phase, s.m.refresh.phase = 0, 0
		return s.do
	})
}

func (s *memberScript) do(c *script.Command) bool {
	now := s.origin.Add(c.Duration("at", 0))
	switch c.Name {
	case "asked":
		changed := s.m.asked(now, s.spec(c), failure(c))
		c.Print(map[bool]string{true: "changed:", false: "same:"}[changed], show(s.m.worker), s.due())
	case "polled":
		what, err := s.m.polled(now, answer(c, now), failure(c))
		text := map[event]string{nothing: "nothing", wentQuiet: "went quiet", cameBack: "came back", restarted: "restarted"}[what]
		if err != nil {
			text += " (" + err.Error() + ")"
		}
		c.Print(text+":", show(s.m.worker), s.due())
	case "report":
		if r := s.m.worker.Load.Report(now); r == nil {
			c.Print("none")
		} else {
			c.Print(fmt.Sprintf("ranks=%d running=%v queue=%vµs age=%v", r.Ranks, r.Running, r.QueueMicros, now.Sub(r.At)))
		}
	default:
		return false
	}
	return true
}

// due shows what is next; the moments are those since the start.
func (s *memberScript) due() string {
	what, at := s.m.next()
	return map[step]string{stepAsk: "→ ask at ", stepPoll: "→ poll at "}[what] + at.Sub(s.origin).String()
}

func show(w *fleet.Worker) string {
	return fmt.Sprintf("%s %s [%s] ranks=%d", w.Kind, w.Stage, strings.Join(w.Models, " "), w.Ranks)
}

func (s *memberScript) spec(c *script.Command) fleet.Spec {
	spec := s.m.target.Unknown()
	switch c.Arg("fail", "") {
	case "", "unroutable":
	default:
		return fleet.Spec{}
	}
	spec.Kind = map[string]fleet.Kind{"vllm": fleet.VLLM, "sglang": fleet.SGLang, "unknown": fleet.UnknownKind}[c.Arg("kind", "vllm")]
	spec.Models, spec.Ranks = c.List("models"), int(c.Int("ranks", 0))
	if c.Arg("stage", "") == "prefill" {
		spec.Stage = fleet.Prefill
	}
	return spec
}

func failure(c *script.Command) error {
	switch c.Arg("fail", "") {
	case "unreachable":
		return ask.ErrUnreachable
	case "404":
		return &ask.StatusError{Code: 404}
	case "503":
		return &ask.StatusError{Code: 503}
	case "malformed":
		return ask.ErrMalformed
	case "large":
		return ask.ErrTooLarge
	case "noload":
		return source.ErrNoLoad
	case "unroutable":
		return introspect.ErrUnroutable
	case "":
		return nil
	}
	c.Fatalf("no such failure")
	return nil
}

func answer(c *script.Command, now time.Time) *source.Answer {
	a := &source.Answer{Expected: int(c.Int("expected", 0)), Started: float64(c.Int("started", 0))}
	if c.Has("prefilled") {
		a.Prefilled = load.Known(c.Int("prefilled", 0))
	}
	report := load.RankReport{At: now, Running: load.Known(c.Int("running", 0)), PrefillTokens: a.Prefilled}
	if c.Has("uncached") {
		report.WaitingUncached = load.Known(c.Int("uncached", 0))
		report.PrefillBusy = load.Known(10 * c.Int("prefilled", 0))
	}
	for i := range int(c.Int("ranks", 1)) {
		a.Ranks = append(a.Ranks, source.Rank{Number: i, Report: report})
	}
	return a
}

// TestGrid: each next moment is later than now, by at most the interval, and a whole number of intervals from the phase.
func TestGrid(t *testing.T) {
	rng := script.Rand(t)
	origin := time.Unix(5000, 17)
	for range 10_000 {
		every := 1 + time.Duration(rng.Int64N(int64(time.Minute)))
		g := gridOf(fmt.Sprint("http://10.0.0.", rng.IntN(200), ":8000"), origin, every)
		if g.phase < 0 || g.phase >= every {
			t.Fatalf("phase %v of %v", g.phase, every)
		}
		now := origin.Add(time.Duration(rng.Int64N(int64(time.Hour))))
		if rng.IntN(4) == 0 {
			now = origin.Add(g.phase + every*time.Duration(rng.IntN(100))) // on the beat
		}
		next := g.after(now)
		if d := next.Sub(now); d <= 0 || d > every || (next.Sub(origin)-g.phase)%every != 0 {
			t.Fatalf("every %v, phase %v: after %v comes %v", every, g.phase, now.Sub(origin), next.Sub(origin))
		}
	}
}

// TestSpread: 64 engines whose URLs differ little are spread over the interval: in no tenth of it are more than 16 of them.
// (At random, 6.4 are there, and 17 or more once in some ten thousand tenths.)
func TestSpread(t *testing.T) {
	for _, format := range []string{"http://10.0.0.%d:8000", "http://127.0.0.1:%d", "default/engine-%d", "%d"} {
		var tenths [10]int
		for i := range 64 {
			g := gridOf(fmt.Sprintf(format, 8000+i), time.Time{}, time.Second)
			tenths[g.phase/(100*time.Millisecond)]++
		}
		for _, n := range tenths {
			if n > 16 {
				t.Errorf("%s: %v", format, tenths)
				break
			}
		}
	}
}

func TestRetryDelay(t *testing.T) {
	var got []string
	for n := 1; n <= 8; n++ {
		got = append(got, retryDelay(n, 30*time.Second).String())
	}
	if s := strings.Join(got, " "); s != "1s 2s 4s 8s 16s 30s 30s 30s" {
		t.Error(s)
	}
	if d := retryDelay(1, 200*time.Millisecond); d != 200*time.Millisecond {
		t.Errorf("a shorter interval gives %v", d)
	}
}

// TestMemberNeverSleepsForGood drives a member with random answers and holds that something is always due within the retry
// interval, and not before now; that what was registered with models keeps them unless an answer took them; and that no
// report is published of fewer ranks than the worker has.
func TestMemberNeverSleepsForGood(t *testing.T) {
	rng := script.Rand(t)
	for range 200 {
		drive(t, rng)
	}
}

func drive(t *testing.T, rng *rand.Rand) {
	now := time.Unix(1_000_000, 0)
	m := newMember(introspect.Target{ID: fmt.Sprint(rng.IntN(100)), URL: "http://e"}, fleet.NewRegistry(fleet.BreakerConfig{}, 0), now, time.Second, 30*time.Second)
	failures := []error{ask.ErrUnreachable, &ask.StatusError{Code: 404}, &ask.StatusError{Code: 500}, ask.ErrMalformed, source.ErrNoLoad}
	for i := range 200 {
		what, at := m.next()
		if at.Sub(now) > 30*time.Second {
			t.Fatalf("step %d: nothing is due before %v", i, at.Sub(now))
		}
		if at.After(now) {
			now = at
		}
		now = now.Add(time.Duration(rng.IntN(3000)) * time.Millisecond) // how long it took
		before := m.worker
		if what == stepAsk {
			spec, err := m.target.Unknown(), error(nil)
			spec.Kind, spec.Ranks, spec.Models = fleet.Kind(rng.IntN(3)), rng.IntN(3), []string{"m"}
			if rng.IntN(3) == 0 {
				spec, err = fleet.Spec{}, failures[rng.IntN(4)]
			}
			m.asked(now, spec, err)
			if err != nil && before != nil && m.worker != before {
				t.Fatalf("step %d: a failure registers %+v", i, m.worker.Spec)
			}
			continue
		}
		var err error
		a := &source.Answer{Started: float64(rng.IntN(8) / 4)}
		for r := range 1 + rng.IntN(3) {
			a.Ranks = append(a.Ranks, source.Rank{Number: r, Report: load.RankReport{At: now, Running: load.Known(1)}})
		}
		if rng.IntN(4) == 0 {
			a, err = &source.Answer{}, failures[rng.IntN(len(failures))]
		}
		_, err = m.polled(now, a, err)
		r := m.worker.Load.Report(now)
		if err == nil && (r == nil || r.Ranks != len(a.Ranks)) {
			t.Fatalf("step %d: an answer of %d ranks makes the report %+v", i, len(a.Ranks), r)
		}
		if r != nil && r.Ranks < m.worker.Ranks {
			t.Fatalf("step %d: %d of %d ranks are reported", i, r.Ranks, m.worker.Ranks)
		}
	}
}
