package house

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// arrows is the map of the repository: for each package, the packages of the module that it may import, test files
// excepted. Arrows point one way, from what talks to the world to what decides; a package that is not here may not
// exist. Every arrow is used: one that nobody needs yet would let in what nobody has thought about.
//
// A name that ends in "/..." stands for the package and all below it.
var arrows = map[string][]string{
	// What both halves name a prefix by.
	"internal/chain": {},

	// The pure core of the gateway: it decides, and knows nothing of those that ask.
	"internal/gateway/load":         {},
	"internal/gateway/fleet":        {"internal/gateway/load"},                                                      // a worker carries its in-flight accounting
	"internal/gateway/prefix":       {},                                                                             // the words in which engines' events, the index and policies speak of prefixes
	"internal/gateway/prefix/local": {"internal/chain", "internal/gateway/prefix", "internal/gateway/prefix/index"}, // the indexes of a gateway that follows its engines itself
	"internal/gateway/policy":       {"internal/gateway/fleet", "internal/gateway/load", "internal/gateway/prefix", "internal/splitmix"},
	"internal/gateway/bucket":       {"internal/gateway/policy", "internal/gateway/fleet", "internal/gateway/load", "internal/gateway/prefix"},

	// What engines publish, up to whoever applies it.
	"internal/gateway/prefix/index": {"internal/chain", "internal/gateway/prefix"}, // who holds which prefix: events in, matches out
	// The sockets around them; it finds engines' publishers by asking, and feeds an index and load records.
	"internal/gateway/prefix/events": {
		"internal/gateway/prefix", "internal/gateway/prefix/events/...", "internal/gateway/prefix/index", "internal/gateway/load", "internal/gateway/fleet",
		"internal/gateway/fleet/ask", "internal/zmtp",
	},
	"internal/gateway/prefix/events/stream": {},                                                                                             // what to believe of a numbered stream
	"internal/gateway/prefix/events/wire":   {"internal/chain", "internal/gateway/prefix", "internal/gateway/load", "internal/managerwire"}, // bytes to the words of prefix, to load reports and to what Managers say

	// What gateways tell each other.
	"internal/gateway/peers/wire": {},
	"internal/gateway/peers":      {"internal/gateway/peers/wire", "internal/gateway/fleet", "internal/gateway/load", "internal/zmtp"},

	// What Cache Managers tell gateways: one half writes it, the other reads it.
	"internal/managerwire":             {"internal/chain"},
	"internal/managerwire/managertest": {"internal/managerwire", "internal/zmtp"}, // a Manager for tests

	// Cache Managers: what to believe of one, and who reads the sockets.
	"internal/gateway/prefix/managers/ledger": {
		"internal/gateway/prefix", "internal/gateway/prefix/events/stream", "internal/gateway/prefix/events/wire", "internal/gateway/prefix/index",
		"internal/gateway/prefix/local", "internal/managerwire",
	},

	"internal/gateway/prefix/followed": { // how far everything is followed, in metrics and for people
		"internal/gateway/prefix/events", "internal/gateway/prefix/events/stream", "internal/gateway/prefix/events/wire", "internal/gateway/prefix/index", "internal/gateway/prefix/local",
		"internal/gateway/prefix/managers", "internal/telemetry",
	},
	"internal/gateway/prefix/managers": {
		"internal/telemetry", "internal/gateway/prefix", "internal/gateway/prefix/events/stream", "internal/gateway/prefix/events/wire", "internal/gateway/prefix/local",
		"internal/gateway/prefix/managers/ledger", "internal/managerwire", "internal/zmtp",
	},

	// The index as a service, and the sources that ask one.
	"internal/gateway/prefix/indexer/indexpb":    {}, // perigee.index.v1, generated
	"internal/gateway/prefix/indexer":            {"internal/chain", "internal/gateway/prefix", "internal/gateway/prefix/index", "internal/gateway/prefix/local", "internal/gateway/prefix/indexer/indexpb"},
	"internal/gateway/prefix/remote/kvindexerpb": {}, // kv_indexer.v1, generated
	"internal/gateway/prefix/remote/pagehash":    {}, // SGLang's names of pages
	"internal/gateway/prefix/remote": {
		"internal/chain", "internal/gateway/prefix", "internal/gateway/prefix/index", "internal/gateway/prefix/indexer/indexpb", "internal/gateway/prefix/remote/kvindexerpb", "internal/gateway/prefix/remote/pagehash",
	},

	"internal/gateway/prefix/warm": { // what others know already, for who has just begun
		"internal/gateway/prefix", "internal/gateway/prefix/events", "internal/gateway/prefix/index", "internal/gateway/prefix/remote",
	},

	"internal/gateway/indexd": { // the shell of perigee index
		"internal/gateway/config", "internal/gateway/fleet", "internal/gateway/fleet/introspect", "internal/gateway/fleet/keeper", "internal/gateway/prefix/events",
		"internal/gateway/prefix", "internal/gateway/prefix/events/stream", "internal/gateway/prefix/followed", "internal/gateway/prefix/indexer", "internal/gateway/prefix/local", "internal/gateway/prefix/managers",
		"internal/gateway/prefix/warm",
	},

	// The pure core of the Cache Manager.
	"internal/cache/state":        {}, // what a page is, and which pages make a prefix
	"internal/cache/planning":     {"internal/cache/state"},
	"internal/cache/storage/dram": {"internal/chain"},
	"internal/cache/core":         {"internal/cache/planning", "internal/cache/storage/dram", "internal/cache/state", "internal/chain"},

	// What an engine's KV events tell of blocks that it published without tokens, in the words in which gateways read them.
	"internal/cache/lore":              {"internal/chain", "internal/gateway/prefix"},
	"internal/cache/follow":            {"internal/cache/lore", "internal/gateway/prefix", "internal/gateway/prefix/events/wire", "internal/zmtp"}, // its sockets
	"internal/cache/follow/followtest": {"internal/zmtp"},                                                                                          // an engine that publishes, for tests

	// The shell of the Cache Manager.
	"internal/cache/storage/pool/layout": {},                                     // shares of the pool to arenas
	"internal/cache/storage/pool":        {"internal/cache/storage/pool/layout"}, // memfds
	"internal/cache/storage/hostpool":    {"internal/cache/copysum"},             // an engine's own memory, mapped
	"internal/cache/channel":             {"internal/cache/channel/wire"},        // the Manager's end of the socket
	"internal/cache/copysum":             {},                                     // a copy and its checksum in one pass
	"internal/cache/channel/client": { // an engine's end
		"internal/cache/channel/wire", "internal/cache/copysum", "internal/cache/core", "internal/cache/state", "internal/chain",
	},
	// The daemon joins the core to the channel, the pool and the admin listener.
	"internal/cache/manager": {
		"internal/cache/channel", "internal/cache/channel/wire", "internal/cache/core", "internal/cache/state", "internal/cache/storage/hostpool", "internal/cache/storage/pool", "internal/cache/storage/pool/layout",
		"internal/chain", "internal/cache/events", "internal/cache/events/book", "internal/cache/follow", "internal/cache/lore", "internal/managerwire",
	},
	"internal/cache/events/book":  {"internal/chain", "internal/managerwire"},                                                // what to tell gateways
	"internal/cache/events":       {"internal/cache/events/book", "internal/chain", "internal/managerwire", "internal/zmtp"}, // its sockets
	"internal/cache/channel/wire": {"internal/cache/core", "internal/cache/state", "internal/chain"},                         // the bytes between engines and the Manager
	"internal/cache/fingerprint":  {"internal/cache/state"},                                                                  // reads model directories

	// The shell of the gateway. What reads engines fills the core's types; only api joins the two.
	"internal/gateway/api/body/lex":        {}, // JSON tokens: requests and answers are scanned by the same rules
	"internal/gateway/api/body":            {"internal/gateway/api/body/lex"},
	"internal/gateway/api/sse":             {"internal/gateway/api/body/lex"},
	"internal/gateway/lifetime":            {},                                                                                 // contexts that cost little
	"internal/gateway/sock":                {},                                                                                 // system calls on sockets that do not wait
	"internal/gateway/chunked":             {},                                                                                 // how both sides read a chunk's size
	"internal/gateway/upstream":            {"internal/gateway/chunked", "internal/gateway/sock"},                              // an HTTP client, which knows nothing of what it carries
	"internal/gateway/downstream":          {"internal/gateway/chunked", "internal/gateway/lifetime", "internal/gateway/sock"}, // an HTTP server, which knows nothing of what it serves
	"internal/gateway/tokens/jinja":        {},                                                                                 // a template and values to text; it knows neither models nor requests
	"internal/gateway/tokens/template":     {"internal/gateway/tokens/jinja"},                                                  // a request's messages to the prompt
	"internal/gateway/tokens":              {"internal/gateway/tokens/bpe", "internal/gateway/tokens/template"},                // joins the two: a request to its length
	"internal/gateway/tokens/bpe":          {},                                                                                 // text to token ids, from a file; it knows neither requests nor engines
	"internal/gateway/explain":             {"internal/gateway/bucket", "internal/gateway/policy", "internal/gateway/load"},    // the decision log keeps what selection took down
	"internal/gateway/tracing":             {"internal/gateway/explain", "internal/gateway/load"},                              // spans, in the words of the decision log
	"internal/gateway/tracing/tracingtest": {},                                                                                 // a collector of spans
	"internal/gateway/keyring":             {},
	"internal/gateway/fleet/ask":           {"internal/gateway/sock"},
	"internal/gateway/load/source":         {"internal/gateway/fleet", "internal/gateway/load", "internal/gateway/fleet/ask"},
	"internal/gateway/fleet/introspect":    {"internal/gateway/fleet", "internal/gateway/load", "internal/gateway/fleet/ask"},
	// The keeper owns the fleet in time: it introduces engines, polls them and publishes views of them.
	"internal/gateway/fleet/keeper": {
		"internal/gateway/fleet", "internal/gateway/fleet/ask", "internal/gateway/fleet/introspect", "internal/gateway/load/source",
	},
	"internal/gateway/config":        {"internal/gateway/keyring"},                                                                                                           // it reads the keys' file
	"internal/gateway/assemble":      {"internal/gateway/bucket", "internal/gateway/policy", "internal/gateway/fleet", "internal/gateway/config", "internal/gateway/prefix"}, // a configuration's buckets, for what serves and what replays
	"internal/gateway/config/gendoc": {"internal/gateway/config"},                                                                                                            // writes the reference in docs/
	"internal/gateway/api": {
		"internal/gateway/bucket", "internal/gateway/policy", "internal/gateway/fleet", "internal/gateway/load",
		"internal/gateway/prefix", "internal/gateway/api/body", "internal/gateway/api/sse", "internal/gateway/explain", "internal/gateway/keyring", "internal/telemetry",
		"internal/gateway/lifetime", "internal/gateway/upstream", "internal/gateway/sock",
		"internal/gateway/tokens/...", "internal/gateway/tracing",
	},
	"internal/gateway": {"internal/gateway/...", "internal/telemetry"}, // wires one gateway from a configuration

	// The simulated engine never knows the gateway, nor the gateway it: they meet over HTTP.
	"internal/engine":     {},
	"internal/engine/...": {"internal/engine/...", "internal/zmtp"}, // it publishes as real engines do
	// Its end of a Cache Manager.
	"internal/engine/offload": {
		"internal/cache/channel/client", "internal/cache/channel/wire", "internal/cache/core", "internal/cache/state", "internal/chain", "internal/engine",
	},

	// ZeroMQ's protocol, for the gateway, the simulated engine and the Cache Manager.
	"internal/zmtp/wire":     {}, // its bytes
	"internal/zmtp":          {"internal/zmtp/wire"},
	"internal/zmtp/zmtptest": {}, // a network in memory for tests

	// Words that several packages' tests share. No code that ships may import them.
	"internal/script":                  {},
	"internal/gateway/fleet/fleettest": {"internal/gateway/fleet", "internal/gateway/load", "internal/script"},

	"internal/telemetry": {},
	"internal/splitmix":  {}, // keyed random numbers
	"internal/trace":     {"internal/splitmix"},
	// Replay is the gateway's core and the engine's, in virtual time; what reads files and writes results is around it.
	"internal/replay": {
		"internal/gateway/bucket", "internal/gateway/policy", "internal/gateway/fleet", "internal/gateway/load", "internal/gateway/prefix", "internal/engine", "internal/splitmix",
	},
	"internal/replay/compare": {
		"internal/gateway/assemble",
		"internal/replay", "internal/trace", "internal/engine", "internal/gateway/config",
		"internal/gateway/bucket", "internal/gateway/prefix",
	},
	"internal/demo": {"internal/gateway/...", "internal/engine/...", "internal/trace", "internal/cache/manager"},

	// The command line joins everything. Nothing imports a command.
	"cmd/perigee": {"internal/..."},
	// It fills a built perigee cache over the channel.
	"bench/cache":             {"internal/cache/channel/client", "internal/cache/channel/wire", "internal/cache/core", "internal/cache/state"},
	"bench/gateway":           {}, // it measures built binaries from outside
	"bench/tokenizers":        {"internal/gateway/tokens/bpe"},
	"bench/eval/judge":        {"internal/splitmix"},      // whether what was declared before a run holds
	"bench/eval":              {"bench/eval/judge"},       // files in, files out
	"itest/sglang/loop":       {"internal/cache/copysum"}, // what restores are held against: a copy and a checksum
	"internal/house":          {},
	"internal/house/isstatic": {},
}

