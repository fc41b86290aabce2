//go:build linux

// Command cache measures what the Cache Manager costs beside its pool: it starts a built `perigee cache`, fills it over the channel from
// many sessions, twice, so that the first pages have to go, and reads the process's own memory and processor time from the kernel.
//
//	CGO_ENABLED=0 go build -o /tmp/perigee ./cmd/perigee && go run ./bench/cache --perigee /tmp/perigee
//
// What is aimed at is 200 bytes of memory a page outside of the pool, everything that the process has included, and a hundredth of a core while nothing happens.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/perigee-llm/perigee/internal/cache/channel/client"
	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/cache/state"
)

var (
	perigee  = flag.String("perigee", "perigee", "the binary to measure")
	pages    = flag.Int("pages", 100_000, "resident pages")
	sessions = flag.Int("sessions", 64, "sessions, with two connections each")
	page     = flag.Int("page", 4096, "bytes of a page")
	idle     = flag.Duration("idle", 20*time.Second, "how long to look at an idle Manager")
)

func main() {
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	few, err := measure(*sessions*16, 0)
	if err != nil {
		return err
	}
	all, err := measure(*pages, *idle)
	if err != nil {
		return err
	}
	more := float64(*pages - *sessions*16)
	fmt.Printf("a page costs %.0f bytes, and the rest %.1f MiB\n", float64(all-few)/more, (float64(few)-float64(all-few)/more*float64(*sessions*16))/(1<<20))
	return nil
}

// measure fills a Manager with about so many pages, restores each once, looks at it at rest, and returns the bytes of its own that it takes then.
func measure(pages int, idle time.Duration) (own int64, err error) {
	dir, err := os.MkdirTemp("", "perigee-bench")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	each := (pages + *sessions - 1) / *sessions
	socket := filepath.Join(dir, "s")
	slot := (*page + 4095) / 4096 * 4096
	// One session's part of what queries may hold is less than a prompt where the pool is small.
	config := filepath.Join(dir, "cache.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "instance_bytes: %d\n", each**sessions*slot*3/4), 0o600); err != nil {
		return 0, err
	}
	cmd := exec.Command(*perigee, "cache", "--config", config, "--socket", socket, "--pool-bytes", strconv.Itoa(each**sessions*slot), "--instances", strconv.Itoa(*sessions))
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		return 0, fmt.Errorf("the Manager does not start: %w", err)
	}
	m := &manager{pid: cmd.Process.Pid, socket: socket, each: each}
	defer m.close()
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"empty", func() error { return nil }}, {"with its sessions", m.dial}, {fmt.Sprint("with ", each**sessions, " pages"), m.publish},
		{"after a restore of each", m.restore}, {"with others in their place", m.replace}, {"at rest", func() error { return m.rest(idle) }},
	} {
		if err := step.do(); err != nil {
			return 0, fmt.Errorf("%s: %w", step.name, err)
		}
		if own, err = anonymous(m.pid); err != nil {
			return 0, err
		}
		fmt.Printf("%-26s %6.1f MiB of its own, %4.0f bytes a page\n", step.name, float64(own)/(1<<20), float64(own)/float64(each**sessions))
	}
	return own, nil
}

// manager is one that is measured, and its clients.
type manager struct {
	pid    int
	socket string
	each   int // pages of a session
	first  int // of the pages that are there now
	open   []*client.Session
}

func (m *manager) close() {
	for _, s := range m.open {
		s.Close()
	}
}

func (m *manager) dial() error {
	for i := range *sessions {
		o := client.Options{Socket: m.socket, Instance: fmt.Sprint("bench-", i), Ranks: namespace(uint64(*page)), Model: "m"}
		s, err := client.Dial(context.Background(), o)
		if err != nil {
			return err
		}
		m.open = append(m.open, s)
	}
	return nil
}

