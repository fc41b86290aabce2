package bucket_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/fleettest"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
	"github.com/perigee-llm/perigee/internal/script"
)

// TestScripts runs testdata/*.txt over a fleettest.World.
func TestScripts(t *testing.T) {
	script.Run(t, "testdata/*.txt", func(*testing.T) script.Interpreter {
		w := &world{World: fleettest.New(), kept: map[string]*fleet.Worker{}, trace: bucket.NewTrace(8)}
		return w.do
	})
}

type world struct {
	*fleettest.World
	buckets  []*bucket.Bucket
	resolver *bucket.Resolver
	view     *fleet.View // held by the script; nil: the present one
	kept     map[string]*fleet.Worker
	trace    *bucket.Trace
}

// do runs one command, of fleettest.World or of these:
//
//	plain ID rank= min= max= context= policy= ids=a,b inflight=
//	pd ID rank= min= max= context= prefill= pids= pinflight= decode= dids= dinflight=
//	group ID stage= …             a bucket whose plain group has that role, which a resolver must refuse
//	resolver                      of the buckets since the last one
//	resolve input= peak=
//	select key= input= peak= exclude=
//	members ID                    of each group: members, live ones
//	hold · release                select on this view from now on, or on the present one again
//	keep ID NAME · double ID NAME   remember the worker of an id, or a new one of the same facts
//
// A policy is the name of a real one, or stray:NAME, which returns that kept worker; fault:CLASS, which fails with that class;
// or broken, which fails with an error of another kind.
func (w *world) do(c *script.Command) bool {
	switch c.Name {
	case "plain":
		w.buckets = append(w.buckets, bucket.NewPlain(c.Word(), c.Int("rank", 0), limit(c), w.group(c, fleet.Plain, "policy", "ids", "inflight")))
	case "group":
		w.buckets = append(w.buckets, bucket.NewPlain(c.Word(), 0, bucket.Range{}, w.group(c, w.Stage(c), "policy", "ids", "inflight")))
	case "pd":
		p := w.group(c, fleet.Prefill, "prefill", "pids", "pinflight")
		d := w.group(c, fleet.Decode, "decode", "dids", "dinflight")
		w.buckets = append(w.buckets, bucket.NewPD(c.Word(), c.Int("rank", 0), limit(c), p, d))
	case "resolver":
		r, err := bucket.NewResolver(w.buckets)
		if err != nil {
			c.Print("error:", err.Error())
		} else {
			w.resolver = r
		}
		w.buckets = nil
	case "resolve":
		bs, err := w.resolver.Resolve(nil, c.Int("input", 1), peak(c))
		c.Print(printed(bs, err))
	case "select":
		w.selectOne(c)
	case "members":
		w.members(c, c.Word())
	case "hold":
		w.view = w.Reg.View()
	case "release":
		w.view = nil
	case "keep":
		id := c.Word()
		w.kept[c.Word()] = w.Workers[id]
	case "double":
		x := w.Workers[c.Word()]
		w.kept[c.Word()] = &fleet.Worker{Spec: x.Spec, Load: x.Load}
	default:
		return w.Do(c)
	}
	return true
}

func limit(c *script.Command) bucket.Range {
	return bucket.Range{MinInput: c.Int("min", 0), MaxInput: c.Int("max", 0), MaxContext: c.Int("context", 0)}
}

func peak(c *script.Command) load.Count {
	if !c.Has("peak") {
		return load.Count{}
	}
	return load.Known(c.Int("peak", 0))
}

