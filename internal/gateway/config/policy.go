package config

import (
	"slices"
	"strings"
)

// policyNames is every policy in the order in which they are shown.
var policyNames = []PolicyName{RoundRobin, Random, PowerOfTwo, LoadBased, CacheAware, Cost, SessionAware, Sticky}

// droppedPolicies are names that sgl-router knows and Perigee does not take, with what replaces them.
var droppedPolicies = map[string]string{
	"fused_score":          "use cache_aware, which weighs prefixes against load by itself",
	"score_policy":         "use cache_aware, which weighs prefixes against load by itself",
	"power_of_n":           "use power_of_two",
	"legacy_host_affinity": "use power_of_two; bind engines that belong together with a pd bucket of their own",
}

// settings returns the keys that go with the policy's name, after putting their defaults; nil when it has none.
func (p *Policy) settings() record {
	switch p.Name {
	case CacheAware:
		p.CacheAware = new(CacheAwareSettings)
		resetAll(p.CacheAware.fields())
		return p.CacheAware
	case Cost:
		p.Cost = new(CostSettings)
		resetAll(p.Cost.fields())
		return p.Cost
	case SessionAware:
		p.SessionAware = new(SessionAwareSettings)
		resetAll(p.SessionAware.fields())
		return p.SessionAware
	case Sticky:
		p.Sticky = new(StickySettings)
		resetAll(p.Sticky.fields())
		return p.Sticky
	}
	return nil
}

// prefillOnly tells whether the policy goes by prefixes, which mean nothing to a decode group.
func prefillOnly(n PolicyName) bool { return n == CacheAware || n == Cost }

// NeedsPrefixes tells whether the policy asks who holds which prefix.
func (p *Policy) NeedsPrefixes() bool { return prefillOnly(p.Name) }

// Prefixes returns who is to know the prefixes, for a policy that needs them; else the provider is empty.
func (p *Policy) Prefixes() (PrefixProvider, KVIndexer) {
	switch {
	case p.CacheAware != nil:
		return p.CacheAware.PrefixProvider, p.CacheAware.KVIndexer
	case p.Cost != nil:
		return p.Cost.PrefixProvider, p.Cost.KVIndexer
	}
	return "", KVIndexer{}
}

// ownerOf returns the policies that have the setting key.
func ownerOf(key string) []string {
	var out []string
	for _, name := range policyNames {
		p := Policy{Name: name}
		if r := p.settings(); r != nil && slices.ContainsFunc(r.fields(), func(f field) bool { return f.key == key }) {
			out = append(out, string(name))
		}
	}
	return out
}

// policyValue is a policy: its name, or a mapping of name and settings.
type policyValue struct {
	leaf
	p        *Policy
	isDecode bool // the policy is to serve decode groups
}

func policyOf(p *Policy, decode bool) value {
	var names []string
	for _, n := range policyNames {
		if decode && prefillOnly(n) {
			continue
		}
		names = append(names, string(n))
	}
	return policyValue{leaf{kindText: "policy", limitText: "one of " + strings.Join(names, ", ")}, p, decode}
}

func (v policyValue) reset() { *v.p = Policy{} }

func (v policyValue) decode(d *decoder, path string, n *node) {
	if !d.plain(path, n) {
		return
	}
	if n.Kind != mappingNode {
		if v.name(d, path, n) {
			*v.p = Policy{Name: PolicyName(n.Value)}
			v.p.settings()
		}
		return
	}
	var named *node
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == "name" && named == nil {
			named = n.Content[i+1]
		}
	}
	if named == nil {
		d.fault(path, n, classValue, "the policy has no name", "add name, one of "+v.limits()[len("one of "):])
		return
	}
	nameAt := d.mark(join(path, "name"), named)
	var p Policy
	if !v.name(d, nameAt, named) {
		d.spoil(path)
		return
	}
	p.Name = PolicyName(named.Value)
	fields := []field{{key: "name", val: taken{}}}
	if r := p.settings(); r != nil {
		fields = append(fields, r.fields()...)
	}
	d.mapping(path, n, fields, func(key string) (string, string) {
		if owners := ownerOf(key); owners != nil {
			return "belongs to " + strings.Join(owners, " and ") + ", not to " + string(p.Name), "remove it or choose that policy"
		}
		return "", ""
	})
	*v.p = p
}

// name tells whether n names a policy that the stage can use.
func (v policyValue) name(d *decoder, path string, n *node) bool {
	s, ok := d.scalar(path, n, "a policy's name, or a mapping with name", "!!str")
	if !ok {
		return false
	}
	var names []string
	for _, name := range policyNames {
		names = append(names, string(name))
	}
	cure, dropped := droppedPolicies[s]
	switch {
	case dropped:
		d.fault(path, n, classValue, s+" is not supported", cure)
	case !slices.Contains(names, s):
		d.fault(path, n, classValue, quote(s)+" is not a policy", meant(s, names))
	case v.isDecode && prefillOnly(PolicyName(s)):
		d.fault(path, n, classValue, s+" cannot pick a decode engine: a prefix saves prefill work only", "use power_of_two")
	default:
		return true
	}
	return false
}

// taken is a key that was read before its mapping.
type taken struct{ leaf }

func (taken) kind() string                   { return "text" }
func (taken) reset()                         {}
func (taken) decode(*decoder, string, *node) {}
