package house

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const modulePath = "github.com/perigee-llm/perigee"

// listed is what `go list -json` says of a package, as far as the rules ask.
type listed struct {
	ImportPath string
	Dir        string
	Name       string
	Standard   bool
	Imports    []string
	Deps       []string
	GoFiles    []string

	IgnoredGoFiles []string // built on other platforms or behind a tag: the rules hold there too
	TestGoFiles    []string
	XTestGoFiles   []string
}

// source is one parsed Go file.
type source struct {
	path string // relative to the repository's root
	file *ast.File
	code []byte
}

// pkg is one package of the module: what go list says, and its files.
type pkg struct {
	listed
	rel   string // import path below the module, "internal/house"
	fset  *token.FileSet
	files []source // what is built, on any platform
	tests []source
}

// at says where pos is, as file:line.
func (p *pkg) at(pos token.Pos) string {
	where := p.fset.Position(pos)
	return fmt.Sprintf("%s:%d", where.Filename, where.Line)
}

// module returns the module's own packages, parsed, and everything they depend on by import path.
// It is read once for all tests of this package.
var module = sync.OnceValues(func() ([]*pkg, map[string]*listed) {
	root, err := repositoryRoot()
	if err != nil {
		panic(err)
	}
	all, err := goList(root)
	if err != nil {
		panic(err)
	}
	var own []*pkg
	for _, l := range all {
		if l.ImportPath != modulePath && !strings.HasPrefix(l.ImportPath, modulePath+"/") {
			continue
		}
		p, err := parse(root, l)
		if err != nil {
			panic(err)
		}
		own = append(own, p)
	}
	slices.SortFunc(own, func(a, b *pkg) int { return strings.Compare(a.rel, b.rel) })
	return own, all
})

// ownPackages returns the module's packages, or fails the test when there are none to look at.
func ownPackages(t *testing.T) []*pkg {
	t.Helper()
	own, _ := module()
	if len(own) == 0 {
		t.Fatal("go list found no package of the module")
	}
	return own
}

func repositoryRoot() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", modulePath).Output()
	if err != nil {
		return "", fmt.Errorf("go list -m: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// goList returns every package of the module and of its dependencies, test dependencies left out.
func goList(root string) (map[string]*listed, error) {
	cmd := exec.Command("go", "list", "-e", "-deps",
		"-json=ImportPath,Dir,Name,Standard,Imports,Deps,GoFiles,IgnoredGoFiles,TestGoFiles,XTestGoFiles", "./...")
	cmd.Dir = root
	// What ships is built without cgo, and with it package net would count as another set of imports.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, stderr.String())
	}
	all := map[string]*listed{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var l listed
		if err := dec.Decode(&l); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list's answer: %w", err)
		}
		all[l.ImportPath] = &l
	}
}

func parse(root string, l *listed) (*pkg, error) {
	p := &pkg{listed: *l, fset: token.NewFileSet(), rel: "."}
	if l.ImportPath != modulePath {
		p.rel = strings.TrimPrefix(l.ImportPath, modulePath+"/")
	}
	add := func(into *[]source, names []string) error {
		for _, name := range names {
			full := filepath.Join(l.Dir, name)
			rel, err := filepath.Rel(root, full)
			if err != nil {
				return err
			}
			code, err := os.ReadFile(full)
			if err != nil {
				return err
			}
			if err := addSource(p.fset, into, rel, code); err != nil {
				return err
			}
		}
		return nil
	}
	built := slices.Clone(l.GoFiles)
	tests := slices.Concat(l.TestGoFiles, l.XTestGoFiles)
	for _, name := range l.IgnoredGoFiles {
		if strings.HasSuffix(name, "_test.go") {
			tests = append(tests, name)
		} else {
			built = append(built, name)
		}
	}
	return p, errors.Join(add(&p.files, built), add(&p.tests, tests))
}

func addSource(fset *token.FileSet, into *[]source, name string, code []byte) error {
	f, err := parser.ParseFile(fset, name, code, parser.ParseComments)
	if err != nil {
		return err
	}
	*into = append(*into, source{path: name, file: f, code: code})
	return nil
}

// example makes a package out of source text, for the tests of the rules themselves. A name that ends in _test.go is
// a test file.
func example(t *testing.T, rel string, files map[string]string) *pkg {
	t.Helper()
	p := &pkg{listed: listed{ImportPath: modulePath + "/" + rel}, rel: rel, fset: token.NewFileSet()}
	for name, code := range files {
		into := &p.files
		if strings.HasSuffix(name, "_test.go") {
			into = &p.tests
		}
		if err := addSource(p.fset, into, name, []byte(code)); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range p.files {
		p.Name = s.file.Name.Name
	}
	return p
}

// report fails the test with each complaint on its own.
func report(t *testing.T, complaints []string) {
	t.Helper()
	for _, c := range complaints {
		t.Error(c)
	}
}

// wantComplaints checks a rule on an example: one complaint for each wanted text, in any order, and no other.
func wantComplaints(t *testing.T, got []string, want ...string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%d complaints, want %d: %q", len(got), len(want), got)
	}
	for _, w := range want {
		if !slices.ContainsFunc(got, func(c string) bool { return strings.Contains(c, w) }) {
			t.Errorf("no complaint holds %q: %q", w, got)
		}
	}
}

// importName returns the name under which the file knows the import path, or "" if it does not import it.
func importName(f *ast.File, path string) string {
	for _, imp := range f.Imports {
		if strings.Trim(imp.Path.Value, `"`) != path {
			continue
		}
		if imp.Name != nil {
			return imp.Name.Name
		}
		base := path[strings.LastIndex(path, "/")+1:]
		if base == "v2" || base == "v4" {
			head := strings.TrimSuffix(path, "/"+base)
			return head[strings.LastIndex(head, "/")+1:]
		}
		return base
	}
	return ""
}

// uses calls found for each x.Sel in the node where x is the file's name of the imported path.
func uses(f *ast.File, n ast.Node, path string, found func(sel *ast.SelectorExpr)) {
	name := importName(f, path)
	if name == "" {
		return
	}
	ast.Inspect(n, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		// An identifier that the parser resolved is a local variable that hides the package.
		if id, ok := sel.X.(*ast.Ident); ok && id.Name == name && id.Obj == nil {
			found(sel)
		}
		return true
	})
}
