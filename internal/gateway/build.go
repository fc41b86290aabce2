package gateway

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/perigee-llm/perigee/internal/gateway/api"
	"github.com/perigee-llm/perigee/internal/gateway/api/body"
	"github.com/perigee-llm/perigee/internal/gateway/assemble"
	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/introspect"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// buildModels makes the models of a configuration. Groups that are configured as those of kept keep their policies; it returns the
// groups that there are now.
func buildModels(c *config.Config, held *files, seed uint64, kept assemble.Groups, p *prefixes) ([]*api.Model, assemble.Groups, error) {
	source := func(_ string, c *config.Policy) prefix.Source { return p.source(c, held) }
	b := assemble.Builder{Seed: seed, Kept: kept, Source: source, Costs: &p.costs}
	models := make([]*api.Model, 0, len(c.Models))
	for i := range c.Models {
		m := &c.Models[i]
		resolver, err := b.Resolver(m.ID, m, nil)
		if err != nil {
			return nil, nil, fmt.Errorf("model %s: %w", m.ID, err)
		}
		contract, err := buildContract(&m.Sampling)
		if err != nil {
			return nil, nil, fmt.Errorf("model %s: %w", m.ID, err)
		}
		models = append(models, &api.Model{
			ID: m.ID, Aliases: m.Aliases, Resolver: resolver, Contract: contract,
			Tokens: held.tokenizers[m.Tokenizer].model, ForwardIDs: m.InputIDsForwarding, AskEngines: m.EngineTokenize, Prefixes: assemble.LooksUp(m),
		})
	}
	return models, b.Groups(), nil
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
		MaxBody: c.Server.MaxBodyBytes, MaxBuffered: c.Server.MaxBufferedBytes, MaxAttempts: c.Server.MaxAttempts,
		RequestTimeout: c.Server.RequestTimeout, StreamIdle: c.Server.StreamIdleTimeout, Stale: c.Server.StaleRequestTimeout,
		BodyStall: c.Server.Clients.BodyTimeout, ClientStall: c.Server.Clients.SendTimeout,
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
func guardedKeys(allow []string) body.Keys {
	keys := body.ProtectedKeys
	for _, name := range allow {
		for k := range body.ProtectedKeys.All() {
			if guards(name, k.String()) {
				keys &^= body.KeysOf(k)
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
