package house

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// pure packages decide without I/O: the clock and randomness are handed in, so that the same code runs in production,
// in virtual time and in tests, and the same input gives the same answer. The rules hold for them and for every package
// of the module that they import.
var pure = []string{
	"bench/eval/judge",
	"internal/chain",
	"internal/managerwire",
	"internal/cache/core",
	"internal/cache/events/book",
	"internal/cache/lore",
	"internal/cache/storage/dram",
	"internal/cache/state",
	"internal/cache/planning",
	"internal/cache/channel/wire",
	"internal/cache/storage/pool/layout",
	"internal/gateway/fleet",
	"internal/gateway/load",
	"internal/gateway/prefix",
	"internal/gateway/prefix/local",
	"internal/gateway/prefix/managers/ledger",
	"internal/gateway/prefix/events/stream",
	"internal/gateway/prefix/events/wire",
	"internal/gateway/prefix/index",
	"internal/gateway/prefix/remote/pagehash",
	"internal/gateway/peers/wire",
	"internal/gateway/policy",
	"internal/gateway/bucket",
	"internal/gateway/api/body",
	"internal/gateway/api/sse",
	"internal/engine",
	"internal/replay",
	"internal/splitmix",
	"internal/zmtp/wire",
}

// impureImports may not be reached from a pure package, however far down. fmt is among them because it imports os: a
// core that formats text tends to print it.
func impureImport(path string) bool {
	return path == "net" || path == "os" || path == "fmt" || strings.HasPrefix(path, "net/") || strings.HasPrefix(path, "os/")
}

// harmless are packages of others that import what a pure package may not reach, and do nothing with it that changes an answer.
var harmless = []string{
	"crypto/sha256",                 // reaches os for the self-test of FIPS mode, which asks for randomness
	"github.com/klauspost/cpuid/v2", // reads which instructions the processor has; xxh3 then computes the same by other means
}

// impureNames are the things of otherwise harmless packages that read the clock, start a goroutine or draw from
// a generator that nobody seeded.
var impureNames = map[string]struct {
	names []string
	cure  string
}{
	"time": {
		[]string{"Now", "Since", "Until", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick", "Sleep"},
		"take the time as an argument",
	},
	"context": {
		[]string{"WithTimeout", "WithTimeoutCause", "WithDeadline", "WithDeadlineCause", "AfterFunc"},
		"let the shell bound the context that it hands in",
	},
	"hash/maphash": {
		[]string{"MakeSeed", "Bytes", "String", "Comparable", "Hash"},
		"use hash/fnv or a seed that is handed in: maphash differs in every process",
	},
}

// seededNames are what a pure package may use of math/rand and math/rand/v2: generators that it seeds itself.
var seededNames = []string{"New", "NewPCG", "NewChaCha8", "NewZipf", "NewSource", "Rand", "PCG", "ChaCha8", "Zipf", "Source", "Source64"}

func TestPurity(t *testing.T) {
	own, all := module()
	for _, p := range own {
		if slices.Contains(pure, p.rel) {
			report(t, checkDeps(p.ImportPath, all))
		}
	}
	for _, p := range own {
		if from := pureImporter(p, all); from != "" {
			report(t, checkPure(p, from))
		}
	}
}

// pureImporter returns the pure package that is p or imports it, or "" if there is none.
func pureImporter(p *pkg, all map[string]*listed) string {
	if slices.Contains(pure, p.rel) {
		return p.rel
	}
	for _, rel := range pure {
		if l := all[modulePath+"/"+rel]; l != nil && slices.Contains(l.Deps, p.ImportPath) {
			return rel
		}
	}
	return ""
}

// checkDeps complains about each impure package below path, with the shortest chain of imports that leads to it.
func checkDeps(path string, all map[string]*listed) (complaints []string) {
	parent := map[string]string{path: ""}
	for queue := []string{path}; len(queue) > 0; queue = queue[1:] {
		l := all[queue[0]]
		if l == nil {
			continue
		}
		for _, dep := range l.Imports {
			if _, seen := parent[dep]; seen || slices.Contains(harmless, dep) {
				continue
			}
			parent[dep] = queue[0]
			if !impureImport(dep) {
				queue = append(queue, dep) // what an impure package imports in turn is not news
				continue
			}
			chain := dep
			for up := queue[0]; up != ""; up = parent[up] {
				chain = strings.TrimPrefix(up, modulePath+"/") + " -> " + chain
			}
			complaints = append(complaints, "a pure package may not reach "+dep+": "+chain+
				"; format with strconv, and move what needs I/O into the shell that calls it")
		}
	}
	return complaints
}

// checkPure complains about goroutines, clocks, global randomness and package variables that change.
// from is the pure package because of which the rules hold.
func checkPure(p *pkg, from string) (complaints []string) {
	say := func(pos token.Pos, what, cure string) {
		complaints = append(complaints, fmt.Sprintf("%s: %s in a pure package (%s): %s", p.at(pos), what, from, cure))
	}
	for _, s := range p.files {
		for _, imp := range s.file.Imports {
			if imp.Name != nil && imp.Name.Name == "." {
				say(imp.Pos(), "a dot import", "name the package, so that its use can be seen")
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				say(n.Pos(), "go statement", "return what is to be done, and let the shell run it")
			case *ast.CallExpr:
				if sel, ok := n.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Go" && len(n.Args) == 1 {
					say(n.Pos(), "a Go call that starts a goroutine", "return what is to be done, and let the shell run it")
				}
			}
			return true
		})
		for path, rule := range impureNames {
			uses(s.file, s.file, path, func(sel *ast.SelectorExpr) {
				if slices.Contains(rule.names, sel.Sel.Name) {
					say(sel.Pos(), path+"."+sel.Sel.Name, rule.cure)
				}
			})
		}
		for _, path := range []string{"math/rand", "math/rand/v2"} {
			uses(s.file, s.file, path, func(sel *ast.SelectorExpr) {
				if !slices.Contains(seededNames, sel.Sel.Name) {
					say(sel.Pos(), "the global generator, rand."+sel.Sel.Name, "draw from a *rand.Rand that is handed in or keyed by (seed, request, stage)")
				}
			})
		}
	}
	checkVars(p, say)
	return complaints
}

