package assemble

import "github.com/perigee-llm/perigee/internal/gateway/config"

// Needs says what of the engines' own streams the policies of a model look at, their fallbacks and their admission included.
type Needs struct {
	// Prefix is who holds which prefix, by the gateway's own index; with an indexer elsewhere it is not needed here.
	Prefix bool
	// Load is what engines publish of their load between two polls.
	Load bool
}

// NeedsOf returns what the model's groups need, all buckets together.
func NeedsOf(m *config.Model) (n Needs) {
	for i := range m.Buckets {
		b := &m.Buckets[i]
		if b.Plain != nil {
			n.add(b.Plain)
		}
		if b.PD != nil {
			n.add(&b.PD.Prefill)
			n.add(&b.PD.Decode)
		}
	}
	return n
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