// testOnly packages help tests: by their name, or because only such packages may import them.
func testOnly(rel string) bool { return strings.HasSuffix(rel, "test") || rel == "internal/script" }

func TestArrows(t *testing.T) {
	for _, p := range ownPackages(t) {
		report(t, checkArrows(p))
	}
}

func checkArrows(p *pkg) (complaints []string) {
	allowed, known := allowedImports(p.rel)
	if !known {
		return []string{fmt.Sprintf("%s: not on the map; add it to arrows in internal/house/arrows_test.go with what it may import, and why", p.rel)}
	}
	for _, s := range p.files {
		for _, imp := range s.file.Imports {
			target, ok := strings.CutPrefix(strings.Trim(imp.Path.Value, `"`), modulePath+"/")
			if ok && testOnly(target) && !testOnly(p.rel) {
				complaints = append(complaints, fmt.Sprintf("%s: %s is for tests; import it in a _test.go file only", p.at(imp.Pos()), target))
				continue
			}
			if ok && !slices.ContainsFunc(allowed, func(a string) bool { return matches(a, target) }) {
				complaints = append(complaints, fmt.Sprintf(
					"%s: %s may not import %s: move the code to where the map allows it, or hand it in through an interface (arrows in internal/house/arrows_test.go)",
					p.at(imp.Pos()), p.rel, target))
			}
		}
	}
	return complaints
}