// checkVars complains about package variables that can change: two users of the package would share them unseen.
// Errors and tables that are set where they are declared and never again are fine.
func checkVars(p *pkg, say func(pos token.Pos, what, cure string)) {
	const cure = "keep it in a struct that has an owner"
	names := map[string]bool{}
	for _, s := range p.files {
		for _, d := range s.file.Decls {
			gd, ok := d.(*ast.GenDecl)
			if !ok || gd.Tok != token.VAR {
				continue
			}
			for _, spec := range gd.Specs {
				vs := spec.(*ast.ValueSpec)
				for _, name := range vs.Names {
					switch {
					case name.Name == "_":
					case len(vs.Values) == 0:
						say(name.Pos(), "package variable "+name.Name+" without its value", cure)
					default:
						names[name.Name] = true
					}
				}
			}
		}
	}
	changed := func(x ast.Expr) {
		if id := root(x); id != nil && names[id.Name] && !local(id) {
			say(id.Pos(), "a change of package variable "+id.Name, cure)
		}
	}
	for _, s := range p.files {
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				if n.Tok != token.DEFINE {
					for _, x := range n.Lhs {
						changed(x)
					}
				}
			case *ast.IncDecStmt:
				changed(n.X)
			case *ast.UnaryExpr:
				if _, ok := n.X.(*ast.CompositeLit); n.Op == token.AND && !ok {
					changed(n.X)
				}
			}
			return true
		})
	}
}

// root returns the identifier that an addressable expression starts from: a for a.b[i].c.
func root(x ast.Expr) *ast.Ident {
	for {
		switch y := x.(type) {
		case *ast.Ident:
			return y
		case *ast.SelectorExpr:
			x = y.X
		case *ast.IndexExpr:
			x = y.X
		case *ast.StarExpr:
			x = y.X
		case *ast.ParenExpr:
			x = y.X
		default:
			return nil
		}
	}
}

// local tells whether the parser resolved the identifier to a declaration inside a function of the same file.
func local(id *ast.Ident) bool {
	if id.Obj == nil {
		return false // declared in another file of the package
	}
	vs, ok := id.Obj.Decl.(*ast.ValueSpec)
	if !ok {
		return true
	}
	// A ValueSpec can be a var inside a function, too; there the parser resolves to that one, which is not in names
	// by position. Shadowing a package variable by var is rare enough to be reported, and renaming mends it.
	return len(vs.Values) == 0
}

func TestPurityRule(t *testing.T) {
	bad := example(t, "internal/gateway/policy", map[string]string{"a.go": `package policy
import (
	"context"
	"math/rand/v2"
	"time"
)
var counter int
var table = map[string]int{"a": 1}
var ok = errors.New("fine")
func f(ctx context.Context, g *rand.Rand) {
	go f(ctx, g)
	_ = time.Now()
	clock := time.Since
	_ = rand.IntN(3)
	table["b"] = 2
	context.WithTimeout(ctx, 1)
	wg.Go(func() {})
}
`})
	wantComplaints(t, checkPure(bad, "internal/gateway/policy"),
		"a.go:7: package variable counter", "a.go:11: go statement", "a.go:12: time.Now", "a.go:13: time.Since",
		"a.go:14: the global generator, rand.IntN", "a.go:15: a change of package variable table", "a.go:16: context.WithTimeout", "a.go:17")

	good := example(t, "internal/gateway/policy", map[string]string{"a.go": `package policy
import (
	"math/rand/v2"
	"time"
)
var table = map[string]int{"a": 1}
var _ Policy = (*x)(nil)
func f(now time.Time, r *rand.Rand) int {
	table := 1
	table++
	g := rand.New(rand.NewPCG(1, 2))
	time := clock{}
	time.Now()
	return r.IntN(3) + g.IntN(2) + int(now.Add(3*time.Second).Unix())
}
`})
	wantComplaints(t, checkPure(good, "internal/gateway/policy"))
}

func TestPureDepsRule(t *testing.T) {
	all := map[string]*listed{
		"m/a":      {Imports: []string{"m/b", "errors"}},
		"m/b":      {Imports: []string{"strings", "log"}},
		"log":      {Imports: []string{"fmt", "os"}},
		"fmt":      {Imports: []string{"os"}},
		"net/http": {},
	}
	wantComplaints(t, checkDeps("m/a", all), "reach fmt: m/a -> m/b -> log -> fmt;", "reach os: m/a -> m/b -> log -> os;")
	all["m/b"].Imports = []string{"strings", "networks", "net/netip"}
	wantComplaints(t, checkDeps("m/a", all), "reach net/netip: m/a -> m/b -> net/netip")
	all["m/b"].Imports = nil
	wantComplaints(t, checkDeps("m/a", all))
}
