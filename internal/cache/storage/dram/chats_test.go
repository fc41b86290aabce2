//go:build !race

package dram

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/perigee-llm/perigee/internal/trace"
)

// chats makes up conversations: most have one turn and some have many, people take a minute or several to answer, each turn
// brings the whole conversation again with a few blocks more, and its last block is never the same again.
func chats(n int, seed uint64) (reqs []trace.Request) {
	r := rand.New(rand.NewPCG(seed, 0))
	next := uint64(1000) // below: eight system prompts of ten blocks
	for chat := range n {
		at := time.Duration(float64(chat) / float64(n) * float64(time.Hour))
		var blocks []uint64
		system := r.Uint64N(8)
		for i := range uint64(10) {
			blocks = append(blocks, 100*system+i)
		}
		chatty := r.Float64() * r.Float64() // the chance of a further turn: a third on average, and not the same for all
		for again := true; again; again = r.Float64() < chatty {
			for range 1 + int(r.ExpFloat64()*8) {
				blocks = append(blocks, next)
				next++
			}
			reqs = append(reqs, trace.Request{Arrival: at, Blocks: append(slices.Clone(blocks), next)})
			next++
			at += time.Duration(float64(90*time.Second) * math.Exp(r.NormFloat64()))
		}
	}
	slices.SortStableFunc(reqs, func(a, b trace.Request) int { return int(a.Arrival - b.Arrival) })
	return reqs
}
