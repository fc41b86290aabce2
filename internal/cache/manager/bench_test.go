//go:build linux

package manager

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/perigee-llm/perigee/internal/cache/channel/client"
	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
)

// benchPool holds the largest pages' prompt twice.
const benchPool = 256 << 20

// benchManager is a Manager in a process of its own, and beside it a server that sends back what it gets.
func benchManager(socket string) error {
	ln, err := net.Listen("unix", socket+".echo")
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
		}
	}()
	_, err = Start(Options{Socket: socket, PoolBytes: benchPool, Log: slog.New(slog.DiscardHandler)})
	return err
}

func benchSession(b *testing.B, page uint64) (*client.Session, net.Conn) {
	b.Helper()
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	socket := dir + "/s"
	if os.Getenv("PERIGEE_BENCH_INPROC") != "" { // for profiles of both sides together
		if err := benchManager(socket); err != nil {
			b.Fatal(err)
		}
	} else {
		cmd, err := start("bench", socket)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	}
	s, err := client.Dial(context.Background(), client.Options{Socket: socket, Instance: "bench", Ranks: namespaces(1, page)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	c, err := net.Dial("unix", socket+".echo")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	return s, c
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// BenchmarkQuery512 asks for 512 blocks that are there, and releases them, beside a bare ping-pong of 64 bytes between the same two
// processes, in turns. The metric that counts is the ratio of the medians: at most 3 is asked for.
func BenchmarkQuery512(b *testing.B) {
	s, echo := benchSession(b, 4096)
	pub := prompt(1, 0, 512)
	if _, err := publish(s, pub); err != nil {
		b.Fatal(err)
	}
	names := hashes(1, 512)
	buf, body := make([]byte, 64), make([]byte, 16<<10)
	var asks, pings, sends []time.Duration
	for b.Loop() {
		t := time.Now()
		echo.Write(buf)
		io.ReadFull(echo, buf)
		pings = append(pings, time.Since(t))
		t = time.Now()
		echo.Write(body)
		io.ReadFull(echo, body)
		sends = append(sends, time.Since(t))
		t = time.Now()
		a, err := s.Query(context.Background(), &wire.Query{Mode: core.Prefix, Consumers: 1, Wants: []core.Want{{Hashes: names}}})
		asks = append(asks, time.Since(t))
		if err != nil || a.Lease == nil || a.Lease.Hits[0] != 512 {
			b.Fatalf("%+v, %v", a, err)
		}
		s.Release(a.Lease)
	}
	ask, ping := median(asks), median(pings)
	b.ReportMetric(float64(ask.Microseconds()), "p50-query-µs")
	b.ReportMetric(float64(ping.Microseconds()), "p50-ping-µs")
	b.ReportMetric(float64(median(sends).Microseconds()), "p50-ping-16KiB-µs")
	b.ReportMetric(float64(ask)/float64(ping), "ratio")
}

// BenchmarkTransfer publishes and restores 64 MiB in pages of several sizes, beside a loop that copies and checksums the same pieces in one
// goroutine, in turns. The metrics that count are the shares of the loop's speed: 0.9 is asked for.
func BenchmarkTransfer(b *testing.B) {
	for _, page := range []int{16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20} {
		b.Run(fmt.Sprintf("%dKiB", page>>10), func(b *testing.B) { benchTransfer(b, page) })
	}
}

func benchTransfer(b *testing.B, page int) {
	const total = 64 << 20
	s, _ := benchSession(b, uint64(page))
	n := total / page
	src, dst, shared := make([]byte, total), make([]byte, total), make([]byte, total)
	for i := range src {
		src[i] = byte(i * 7)
	}
	piece := func(b []byte, i int) []byte { return b[i*page : (i+1)*page] }
	loop := func(to, from []byte) time.Duration {
		t := time.Now()
		for i := range n {
			copy(piece(to, i), piece(from, i))
			sink = xxh3.Hash(piece(to, i))
		}
		return time.Since(t)
	}
	loop(shared, src)
	loop(dst, shared)
	var loops, publishes, restores []time.Duration
	for p := 0; b.Loop(); p++ {
		loops = append(loops, loop(dst, shared))
		pub := prompt(p%2+2*p, 0, n)
		t := time.Now()
		got, err := s.Publish(context.Background(), pub, func(i int, slot []byte) error { copy(slot, piece(src, i)); return nil })
		publishes = append(publishes, time.Since(t))
		if err != nil || int(got.Sealed) != n {
			b.Fatalf("%+v, %v", got, err)
		}
		t = time.Now()
		a, err := s.Query(context.Background(), query(p%2+2*p, n))
		if err != nil || a.Lease == nil || int(a.Lease.Hits[0]) != n {
			b.Fatalf("%+v, %v", a, err)
		}
		if err := s.Restore(context.Background(), a.Lease, 0, func(i int, page []byte) error { copy(piece(dst, i), page); return nil }); err != nil {
			b.Fatal(err)
		}
		restores = append(restores, time.Since(t))
	}
	base := median(loops)
	b.ReportMetric(float64(total)/1e9/base.Seconds(), "loop-GB/s")
	b.ReportMetric(base.Seconds()/median(publishes).Seconds(), "publish-share")
	b.ReportMetric(base.Seconds()/median(restores).Seconds(), "restore-share")
}

var sink uint64
