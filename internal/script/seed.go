package script

import (
	"flag"
	"math/rand/v2"
	"testing"
)

var seed = flag.Uint64("seed", 0, "replay the random tests with this seed; 0: a new one, which they print")

// Rand returns the generator of a random test. It prints the seed, with which `go test -run NAME -seed N` does the same again.
func Rand(t testing.TB) *rand.Rand {
	n := *seed
	if n == 0 {
		n = rand.Uint64()
	}
	t.Logf("replay with: go test -run '^%s$' -seed %d", t.Name(), n)
	return rand.New(rand.NewPCG(n, 0))
}
