//go:build linux

package manager

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/perigee-llm/perigee/internal/cache/channel/client"
	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/cache/state"
)

func TestMain(m *testing.M) {
	if step := os.Getenv("PERIGEE_TEST_VICTIM"); step != "" {
		victim(step, os.Getenv("PERIGEE_TEST_SOCKET"))
		return
	}
	goleak.VerifyTestMain(m)
}

// patience is how long tests wait for what has to come: far longer than a machine with a load of 40 needs.
const patience = 2 * time.Minute

const (
	blockTokens = 16
	pageBytes   = 5000 // no multiple of anything
)

// namespaces are an instance of some ranks whose pages have so many bytes, with a group for each.
func namespaces(ranks int, pages ...uint64) []state.Namespace {
	var out []state.Namespace
	for r := range ranks {
		one := state.Rank{Index: 0, Size: 1}
		n := state.Namespace{
			Engine: state.Engine{Name: "test", Version: "1"}, Model: state.Model{Content: state.Digest{1}},
			Compute: state.Compute{DType: "bfloat16", Device: "cpu", ISA: "avx2", Attention: "plain"},
			Hash:    state.HashScheme{Algorithm: "sha256", Tokens: blockTokens},
			Shard:   state.Shard{Tensor: state.Rank{Index: uint32(r), Size: uint32(ranks)}, Pipeline: one, DecodeContext: one, PrefillContext: one, Heads: one},
			Layout:  state.Layout{Order: "HND", KVDType: "bfloat16", Format: state.FormatRaw, BlockTokens: blockTokens},
		}
		for g, bytes := range pages {
			group := state.Group{Components: state.Of(state.AttentionKV), Rule: state.RulePrefix, Segments: []state.Segment{{DType: "bfloat16", Bytes: bytes}}}
			if g > 0 {
				group.Components, group.Rule, group.Window = state.Of(state.WindowKV), state.RuleWindow, 20
			}
			n.Layout.Groups = append(n.Layout.Groups, group)
		}
		out = append(out, n)
	}
	return out
}

// tester is a Manager and what tests do with it.
type tester struct {
	*Manager
	t *testing.T
}

func begin(t *testing.T, change ...func(*Options)) *tester {
	t.Helper()
	o := Options{
		Socket: socketPath(t), PoolBytes: 64 * 8192, Log: slog.New(slog.NewTextHandler(testLog{t}, nil)),
	}
	o.Pool.NoPrefault = true
	for _, f := range change {
		f(&o)
	}
	m, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return &tester{m, t}
}

// socketPath is short: a socket's path has at most 107 bytes.
func socketPath(t *testing.T) string {
	dir, err := os.MkdirTemp("", "pm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

type testLog struct{ t *testing.T }

func (l testLog) Write(b []byte) (int, error) {
	l.t.Helper()
	l.t.Logf("%s", bytes.TrimSpace(b))
	return len(b), nil
}

func (m *tester) dial(change ...func(*client.Options)) *client.Session {
	m.t.Helper()
	s, err := m.tryDial(change...)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { s.Close() })
	return s
}

func (m *tester) tryDial(change ...func(*client.Options)) (*client.Session, error) {
	o := client.Options{Socket: m.opt.Socket, Program: "test", Instance: "engine-0", Ranks: namespaces(1, pageBytes), Model: "m"}
	for _, f := range change {
		f(&o)
	}
	return client.Dial(context.Background(), o)
}

func named(name string) func(*client.Options) {
	return func(o *client.Options) { o.Instance = name }
}

// hashOf is the name of block i of prompt p.
func hashOf(p, i int) (h core.Hash) {
	binary.LittleEndian.PutUint64(h[:], uint64(p+1))
	binary.LittleEndian.PutUint64(h[8:], uint64(i+1))
	return h
}

func hashes(p, n int) (out []core.Hash) {
	for i := range n {
		out = append(out, hashOf(p, i))
	}
	return out
}

// fill writes what the page of a block has to hold: a stream that depends on all of its name, group and part.
func fill(b []byte, h core.Hash, group, part uint32) {
	x := binary.LittleEndian.Uint64(h[:])*0x9e3779b97f4a7c15 ^ binary.LittleEndian.Uint64(h[8:])<<17 ^ uint64(group)<<50 ^ uint64(part)<<40 | 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
}

// prompt is a Publish of blocks from to to of a prompt.
func prompt(p, from, to int) *client.Publish {
	pub := &client.Publish{}
	for i := from; i < to; i++ {
		b := wire.Block{Hash: hashOf(p, i), Tokens: make([]uint32, blockTokens)}
		for j := range b.Tokens {
			b.Tokens[j] = uint32(p*1000 + i)
		}
		if i > 0 {
			b.Parent = hashOf(p, i-1)
		}
		pub.Blocks = append(pub.Blocks, b)
	}
	return pub
}

func publish(s *client.Session, pub *client.Publish) (client.Published, error) {
	return s.Publish(context.Background(), pub, func(i int, slot []byte) error {
		fill(slot, pub.Blocks[i].Hash, pub.Blocks[i].Group, pub.Part)
		return nil
	})
}

// query asks for the first n blocks of a prompt.
func query(p, n int) *wire.Query {
	return &wire.Query{Mode: core.Prefix, Consumers: 1, Wants: []core.Want{{Hashes: hashes(p, n)}}}
}

// restore restores what a query for the first n blocks finds, and compares every page. It returns how many there were.
func restore(s *client.Session, p, n int) (int, error) {
	a, err := s.Query(context.Background(), query(p, n))
	if err != nil || a.Lease == nil {
		return 0, err
	}
	seen := 0
	want := make([]byte, pageBytes)
	err = s.Restore(context.Background(), a.Lease, 0, func(i int, page []byte) error {
		fill(want, hashOf(p, i), 0, 0)
		if !bytes.Equal(page, want) {
			return fmt.Errorf("page %d of prompt %d is another", i, p)
		}
		seen++
		return nil
	})
	if err == nil && seen != int(a.Lease.Hits[0]) {
		err = fmt.Errorf("%d pages for a lease on %d", seen, a.Lease.Hits[0])
	}
	return seen, err
}

// settled waits until nobody is registered, and says what is still held then.
func (m *tester) settled() {
	m.t.Helper()
	m.until("no session", func(st Status) bool { return len(st.Sessions) == 0 && st.Connections == 0 && st.Usage.Copies == 0 })
	st := m.Status()
	if u := st.Usage; u.Granted+u.Quarantined+u.Leased+u.Reserved+u.Pinned+u.Queries+u.Offered != 0 || u.Pools != 0 {
		m.t.Errorf("at rest: %+v", u)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.mu.pools)+len(m.mu.copies) != 0 {
		m.t.Errorf("at rest: %d pools and %d copies", len(m.mu.pools), len(m.mu.copies))
	}
	if wrong := m.mu.core.Check(); wrong != "" {
		m.t.Errorf("the books: %s", wrong)
	}
}

// until waits for the status to be as it is wanted.
func (m *tester) until(what string, want func(Status) bool) {
	m.t.Helper()
	deadline := time.Now().Add(patience)
	for !want(m.Status()) {
		if time.Now().After(deadline) {
			m.t.Fatalf("never: %s: %+v", what, m.Status())
		}
		<-time.After(2 * time.Millisecond)
	}
}
