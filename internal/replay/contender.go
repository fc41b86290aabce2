package replay

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// Contender is one way to pick engines, to be compared with others.
type Contender struct {
	// Name is what it is called in results.
	Name string
	// Model is what the gateways' engines serve; empty: any name will do.
	Model string
	// Workers are the ids of the engines; nil: engine-0 and so on, as many as the options say.
	Workers []string
	// Breaker, Freshness, ReportEvery and Attempts stand in for options that are zero.
	Breaker                fleet.BreakerConfig
	Freshness, ReportEvery time.Duration
	Attempts               int
	// Build makes the buckets of one gateway. seed is that gateway's, b the baselines of its run.
	Build func(model string, seed uint64, b *Baselines) (*bucket.Resolver, error)
}

// The names of the baselines.
const (
	PrefixAffinity = "prefix_affinity"
	PowerOfTwoWork = "power_of_two_work"
	PlainCost      = "plain_cost"
	Oracle         = "oracle"
)

// Names returns the policies that ByName knows: the gateway's, then the baselines.
func Names() []string {
	return []string{"round_robin", "random", "power_of_two", "load_based", "cache_aware", "cost", PrefixAffinity, PowerOfTwoWork, PlainCost, Oracle}
}

// ErrUnknownPolicy: the name is not one of Names.
var ErrUnknownPolicy = errors.New("unknown policy")

// ByName returns the contender that puts all engines into one bucket under the named policy.
func ByName(name string) (Contender, error) {
	if !slices.Contains(Names(), name) {
		return Contender{}, &policyError{name}
	}
	return Contender{Name: name, Build: func(model string, seed uint64, b *Baselines) (*bucket.Resolver, error) {
		p := newPolicy(name, bucket.GroupSeed(seed, model, "all", fleet.Plain), b)
		return bucket.NewResolver([]*bucket.Bucket{bucket.NewPlain("all", 0, bucket.Range{}, bucket.NewGroup(model, fleet.Plain, nil, p))})
	}}, nil
}

type policyError struct{ name string }

func (e *policyError) Error() string {
	return "there is no policy " + strconv.Quote(e.name) + "; choose from " + strings.Join(Names(), ", ")
}

// Unwrap returns ErrUnknownPolicy.
func (*policyError) Unwrap() error { return ErrUnknownPolicy }

// cacheAware is the gateway's default configuration of the policy.
var cacheAware = policy.CacheAwareConfig{
	MinMatched: 1024, MinWorkers: 8, MaxWorkers: 32, Ratio: 0.05, SwitchMargin: 1024, Choices: 2,
	Guard: &policy.PressureGuard{AbsTokens: 1024, Rel: 1.5},
}

func newPolicy(name string, seed uint64, b *Baselines) policy.Policy {
	switch name {
	case "round_robin":
		return policy.NewRoundRobin(policy.Limits{})
	case "random":
		return policy.NewRandom(seed, policy.Limits{})
	case "power_of_two":
		return policy.NewPowerOfTwo(seed, policy.Limits{})
	case "load_based":
		return policy.NewLeastLoad(policy.Limits{})
	case "cost":
		return policy.NewCost(seed, policy.Limits{}, policy.CostConfig{Source: b.Source()})
	case "cache_aware":
		return policy.NewCacheAware(seed, policy.Limits{}, b.Source(), cacheAware)
	case PlainCost:
		return &plainCost{source: b.Source(), seed: seed}
	case PrefixAffinity:
		return &prefixAffinity{sim: b.sim}
	case PowerOfTwoWork:
		b.sim.watched = true
		return &twoByWork{sim: b.sim, seed: seed}
	default:
		b.sim.watched = true
		return &oracle{sim: b.sim}
	}
}

// Baselines gives the baselines what a policy of a gateway cannot have: a look into the run. It belongs to one run.
type Baselines struct {
	sim     *sim
	gateway *gateway
}

// Source returns what the gateway knows of the engines' caches. It is the gateway's own.
func (b *Baselines) Source() prefix.Source { return &b.gateway.source }