func (w *world) group(c *script.Command, stage fleet.Stage, policyKey, idsKey, inflightKey string) *bucket.Group {
	var l policy.Limits
	if c.Has(inflightKey) {
		n := c.Int(inflightKey, 0)
		l.MaxInflightRequests = &n
	}
	kind, arg, _ := strings.Cut(c.Arg(policyKey, "round_robin"), ":")
	var p policy.Policy
	switch kind {
	case "stray":
		p = fake{func() (policy.Pick, error) {
			return policy.Pick{Engine: w.kept[arg], Rank: policy.NoRank, Reason: "stray"}, nil
		}}
	case "fault":
		for class := policy.NoCandidates; class <= policy.OutsideCandidates; class++ {
			if class.String() == arg {
				p = fake{func() (policy.Pick, error) {
					return policy.Pick{}, &policy.PickError{Class: class, Stage: stage, Detail: "on purpose"}
				}}
			}
		}
	case "broken":
		p = fake{func() (policy.Pick, error) {
			return policy.Pick{}, fmt.Errorf("a look-up: %w", context.DeadlineExceeded)
		}}
	default:
		p = newPolicy(kind, 1, l)
	}
	if p == nil {
		c.Fatalf("no policy %s:%s", kind, arg)
	}
	return bucket.NewGroup("m", stage, c.List(idsKey), p)
}

func newPolicy(name string, seed uint64, l policy.Limits) policy.Policy {
	for _, p := range []policy.Policy{
		policy.NewRoundRobin(l), policy.NewRandom(seed, l), policy.NewPowerOfTwo(seed, l), policy.NewLeastLoad(l),
	} {
		if p.Name() == name {
			return p
		}
	}
	return nil
}

// fake is a policy that answers what a script says.
type fake struct {
	answer func() (policy.Pick, error)
}

func (fake) Name() string { return "fake" }

func (f fake) Pick(context.Context, *fleet.Set, *policy.Request) (policy.Pick, error) {
	return f.answer()
}

func printed(bs []*bucket.Bucket, err error) string {
	if err != nil {
		return "error: " + err.Error()
	}
	ids := []string{"buckets:"}
	for _, b := range bs {
		ids = append(ids, b.ID())
	}
	return strings.Join(ids, " ")
}

func (w *world) selectOne(c *script.Command) {
	v := w.view
	if v == nil {
		v = w.Reg.View()
	}
	w.trace.Reset()
	s, err := w.resolver.Select(context.Background(), v, &bucket.Request{
		Key: uint64(c.Int("key", 1)), Now: w.Now, InputTokens: c.Int("input", 1), PeakTokens: peak(c), Exclude: c.List("exclude"), Trace: w.trace,
	})
	c.Print(outcome(&s, err))
	for _, y := range w.trace.Tries() {
		result := "-"
		switch {
		case y.Err != nil:
			result = y.Err.Error()
		case y.Pick.Engine != nil:
			result = y.Pick.Engine.ID + " " + string(y.Pick.Reason)
		}
		c.Print(fmt.Sprintf("  %s, %s, %s of %d: %s", y.Bucket, y.Stage, y.Policy, y.Candidates, result))
	}
}

func outcome(s *bucket.Selection, err error) string {
	var (
		exhausted *bucket.ExhaustedError
		pick      *policy.PickError
	)
	switch {
	case err == nil && s.PD():
		return s.Bucket.ID() + ": " + s.Prefill.Engine.ID + " and " + s.Decode.Engine.ID
	case err == nil:
		return s.Bucket.ID() + ": " + s.Plain.Engine.ID
	case *s != bucket.Selection{}:
		return "half a selection beside an error"
	case errors.As(err, &exhausted):
		return "exhausted: " + err.Error()
	case errors.As(err, &pick):
		return "stopped: " + err.Error()
	case errors.Is(err, bucket.ErrNoMatchingBucket):
		return "no bucket: " + err.Error()
	}
	return "error: " + err.Error()
}

func (w *world) members(c *script.Command, id string) {
	for _, b := range w.resolver.Buckets() {
		if b.ID() != id {
			continue
		}
		for _, g := range b.Groups() {
			v := w.Reg.View()
			c.Print(fmt.Sprintf("%s, %s: %d members, %d live", g.Stage(), g.Policy().Name(), g.Members(v), g.Live(v, &bucket.Request{Now: w.Now})))
		}
	}
}
