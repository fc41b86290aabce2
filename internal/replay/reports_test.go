package replay

import (
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/load"
)

func builtSim(t *testing.T, o Options) *sim {
	t.Helper()
	c, err := ByName("load_based")
	if err != nil {
		t.Fatal(err)
	}
	s := &sim{o: o.WithDefaults(), place: map[string]int{}}
	if err := s.build(c); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestReportKinds: each family of engines tells what it tells in reality, and what it does not is unknown.
func TestReportKinds(t *testing.T) {
	for _, c := range []struct {
		kind   Reports
		native bool
		more   bool
	}{{SGLangReports, true, true}, {VLLMReports, true, false}} {
		s := builtSim(t, Options{Reports: c.kind})
		r := s.engines[0].report(time.Second)
		if !r.Running.IsKnown() || !r.Waiting.IsKnown() || !r.Used.IsKnown() || r.Capacity != load.Known(3000*512) {
			t.Errorf("%v: %+v", c.kind, r)
		}
		if r.WaitingUncached.IsKnown() != c.more || r.PrefillBusy.IsKnown() != c.more || r.MaxRunning.IsKnown() != c.more || r.Total.IsKnown() != c.more {
			t.Errorf("%v: %+v", c.kind, r)
		}
		s.gateways[0].observe(s.engines[0], &event{stamp: 1, report: r})
		got := s.gateways[0].registry.View().Get("engine-0").Load.Report(wall(time.Second))
		if got.Native() != c.native {
			t.Errorf("%v: native %v", c.kind, got.Native())
		}
	}
}

// TestReportsOfARestartedEngine: the figures of two processes are never put together, and an answer of the old one that was under way
// is dropped.
func TestReportsOfARestartedEngine(t *testing.T) {
	s := builtSim(t, Options{})
	g, e := s.gateways[0], s.engines[0]
	tell := func(born uint64, at time.Duration, tokens int64) {
		r := e.report(at)
		r.WaitingUncached, r.PrefillTokens, r.PrefillBusy = load.Known(100), load.Known(tokens), load.Known(1000*tokens)
		g.observe(e, &event{stamp: born, report: r})
	}
	report := func(now time.Duration) *load.Report { return g.registry.View().Get("engine-0").Load.Report(wall(now)) }
	tell(1, 1*time.Second, 1000)
	tell(1, 2*time.Second, 2000)
	if !report(2 * time.Second).QueueMicros.IsKnown() {
		t.Fatal("two reports of one process give no prefill rate")
	}
	tell(2, 3*time.Second, 3000)
	if report(3 * time.Second).QueueMicros.IsKnown() {
		t.Error("a prefill rate from the reports of two processes")
	}
	tell(1, 4*time.Second, 2500)
	if r := report(4 * time.Second); !r.At.Equal(wall(3 * time.Second)) {
		t.Errorf("an answer of the old process counts: %+v", r)
	}
}

// TestPollsOfAnEngineThatIsDown: it does not answer; the next process is known as another.
func TestPollsOfAnEngineThatIsDown(t *testing.T) {
	s := builtSim(t, Options{})
	e := s.engines[0]
	e.fail()
	s.gateways[0].poll(e, 0)
	if s.res.ReportsSent != 0 {
		t.Error("an engine that is down has reported")
	}
	if err := e.start(); err != nil {
		t.Fatal(err)
	}
	s.gateways[0].poll(e, 1)
	if s.res.ReportsSent != 1 || s.gateways[0].born[0] != 2 {
		t.Errorf("%d reports, process %d", s.res.ReportsSent, s.gateways[0].born[0])
	}
}
