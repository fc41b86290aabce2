//go:build linux

package manager

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/zeebo/xxh3"
)

// BenchmarkOffered publishes 128 pages out of an engine's memory and restores them into it, in pages of several sizes, beside a loop that copies and
// checksums the same pieces in one goroutine, between the same kinds of memory, in turns. The metrics that count are the shares of the loop's speed:
// 0.9 is asked for of the restore.
func BenchmarkOffered(b *testing.B) {
	for _, page := range []int{16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20} {
		b.Run(fmt.Sprintf("%dKiB", page>>10), func(b *testing.B) { benchOffered(b, page) })
	}
}

func benchOffered(b *testing.B, page int) {
	n := min(128, benchPool/2/page)
	s, _ := benchSession(b, uint64(page))
	e, slots := newMemory(b, 2*n, page), newMemory(b, n, page)
	e.offer(b, s, 0)
	for i := range e.mem {
		e.mem[i] = byte(i * 7)
	}
	out, in := e.pages(0, 0, n), e.pages(0, n, 2*n)
	// The loop goes as the restore does: from whole slots into pieces.
	loop := func() time.Duration {
		t := time.Now()
		for i := range n {
			slot := slots.mem[i*page : (i+1)*page]
			at := 0
			for _, x := range in.Pieces[2*i : 2*i+2] {
				at += copy(e.at(x), slot[at:])
			}
			sink = xxh3.Hash(slot)
		}
		return time.Since(t)
	}
	loop()
	var loops, publishes, restores, asks []time.Duration
	for p := 0; b.Loop(); p++ {
		pub := prompt(p, 0, n)
		t := time.Now()
		got, err := s.PublishFrom(context.Background(), pub, out)
		publishes = append(publishes, time.Since(t))
		if err != nil || int(got.Sealed) != n {
			b.Fatalf("%+v, %v", got, err)
		}
		loops = append(loops, loop())
		t = time.Now()
		a, err := s.Query(context.Background(), query(p, n))
		if err != nil || a.Lease == nil || int(a.Lease.Hits[0]) != n {
			b.Fatalf("%+v, %v", a, err)
		}
		asks = append(asks, time.Since(t))
		t = time.Now()
		r, err := s.RestoreInto(a.Lease, 0, in)
		restores = append(restores, time.Since(t))
		if err != nil || int(r.Good) != n {
			b.Fatalf("%+v, %v", r, err)
		}
	}
	us := func(d time.Duration) float64 { return float64(d.Microseconds()) }
	base := median(loops)
	b.ReportMetric(float64(n*page)/1e9/base.Seconds(), "loop-GB/s")
	b.ReportMetric(us(base), "p50-loop-µs")
	b.ReportMetric(us(median(asks)), "p50-query-µs")
	b.ReportMetric(us(median(restores)), "p50-restore-µs")
	b.ReportMetric(us(median(publishes)), "p50-publish-µs")
	b.ReportMetric(base.Seconds()/median(publishes).Seconds(), "publish-share")
	b.ReportMetric(base.Seconds()/median(restores).Seconds(), "restore-share")
	// What each is at its best is what it costs on a machine that has nothing else to do: median has sorted them.
	b.ReportMetric(loops[0].Seconds()/publishes[0].Seconds(), "best-publish-share")
	b.ReportMetric(loops[0].Seconds()/restores[0].Seconds(), "best-restore-share")
}
