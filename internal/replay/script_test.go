package replay

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
	"github.com/perigee-llm/perigee/internal/script"
)

func TestScripts(t *testing.T) {
	script.Run(t, "testdata/scripts/*.txt", func(*testing.T) script.Interpreter { return new(replayScript).do })
}

// replayScript collects conditions and arrivals, and then runs them.
//
//	fleet engines=N policy=NAME gateways=N prefill_only=1 reports=none|vllm|sglang every=D delay=D loss=N(%) waiting=N attempts=N
//	      rate=N hash=1 blocks=N running=N max_input=N max_inflight=N
//	fail engine=N at=D for=D
//	req at=D in=N out=N session=N blocks=A,B,…      blocks of 4 tokens; those not named are the request's own
//	run                                   prints every event of every request, and the sums
//
// An engine has 16 blocks of 4 tokens; a step takes 10 ms, 1 ms a prompt token and 1 ms a decoding sequence.
type replayScript struct {
	o        Options
	c        Contender
	arrivals []Arrival
}

func (s *replayScript) do(c *script.Command) bool {
	switch c.Name {
	case "fleet":
		s.fleet(c)
	case "fail":
		s.o.Outages = append(s.o.Outages, Outage{Engine: int(c.Int("engine", 0)), At: c.Duration("at", 0), For: c.Duration("for", 0)})
	case "req":
		s.request(c)
	case "run":
		s.run(c)
	default:
		return false
	}
	return true
}

func (s *replayScript) fleet(c *script.Command) {
	num := func(key string, def int64) int { return int(c.Int(key, def)) }
	s.arrivals = nil
	s.o = Options{
		Engines: num("engines", 2), Gateways: num("gateways", 1), PrefillOnly: num("prefill_only", 0) == 1, Seed: 1, Attempts: num("attempts", 0),
		Engine: engine.Config{
			BlockSize: 4, KVBlocks: num("blocks", 16), MaxWaiting: num("waiting", 0), MaxRunning: num("running", 0),
			Timing: engine.Timing{StepFixed: 10 * time.Millisecond, PrefillPerToken: time.Millisecond, DecodePerSeq: time.Millisecond, PerKVToken: -1},
		},
		Reports: map[string]Reports{"sglang": SGLangReports, "vllm": VLLMReports, "none": NoReports}[c.Arg("reports", "none")],
		Rate:    float64(num("rate", 0)), Spread: Spread(num("hash", 0)),
		ReportEvery: c.Duration("every", 0), EventDelay: c.Duration("delay", 0), EventLoss: float64(num("loss", 0)) / 100,
	}
	name := c.Arg("policy", "round_robin")
	if limit := c.Int("max_input", 0); limit > 0 {
		// One bucket that does not take every length.
		s.c = Contender{Name: name, Build: func(model string, seed uint64, b *Baselines) (*bucket.Resolver, error) {
			g := bucket.NewGroup(model, fleet.Plain, nil, newPolicy(name, seed, b))
			return bucket.NewResolver([]*bucket.Bucket{bucket.NewPlain("short", 0, bucket.Range{MaxInput: limit}, g)})
		}}
		return
	}
	if limit := c.Int("max_inflight", 0); limit > 0 {
		s.c = Contender{Name: name, Build: func(model string, _ uint64, _ *Baselines) (*bucket.Resolver, error) {
			g := bucket.NewGroup(model, fleet.Plain, nil, policy.NewRoundRobin(policy.Limits{MaxInflightRequests: &limit}))
			return bucket.NewResolver([]*bucket.Bucket{bucket.NewPlain("all", 0, bucket.Range{}, g)})
		}}
		return
	}
	var err error
	if s.c, err = ByName(name); err != nil {
		c.Print("error:", err.Error())
	}
}

func (s *replayScript) request(c *script.Command) {
	a := Arrival{At: c.Duration("at", 0), InputTokens: int(c.Int("in", 1)), OutputTokens: int(c.Int("out", 1)), Session: uint64(c.Int("session", 0))}
	var h engine.BlockHash
	named := c.List("blocks")
	for i := range (a.InputTokens + 3) / 4 {
		own := engine.BlockHash{Hi: uint64(len(s.arrivals)) + 1, Lo: 1}
		if i < len(named) {
			own = engine.BlockHash{Hi: uint64(c.ParseInt(named[i]))}
		}
		h = h.Link(own)
		a.Blocks = append(a.Blocks, h)
	}
	s.arrivals = append(s.arrivals, a)
}

func (s *replayScript) source() Source {
	return func(yield func(Arrival, error) bool) {
		for _, a := range s.arrivals {
			if !yield(a, nil) {
				return
			}
		}
	}
}

func (s *replayScript) run(c *script.Command) {
	s.o.Observe = func(e *Event) { c.Print(showEvent(e)) }
	r, err := Run(context.Background(), s.o, s.c, s.source())
	if err != nil {
		c.Print("error:", err.Error())
		return
	}
	ttft, _ := r.TTFT.Mean()
	itl, _ := r.ITL.Mean()
	c.Print(fmt.Sprintf("%d requests: %d completed, %d rejected, %d lost, %d retries; mean TTFT %v, ITL %v; cached %d of %d tokens, %d of %d blocks; queue peak %d",
		r.Requests, r.Completed, r.Rejected.Total(), r.Lost, r.Retries, ttft, itl, r.CachedTokens, r.PromptTokens, r.CachedBlocks, r.PromptBlocks, r.Queue.Peak()))
	var busy []string
	for _, e := range r.Engines {
		busy = append(busy, fmt.Sprintf("%s %d in %v", e.ID, e.Requests, e.Busy))
	}
	c.Print(strings.Join(busy, ", "))
}

func showEvent(e *Event) string {
	out := fmt.Sprintf("%v request %d %v", e.At, e.Request, e.Kind)
	if e.Kind == Arrived {
		return out + " at gateway " + strconv.Itoa(e.Gateway)
	}
	if e.Engine >= 0 {
		out += fmt.Sprintf(", engine %d", e.Engine)
	}
	if e.Kind == Admitted {
		out += fmt.Sprintf(", %d cached", e.Cached)
	}
	if e.Why != "" {
		out += ": " + e.Why
	}
	return out
}