// allowedImports finds the package's entry; its own name goes before a pattern that covers it.
func allowedImports(rel string) ([]string, bool) {
	name, known := entryOf(arrows, rel)
	return arrows[name], known
}

// entryOf returns the name of the entry that a package falls under.
func entryOf(arrows map[string][]string, rel string) (string, bool) {
	if _, ok := arrows[rel]; ok {
		return rel, true
	}
	for name := range arrows {
		if strings.HasSuffix(name, "/...") && matches(name, rel) {
			return name, true
		}
	}
	return "", false
}

func matches(pattern, rel string) bool {
	if base, ok := strings.CutSuffix(pattern, "/..."); ok {
		return rel == base || strings.HasPrefix(rel, base+"/")
	}
	return rel == pattern
}

func TestArrowsRule(t *testing.T) {
	upward := example(t, "internal/gateway/load", map[string]string{"a.go": `package load
import (
	"time"
	"` + modulePath + `/internal/gateway/policy"
)
`})
	wantComplaints(t, checkArrows(upward), "a.go:4: internal/gateway/load may not import internal/gateway/policy")

	across := example(t, "internal/engine/http", map[string]string{"a.go": `package http
import "` + modulePath + `/internal/engine"
import "` + modulePath + `/internal/gateway/fleet"
`})
	wantComplaints(t, checkArrows(across), "a.go:3")

	command := example(t, "internal/demo", map[string]string{"a.go": `package demo
import "` + modulePath + `/cmd/perigee"
`, "a_test.go": `package demo
import "` + modulePath + `/bench/gateway"
`})
	wantComplaints(t, checkArrows(command), "a.go:2")

	shipped := example(t, "internal/demo", map[string]string{"a.go": `package demo
import "` + modulePath + `/internal/gateway/fleet/fleettest"
`})
	wantComplaints(t, checkArrows(shipped), "a.go:2: internal/gateway/fleet/fleettest is for tests")

	wantComplaints(t, checkArrows(example(t, "internal/newcomer", nil)), "not on the map")
}

