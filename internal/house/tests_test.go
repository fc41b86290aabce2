package house

import (
	"fmt"
	"go/ast"
	"strings"
	"testing"
)

func TestNoSleepInTests(t *testing.T) {
	for _, p := range ownPackages(t) {
		report(t, checkSleep(p))
	}
}

// checkSleep refuses time.Sleep in tests: too short, it fails on a busy machine; too long, it wastes everybody's time.
// Inside the function given to synctest.Test a sleep is a step of the fake clock, and fine; a helper of such a test says
// so on the line itself: "// on the fake clock".
func checkSleep(p *pkg) (complaints []string) {
	for _, s := range p.tests {
		fake := map[ast.Node]bool{}
		said := map[int]bool{} // lines that say it
		for _, group := range s.file.Comments {
			for _, c := range group.List {
				said[p.fset.Position(c.Pos()).Line] = strings.Contains(c.Text, "on the fake clock") && importName(s.file, "testing/synctest") != ""
			}
		}
		uses(s.file, s.file, "testing/synctest", func(sel *ast.SelectorExpr) { fake[sel] = true })
		var bubbles []ast.Node
		ast.Inspect(s.file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && fake[call.Fun] {
				bubbles = append(bubbles, call)
			}
			return true
		})
		uses(s.file, s.file, "time", func(sel *ast.SelectorExpr) {
			if sel.Sel.Name != "Sleep" || said[p.fset.Position(sel.Pos()).Line] {
				return
			}
			for _, b := range bubbles {
				if b.Pos() <= sel.Pos() && sel.End() <= b.End() {
					return
				}
			}
			complaints = append(complaints, fmt.Sprintf(
				"%s: time.Sleep in a test; wait for the event on a channel, or use testing/synctest and sleep inside synctest.Test (a helper of such a test says // on the fake clock)", p.at(sel.Pos())))
		})
	}
	return complaints
}

func TestNoSleepRule(t *testing.T) {
	wantComplaints(t, checkSleep(example(t, "internal/x", map[string]string{"a_test.go": `package x
import (
	"testing"
	"testing/synctest"
	"time"
)
func TestA(t *testing.T) { time.Sleep(1) }
func TestB(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { time.Sleep(1) })
}
func helper() {
	time.Sleep(1) // on the fake clock
}
`, "b_test.go": `package x
import "time"
func helper() {
	time.Sleep(1) // on the fake clock, says a file without one
}
`})), "a_test.go:7", "b_test.go:4")
}

func TestGoroutinesAreLeakChecked(t *testing.T) {
	for _, p := range ownPackages(t) {
		// A benchmark's program ends with its process, and has no tests.
		if !strings.HasPrefix(p.rel, "bench/") {
			report(t, checkLeaks(p))
		}
	}
}

// checkLeaks wants a package that starts goroutines to prove in its tests that they end.
func checkLeaks(p *pkg) []string {
	starts := ""
	for _, s := range p.files {
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				starts = p.at(n.Pos())
			case *ast.CallExpr: // wg.Go(func() {...})
				sel, ok := n.Fun.(*ast.SelectorExpr)
				if ok && sel.Sel.Name == "Go" && len(n.Args) == 1 {
					starts = p.at(n.Pos())
				}
			}
			return starts == ""
		})
		if starts != "" {
			break
		}
	}
	if starts == "" {
		return nil
	}
	for _, s := range p.tests {
		checked := false
		uses(s.file, s.file, "go.uber.org/goleak", func(sel *ast.SelectorExpr) {
			checked = checked || sel.Sel.Name == "VerifyTestMain"
		})
		if checked {
			return nil
		}
	}
	return []string{fmt.Sprintf("%s: a goroutine starts here, and no test of %s checks for leaks; add func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }", starts, p.rel)}
}

func TestLeakRule(t *testing.T) {
	code := "package x\nfunc f() { go f() }\n"
	wantComplaints(t, checkLeaks(example(t, "internal/x", map[string]string{"a.go": code})), "a.go:2: a goroutine starts here")
	wantComplaints(t, checkLeaks(example(t, "internal/x", map[string]string{"a.go": "package x\nfunc f() { wg.Go(f) }\n"})), "a.go:2")
	wantComplaints(t, checkLeaks(example(t, "internal/x", map[string]string{"a.go": code, "m_test.go": `package x
import "go.uber.org/goleak"
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
`})))
	wantComplaints(t, checkLeaks(example(t, "internal/x", map[string]string{"a.go": "package x\nfunc f() {}\n"})))
}
