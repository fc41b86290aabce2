package compare

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
	"github.com/perigee-llm/perigee/internal/replay"
)

// Errors of Configured.
var (
	// ErrNoModel: the configuration has no such model, or several and none was named.
	ErrNoModel = errors.New("no model to replay")
	// ErrNotStatic: the engines are not listed in the configuration, so nobody knows how many there are.
	ErrNotStatic = errors.New("replay needs the engines listed in discovery.static")
)

// Configured returns the contender that is one model of a gateway's configuration: its buckets, policies and admission, on as
// many simulated engines as it lists. model may be empty if there is but one. The name is the file's, without folder and ending.
func Configured(file string, c *config.Config, model string) (replay.Contender, error) {
	m, err := findModel(c, model)
	if err != nil {
		return replay.Contender{}, err
	}
	if c.Discovery.Static == nil {
		return replay.Contender{}, ErrNotStatic
	}
	out := replay.Contender{Name: strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)), Model: m.ID}
	for _, w := range c.Discovery.Static.Workers {
		if w.Role == config.RolePrefill || w.Role == config.RoleDecode {
			return replay.Contender{}, fmt.Errorf("engine %s: %w", w.ID, replay.ErrPD)
		}
		out.Workers = append(out.Workers, w.ID)
	}
	out.Build = func(id string, seed uint64, _ *replay.Baselines) (*bucket.Resolver, error) { return build(m, id, seed) }
	return out, nil
}

func findModel(c *config.Config, model string) (*config.Model, error) {
	ids := make([]string, 0, len(c.Models))
	for i := range c.Models {
		if c.Models[i].ID == model || (model == "" && len(c.Models) == 1) {
			return &c.Models[i], nil
		}
		ids = append(ids, c.Models[i].ID)
	}
	return nil, fmt.Errorf("%w: choose one of %s", ErrNoModel, strings.Join(ids, ", "))
}

// build makes the model's buckets, each group with a policy of its own, as the gateway does. Pairs' buckets have no engines here
// and are left out.
func build(m *config.Model, id string, seed uint64) (*bucket.Resolver, error) {
	var buckets []*bucket.Bucket
	for i := range m.Buckets {
		b := &m.Buckets[i]
		if b.Plain == nil {
			continue
		}
		p, err := policyOf(b.Plain, replay.GroupSeed(seed, id, b.ID, fleet.Plain))
		if err != nil {
			return nil, fmt.Errorf("bucket %s: %w", b.ID, err)
		}
		limits := bucket.Range{MinInput: int64(b.MinInputTokens), MaxInput: orZero(b.MaxInputTokens), MaxContext: orZero(b.MaxContextTokens)}
		buckets = append(buckets, bucket.NewPlain(b.ID, int64(b.Rank), limits, bucket.NewGroup(id, fleet.Plain, b.Plain.Workers, p)))
	}
	return bucket.NewResolver(buckets)
}

func policyOf(g *config.Group, seed uint64) (policy.Policy, error) {
	limits := policy.Limits{
		MaxRunningRequests: wide(g.Admission.MaxRunningRequests), MaxWaitingRequests: wide(g.Admission.MaxWaitingRequests),
		MaxKVTokens: wide(g.Admission.MaxKVTokens), MaxPendingPrefillTokens: wide(g.Admission.MaxPendingPrefillTokens),
		MaxInflightRequests: wide(g.Admission.MaxInflightRequests),
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
	}
	return nil, fmt.Errorf("replay has no policy %s", g.Policy.Name)
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
