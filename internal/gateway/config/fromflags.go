package config

import (
	"encoding/json"
	"io"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// binding is one flag that sets a key of the schema.
type binding struct {
	name, path, as string
	policy         PolicyName // the policy whose setting it is; empty for other keys
	dropped        string     // what replaces the flag
	group          string
	help           string
	given          []string
	isList         bool
}

// bindings reads the tags and values of f.
func (f *Flags) bindings() []binding {
	v := reflect.ValueOf(f).Elem()
	var out []binding
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		b := binding{
			name: tag.Get("name"), path: tag.Get("path"), as: tag.Get("as"), policy: PolicyName(tag.Get("for")),
			dropped: tag.Get("dropped"), group: tag.Get("group"), help: tag.Get("help"),
		}
		switch x := v.Field(i).Interface().(type) {
		case Once:
			b.given = x.Given
		case List:
			b.given, b.isList = x.Given, true
		case bool:
			if x {
				b.given = []string{"true"}
			}
		}
		out = append(out, b)
	}
	return out
}

// Config reads --config where it is given, puts the flags on top, and checks the whole. It is what Parse gives for a file that says
// the same. The Config is nil when any fault is an error.
func (f *Flags) Config() (*Config, Faults) {
	var root *node
	d := newDecoder("")
	bs := f.bindings()
	d.refuseDropped(bs)
	name, fromFile := f.ConfigFile.text()
	if fromFile {
		d.file = name
		d.refuseBesideFile(bs)
		data, err := readFile(name)
		if err != nil {
			d.flagFault("config", classValue, "cannot be read: "+err.Error(), "")
		} else {
			root = d.parse(data)
		}
		if root != nil {
			d.overlay(root, bs)
		}
		return d.config(root)
	}
	root = f.tree(d, bs)
	return d.config(root)
}

// File returns the name of the configuration's file; empty: the flags are the configuration.
func (f *Flags) File() string {
	name, _ := f.ConfigFile.text()
	return name
}

// ParseFile reads and parses the file name; a file that cannot be read is a fault too.
func ParseFile(name string) (*Config, Faults) {
	data, err := readFile(name)
	if err != nil {
		return nil, Faults{{File: name, What: "cannot be read: " + err.Error()}}
	}
	return Parse(name, data)
}

// readFile reads no more than Parse would take, and a byte to show that there was more.
func readFile(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, MaxFileBytes+1))
}

func (d *decoder) flagFault(flag string, c class, what, cure string) {
	d.faults = append(d.faults, Fault{Flag: flag, What: what, Cure: cure, class: c})
}

func (d *decoder) refuseDropped(bs []binding) {
	for _, b := range bs {
		if b.dropped != "" && len(b.given) > 0 {
			d.flagFault(b.name, classValue, "is not supported", b.dropped)
		}
		if !b.isList && len(b.given) > 1 {
			d.flagFault(b.name, classValue, "is given twice", "keep one of them")
		}
	}
}

// besideFile are the groups of flags that may stand beside --config: they say how this process runs, not what it routes, and differ
// between processes that share a file.
var besideFile = []string{"Configuration", "Server", "Logging", "Breaker"}

func (d *decoder) refuseBesideFile(bs []binding) {
	for _, b := range bs {
		if len(b.given) > 0 && b.dropped == "" && !slices.Contains(besideFile, b.group) {
			d.flagFault(b.name, classMisuse, "cannot be joined with --config", "write it in the file")
		}
	}
}

// overlay puts the flags that may stand beside a file over what the file says.
func (d *decoder) overlay(root *node, bs []binding) {
	for _, b := range bs {
		if b.path != "" && slices.Contains(besideFile, b.group) {
			if n := d.flagNode(b); n != nil {
				set(root, strings.Split(b.path, "."), n)
			}
		}
	}
}

// set puts n at the keys below root and makes the mappings in between. It leaves root alone where something else than a mapping is in
// the way: that is a fault of the file.
func set(root *node, keys []string, n *node) {
	for i, key := range keys {
		if root.Kind != mappingNode {
			return
		}
		at := -1
		for j := 0; j+1 < len(root.Content); j += 2 {
			if root.Content[j].Value == key {
				at = j + 1
				break
			}
		}
		last := i == len(keys)-1
		switch {
		case at < 0 && last:
			root.Content = append(root.Content, textNode(key), n)
		case at < 0:
			root.Content = append(root.Content, textNode(key), &node{Kind: mappingNode, Tag: "!!map"})
			root = root.Content[len(root.Content)-1]
		case last:
			root.Content[at] = n
		default:
			root = root.Content[at]
		}
	}
}

