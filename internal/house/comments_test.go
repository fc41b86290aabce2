package house

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestPackageComments(t *testing.T) {
	for _, p := range ownPackages(t) {
		report(t, checkPackageComment(p))
	}
}

// A sentence ends where a full stop, a colon before a list, or their like stands before white space.
var sentenceEnd = regexp.MustCompile(`[.!?:](\s|$)`)

// checkPackageComment wants one package comment, that says what the package is and what it promises.
func checkPackageComment(p *pkg) []string {
	var docs []source
	for _, s := range p.files {
		if s.file.Doc != nil && strings.TrimSpace(s.file.Doc.Text()) != "" {
			docs = append(docs, s)
		}
	}
	const cure = "two sentences or more: what it is, and what it promises to its callers"
	switch {
	case len(p.files) == 0:
		return nil // tests only
	case len(docs) == 0:
		return []string{fmt.Sprintf("%s: package %s has no package comment; write %s", p.files[0].path, p.Name, cure)}
	case len(docs) > 1:
		return []string{fmt.Sprintf("%s: a second package comment, the first is in %s; keep one", p.at(docs[1].file.Doc.Pos()), docs[0].path)}
	}
	doc, at := docs[0].file.Doc.Text(), p.at(docs[0].file.Doc.Pos())
	var complaints []string
	want := "Package " + p.Name + " "
	if p.Name == "main" {
		want = "Command " + p.rel[strings.LastIndex(p.rel, "/")+1:] + " "
	}
	if !strings.HasPrefix(doc, want) {
		complaints = append(complaints, fmt.Sprintf("%s: the package comment must start with %q", at, want))
	}
	if len(sentenceEnd.FindAllString(doc, -1)) < 2 {
		complaints = append(complaints, fmt.Sprintf("%s: the package comment is too short; write %s", at, cure))
	}
	return complaints
}

func TestPackageCommentsRule(t *testing.T) {
	check := func(rel string, files map[string]string) []string { return checkPackageComment(example(t, rel, files)) }
	wantComplaints(t, check("internal/x", map[string]string{"a.go": "package x\n"}), "a.go: package x has no package comment")
	wantComplaints(t, check("internal/x", map[string]string{"a.go": "// Package x is. It promises.\npackage x\n", "b.go": "// Package x again. Twice.\npackage x\n"}), "a second package comment")
	wantComplaints(t, check("internal/x", map[string]string{"a.go": "// Package x is v1.2 of it.\npackage x\n"}), "too short")
	wantComplaints(t, check("internal/x", map[string]string{"a.go": "// The x. It promises.\npackage x\n"}), `must start with "Package x "`)
	wantComplaints(t, check("cmd/x", map[string]string{"a.go": "// Package main is. It promises.\npackage main\n"}), `must start with "Command x "`)
	wantComplaints(t, check("cmd/x", map[string]string{"a.go": "// Command x is. It promises.\npackage main\n"}))
}

func TestDocComments(t *testing.T) {
	for _, p := range ownPackages(t) {
		if strings.HasPrefix(p.rel, "internal/") {
			report(t, checkDocs(p))
		}
	}
}

// selfEvident methods say all by their name and signature.
var selfEvident = []string{"Error", "String", "Unwrap", "Len", "Less", "Swap"}

// checkDocs wants a doc comment on every exported identifier that another package can reach. A comment on a group of
// constants or variables covers the group.
func checkDocs(p *pkg) (complaints []string) {
	say := func(pos token.Pos, what string) {
		complaints = append(complaints, fmt.Sprintf(
			"%s: exported %s has no doc comment; say its units, zero value, owner, who may call at once, what its errors mean", p.at(pos), what))
	}
	for _, s := range p.files {
		if ast.IsGenerated(s.file) {
			continue
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				name := d.Name.Name
				if d.Recv != nil {
					recv := root(receiver(d.Recv.List[0].Type))
					if recv == nil || !recv.IsExported() || slices.Contains(selfEvident, name) {
						continue
					}
					name = recv.Name + "." + name
				}
				if d.Name.IsExported() && d.Doc == nil {
					say(d.Pos(), "func "+name)
				}
			case *ast.GenDecl:
				checkGroup(d, say)
			}
		}
	}
	return complaints
}

// receiver strips type parameters from a method's receiver.
func receiver(x ast.Expr) ast.Expr {
	if star, ok := x.(*ast.StarExpr); ok {
		x = star.X
	}
	if list, ok := x.(*ast.IndexListExpr); ok {
		x = list.X
	}
	return x
}

func checkGroup(d *ast.GenDecl, say func(token.Pos, string)) {
	for _, spec := range d.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			if spec.Name.IsExported() && spec.Doc == nil && (d.Doc == nil || d.Lparen.IsValid()) {
				say(spec.Pos(), "type "+spec.Name.Name)
			}
		case *ast.ValueSpec:
			if d.Doc != nil || spec.Doc != nil || spec.Comment != nil {
				continue
			}
			for _, name := range spec.Names {
				if name.IsExported() {
					say(name.Pos(), d.Tok.String()+" "+name.Name)
				}
			}
		}
	}
}

func TestDocCommentsRule(t *testing.T) {
	wantComplaints(t, checkDocs(example(t, "internal/x", map[string]string{"a.go": `package x
type T struct{}
func F() {}
func (T) M() {}
func (t *G[K]) M() {}
func (T) Error() string
func (t hidden) M() {}
const A = 1
var (
	B = 1
	C = 1 // counts sheep
)
`})), "a.go:2: exported type T", "a.go:3: exported func F", "a.go:4: exported func T.M", "a.go:5: exported func G.M", "a.go:8: exported const A", "a.go:10: exported var B")
	wantComplaints(t, checkDocs(example(t, "internal/x", map[string]string{"a.go": `package x
// T is.
type T struct{}
// F does.
func F() {}
// Sizes, in bytes.
const (
	A = 1
	B = 2
)
func hidden() {}
`})))
}
