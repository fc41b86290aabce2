package keyring_test

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/keyring"
)

func TestFind(t *testing.T) {
	longest := strings.Repeat("k", keyring.MaxLength)
	r, err := keyring.New([]keyring.Key{
		{Name: "a", Digest: keyring.DigestOf("key-a")},
		{Name: "b", Digest: keyring.DigestOf("key-b"), Models: []string{"m", "n"}},
		{Name: "long", Digest: keyring.DigestOf(longest)},
		{Name: "empty", Digest: keyring.DigestOf("")},
	})
	if err != nil {
		t.Fatal(err)
	}
	for presented, want := range map[string]string{
		"key-a": "a", "key-b": "b", "key-c": "", "key-a ": "", "KEY-A": "", "key-": "", "": "", longest: "long", longest + "k": "",
	} {
		got := ""
		if k := r.Find(presented); k != nil {
			got = k.Name
		}
		if got != want {
			t.Errorf("%.20q finds %q, want %q", presented, got, want)
		}
	}
	if new(keyring.Ring).Find("key-a") != nil {
		t.Error("an empty ring has a key")
	}
	a, b := r.Keys()[0], r.Keys()[1]
	if !a.Allows("x") || !b.Allows("n") || !b.Allows("x", "m") || b.Allows("x") || (&keyring.Key{Models: []string{}}).Allows("x") {
		t.Error("a key allows what it should not, or the other way round")
	}
}

func TestNewRefusesTwice(t *testing.T) {
	one := keyring.Key{Name: "a", Digest: keyring.DigestOf("1")}
	for _, other := range []keyring.Key{{Name: "a", Digest: keyring.DigestOf("2")}, {Name: "b", Digest: one.Digest}} {
		if _, err := keyring.New([]keyring.Key{one, other}); !errors.Is(err, keyring.ErrTwice) {
			t.Errorf("%+v: %v", other, err)
		}
	}
}

func TestFindAllocatesNothing(t *testing.T) {
	r, err := keyring.New([]keyring.Key{{Name: "a", Digest: keyring.DigestOf("key-a")}})
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { r.Find("key-a") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestComparesInConstantTime looks at the code: Find decides by subtle.ConstantTimeCompare, and nothing in the package compares digests
// or keys by other means.
func TestComparesInConstantTime(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "keyring.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	decides := false
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && (x.Name == "bytes" || x.Name == "strings") {
				t.Errorf("%s.%s compares as it likes", x.Name, n.Sel.Name)
			}
		case *ast.FuncDecl:
			if n.Name.Name == "Find" {
				ast.Inspect(n, func(n ast.Node) bool {
					if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "ConstantTimeCompare" {
						decides = true
					}
					return true
				})
			}
		case *ast.BinaryExpr:
			if n.Op != token.EQL && n.Op != token.NEQ {
				break
			}
			for _, side := range []ast.Expr{n.X, n.Y} {
				s, isField := side.(*ast.SelectorExpr)
				id, isName := side.(*ast.Ident)
				if isField && s.Sel.Name == "Digest" || isName && (id.Name == "digest" || id.Name == "presented") {
					t.Errorf("a comparison of %v that is not of constant time", side)
				}
			}
		}
		return true
	})
	if !decides {
		t.Error("Find does not decide by subtle.ConstantTimeCompare")
	}
}