func textNode(s string) *node { return &node{Kind: scalarNode, Tag: "!!str", Value: s} }

// flagNode makes the node that a file would have in the flag's place, or nil when the flag was not given or cannot be read.
func (d *decoder) flagNode(b binding) *node {
	if len(b.given) == 0 {
		return nil
	}
	s := b.given[0]
	var n *node
	switch b.as {
	case "text":
		n = textNode(s)
	case "num":
		n = numberNode(s)
	case "yes", "not":
		n = &node{Kind: scalarNode, Tag: "!!bool", Value: strconv.FormatBool(b.as == "yes")}
	case "secs":
		n = d.wholeUnits(b, s, "s", "seconds")
	case "ms":
		n = d.milliseconds(b, s)
	case "list":
		n = &node{Kind: listNode, Tag: "!!seq"}
		for _, s := range (List{b.given}).values() {
			item := textNode(s)
			d.flags[item] = b.name
			n.Content = append(n.Content, item)
		}
	case "terms":
		n = textNode(strings.Join(b.given, ","))
	case "json":
		n = d.jsonNode(b, s)
	}
	if n != nil {
		d.flags[n] = b.name
	}
	return n
}

// numberNode tags s as a file's plain scalar would be.
func numberNode(s string) *node {
	n := textNode(s)
	if _, ok := parseWhole(s); ok {
		n.Tag = "!!int"
	} else if _, ok := parseReal(s); ok {
		n.Tag = "!!float"
	}
	return n
}

// wholeUnits writes a number without a unit as the duration that a file would have.
func (d *decoder) wholeUnits(b binding, s, unit, words string) *node {
	if _, err := strconv.ParseUint(s, 10, 32); err != nil {
		d.flagFault(b.name, classValue, quote(s)+" is not a whole number of "+words, "write digits only")
		return nil
	}
	return textNode(s + unit)
}

// milliseconds also takes fractions where sgl-router does.
func (d *decoder) milliseconds(b binding, s string) *node {
	if b.path != "pressure_guard.abs_threshold" {
		return d.wholeUnits(b, s, "ms", "milliseconds")
	}
	x, ok := parseReal(s)
	const most = 1e12 // 31 years; beyond it a duration overflows
	if !ok || x < 0 || x > most {
		d.flagFault(b.name, classValue, quote(s)+" is not a number of milliseconds", "write a finite number, 0 or more")
		return nil
	}
	return textNode(strconv.FormatFloat(x, 'f', -1, 64) + "ms")
}

// jsonNode reads an object. YAML's own reader is used for it, since JSON is YAML, after it is certain that it is JSON.
func (d *decoder) jsonNode(b binding, s string) *node {
	var doc node
	if !json.Valid([]byte(s)) || yaml.Load([]byte(s), &doc) != nil || len(doc.Content) == 0 || doc.Content[0].Kind != mappingNode {
		d.flagFault(b.name, classValue, "is not one JSON object", `write it such as {"temperature": 0.7}`)
		return nil
	}
	var mark func(n *node)
	mark = func(n *node) {
		d.flags[n] = b.name
		for _, c := range n.Content {
			mark(c)
		}
	}
	mark(doc.Content[0])
	return doc.Content[0]
}

