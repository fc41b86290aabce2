// Package assemble makes a model's buckets, groups and policies from its configuration. It is the one place that does: what
// serves and what replays a configuration is the same.
//
// It promises that each role group has a policy instance of its own, whose random choices are fixed by the seed and the group's
// name, and that a group which is configured as before can keep the instance it had.
package assemble

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// Groups are policies in use, by their groups, with what they were made from.
type Groups map[groupName]builtPolicy

type groupName struct {
	model, bucket string
	stage         fleet.Stage
}

type builtPolicy struct {
	policy config.Policy
	limits config.Admission
	source prefix.Source
	built  policy.Policy
}

// Builder makes the resolvers of one configuration. It belongs to one goroutine.
type Builder struct {
	// Seed fixes the random choices.
	Seed uint64
	// Kept are the groups from before: one whose policy is configured as it was keeps its instance, and with it what that has
	// learnt, whose turn it is, say. Nil: there is no before.
	Kept Groups
	// Source returns who knows the prefixes of a model for a policy's settings, the same for equal arguments; nil, or what returns nil:
	// nobody, and a policy that needs it cannot be made.
	Source func(model string, p *config.Policy) prefix.Source
	// Costs is what restores from lower tiers take; nil: nobody knows.
	Costs *prefix.Costs

	made Groups
}

// Groups returns the groups that were made or kept so far.
func (u *Builder) Groups() Groups { return u.made }

// Resolver makes the buckets of a model under an id, those for which take is true; nil takes all. The error names the bucket.
func (u *Builder) Resolver(id string, m *config.Model, take func(*config.Bucket) bool) (*bucket.Resolver, error) {
	var buckets []*bucket.Bucket
	for i := range m.Buckets {
		if take != nil && !take(&m.Buckets[i]) {
			continue
		}
		b, err := u.bucket(id, &m.Buckets[i])
		if err != nil {
			return nil, fmt.Errorf("bucket %s: %w", m.Buckets[i].ID, err)
		}
		buckets = append(buckets, b)
	}
	return bucket.NewResolver(buckets)
}

func (u *Builder) bucket(model string, b *config.Bucket) (*bucket.Bucket, error) {
	limit := bucket.Range{MinInput: int64(b.MinInputTokens), MaxInput: orZero(b.MaxInputTokens), MaxContext: orZero(b.MaxContextTokens)}
	group := func(g *config.Group, stage fleet.Stage) (*bucket.Group, error) {
		p, err := u.policy(g, groupName{model, b.ID, stage})
		if err != nil {
			return nil, err
		}
		return bucket.NewGroup(model, stage, g.Workers, p), nil
	}
	if b.Plain != nil {
		g, err := group(b.Plain, fleet.Plain)
		if err != nil {
			return nil, err
		}
		return bucket.NewPlain(b.ID, int64(b.Rank), limit, g), nil
	}
	p, err := group(&b.PD.Prefill, fleet.Prefill)
	if err != nil {
		return nil, err
	}
	d, err := group(&b.PD.Decode, fleet.Decode)
	if err != nil {
		return nil, err
	}
	return bucket.NewPD(b.ID, int64(b.Rank), limit, p, d), nil
}

// policy returns the group's instance from before, or makes one.
func (u *Builder) policy(g *config.Group, n groupName) (policy.Policy, error) {
	p, there := u.Kept[n]
	var source prefix.Source
	if g.Policy.NeedsPrefixes() && u.Source != nil {
		source = u.Source(n.model, &g.Policy)
	}
	if !there || p.source != source || !reflect.DeepEqual(p.policy, g.Policy) || !reflect.DeepEqual(p.limits, g.Admission) {
		built, err := newPolicy(g, bucket.GroupSeed(u.Seed, n.model, n.bucket, n.stage), source, u.Costs)
		if err != nil {
			return nil, err
		}
		p = builtPolicy{g.Policy, g.Admission, source, built}
	}
	if u.made == nil {
		u.made = Groups{}
	}
	u.made[n] = p
	return p.built, nil
}

// ErrNoSource: a policy looks at prefixes, and nobody here knows them.
var ErrNoSource = errors.New("no source of prefixes for it")

func newPolicy(g *config.Group, seed uint64, source prefix.Source, costs *prefix.Costs) (policy.Policy, error) {
	if g.Policy.NeedsPrefixes() && source == nil {
		return nil, fmt.Errorf("policy %s: %w", g.Policy.Name, ErrNoSource)
	}
	limits := policy.Limits{
		MaxRunningRequests:      wide(g.Admission.MaxRunningRequests),
		MaxWaitingRequests:      wide(g.Admission.MaxWaitingRequests),
		MaxKVTokens:             wide(g.Admission.MaxKVTokens),
		MaxPendingPrefillTokens: wide(g.Admission.MaxPendingPrefillTokens),
		MaxInflightRequests:     wide(g.Admission.MaxInflightRequests),
	}
	switch g.Policy.Name {
	case config.RoundRobin:
		return policy.NewRoundRobin(limits), nil
	case config.Random:
		return policy.NewRandom(seed, limits), nil
	case config.PowerOfTwo:
		return policy.NewPowerOfTwo(seed, limits), nil
	case config.LoadBased:
		return policy.NewLeastLoad(limits), nil
	case config.CacheAware:
		return policy.NewCacheAware(seed, limits, source, cacheAware(g.Policy.CacheAware)), nil
	case config.Cost:
		c := policy.CostConfig{Source: source, Costs: costs}
		if rate := g.Policy.Cost.PrefillRate; rate != nil {
			c.PrefillRate = float64(*rate)
		}
		return policy.NewCost(seed, limits, c), nil
	}
	return nil, fmt.Errorf("this version has no policy %s", g.Policy.Name)
}

func cacheAware(s *config.CacheAwareSettings) policy.CacheAwareConfig {
	c := policy.CacheAwareConfig{
		MinMatched: int64(s.MinMatchedTokens),
		MinWorkers: s.Candidates.MinWorkers, MaxWorkers: s.Candidates.MaxWorkers, Ratio: s.Candidates.Ratio,
		SwitchMargin: int64(s.SwitchMarginTokens),
		QueueLimit:   orZero(s.WorkerQueueLimit), QueueFloor: orZero(s.SaturationQueueFloor),
		Choices: s.MinLoadChoices,
	}
	if s.MinMatchRatio != nil {
		c.MinRatio = *s.MinMatchRatio
	}
	if g := &s.PressureGuard; g.Enabled {
		c.Guard = &policy.PressureGuard{AbsTokens: int64(g.AbsThresholdTokens), Rel: g.RelThreshold}
		if g.AbsThreshold != nil {
			us := g.AbsThreshold.Microseconds()
			c.Guard.AbsMicros = &us
		}
	}
	return c
}

func orZero(n *int) int64 {
	if n == nil {
		return 0
	}
	return int64(*n)
}

func wide(n *int) *int64 {
	if n == nil {
		return nil
	}
	v := int64(*n)
	return &v
}
