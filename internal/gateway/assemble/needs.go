package assemble

import (
	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
)

// Needs says what of an engine's own streams the policies look at that may pick it, their fallbacks and their admission included.
type Needs struct {
	// Prefix is who holds which prefix, by the gateway's own index; with an indexer elsewhere it is not needed here.
	Prefix bool
	// Load is what engines publish of their load between two polls.
	Load bool
}

// Wants are what each group of a configuration needs of its engines. They never change.
type Wants struct{ groups []want }

type want struct {
	members *bucket.Group // without a policy
	needs   Needs
}

// WantsOf returns what the groups of all models need.
func WantsOf(c *config.Config) (w Wants) {
	for i := range c.Models {
		m := &c.Models[i]
		for k := range m.Buckets {
			b := &m.Buckets[k]
			if b.Plain != nil {
				w.add(m.ID, fleet.Plain, b.Plain)
			}
			if b.PD != nil {
				w.add(m.ID, fleet.Prefill, &b.PD.Prefill)
				w.add(m.ID, fleet.Decode, &b.PD.Decode)
			}
		}
	}
	return w
}

func (w *Wants) add(model string, stage fleet.Stage, g *config.Group) {
	var n Needs
	if n.add(g); n != (Needs{}) {
		w.groups = append(w.groups, want{bucket.NewGroup(model, stage, g.Workers, nil), n})
	}
}

// Of returns what is needed of an engine, by the groups that it belongs to: to follow what no policy looks at costs an index that nobody reads.
func (w *Wants) Of(e *fleet.Worker) (n Needs) {
	for _, g := range w.groups {
		if g.members.Accepts(e) {
			n = Needs{Prefix: n.Prefix || g.needs.Prefix, Load: n.Load || g.needs.Load}
		}
	}
	return n
}

// Prefix tells whether any group looks prefixes up in the gateway's own index, whether or not it has engines.
func (w *Wants) Prefix() bool {
	for _, g := range w.groups {
		if g.needs.Prefix {
			return true
		}
	}
	return false
}

func (n *Needs) add(g *config.Group) {
	switch g.Policy.Name {
	case config.RoundRobin, config.Random:
	case config.Sticky:
		n.Load = n.Load || g.Policy.Sticky.FallbackPolicy == config.PowerOfTwo || g.Policy.Sticky.FallbackPolicy == config.LoadBased
	default:
		n.Load = true
	}
	if provider, _ := g.Policy.Prefixes(); g.Policy.NeedsPrefixes() && provider == config.RadixTree {
		n.Prefix = true
	}
	if (g.Admission != config.Admission{}) {
		n.Load = true
	}
}

// LooksUp tells whether a policy of the model looks prefixes up, here or elsewhere.
func LooksUp(m *config.Model) bool {
	for i := range m.Buckets {
		b := &m.Buckets[i]
		if b.Plain != nil && b.Plain.Policy.NeedsPrefixes() || b.PD != nil && (b.PD.Prefill.Policy.NeedsPrefixes() || b.PD.Decode.Policy.NeedsPrefixes()) {
			return true
		}
	}
	return false
}
