package house

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// arrows is the map of the repository: for each package, the packages of the module that it may import, test files
// excepted. Arrows point one way, from what talks to the world to what decides; a package that is not here may not
// exist. An entry may come before its package.
//
// A name that ends in "/..." stands for the package and all below it.
var arrows = map[string][]string{
	// The pure core of the gateway: it decides, and knows nothing of those that ask.
	"internal/gateway/load":   {},
	"internal/gateway/fleet":  {"internal/gateway/load"}, // a worker carries its in-flight accounting
	"internal/gateway/policy": {"internal/gateway/fleet", "internal/gateway/load"},
	"internal/gateway/bucket": {"internal/gateway/policy", "internal/gateway/fleet", "internal/gateway/load"},

	// The shell of the gateway. What reads engines fills the core's types; only api joins the two.
	"internal/gateway/api/body/lex":     {}, // JSON tokens: requests and answers are scanned by the same rules
	"internal/gateway/api/body":         {"internal/gateway/api/body/lex"},
	"internal/gateway/api/sse":          {"internal/gateway/api/body/lex"},
	"internal/gateway/upstream":         {},                                                                                                        // an HTTP client, which knows nothing of what it carries
	"internal/gateway/tokens/jinja":     {},                                                                                                        // a template and values to text; it knows neither models nor requests
	"internal/gateway/tokens/template":  {"internal/gateway/tokens/jinja"},                                                                         // a request's messages to the prompt
	"internal/gateway/tokens":           {"internal/gateway/tokens/bpe", "internal/gateway/tokens/template"},                                       // joins the two: a request to its length
	"internal/gateway/tokens/bpe":       {},                                                                                                        // text to token ids, from a file; it knows neither requests nor engines
	"internal/gateway/explain":          {"internal/gateway/bucket", "internal/gateway/policy", "internal/gateway/fleet", "internal/gateway/load"}, // the decision log keeps what selection took down
	"internal/gateway/keyring":          {},
	"internal/gateway/fleet/ask":        {},
	"internal/gateway/load/source":      {"internal/gateway/fleet", "internal/gateway/load", "internal/gateway/fleet/ask"},
	"internal/gateway/fleet/introspect": {"internal/gateway/fleet", "internal/gateway/load", "internal/gateway/fleet/ask"},
	// The keeper owns the fleet in time: it introduces engines, polls them and publishes views of them.
	"internal/gateway/fleet/keeper": {
		"internal/gateway/fleet", "internal/gateway/load", "internal/gateway/fleet/ask", "internal/gateway/fleet/introspect", "internal/gateway/load/source",
	},
	"internal/gateway/config":        {"internal/gateway/policy", "internal/gateway/fleet", "internal/gateway/load", "internal/gateway/keyring"},  // their limits and names; it reads the keys' file
	"internal/gateway/assemble":      {"internal/gateway/bucket", "internal/gateway/policy", "internal/gateway/fleet", "internal/gateway/config"}, // a configuration's buckets, for what serves and what replays
	"internal/gateway/config/gendoc": {"internal/gateway/config"},                                                                                 // writes the reference in docs/
	"internal/gateway/api": {
		"internal/gateway/bucket", "internal/gateway/policy", "internal/gateway/fleet", "internal/gateway/load",
		"internal/gateway/api/body", "internal/gateway/api/body/lex", "internal/gateway/api/sse", "internal/gateway/explain",
		"internal/gateway/config", "internal/gateway/keyring", "internal/telemetry",
		"internal/gateway/upstream",
		"internal/gateway/tokens/...",
	},
	"internal/gateway": {"internal/gateway/...", "internal/telemetry"}, // wires one gateway from a configuration

	// The simulated engine never knows the gateway, nor the gateway it: they meet over HTTP.
	"internal/engine":     {},
	"internal/engine/...": {"internal/engine/...", "internal/telemetry"},

	// Words that several packages' tests share. No code that ships may import them.
	"internal/script":                  {},
	"internal/gateway/fleet/fleettest": {"internal/gateway/fleet", "internal/gateway/load", "internal/script"},

	"internal/telemetry": {},
	"internal/trace":     {},
	// Replay is the gateway's core and the engine's, in virtual time; what reads files and writes results is around it.
	"internal/replay": {
		"internal/gateway/bucket", "internal/gateway/policy", "internal/gateway/fleet", "internal/gateway/load", "internal/engine",
	},
	"internal/replay/compare": {
		"internal/gateway/assemble",
		"internal/replay", "internal/trace", "internal/engine", "internal/gateway/config",
		"internal/gateway/bucket", "internal/gateway/policy", "internal/gateway/fleet",
	},
	"internal/demo": {"internal/gateway/...", "internal/engine/...", "internal/trace", "internal/telemetry"},

	// The command line joins everything. Nothing imports a command.
	"cmd/perigee":             {"internal/..."},
	"bench/gateway":           {}, // it measures built binaries from outside
	"bench/tokenizers":        {"internal/gateway/tokens/bpe"},
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
	if a, ok := arrows[rel]; ok {
		return a, true
	}
	for name, a := range arrows {
		if strings.HasSuffix(name, "/...") && matches(name, rel) {
			return a, true
		}
	}
	return nil, false
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

// TestArrowsHaveNoCycle keeps the table itself honest: a cycle in it would allow what the compiler refuses only later.
func TestArrowsHaveNoCycle(t *testing.T) {
	for name, allowed := range arrows {
		for _, a := range allowed {
			back, _ := allowedImports(strings.TrimSuffix(a, "/..."))
			if !strings.HasSuffix(a, "/...") && slices.ContainsFunc(back, func(b string) bool { return matches(b, name) }) {
				t.Errorf("arrows: %s and %s may import each other", name, a)
			}
		}
	}
}
