package policy_test

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet/fleettest"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/script"
)

// source says what it is told to.
type source struct {
	held  map[uint32]prefix.Depth
	blind map[uint32]bool
	err   error
	asked int
}

func (*source) Name() string { return "scripted" }

func (s *source) Lookup(_ context.Context, _ *prefix.Query, into *prefix.Match) error {
	s.asked++
	for no, d := range s.held {
		if d.Any() > 0 {
			into.Held = append(into.Held, prefix.Held{Engine: no, Depth: d})
		}
	}
	slices.SortFunc(into.Held, func(a, b prefix.Held) int { return int(a.Engine) - int(b.Engine) })
	for no, is := range s.blind {
		if is {
			into.Blind = append(into.Blind, no)
		}
	}
	slices.Sort(into.Blind)
	return s.err
}

// prefixes runs a command that is about prefixes; see world.do.
func (w *world) prefixes(c *script.Command) bool {
	switch c.Name {
	case "holds":
		var d prefix.Depth
		last := int64(0)
		for t := prefix.Device; t < prefix.Tiers; t++ {
			last = c.Int(t.String(), last)
			d[t] = int32(last)
		}
		for _, id := range c.Words() {
			w.source.held[w.Workers[id].No] = d
		}
	case "blind", "seeing":
		for _, id := range c.Words() {
			w.source.blind[w.Workers[id].No] = c.Name == "blind"
		}
	case "source":
		w.source.err = map[string]error{
			"ok": nil, "unavailable": &prefix.Unavailable{Reason: prefix.TimedOut}, "refuses": &prefix.Rejected{Err: errors.New("another block size")},
		}[c.Word()]
	case "restores":
		w.restores(c)
	default:
		return false
	}
	return true
}

func (w *world) restores(c *script.Command) {
	r := prefix.CostRecord{
		Fixed: float64(c.Int("fixed", 0)) / 1e6, PerToken: float64(c.Int("token", 0)) / 1e6, Samples: int(c.Int("samples", 10)),
		Error: float64(c.Int("error", 0)) / 100, At: w.Now,
	}
	if c.Has("at") {
		r.At = fleettest.Epoch.Add(c.Duration("at", 0))
	}
	name := c.Arg("tier", "host")
	for t := prefix.Host; t < prefix.Tiers; t++ {
		if t.String() != name {
			continue
		}
		for _, id := range c.Words() {
			w.costs.Set(1, w.Workers[id].No, t, r)
		}
	}
}

// cacheAware reads min= minratio=(%) workers=MIN,MAX ratio=(%) margin= limit= floor= choices= guard=no|TOKENS guardms= rel=(%).
func cacheAware(c *script.Command) policy.CacheAwareConfig {
	out := policy.CacheAwareConfig{
		MinMatched: c.Int("min", 10), MinRatio: float64(c.Int("minratio", 0)) / 100, MinWorkers: int(c.Int("minworkers", 8)),
		MaxWorkers: int(c.Int("maxworkers", 32)), Ratio: float64(c.Int("ratio", 5)) / 100, SwitchMargin: c.Int("margin", 10),
		QueueLimit: c.Int("limit", 0), QueueFloor: c.Int("floor", 0), Choices: int(c.Int("choices", 2)),
	}
	if c.Arg("guard", "10") != "no" {
		out.Guard = &policy.PressureGuard{AbsTokens: c.Int("guard", 10), Rel: float64(c.Int("rel", 150)) / 100}
		if c.Has("guardms") {
			us := (time.Duration(c.Int("guardms", 0)) * time.Millisecond).Microseconds()
			out.Guard.AbsMicros = &us
		}
	}
	return out
}

// newMemo returns one request's memo, with tokens or, for a request of which none are known, without.
func newMemo(tokens bool) *prefix.Memo {
	m := new(prefix.Memo)
	if tokens {
		m.Reset(prefix.Query{Model: "m", Tokens: []uint32{1, 2, 3}})
	}
	return m
}
