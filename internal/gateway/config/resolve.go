package config

import (
	"slices"
	"strings"
)

// notBuilt is what the schema knows and this version cannot do yet. Whoever builds one of them deletes its line.
var notBuilt = []string{
	"policy session_aware",
	"policy sticky",
	"discovery file",
	"discovery kubernetes",
	"discovery etcd",
}

// refuseNotBuilt refuses by name what cannot be done yet, after everything else was judged: a configuration for the next version
// can be checked with this one.
func (d *decoder) refuseNotBuilt(c *Config) {
	refuse := func(path, what, cure string) {
		if slices.Contains(notBuilt, what) && d.has(path) {
			d.add(path, d.nearest(path), classNotBuilt, what+" is not built yet in this version", cure, false)
		}
	}
	static := "list the engines in discovery.static"
	if flag := d.flagOf["discovery.static.workers"]; flag != "" {
		static = "list the engines with --" + flag
	}
	for _, source := range []string{"file", "kubernetes", "etcd"} {
		refuse(join("discovery", source), "discovery "+source, static)
	}
	policy := func(path string, p *Policy) {
		refuse(path, "policy "+string(p.Name), "use one of "+strings.Join(builtPolicies(strings.Contains(path, "decode")), ", "))
	}
	for i := range c.Models {
		m, at := &c.Models[i], index("models", i)
		policy(at+".policy", &m.Policy)
		policy(at+".decode_policy", &m.DecodePolicy)
		for j := range m.Buckets {
			for path, g := range m.Buckets[j].groups(index(at+".buckets", j)) {
				policy(path+".policy", &g.Policy)
			}
		}
	}
}

// builtPolicies are those that can be chosen, for a decode group or another.
func builtPolicies(decode bool) []string {
	var out []string
	for _, name := range policyNames {
		if !slices.Contains(notBuilt, "policy "+string(name)) && !(decode && prefillOnly(name)) {
			out = append(out, string(name))
		}
	}
	return out
}

// resolve fills in what depends on other values.
func (c *Config) resolve() {
	if c.Discovery.Static != nil {
		for i := range c.Discovery.Static.Workers {
			w := &c.Discovery.Static.Workers[i]
			w.ID, w.URL = w.id(), trimURL(w.URL)
			if w.APIKeyFile == "" {
				w.APIKeyFile = c.Discovery.Static.APIKeyFile
			}
		}
	}
	for i := range c.Models {
		c.Models[i].resolve()
	}
}

func (m *Model) resolve() {
	if m.Policy.Name == "" {
		m.Policy.Name = RoundRobin
	}
	if m.DecodePolicy.Name == "" {
		m.DecodePolicy.Name = PowerOfTwo
	}
	m.Policy.resolve()
	m.DecodePolicy.resolve()
	if len(m.Buckets) == 0 {
		m.Buckets = []Bucket{{ID: "plain", Rank: 0, Plain: new(Group)}, {ID: "pd", Rank: 1, PD: new(PD)}}
	}
	for i := range m.Buckets {
		for path, g := range m.Buckets[i].groups("") {
			if g.Policy.Name == "" {
				g.Policy = m.Policy
				if policyKey(path) == "decode_policy" {
					g.Policy = m.DecodePolicy
				}
			}
			g.Policy.resolve()
			g.Admission.fill(m.Admission)
		}
	}
}

// policyKey is the key of the model's policy that the group at path takes over.
func policyKey(path string) string {
	if roleOf(path) == RoleDecode {
		return "decode_policy"
	}
	return "policy"
}

func (p *Policy) resolve() {
	if s := p.CacheAware; s != nil {
		s.PrefixProvider.resolve(&s.KVIndexer)
	}
	if s := p.Cost; s != nil {
		s.PrefixProvider.resolve(&s.KVIndexer)
	}
}

func (p *PrefixProvider) resolve(k *KVIndexer) {
	switch {
	case *p != "":
	case k.Endpoint != "":
		*p = Indexer
	default:
		*p = RadixTree
	}
}

// fill takes from def each cap that a leaves unset, so that a group that sets one cap loses none of the model's others.
func (a *Admission) fill(def Admission) {
	for _, cap := range []struct{ own, def **int }{
		{&a.MaxRunningRequests, &def.MaxRunningRequests},
		{&a.MaxWaitingRequests, &def.MaxWaitingRequests},
		{&a.MaxKVTokens, &def.MaxKVTokens},
		{&a.MaxPendingPrefillTokens, &def.MaxPendingPrefillTokens},
		{&a.MaxInflightRequests, &def.MaxInflightRequests},
	} {
		if *cap.own == nil {
			*cap.own = *cap.def
		}
	}
}
