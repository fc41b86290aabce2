package load_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet/fleettest"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/script"
)

// TestScripts runs testdata/*.txt over one tracker and engines that come to be when they are first named.
func TestScripts(t *testing.T) {
	script.Run(t, "testdata/*.txt", func(*testing.T) script.Interpreter {
		w := &world{now: fleettest.Epoch, engines: map[string]*load.Engine{}, guards: map[string]*load.Guard{}, others: others{}}
		return w.do
	})
}

type world struct {
	now       time.Time
	freshness time.Duration
	tracker   load.Tracker
	engines   map[string]*load.Engine
	guards    map[string]*load.Guard
	others    others
}

// do runs one command, of peers or of these:
//
//	freshness D · at D
//	expect E N · observe E rank= at= running= … · forget E · report E
//	acquire E GUARD stage= tokens= at= · release GUARD… · expire AGE
//	gauges E · since E D · held
func (w *world) do(c *script.Command) bool {
	switch c.Name {
	case "freshness":
		w.freshness = c.ParseDuration(c.Word())
	case "at":
		w.now = fleettest.Epoch.Add(c.ParseDuration(c.Word()))
	case "expect":
		w.engine(c).Expect(int(c.ParseInt(c.Word())))
	case "observe":
		if !w.engine(c).Observe(int(c.Int("rank", 0)), fleettest.RankReport(c, w.now)) {
			c.Print("not used")
		}
	case "forget":
		w.engine(c).Forget()
	case "report":
		w.report(c)
	case "acquire":
		w.acquire(c)
	case "release":
		for _, g := range c.Words() {
			w.guards[g].Release()
		}
	case "expire":
		c.Print("expired", fmt.Sprint(w.tracker.Expire(w.now, c.ParseDuration(c.Word()))))
	case "gauges":
		e := w.engine(c)
		c.Print(fmt.Sprintf("active %d, prefill %d tokens, decode %d", e.Active(), e.PrefillTokens(), e.DecodeRequests()))
	case "since":
		c.Print(fmt.Sprint(w.engine(c).DispatchedSince(fleettest.Epoch.Add(c.ParseDuration(c.Word())))))
	case "held":
		c.Print(fmt.Sprint(w.tracker.Held()))
	default:
		return w.peers(c)
	}
	return true
}

func (w *world) engine(c *script.Command) *load.Engine { return w.named(c.Word()) }

func (w *world) named(id string) *load.Engine {
	if w.engines[id] == nil {
		w.engines[id] = load.NewEngine(w.freshness, nil)
	}
	return w.engines[id]
}

func (w *world) acquire(c *script.Command) {
	e, name, stage := w.engine(c), c.Word(), load.StagePrefill
	if c.Arg("stage", "prefill") == "decode" {
		stage = load.StageDecode
	}
	at := w.now
	if c.Has("at") {
		at = fleettest.Epoch.Add(c.Duration("at", 0))
	}
	w.guards[name] = w.tracker.Acquire(e, at, stage, c.Int("tokens", 1), func() { c.Print(name, "is stale") })
}

func (w *world) report(c *script.Command) {
	r := w.engine(c).Report(w.now)
	if r == nil {
		c.Print(fmt.Sprintf("none (basic %v, native %v)", r.Basic(), r.Native()))
		return
	}
	line := fmt.Sprintf("%d ranks at %v:", r.Ranks, r.At.Sub(fleettest.Epoch))
	for _, f := range []struct {
		name string
		load.Count
	}{
		{"running", r.Running}, {"waiting", r.Waiting}, {"uncached", r.WaitingUncached}, {"used", r.Used}, {"total", r.Total},
		{"capacity", r.Capacity}, {"maxrunning", r.MaxRunning}, {"queue_us", r.QueueMicros},
	} {
		if f.IsKnown() {
			line += " " + f.name + "=" + f.String()
		}
	}
	c.Print(fmt.Sprintf("%s (basic %v, native %v)", line, r.Basic(), r.Native()))
}
