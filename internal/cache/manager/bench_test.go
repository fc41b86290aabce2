//go:build linux

package manager

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/perigee-llm/perigee/internal/cache/channel/client"
	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/copysum"
	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/cache/storage/pool"
	"github.com/perigee-llm/perigee/internal/cache/storage/pool/layout"
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
	o := Options{Socket: socket, PoolBytes: benchPool, Log: slog.New(slog.DiscardHandler)}
	if os.Getenv("PERIGEE_BENCH_INPROC") == "" { // as the daemon does
		debug.SetGCPercent(HeapGrowth)
	}
	made := false
	o.Pool.FailForTesting = func(string) error { // nothing fails: an arena is made
		if made {
			return nil
		}
		made = true
		return benchLoopMemory(socket)
	}
	_, err = Start(o)
	return err
}

// benchLoopMemory makes the memory that the loop copies from and to: as large as the pool's, and made and faulted in by the same code, in the same process and
// at the same time, so that both lie in physical memory alike. Where it is to be opened stands in a file beside the socket.
func benchLoopMemory(socket string) error {
	p, err := pool.New(pool.Options{Bytes: benchPool})
	if err != nil {
		return err
	}
	a, err := p.Open(layout.Shape{Slots: benchPool >> 20, SlotBytes: 1 << 20})
	if err != nil {
		return err
	}
	at := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), a.Writable().Fd())
	if err := os.WriteFile(socket+".new", []byte(at), 0o600); err != nil {
		return err
	}
	return os.Rename(socket+".new", socket+".loop")
}

// cpuOf is the processor time that a process has had.
func cpuOf(pid int) time.Duration {
	var t unix.Timespec
	// The clock of a process: see clock_getcpuclockid(3).
	if err := unix.ClockGettime(int32(^pid<<3|2), &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

// benchSession returns a session with one copier, and a connection to the echo server.
func benchSession(b *testing.B, page uint64) (*client.Session, net.Conn) {
	p := newBenchPair(b, page, 1)
	return p.s, p.echo
}

// benchPair is a session, a connection to the echo server, where the Manager listens, and what tells the processor time of this process and of the
// Manager's.
type benchPair struct {
	s      *client.Session
	echo   net.Conn
	socket string
	cpu    func() (here, there time.Duration)
}

func newBenchPair(b *testing.B, page uint64, copiers int) benchPair {
	b.Helper()
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	socket := dir + "/s"
	cpu := func() (here, there time.Duration) { return cpuOf(os.Getpid()), 0 }
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
		cpu = func() (here, there time.Duration) { return cpuOf(os.Getpid()), cpuOf(cmd.Process.Pid) }
	}
	s, err := client.Dial(context.Background(), client.Options{Socket: socket, Instance: "bench", Ranks: namespaces(1, page), Copiers: copiers})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	c, err := net.Dial("unix", socket+".echo")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	return benchPair{s, c, socket, cpu}
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

// BenchmarkTransfer publishes and restores 64 MiB in pages of several sizes, and a prompt of 8,192 tokens in pages of 16 and 64 KiB (512 of them, of 16 tokens), in turns with loops that do what no copy of pages can leave out: the
// one for publishes copies the same pieces from the heap into memory that is as large as the pool and made as it is, going on where it ended, and
// makes XXH3-64 of each piece where it has arrived, a whole piece at a time; the one for restores copies them back into the heap and does the same there. They have as many
// goroutines as the client copies with. A publish is measured from its call to its Published, a restore from its Query to its Restored.
//
// The metrics that count are the shares of the loops' speed: 0.9 is asked for. The client copies and sums in one pass, past the cache, which a loop of copy and xxh3.Hash
// does not; the one-pass-shares are those of loops that do it by the client's own code, and so leave only what the Manager costs. On a machine that others use only the cpu-shares say something: the
// loop's processor time over that of client and Manager together, which gives no credit for what they do at once. "shown" is the way for clients that cannot make
// checksums: the Manager makes and compares them.
func BenchmarkTransfer(b *testing.B) {
	for _, page := range []int{16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20} {
		b.Run(fmt.Sprintf("%dKiB", page>>10), func(b *testing.B) { benchTransfer(b, page, allBytes, 1, false) })
	}
	for _, page := range []int{16 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("%dKiB-prompt", page>>10), func(b *testing.B) { benchTransfer(b, page, 512*page, 1, false) })
	}
	for _, page := range []int{16 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("%dKiB-2-copiers", page>>10), func(b *testing.B) { benchTransfer(b, page, allBytes, 2, false) })
		b.Run(fmt.Sprintf("%dKiB-shown", page>>10), func(b *testing.B) { benchTransfer(b, page, allBytes, 1, true) })
	}
}

// timed is a way to spend time: the wall clock's, round by round, and the processors', all together and the least of a round, of this process
// and of the Manager's.
type timed struct {
	wall        []time.Duration
	cpu         time.Duration
	here, there time.Duration
}

func (t *timed) run(cpu func() (here, there time.Duration), f func()) {
	here, there := cpu()
	began := time.Now()
	f()
	t.wall = append(t.wall, time.Since(began))
	nowHere, nowThere := cpu()
	here, there = nowHere-here, nowThere-there
	t.cpu += here + there
	if len(t.wall) == 1 || here+there < t.here+t.there {
		t.here, t.there = here, there
	}
}

// copyThenSum is what a loop does with a piece.
func copyThenSum(dst, src []byte) uint64 {
	copy(dst, src)
	return xxh3.Hash(dst)
}