// prompts calls f for each prompt: its first block and how many it has.
func (m *manager) prompts(f func(s *client.Session, from, n int) error) error {
	for i, s := range m.open {
		for from := 0; from < m.each; from += chain {
			if err := f(s, m.first+i*m.each+from, min(chain, m.each-from)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *manager) publish() error {
	data := make([]byte, *page)
	return m.prompts(func(s *client.Session, from, n int) error {
		got, err := s.PublishPages(context.Background(), prompt(from, n), func(int) ([]byte, error) { return data, nil })
		if err == nil && int(got.Sealed) != n {
			err = fmt.Errorf("of %d blocks: %+v", n, got)
		}
		return err
	})
}

func (m *manager) restore() error {
	data := make([]byte, *page)
	return m.prompts(func(s *client.Session, from, n int) error { return restore(s, from, n, data) })
}

// replace publishes as many pages again, for which all that are there go, and restores them: what the Manager remembers of those that have gone is
// memory, too.
func (m *manager) replace() error {
	m.first += m.each * *sessions
	if err := m.publish(); err != nil {
		return err
	}
	return m.restore()
}

// rest looks at the Manager while nothing happens.
func (m *manager) rest(idle time.Duration) error {
	time.Sleep(settle)
	if idle == 0 {
		return nil
	}
	before, err := cpu(m.pid)
	if err != nil {
		return err
	}
	time.Sleep(idle)
	after, err := cpu(m.pid)
	fmt.Printf("at rest it takes %.3f %% of a core\n", 100*(after-before).Seconds()/idle.Seconds())
	return err
}

// settle is after how long what it had to do is done: it gives back what it does not need at rest when half a second has passed in silence, and ten since
// the last time.
const settle = 12 * time.Second

// chain is how many blocks a prompt has.
const chain = 512

func hash(n int) (h core.Hash) {
	binary.LittleEndian.PutUint64(h[:], uint64(n+1)*0x9e3779b97f4a7c15)
	binary.LittleEndian.PutUint64(h[24:], uint64(n+1))
	return h
}

func prompt(from, n int) *client.Publish {
	p := &client.Publish{}
	for i := range n {
		b := wire.Block{Hash: hash(from + i), Tokens: make([]uint32, 16)}
		b.Tokens[0] = uint32(from + i)
		if i > 0 {
			b.Parent = hash(from + i - 1)
		}
		p.Blocks = append(p.Blocks, b)
	}
	return p
}

func restore(s *client.Session, from, n int, to []byte) error {
	w := core.Want{}
	for i := range n {
		w.Hashes = append(w.Hashes, hash(from+i))
	}
	a, err := s.Query(context.Background(), &wire.Query{Mode: core.Prefix, Consumers: 1, Wants: []core.Want{w}})
	if err != nil {
		return err
	}
	if a.Lease == nil || int(a.Lease.Hits[0]) != n {
		return fmt.Errorf("asked for %d blocks: %+v", n, a)
	}
	return s.RestoreTo(context.Background(), a.Lease, 0, func(int, int) ([]byte, error) { return to, nil })
}

func namespace(page uint64) []state.Namespace {
	one := state.Rank{Size: 1}
	return []state.Namespace{{
		Engine: state.Engine{Name: "bench", Version: "1"}, Model: state.Model{Content: state.Digest{1}},
		Compute: state.Compute{DType: "bfloat16", Device: "cpu", ISA: "none", Attention: "none"},
		Hash:    state.HashScheme{Algorithm: "sha256", Tokens: 16},
		Shard:   state.Shard{Tensor: one, Pipeline: one, DecodeContext: one, PrefillContext: one, Heads: one},
		Layout: state.Layout{Order: "HND", KVDType: "bfloat16", Format: state.FormatRaw, BlockTokens: 16, Groups: []state.Group{
			{Components: state.Of(state.AttentionKV), Rule: state.RulePrefix, Segments: []state.Segment{{DType: "bfloat16", Bytes: page}}}}},
	}}
}

// anonymous is the memory of a process that is neither a file's nor shared: heap, stacks, and what the runtime keeps.
func anonymous(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "RssAnon:" {
			n, err := strconv.ParseInt(f[1], 10, 64)
			return n << 10, err
		}
	}
	return 0, fmt.Errorf("the kernel says no RssAnon of %d", pid)
}

// cpu is the processor time that a process has had.
func cpu(pid int) (time.Duration, error) {
	var t unix.Timespec
	// The clock of a process: see clock_getcpuclockid(3).
	err := unix.ClockGettime(int32(^pid<<3|2), &t)
	return time.Duration(t.Nano()), err
}
