//go:build linux

package index

import (
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// resident is the memory of the process that the machine has to keep, in bytes: all of it, whoever mapped it.
func resident(tb testing.TB) int {
	debug.FreeOSMemory()
	raw, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		tb.Skip(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(raw))[1])
	if err != nil {
		tb.Fatal(err)
	}
	return pages * os.Getpagesize()
}

// BenchmarkMemory reports by how much the process grows: for each block with its first holder, and for each further holder of it. GC is
// a whole garbage collection with the index in memory; unswept is what is left for each block after all engines are gone and swept.
func BenchmarkMemory(b *testing.B) {
	for _, c := range []struct {
		name string
		w    w1
		own  bool
	}{
		{"R=1", w1{64, w1Prompts, 1}, false},
		{"R=4", w1{64, w1Prompts, 4}, false},
		{"R=4 own hashes", w1{64, w1Prompts, 4}, true},
		{"10 M blocks", w1{64, 10 * w1Prompts, 1}, false},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				before := resident(b)
				ix, holders := w1{c.w.engines, 0, 0}.load(1, false)
				c.w.each(32, c.own, func(engine int, e *prefix.Event) {
					if out := ix.Apply(holders[engine], e); out.Result != Applied {
						b.Fatal(out.Result)
					}
				})
				grown := resident(b) - before
				blocks := c.w.blocks()
				if c.w.copies == 1 {
					b.ReportMetric(float64(grown)/float64(blocks), "B/block")
				} else {
					b.ReportMetric((float64(grown)/float64(blocks)-48)/float64(c.w.copies-1), "B/further-over-48")
					b.ReportMetric(float64(grown)/float64(blocks), "B/block")
				}
				since := cpuTime()
				runtime.GC()
				b.ReportMetric(float64(cpuTime()-since)/1e6, "GC-cpu-ms")
				for _, h := range holders {
					ix.Close(h)
				}
				for ix.Sweep(1 << 16) {
				}
				b.ReportMetric(float64(resident(b)-before)/float64(blocks), "B/block-after")
				runtime.KeepAlive(ix)
			}
		})
	}
}

// BenchmarkClear clears an engine of a million blocks among two. Readers are asked how long the slowest of their look-ups took while
// it was cleared and swept; freeing is all the sweeping.
func BenchmarkClear(b *testing.B) {
	w := w1{1, w1Prompts, 1}
	q := prefix.Query{Tokens: w1Prompt(1 << 21)}
	for b.Loop() {
		before := resident(b)
		ix, holders := w.load(32, false)
		other := ix.Open(1, 0)
		ix.Mark(other, Exact)
		hashes := make([]prefix.Hash, w1Blocks)
		for i := range hashes {
			hashes[i] = prefix.Hash(i)
		}
		ix.Apply(other, &prefix.Event{Hashes: hashes, Tokens: q.Tokens, BlockSize: w1Block})
		full := resident(b)
		done := make(chan laps)
		stop := make(chan struct{})
		go func() {
			var l laps
			var m prefix.Match
			for {
				select {
				case <-stop:
					done <- l
					return
				default:
				}
				l.begin()
				if ix.Lookup(&q, &m); m.Of(1).Any() != w1Tokens {
					panic("a look-up misses")
				}
				l.lap()
			}
		}()
		since, start := cpuTime(), time.Now()
		ix.Withdraw(holders[0])
		b.ReportMetric(float64(time.Since(start).Microseconds()), "clear-µs")
		for ix.Sweep(1 << 12) {
		}
		freeing := time.Since(start)
		close(stop)
		l := <-done
		b.ReportMetric(float64(cpuTime()-since)/1e6, "all-cpu-ms")
		b.ReportMetric(float64(freeing.Milliseconds()), "free-ms")
		l.report(b, 1, "lookup")
		b.ReportMetric(float64(l.all[len(l.all)-1].Microseconds()), "slowest-µs")
		b.ReportMetric(float64(resident(b)-before)/float64(full-before), "memory-left")
		runtime.KeepAlive(ix)
	}
}

// BenchmarkMemoryFilling reports what a block takes, by growth of the process, at the worst and on the average of a hundred moments while an index fills up
// from an eighth of a million blocks to eight eighths. One that was filled before it has the runtime's own memory in place.
func BenchmarkMemoryFilling(b *testing.B) {
	w := w1{64, w1Prompts, 1}
	for b.Loop() {
		ix, _ := w.load(32, false)
		runtime.KeepAlive(ix)
		ix, holders := w1{64, 0, 0}.load(1, false)
		before, told, next := resident(b), 0, w.blocks()/4
		worst, all, moments := 0.0, 0.0, 0
		w.each(32, false, func(engine int, e *prefix.Event) {
			ix.Apply(holders[engine], e)
			if told += len(e.Hashes); told >= next {
				each := float64(resident(b)-before) / float64(told)
				worst, all, moments = max(worst, each), all+each, moments+1
				next += told / 32
			}
		})
		b.ReportMetric(worst, "worst-B/block")
		b.ReportMetric(all/float64(moments), "mean-B/block")
		runtime.KeepAlive(ix)
	}
}
