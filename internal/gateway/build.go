package gateway

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"reflect"
	"slices"
	"strings"

	"github.com/perigee-llm/perigee/internal/gateway/api"
	"github.com/perigee-llm/perigee/internal/gateway/api/body"
	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/introspect"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
)

// groups are the policies of role groups, by groupSeed's names, with what they were made from. A group whose policy is configured as
// before keeps its instance, and with it what that has learnt: whose turn it is, say.
type groups map[groupName]builtPolicy

type groupName struct {
	model, bucket string
	stage         fleet.Stage
}

type builtPolicy struct {
	policy config.Policy
	limits config.Admission
	built  policy.Policy
}

// builder makes the models of one configuration.
type builder struct {
	seed       uint64
	held       *files
	kept, made groups
}

// buildModels makes the models of a configuration, each role group with a policy instance of its own, those of kept included. It returns
// the groups that there are now.
func buildModels(c *config.Config, held *files, seed uint64, kept groups) ([]*api.Model, groups, error) {
	b := builder{seed: seed, held: held, kept: kept, made: groups{}}
	models := make([]*api.Model, 0, len(c.Models))
	for i := range c.Models {
		m, err := b.model(&c.Models[i])
		if err != nil {
			return nil, nil, fmt.Errorf("model %s: %w", c.Models[i].ID, err)
		}
		models = append(models, m)
	}
	return models, b.made, nil
}

func (u *builder) model(m *config.Model) (*api.Model, error) {
	var buckets []*bucket.Bucket
	for i := range m.Buckets {
		b, err := u.bucket(m.ID, &m.Buckets[i])
		if err != nil {
			return nil, fmt.Errorf("bucket %s: %w", m.Buckets[i].ID, err)
		}
		buckets = append(buckets, b)
	}
	resolver, err := bucket.NewResolver(buckets)
	if err != nil {
		return nil, err
	}
	contract, err := buildContract(&m.Sampling)
	if err != nil {
		return nil, err
	}
	return &api.Model{
		ID: m.ID, Aliases: m.Aliases, Resolver: resolver, Contract: contract,
		Tokens: u.held.tokenizers[m.Tokenizer].model, ForwardIDs: m.InputIDsForwarding, AskEngines: m.EngineTokenize,
	}, nil
}

func (u *builder) bucket(model string, b *config.Bucket) (*bucket.Bucket, error) {
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

// groupSeed gives each group choices of its own, so that two buckets do not sample the same positions for one request.
func groupSeed(seed uint64, n groupName) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d\x00%s\x00%s\x00%s", seed, n.model, n.bucket, n.stage)
	return h.Sum64()
}

// policy returns the group's instance from before, or makes one.
func (u *builder) policy(g *config.Group, n groupName) (policy.Policy, error) {
	p, there := u.kept[n]
	if !there || !reflect.DeepEqual(p.policy, g.Policy) || !reflect.DeepEqual(p.limits, g.Admission) {
		built, err := buildPolicy(g, groupSeed(u.seed, n))
		if err != nil {
			return nil, err
		}
		p = builtPolicy{g.Policy, g.Admission, built}
	}
	u.made[n] = p
	return p.built, nil
}

func buildPolicy(g *config.Group, seed uint64) (policy.Policy, error) {
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
	}
	return nil, fmt.Errorf("this version has no policy %s", g.Policy.Name)
}

// buildContract writes the sampling rules as the object that the operator could have written, since that is what the
// contract reads.
func buildContract(s *config.Sampling) (*body.Contract, error) {
	if len(s.Override) == 0 {
		return nil, nil
	}
	rules := make(map[string]any, len(s.Override))
	for _, r := range s.Override {
		if r.Exact != "" {
			rules[r.Param] = json.RawMessage(r.Exact)
		} else {
			rules[r.Param] = map[string]float64{"min": r.Min, "max": r.Max}
		}
	}
	text, err := json.Marshal(rules)
	if err != nil {
		return nil, fmt.Errorf("sampling: %w", err)
	}
	mode := body.Reject
	if s.Conflict == config.ConflictAllow {
		mode = body.Allow
	}
	return body.ParseContract(text, mode)
}

// buildTargets lists the engines that discovery knows from the start.
func buildTargets(d *config.Discovery) []introspect.Target {
	if d.Static == nil {
		return nil
	}
	targets := make([]introspect.Target, 0, len(d.Static.Workers))
	for _, w := range d.Static.Workers {
		t := introspect.Target{ID: w.ID, URL: w.URL}
		switch w.Role {
		case config.RolePrefill:
			t.Stage = fleet.Prefill
		case config.RoleDecode:
			t.Stage = fleet.Decode
		}
		targets = append(targets, t)
	}
	return targets
}

// buildSettings turns the server's section and the rule on client fields into the limits of the request path.
func buildSettings(c *config.Config) api.Settings {
	s := api.Settings{
		MaxBody: c.Server.MaxBodyBytes, MaxAttempts: c.Server.MaxAttempts,
		RequestTimeout: c.Server.RequestTimeout, StreamIdle: c.Server.StreamIdleTimeout, Stale: c.Server.StaleRequestTimeout,
		BodyStall: api.DefaultBodyStall, ClientStall: api.DefaultClientStall,
		PublicMetrics: c.Server.PublicMetrics, PublicFlush: c.Server.PublicFlushCache,
		ForwardAuthorization: c.Server.APIKeys != nil && c.Server.APIKeys.ForwardAuthorization,
	}
	keys := guardedKeys(c.ClientFields.Allow)
	if c.ClientFields.Default == config.StripField {
		s.Stripped = keys
	} else {
		s.Refused = keys
	}
	return s
}

// guardedKeys are the fields that clients may not set, less those that the configuration allows.
func guardedKeys(allow []string) (keys body.Keys) {
	for _, name := range config.GuardedFields {
		if slices.Contains(allow, name) {
			continue
		}
		for k := range body.ProtectedKeys.All() {
			if guards(name, k.String()) {
				keys |= body.KeysOf(k)
			}
		}
	}
	return keys
}

// guards tells whether a guarded name covers a field. SGLang takes the rank under its older name too.
func guards(name, field string) bool {
	if prefix, ok := strings.CutSuffix(name, "*"); ok {
		return strings.HasPrefix(field, prefix)
	}
	return field == name || (name == "routed_dp_rank" && field == "data_parallel_rank")
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
