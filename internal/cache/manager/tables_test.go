//go:build linux

package manager

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/perigee-llm/perigee/internal/script"
)

// TestTables: tables of all sizes are zero and share nothing, and what is given back is the kernel's again.
func TestTables(t *testing.T) {
	r := script.Rand(t)
	var all tables
	defer all.close()
	var lent [][]byte
	for step := range 3000 {
		if len(lent) > 0 && r.IntN(3) == 0 {
			i := r.IntN(len(lent))
			for _, b := range lent[i] {
				if b != lent[i][0] {
					t.Fatalf("step %d: somebody else wrote to a table", step)
				}
			}
			all.Free(lent[i])
			lent[i] = lent[len(lent)-1]
			lent = lent[:len(lent)-1]
			continue
		}
		n := 1 + r.IntN(1<<r.IntN(18))
		b := all.Make(n)
		if len(b) != n || cap(b) != n {
			t.Fatalf("%d bytes of %d, want %d", len(b), cap(b), n)
		}
		for _, v := range b {
			if v != 0 {
				t.Fatalf("step %d: a table is not empty", step)
			}
		}
		for i := range b {
			b[i] = byte(step)
		}
		lent = append(lent, b)
	}
	for _, b := range lent {
		all.Free(b)
	}
	if len(all.of) > 0 || all.last != nil {
		t.Errorf("%d tables are left, %v", len(all.of), all.last)
	}
}

// TestTablesGiveBack: memory of a small table whose neighbours stay is not the process's any more.
func TestTablesGiveBack(t *testing.T) {
	const n, size = 64, 100_000
	var all tables
	defer all.close()
	before := anonymous(t)
	lent := make([][]byte, n)
	for i := range lent {
		lent[i] = all.Make(size)
		for k := range lent[i] {
			lent[i][k] = 1
		}
	}
	full := anonymous(t)
	for i := range lent {
		if i%9 > 0 {
			all.Free(lent[i])
		}
	}
	if now := anonymous(t); full-before < n*size*9/10 || now-before > n*size/4 {
		t.Errorf("%d bytes with %d tables, %d with a ninth of them", full-before, n, now-before)
	}
}

// anonymous is the memory of this process that is neither a file's nor shared.
func anonymous(t *testing.T) (n int) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if _, err := fmt.Sscanf(line, "RssAnon: %d kB", &n); err == nil {
			return n << 10
		}
	}
	t.Fatal("the kernel does not tell")
	return 0
}