// copyPieces has so many goroutines copy n pieces and make their checksums, each in the given way.
func copyPieces(copiers, n int, way func(dst, src []byte) uint64, to, from func(i int) []byte) {
	var wg sync.WaitGroup
	for w := range copiers {
		wg.Go(func() {
			sum := uint64(0)
			for i := w; i < n; i += copiers {
				sum ^= way(to(i), from(i))
			}
			copysum.Fence()
			sums.Add(sum)
		})
	}
	wg.Wait()
}

// loopMemory maps the memory that the loop copies from and to, when it and the pool have been faulted in.
func loopMemory(b *testing.B, socket string, manager func() time.Duration) []byte {
	var at []byte
	for was := time.Duration(-1); ; {
		<-time.After(50 * time.Millisecond)
		now := manager()
		if at, _ = os.ReadFile(socket + ".loop"); len(at) > 0 && now == was {
			break
		}
		was = now
	}
	f, err := os.OpenFile(string(at), os.O_RDWR, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	mem, err := unix.Mmap(int(f.Fd()), 0, benchPool, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { unix.Munmap(mem) })
	return mem
}

// allBytes is what most of BenchmarkTransfer's rounds publish and restore.
const allBytes = 64 << 20

func benchTransfer(b *testing.B, page, total, copiers int, shown bool) {
	p := newBenchPair(b, uint64(page), copiers)
	s, cpu, ctx, n := p.s, p.cpu, context.Background(), total/page
	shared := loopMemory(b, p.socket, func() time.Duration { _, there := cpu(); return there })
	src, dst, back := make([]byte, total), make([]byte, total), make([]byte, total)
	for i := range src {
		src[i] = byte(i * 7)
	}
	pieces := func(b []byte) func(int) []byte {
		return func(i int) []byte { return b[i*page : (i+1)*page] }
	}
	from, to := pieces(src), pieces(dst)
	publish := func(pub *client.Publish) (client.Published, error) {
		if shown {
			return s.Publish(ctx, pub, func(i int, slot []byte) error { copy(slot, from(i)); return nil })
		}
		return s.PublishPages(ctx, pub, func(i int) ([]byte, error) { return from(i), nil })
	}
	restore := func(l *client.Lease) error {
		if shown {
			return s.Restore(ctx, l, 0, func(i int, page []byte) error { copy(to(i), page); return nil })
		}
		return s.RestoreTo(ctx, l, 0, func(i, _ int) ([]byte, error) { return to(i), nil })
	}
	var in, out, inOnce, outOnce, published, restored timed
	// The first rounds fault all the memory in, here and there: they are not counted.
	rounds := 2 * benchPool / total
	for p := 0; p < rounds || b.Loop(); p++ {
		if p == rounds {
			in, out, inOnce, outOnce, published, restored = timed{}, timed{}, timed{}, timed{}, timed{}, timed{}
		}
		at := p * total % benchPool
		other := (p + 2) * total % benchPool // what the second loops read and write is in no cache for the sake of the first
		inOnce.run(cpu, func() { copyPieces(copiers, n, copysum.Past, pieces(shared[other:]), pieces(back)) })
		in.run(cpu, func() { copyPieces(copiers, n, copyThenSum, pieces(shared[at:]), pieces(src)) })
		pub := prompt(p, 0, n)
		published.run(cpu, func() {
			if got, err := publish(pub); err != nil || int(got.Sealed) != n {
				b.Fatalf("%+v, %v", got, err)
			}
		})
		outOnce.run(cpu, func() { copyPieces(copiers, n, copysum.Past, pieces(dst), pieces(shared[other:])) })
		out.run(cpu, func() { copyPieces(copiers, n, copyThenSum, pieces(back), pieces(shared[at:])) })
		ask := query(p, n)
		restored.run(cpu, func() {
			a, err := s.Query(ctx, ask)
			if err != nil || a.Lease == nil || int(a.Lease.Hits[0]) != n {
				b.Fatalf("%+v, %v", a, err)
			}
			if err := restore(a.Lease); err != nil {
				b.Fatal(err)
			}
		})
	}
	if !bytes.Equal(src, dst) {
		b.Fatal("what was restored is not what was published")
	}
	b.ReportMetric(float64(total)/1e9/median(out.wall).Seconds(), "loop-GB/s")
	b.ReportMetric(median(in.wall).Seconds()/median(published.wall).Seconds(), "publish-share")
	b.ReportMetric(median(out.wall).Seconds()/median(restored.wall).Seconds(), "restore-share")
	b.ReportMetric(median(inOnce.wall).Seconds()/median(published.wall).Seconds(), "publish-one-pass-share")
	b.ReportMetric(median(outOnce.wall).Seconds()/median(restored.wall).Seconds(), "restore-one-pass-share")
	b.ReportMetric(in.cpu.Seconds()/published.cpu.Seconds(), "publish-cpu-share")
	b.ReportMetric(out.cpu.Seconds()/restored.cpu.Seconds(), "restore-cpu-share")
	// The best of each: what is left of a machine that others use. The times are a page's.
	b.ReportMetric(slices.Min(in.wall).Seconds()/slices.Min(published.wall).Seconds(), "publish-best-share")
	b.ReportMetric(slices.Min(out.wall).Seconds()/slices.Min(restored.wall).Seconds(), "restore-best-share")
	for name, t := range map[string]*timed{
		"loop-in": &in, "publish": &published, "loop-out": &out, "restore": &restored, "one-pass-in": &inOnce, "one-pass-out": &outOnce,
	} {
		b.ReportMetric(float64(t.here.Nanoseconds())/float64(n), name+"-client-ns")
		b.ReportMetric(float64(slices.Min(t.wall).Nanoseconds())/float64(n), name+"-ns")
		if t.there > 0 {
			b.ReportMetric(float64(t.there.Nanoseconds())/float64(n), name+"-manager-ns")
		}
	}
}

var (
	sums atomic.Uint64
	sink uint64
)
