//go:build unix

package events_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/perigee-llm/perigee/internal/gateway/prefix/events"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
)

// The workload of the benchmarks: 64 engines, each with 32 prompts of 8,192 tokens in blocks of 16, which are 1,048,576 different blocks. Hashes
// are random, tokens are random ids below 150,000 in msgpack's shortest form, as engines write them: so 44 percent take three bytes and the rest
// five. The engines' messages come by turns, as from engines that compute at once.
const (
	loadEngines = 64
	loadPrompts = 32 // of an engine
	loadBlock   = 16
	loadBlocks  = 512 // of a prompt
	loadAll     = loadEngines * loadPrompts * loadBlocks
)

// hashesOf returns what the engines call the blocks of a prompt.
func hashesOf(prompt int) []uint64 {
	r := rand.New(rand.NewPCG(uint64(prompt), 7))
	hashes := make([]uint64, loadBlocks)
	for i := range hashes {
		hashes[i] = r.Uint64()
	}
	return hashes
}

// storesOf returns the messages of a prompt that is computed: of so many blocks each, and with each that many others are removed first: the
// last ones of another prompt before those in front of them, in one event for each block, as vLLM does.
func storesOf(prompt, per int, evicted []uint64) (all [][]byte) {
	r := rand.New(rand.NewPCG(uint64(prompt), 1024))
	hashes := hashesOf(prompt)
	for first := 0; first < loadBlocks; first += per {
		b := msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 3), 1.7e9)
		gone := evicted[max(0, len(evicted)-first-per):max(0, len(evicted)-first)]
		b = msgp.AppendArrayHeader(b, uint32(1+len(gone)))
		for _, hash := range slices.Backward(gone) {
			b = msgp.AppendString(msgp.AppendArrayHeader(b, 3), "BlockRemoved")
			b = msgp.AppendString(msgp.AppendUint64(msgp.AppendArrayHeader(b, 1), hash), "GPU")
		}
		b = msgp.AppendString(msgp.AppendArrayHeader(b, 7), "BlockStored")
		b = msgp.AppendArrayHeader(b, uint32(per))
		for _, hash := range hashes[first : first+per] {
			b = msgp.AppendUint64(b, hash)
		}
		if first > 0 {
			b = msgp.AppendUint64(b, hashes[first-1])
		} else {
			b = msgp.AppendNil(b)
		}
		b = msgp.AppendArrayHeader(b, uint32(loadBlock*per))
		for range loadBlock * per {
			b = msgp.AppendUint32(b, uint32(r.IntN(150000)))
		}
		b = msgp.AppendInt(b, loadBlock)
		b = msgp.AppendString(msgp.AppendNil(b), "GPU")
		all = append(all, msgp.AppendInt(b, 0))
	}
	return all
}

// messages is the messages of all prompts from a number on, in the order in which they come; a message's engine is its place modulo 64.
// With over, they remove the prompts from there on.
func messages(first, per, over int) (all [][]byte) {
	for p := range loadPrompts {
		var each [loadEngines][][]byte
		for e := range each {
			var evicted []uint64
			if n := p*loadEngines + e; over >= 0 {
				evicted = hashesOf(over + n)
			}
			each[e] = storesOf(first+p*loadEngines+e, per, evicted)
		}
		for i := range loadBlocks / per {
			for e := range each {
				all = append(all, each[e][i])
			}
		}
	}
	return all
}

// receiver returns a function that has an applier of 64 feeds take in the next message of one of them.
func receiver(expected bool) func(feed int, payload []byte) {
	store := local.New(local.Options{})
	return events.ForBenchmark(loadEngines, func(rank int32) events.Claims {
		r := store.Open(local.Engine{No: uint32(rank) + 1, Base: "m", Names: []string{"m"}}, 0)
		if expected {
			r.Expect(loadAll / loadEngines * loadBlock)
		}
		return r
	})
}

// BenchmarkApply is one core's work for messages of the workload, to read and to apply, from the applier's inbox on. An operation is a message.
// fill begins with an empty index; expected is the same where load reports have said how large the pools are, which has to make no difference. full is what a gateway lives in:
// all pools are full, so that of each block that is stored another is removed before; both are counted.
func BenchmarkApply(b *testing.B) {
	for _, per := range []int{1, 32} {
		stores := sync.OnceValue(func() [][]byte { return messages(0, per, -1) })
		for _, expected := range []bool{false, true} {
			name := "fill"
			if expected {
				name = "expected"
			}
			b.Run(fmt.Sprintf("%s/blocks=%d", name, per), func(b *testing.B) {
				all, apply := stores(), receiver(expected)
				b.ReportAllocs()
				n, spent, began := 0, time.Duration(0), cpuTime()
				l := laps{per: per}
				for b.Loop() {
					if n == len(all) { // a second round would be of blocks that are known
						b.StopTimer()
						spent += cpuTime() - began
						apply, n = receiver(expected), 0
						began = cpuTime()
						b.StartTimer()
						l.n = 0
					}
					apply(n%loadEngines, all[n])
					n++
					l.message()
				}
				reportBlocks(b, spent+cpuTime()-began, b.N*per)
				l.report(b)
			})
		}
		b.Run(fmt.Sprintf("full/blocks=%d", per), func(b *testing.B) {
			const others = 1 << 20
			turns := [...][][]byte{messages(others, per, 0), messages(0, per, others)}
			apply := receiver(true)
			for i, m := range stores() {
				apply(i%loadEngines, m)
			}
			b.ReportAllocs()
			n, began := 0, cpuTime()
			l := laps{per: 2 * per}
			for b.Loop() {
				all := turns[n/len(turns[0])%2]
				apply(n%loadEngines, all[n%len(all)])
				n++
				l.message()
			}
			reportBlocks(b, cpuTime()-began, b.N*per*2)
			l.report(b)
		})
	}
}

// laps are the times of 64 messages each. On a machine that has other work the quickest tenth of them was let alone.
type laps struct {
	per  int // blocks of a message
	n    int
	last time.Time
	all  []time.Duration
}

func (l *laps) message() {
	if l.n++; l.n%64 != 1 {
		return
	}
	now := time.Now()
	if l.n > 1 {
		l.all = append(l.all, now.Sub(l.last))
	}
	l.last = now
}

func (l *laps) report(b *testing.B) {
	slices.Sort(l.all)
	for _, p := range []int{10, 50} {
		if len(l.all) > 0 {
			b.ReportMetric(float64(64*l.per)/l.all[len(l.all)*p/100].Seconds()/1e6, fmt.Sprintf("p%d-Mblocks/s", p))
		}
	}
}

// BenchmarkFollow is the same without an index: what reading, copying and following the numbers costs.
func BenchmarkFollow(b *testing.B) {
	for _, blocks := range []int{1, 32} {
		b.Run(fmt.Sprintf("blocks=%d", blocks), func(b *testing.B) {
			apply := events.ForBenchmark(1, func(int32) events.Claims { return nowhere{} })
			all := storesOf(0, blocks, nil)
			b.ReportAllocs()
			n, began := 0, cpuTime()
			for b.Loop() {
				apply(0, all[n%len(all)])
				n++
			}
			reportBlocks(b, cpuTime()-began, b.N*blocks)
		})
	}
}