// tree makes the tree of a file that says what the flags say.
func (f *Flags) tree(d *decoder, bs []binding) *node {
	model := &node{Kind: mappingNode, Tag: "!!map"}
	discovery := &node{Kind: mappingNode, Tag: "!!map"}
	root := &node{Kind: mappingNode, Tag: "!!map", Content: []*node{
		textNode("models"), {Kind: listNode, Tag: "!!seq", Content: []*node{model}},
		textNode("discovery"), discovery,
	}}
	d.flagOf = map[string]string{}
	for _, b := range bs {
		if b.path == "" || b.policy != "" || b.group == "Discovery" && !strings.HasPrefix(b.path, "discovery.static.") || b.name == "policy" || b.name == "decode-policy" {
			continue // these have rules of their own below
		}
		into, path := root, b.path
		if rest, ok := strings.CutPrefix(b.path, "models."); ok {
			into, path = model, rest
			d.flagOf["models[0]."+rest] = b.name
		} else {
			d.flagOf[path] = b.name
		}
		if n := d.flagNode(b); n != nil {
			set(into, strings.Split(path, "."), n)
		}
	}
	f.required(d, model, discovery)
	f.policies(d, bs, model)
	f.admission(d)
	f.discovery(d, bs, discovery)
	if _, given := f.CBThreshold.text(); !given && len(f.CBCoolDownSecs.Given) > 0 {
		d.flagFault("cb-cool-down-secs", classMisuse, "has no effect without --cb-threshold", "give it too")
	}
	return root
}

// required refuses flags that lack the model or the engines, in the words of flags.
func (f *Flags) required(d *decoder, model, discovery *node) {
	if _, ok := f.ModelID.text(); !ok {
		d.flagFault("model-id", classValue, "is missing", "name the model that the engines serve, or give --config FILE")
		set(model, []string{"id"}, textNode("missing"))
	}
	static := len(f.WorkerURLs.Given) > 0
	if len(f.EngineAPIKeyFile.Given) > 0 && !static {
		d.flagFault("engine-api-key-file", classMisuse, "has no effect without --worker-urls", "give the engines' URLs, or remove this flag")
		discovery.Content = nil
	}
	switch {
	case static && f.ServiceDiscovery:
		d.flagFault("service-discovery", classValue, "is given together with --worker-urls", "keep one source of engines")
		discovery.Content = nil
		d.spoil("discovery")
	case !static && !f.ServiceDiscovery:
		d.flagFault("worker-urls", classValue, "is missing", "give the engines' URLs, or --config FILE")
		d.spoil("discovery")
	}
}

// discovery judges the flags of Kubernetes, which mean nothing without --service-discovery.
func (f *Flags) discovery(d *decoder, bs []binding, discovery *node) {
	k8s := &node{Kind: mappingNode, Tag: "!!map"}
	for _, b := range bs {
		key, ok := strings.CutPrefix(b.path, "discovery.kubernetes.")
		if !ok {
			continue
		}
		d.flagOf[b.path] = b.name
		if n := d.flagNode(b); n != nil {
			set(k8s, []string{key}, n)
			if !f.ServiceDiscovery {
				d.flagFault(b.name, classMisuse, "has no effect without --service-discovery", "add it, or remove this flag")
			}
		}
	}
	if f.ServiceDiscovery {
		d.flags[k8s] = "service-discovery"
		if !d.bad["discovery"] {
			set(discovery, []string{"kubernetes"}, k8s)
		}
	}
	if !f.ServiceDiscovery || d.bad["discovery"] {
		d.scratch(func(s *decoder) {
			var c Discovery
			c.Kubernetes = new(Kubernetes)
			s.mapping("discovery.kubernetes", k8s, c.Kubernetes.fields(), nil)
			s.compareSelectors(c.Kubernetes)
		})
	}
}

// scratch runs judge on a decoder of its own and keeps only the faults: the values are judged although nothing uses them.
func (d *decoder) scratch(judge func(s *decoder)) {
	s := newDecoder("")
	s.flags, s.flagOf = d.flags, d.flagOf
	judge(s)
	d.faults = append(d.faults, s.faults...)
}

// policies puts the two policies and their settings into the model, and refuses settings of a policy that is not chosen. Those are
// judged by themselves first, because a wrong value is told before a flag that is not used.
func (f *Flags) policies(d *decoder, bs []binding, model *node) {
	chosen := map[PolicyName]bool{RoundRobin: len(f.Policy.Given) == 0, PowerOfTwo: len(f.DecodePolicy.Given) == 0}
	for _, slot := range []struct {
		key, flag string
		value     Once
	}{{"policy", "policy", f.Policy}, {"decode_policy", "decode-policy", f.DecodePolicy}} {
		name, ok := slot.value.text()
		if !ok {
			continue
		}
		chosen[PolicyName(name)] = true
		n := textNode(name)
		if settings := d.policySettings(bs, PolicyName(name), "models[0]."+slot.key); settings != nil {
			d.flags[n] = slot.flag
			settings.Content = append([]*node{textNode("name"), n}, settings.Content...)
			n = settings
		}
		d.flags[n] = slot.flag
		set(model, []string{slot.key}, n)
	}
	for _, name := range policyNames {
		if !chosen[name] {
			d.unusedSettings(bs, name)
		}
	}
	f.affinityModes(d, chosen[SessionAware])
}

