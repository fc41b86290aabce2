package config

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// walk calls visit for every key of the schema.
func walk(path string, fields []field, visit func(path string, f field)) {
	for _, f := range fields {
		at := join(path, f.key)
		visit(at, f)
		walk(at, f.val.nested(), visit)
	}
}

// TestSchemaIsDocumented: each key is snake_case and has a sentence; a number says its unit or its reason.
func TestSchemaIsDocumented(t *testing.T) {
	key := regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)
	check := func(path string, f field) {
		if !key.MatchString(f.key) {
			t.Errorf("%s: the key is not snake_case", path)
		}
		if !strings.HasSuffix(f.doc, ".") {
			t.Errorf("%s: the meaning %q is not a sentence", path, f.doc)
		}
		if f.val.kind() == "duration" && f.val.initial() != "" && f.why == "" {
			t.Errorf("%s: the default %s has no reason", path, f.val.initial())
		}
	}
	walk("", new(Config).fields(), check)
	for _, name := range policyNames {
		p := Policy{Name: name}
		if r := p.settings(); r != nil {
			walk(string(name), r.fields(), check)
		}
	}
}

// TestFlagsMatchSchema: each flag sets a key that exists, and its help states the key's default.
func TestFlagsMatchSchema(t *testing.T) {
	keys := map[string]field{}
	walk("", new(Config).fields(), func(path string, f field) { keys[path] = f })
	for _, name := range policyNames {
		p := Policy{Name: name}
		if r := p.settings(); r != nil {
			walk(string(name), r.fields(), func(path string, f field) { keys[path] = f })
		}
	}
	stated := regexp.MustCompile(`\(default: ([^)]*)\)`)
	for _, b := range new(Flags).bindings() {
		if b.dropped != "" || b.path == "" {
			continue
		}
		path := b.path
		if b.policy != "" {
			path = join(string(b.policy), path)
		}
		f, ok := keys[path]
		if !ok {
			t.Errorf("--%s sets %s, which the schema does not have", b.name, path)
			continue
		}
		def := f.val.initial()
		if d, err := time.ParseDuration(def); err == nil && b.as == "secs" {
			def = itoa(int64(d / time.Second))
		} else if err == nil && b.as == "ms" {
			def = itoa(int64(d / time.Millisecond))
		}
		if b.as == "yes" || b.as == "not" || def == "" {
			continue
		}
		if m := stated.FindStringSubmatch(b.help); m == nil || m[1] != def {
			t.Errorf("--%s: the help %q does not state the default %q", b.name, b.help, def)
		}
	}
}

// TestNotBuiltIsKnown: each line of notBuilt names something that the schema has, so that no line outlives its reason.
func TestNotBuiltIsKnown(t *testing.T) {
	keys := []string{"tokenizer"}
	for _, f := range new(Discovery).fields() {
		keys = append(keys, "discovery "+f.key)
	}
	for _, name := range policyNames {
		keys = append(keys, "policy "+string(name))
	}
	for _, what := range notBuilt {
		if !slices.Contains(keys, what) {
			t.Errorf("%q is not in the schema", what)
		}
	}
}

// naiveDistance is the definition of the distance, by recursion.
func naiveDistance(a, b string) int {
	if a == "" || b == "" {
		return len(a) + len(b)
	}
	cost := 1
	if a[len(a)-1] == b[len(b)-1] {
		cost = 0
	}
	n := min(naiveDistance(a[:len(a)-1], b)+1, naiveDistance(a, b[:len(b)-1])+1, naiveDistance(a[:len(a)-1], b[:len(b)-1])+cost)
	if len(a) > 1 && len(b) > 1 && a[len(a)-1] == b[len(b)-2] && a[len(a)-2] == b[len(b)-1] {
		n = min(n, naiveDistance(a[:len(a)-2], b[:len(b)-2])+1)
	}
	return n
}

// TestDistance compares with the definition over all words of up to four of three letters.
func TestDistance(t *testing.T) {
	words := []string{""}
	for i := 0; i < len(words); i++ {
		if w := words[i]; len(w) < 4 {
			words = append(words, w+"a", w+"b", w+"c")
		}
	}
	for _, a := range words {
		for _, b := range words {
			if got, want := distance(a, b), naiveDistance(a, b); got != want {
				t.Fatalf("distance(%q, %q) = %d, want %d", a, b, got, want)
			}
		}
	}
}

// TestPolicyDefaults reaches the settings that no accepted configuration can have yet.
func TestPolicyDefaults(t *testing.T) {
	p := Policy{Name: CacheAware}
	p.settings()
	p.resolve()
	c := *p.CacheAware
	if c.PrefixProvider != RadixTree || c.KVIndexer != (KVIndexer{QueryTimeout: 100 * time.Millisecond, QueryMaxInflight: 32}) || c.MinMatchedTokens != 1024 ||
		c.MinMatchRatio != nil || c.Candidates != (Candidates{8, 0.05, 32}) || c.SwitchMarginTokens != 1024 || c.WorkerQueueLimit != nil ||
		c.SaturationQueueFloor != nil || c.MinLoadChoices != 2 || c.PressureGuard != (PressureGuard{true, 1024, nil, 1.5}) {
		t.Errorf("cache_aware: %+v", c)
	}
	c.PrefixProvider, c.KVIndexer.Endpoint = "", "unix:/x"
	(&Policy{CacheAware: &c}).resolve()
	if c.PrefixProvider != Indexer {
		t.Errorf("with an endpoint the provider is %s", c.PrefixProvider)
	}
	p = Policy{Name: SessionAware}
	p.settings()
	if *p.SessionAware != (SessionAwareSettings{"x-session-id", 10 * time.Minute, time.Minute}) {
		t.Errorf("session_aware: %+v", *p.SessionAware)
	}
	p = Policy{Name: Sticky}
	p.settings()
	if *p.Sticky != (StickySettings{"x-sgl-routing-key", RoundRobin, 10 * time.Minute, time.Minute}) {
		t.Errorf("sticky: %+v", *p.Sticky)
	}
}
