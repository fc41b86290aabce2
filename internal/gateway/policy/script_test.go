package policy_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/fleettest"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/script"
)

// TestScripts runs testdata/*.txt over a fleettest.World.
func TestScripts(t *testing.T) {
	script.Run(t, "testdata/*.txt", func(*testing.T) script.Interpreter {
		w := &world{World: fleettest.New(), source: &source{held: map[uint32]prefix.Depth{}, blind: map[uint32]bool{}}, costs: &prefix.Costs{}, others: load.NewAccount(0)}
		return w.do
	})
}

type world struct {
	*fleettest.World
	policy policy.Policy
	source *source
	costs  *prefix.Costs
	others *load.Account
}

// do runs one command, of fleettest.World or of these:
//
//	policy NAME seed= running= waiting= kv= pending= inflight=     begin anew, with these limits
//	policy cache_aware | cost …                                    likewise; see cacheAware for its settings
//	holds ID… device= host= disk= external=                        what the source says they hold, cumulated where a tier is not given
//	blind ID… | seeing ID…
//	source ok | unavailable | refuses
//	restores ID… tier= fixed= token= samples= error= at=           microseconds
//	told ID N tokens= at=                                          another gateway sent its N. prompt there
//	pick keys=FROM,TO stage= exclude= room= input= tokens=no       pick for each key in turn
//
// A pick prints its engine, the reason, and what the policy looked at in order, each as ID[figure]{matched+uncached}: the
// figure is the score where there is one, and ? stands where the engine has no report. room bounds what the trace keeps.
func (w *world) do(c *script.Command) bool {
	switch c.Name {
	case "policy":
		w.policy = w.newPolicy(c, c.Word(), uint64(c.Int("seed", 1)), limits(c))
		if w.policy == nil {
			c.Fatalf("no such policy")
		}
	case "pick":
		w.pick(c)
	case "told":
		t := load.Told{Engine: w.Workers[c.Word()].Load}
		t.Prompt = load.Prompt{ID: uint64(c.ParseInt(c.Word())), Uncached: c.Int("tokens", 0), At: fleettest.Epoch.Add(c.Duration("at", 0))}
		w.others.Sent(t)
	default:
		return w.prefixes(c) || w.Do(c)
	}
	return true
}

func (w *world) newPolicy(c *script.Command, name string, seed uint64, l policy.Limits) policy.Policy {
	switch name {
	case "cache_aware":
		return policy.NewCacheAware(seed, l, w.source, cacheAware(c))
	case "cost":
		return policy.NewCost(seed, l, policy.CostConfig{Source: w.source, Costs: w.costs, PrefillRate: float64(c.Int("rate", 0))})
	}
	for _, p := range []policy.Policy{
		policy.NewRoundRobin(l), policy.NewRandom(seed, l), policy.NewPowerOfTwo(seed, l), policy.NewLeastLoad(l),
	} {
		if p.Name() == name {
			return p
		}
	}
	return nil
}

func limits(c *script.Command) policy.Limits {
	limit := func(key string) *int64 {
		if !c.Has(key) {
			return nil
		}
		n := c.Int(key, 0)
		return &n
	}
	return policy.Limits{
		MaxRunningRequests: limit("running"), MaxWaitingRequests: limit("waiting"), MaxKVTokens: limit("kv"),
		MaxPendingPrefillTokens: limit("pending"), MaxInflightRequests: limit("inflight"),
	}
}

func (w *world) pick(c *script.Command) {
	stage, exclude := w.Stage(c), c.List("exclude")
	keys := c.List("keys")
	if len(keys) == 0 {
		keys = []string{"1"}
	}
	first, last := c.ParseInt(keys[0]), c.ParseInt(keys[len(keys)-1])
	room, input, tokens := int(c.Int("room", 8)), c.Int("input", 100), c.Arg("tokens", "yes") == "yes"
	for key := first; key <= last; key++ {
		v := w.Reg.View()
		var s fleet.Set
		s.Fill(v.Mask(func(x *fleet.Worker) bool { return x.Stage == stage && x.Serves("m") }), w.Now, exclude)
		trace := policy.Trace{Considered: make([]policy.Considered, 0, room)}
		p, err := w.policy.Pick(context.Background(), &s, &policy.Request{
			Model: "m", Bucket: "b", Stage: stage, Key: uint64(key), Now: w.Now, InputTokens: input, Prefix: newMemo(tokens), Trace: &trace,
		})
		c.Print(fmt.Sprintf("%d: %s (%s)", key, answer(p, err), considered(&trace)))
	}
}

func answer(p policy.Pick, err error) string {
	var pe *policy.PickError
	switch {
	case err == nil && p.Rank != policy.NoRank:
		return "picked a rank"
	case err == nil:
		return p.Engine.ID + " " + string(p.Reason)
	case errors.As(err, &pe):
		return err.Error()
	}
	return "an error of another kind: " + err.Error()
}

func considered(t *policy.Trace) string {
	var parts []string
	for _, c := range t.Considered {
		s := c.Engine.ID
		if c.Report == nil {
			s += "?"
		}
		if c.Score.IsKnown() {
			s += "[" + c.Score.String() + "]"
		}
		if c.Matched.IsKnown() {
			s += "{" + c.Matched.String() + "+" + c.Uncached.String() + "}"
		}
		if c.Blind {
			s += "{blind}"
		}
		parts = append(parts, s)
	}
	if t.SourceErr != nil {
		parts = append(parts, t.SourceErr.Error())
	}
	if t.Omitted > 0 {
		parts = append(parts, fmt.Sprintf("and %d", t.Omitted))
	}
	return strings.Join(parts, " ")
}