// policySettings makes the settings of one policy, or nil when no flag gives any.
func (d *decoder) policySettings(bs []binding, name PolicyName, at string) *node {
	var out *node
	for _, b := range bs {
		if b.policy != name {
			continue
		}
		d.flagOf[join(at, b.path)] = b.name
		if n := d.flagNode(b); n != nil {
			if out == nil {
				out = &node{Kind: mappingNode, Tag: "!!map"}
			}
			set(out, strings.Split(b.path, "."), n)
		}
	}
	return out
}

func (d *decoder) unusedSettings(bs []binding, name PolicyName) {
	at := "unused." + string(name)
	settings := d.policySettings(bs, name, at)
	for _, b := range bs {
		if b.policy == name && len(b.given) > 0 {
			d.flagFault(b.name, classMisuse, "has no effect without --policy "+string(name), "choose that policy, or remove this flag")
		}
	}
	if settings == nil {
		return
	}
	d.scratch(func(s *decoder) {
		p := Policy{Name: name}
		s.mapping(at, settings, p.settings().fields(), nil)
		s.comparePolicy(at, &p)
	})
}

// affinityModes judges two flags whose only legal value is what happens anyway.
func (f *Flags) affinityModes(d *decoder, sessionAware bool) {
	for _, mode := range []struct {
		flag, legal string
		value       Once
		dropped     map[string]string
	}{
		{"affinity-mode", "strict", f.AffinityMode, map[string]string{"soft": "remove it: an admitted binding is always reused; admission caps keep load off an engine"}},
		{"session-affinity-mode", "bucket", f.SessionAffinityMode, map[string]string{
			"global-rebind":   "remove it: a session is bound inside each bucket, and no policy looks across buckets",
			"global-preserve": "remove it: a session is bound inside each bucket, and no policy looks across buckets",
		}},
	} {
		s, given := mode.value.text()
		cure, dropped := mode.dropped[s]
		switch {
		case !given:
		case dropped:
			d.flagFault(mode.flag, classValue, s+" is not supported", cure)
		case s != mode.legal:
			d.flagFault(mode.flag, classValue, quote(s)+" is not known", "write "+mode.legal+", or remove the flag")
		case !sessionAware:
			d.flagFault(mode.flag, classMisuse, "has no effect without --policy session_aware", "choose that policy, or remove this flag")
		}
	}
}

// admission judges --filter and --max-in-flight, which only work together.
func (f *Flags) admission(d *decoder) {
	overloaded := false
	for _, name := range f.Filter.values() {
		switch {
		case name == "prefix_cache":
			d.flagFault("filter", classValue, "prefix_cache is not supported", "use --cache-affinity-min-match-ratio, which decides what a hit is (the filter removed engines)")
		case name != "overloaded":
			d.flagFault("filter", classValue, quote(name)+" is not a filter", meant(name, []string{"overloaded"}))
		case overloaded:
			d.flagFault("filter", classValue, "overloaded is given twice", "keep one of them")
		default:
			overloaded = true
		}
	}
	limit, given := f.MaxInFlight.text()
	switch {
	case given && limit == "0":
		d.flagFault("max-in-flight", classValue, "0 would refuse every request", "choose 1 or more")
	case given && !overloaded && len(f.Filter.Given) == 0:
		d.flagFault("max-in-flight", classMisuse, "is a budget that nothing checks", "add --filter overloaded")
	case overloaded && !given:
		d.flagFault("filter", classMisuse, "overloaded needs a limit", "add --max-in-flight N")
	}
	if policy, _ := f.Policy.text(); overloaded && policy == string(Sticky) {
		d.flagFault("filter", classMisuse, "overloaded cannot be joined with --policy sticky", "keep one of them")
	}
}