// TestArrowsAreUsed keeps the table as short as the code allows.
func TestArrowsAreUsed(t *testing.T) {
	report(t, unusedArrows(arrows, ownPackages(t)))
}

// unusedArrows complains about entries without a package, and about arrows along which none of the entry's packages imports.
func unusedArrows(arrows map[string][]string, own []*pkg) (complaints []string) {
	imports := map[string][]string{} // by the entry, of all its packages
	for _, p := range own {
		name, known := entryOf(arrows, p.rel)
		if !known {
			continue
		}
		imports[name] = append(imports[name], "") // there is a package
		for _, s := range p.files {
			for _, imp := range s.file.Imports {
				if target, ok := strings.CutPrefix(strings.Trim(imp.Path.Value, `"`), modulePath+"/"); ok {
					imports[name] = append(imports[name], target)
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(arrows)) {
		if imports[name] == nil {
			complaints = append(complaints, fmt.Sprintf("arrows: there is no package %s; delete the entry", name))
			continue
		}
		for _, a := range arrows[name] {
			if !slices.ContainsFunc(imports[name], func(target string) bool { return matches(a, target) }) {
				complaints = append(complaints, fmt.Sprintf("arrows: %s does not import %s; delete the arrow", name, a))
			}
		}
	}
	return complaints
}

func TestArrowsAreUsedRule(t *testing.T) {
	table := map[string][]string{"internal/a": {"internal/b", "internal/c/...", "internal/d"}, "internal/c/...": {"internal/a"}, "internal/gone": {}}
	own := []*pkg{
		example(t, "internal/a", map[string]string{"a.go": `package a
import "` + modulePath + `/internal/b"
import "` + modulePath + `/internal/c/x"
`, "a_test.go": `package a
import "` + modulePath + `/internal/d"
`}),
		example(t, "internal/c/x", map[string]string{"a.go": "package x\n"}),
		example(t, "internal/c/y", map[string]string{"a.go": `package y
import "` + modulePath + `/internal/a"
`}),
	}
	wantComplaints(t, unusedArrows(table, own), "internal/a does not import internal/d", "no package internal/gone")
}

// TestArrowsHaveNoCycle keeps the table itself honest: a cycle in it would allow what the compiler refuses only later.
func TestArrowsHaveNoCycle(t *testing.T) {
	var packages []string
	for _, p := range ownPackages(t) {
		packages = append(packages, p.rel)
	}
	if c := findCycle(arrows, packages); c != nil {
		t.Errorf("arrows allow a cycle: %s", strings.Join(c, " → "))
	}
}

// findCycle returns packages that may import each other in a circle, the first of them also at the end, or nil. An arrow to a
// pattern goes to each package that it covers, but to none from itself.
func findCycle(arrows map[string][]string, packages []string) []string {
	var path []string
	done := map[string]bool{}
	var visit func(name string) []string
	visit = func(name string) []string {
		if i := slices.Index(path, name); i >= 0 {
			return append(slices.Clone(path[i:]), name)
		}
		if done[name] {
			return nil
		}
		path = append(path, name)
		entry, _ := entryOf(arrows, name)
		for _, a := range arrows[entry] {
			for _, next := range packages {
				if !matches(a, next) || (next == name && a != name) {
					continue
				}
				if c := visit(next); c != nil {
					return c
				}
			}
		}
		path = path[:len(path)-1]
		done[name] = true
		return nil
	}
	for _, name := range packages {
		if c := visit(name); c != nil {
			return c
		}
	}
	return nil
}

func TestFindCycle(t *testing.T) {
	packages := []string{"a", "b", "c", "d", "d/x", "d/y"}
	for _, c := range []struct {
		name   string
		arrows map[string][]string
		want   string
	}{
		{"none", map[string][]string{"a": {"b", "c", "d/..."}, "b": {"c"}, "c": {"d"}, "d": {"d/..."}}, ""},
		{"itself", map[string][]string{"a": {"a"}}, "a a"},
		{"two", map[string][]string{"a": {"b"}, "b": {"a"}}, "a b a"},
		{"three, behind another", map[string][]string{"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": {"b"}}, "b c d b"},
		{"along a pattern", map[string][]string{"a": {"d/..."}, "d/y": {"b"}, "b": {"a"}}, "a d/y b a"},
		{"from a pattern", map[string][]string{"d/...": {"c"}, "c": {"d/x"}}, "c d/x c"},
	} {
		if got := strings.Join(findCycle(c.arrows, packages), " "); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
