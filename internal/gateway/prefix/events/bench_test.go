//go:build unix

package events_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/prefix/events"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
)

// BenchmarkApply is one core's work for a message of the common workload: decode and apply, from the applier's inbox on. 64 engines, each
// with prompts of its own; expected is where their load reports have said how large their pools are.
func BenchmarkApply(b *testing.B) {
	for _, c := range []struct {
		blocks   int
		expected bool
	}{{1, false}, {1, true}, {32, false}, {32, true}} {
		blocks := c.blocks
		b.Run(fmt.Sprintf("blocks=%d/expected=%v", blocks, c.expected), func(b *testing.B) {
			var apply func(feed int, payload []byte)
			restart := func() {
				store := local.New(local.Options{})
				apply = events.ForBenchmark(64, func(rank int32) events.Claims {
					r := store.Open(local.Engine{No: uint32(rank) + 1, Base: "m", Names: []string{"m"}}, 0)
					if c.expected {
						r.Expect(int64(16*blocks) << 15 / 64)
					}
					return r
				})
			}
			restart()
			var payloads [][]byte
			for i := range 1 << 15 {
				payloads = append(payloads, chain(1+i%16*16*blocks+i/16<<20, blocks, i%16 > 0))
			}
			b.ReportAllocs()
			n, spent, began := 0, time.Duration(0), cpuTime()
			for b.Loop() {
				if n == len(payloads) { // a second round would be of blocks that are known
					b.StopTimer()
					spent += cpuTime() - began
					restart()
					n = 0
					began = cpuTime()
					b.StartTimer()
				}
				apply(n/16%64, payloads[n])
				n++
			}
			reportBlocks(b, spent+cpuTime()-began, b.N*blocks)
		})
	}
}

// BenchmarkFollow is the same without an index: what reading, copying and following the numbers costs.
func BenchmarkFollow(b *testing.B) {
	for _, blocks := range []int{1, 32} {
		b.Run(fmt.Sprintf("blocks=%d", blocks), func(b *testing.B) {
			apply := events.ForBenchmark(1, func(int32) events.Claims { return nowhere{} })
			p := chain(1, blocks, false)
			b.ReportAllocs()
			began := cpuTime()
			for b.Loop() {
				apply(0, p)
			}
			reportBlocks(b, cpuTime()-began, b.N*blocks)
		})
	}
}
