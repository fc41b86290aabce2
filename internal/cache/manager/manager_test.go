//go:build linux

package manager

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/perigee-llm/perigee/internal/cache/channel/client"
	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/cache/state"
)

func TestPublishAndRestore(t *testing.T) {
	m := begin(t)
	s := m.dial()
	got, err := publish(s, prompt(1, 0, 10))
	if err != nil || got.Sealed != 10 || got.Chain.IsZero() {
		t.Fatalf("%+v, %v", got, err)
	}
	if n, err := restore(s, 1, 12); n != 10 || err != nil {
		t.Fatalf("restored %d: %v", n, err)
	}
	if n, err := restore(s, 2, 5); n != 0 || err != nil {
		t.Fatalf("of a prompt that is not there: %d, %v", n, err)
	}
	again, err := publish(s, prompt(1, 8, 12))
	if err != nil || again.Present != 2 || again.Sealed != 2 {
		t.Fatalf("published again: %+v, %v", again, err)
	}
	s.Close()
	m.settled()

	// The next engine of the same kind takes the arena over with what is in it.
	s = m.dial()
	if n, err := restore(s, 1, 12); n != 12 || err != nil {
		t.Fatalf("after the engine's restart: %d, %v", n, err)
	}
}

// TestOthersArena: an engine restores what another one of the same kind has published, and can only read it; one of another kind does not
// even get to read.
func TestOthersArena(t *testing.T) {
	m := begin(t, func(o *Options) { o.Instances = 3 })
	a, b := m.dial(named("a")), m.dial(named("b"))
	if _, err := publish(a, prompt(1, 0, 4)); err != nil {
		t.Fatal(err)
	}
	if n, err := restore(b, 1, 4); n != 4 || err != nil {
		t.Fatalf("restored %d: %v", n, err)
	}
	other := raw(m, func(o *client.Options) { o.Instance, o.Ranks = "c", namespaces(1, 2*pageBytes) })
	for id := range uint32(2) {
		if r := other.refused(&wire.MapArenas{Arenas: []uint32{id}}); r.Class != wire.Invalid {
			t.Errorf("a stranger maps arena %d: %v", id, r)
		}
	}
	same := raw(m, func(o *client.Options) { o.Join = ptr(a.Credentials()) })
	same.say(&wire.MapArenas{Arenas: []uint32{1}})
	ans, files := same.hear()
	if arenas, ok := ans.(*wire.Arenas); !ok || len(arenas.Arenas) != 1 || len(files) != 1 {
		t.Fatalf("%+v", ans)
	}
	if _, err := unix.Mmap(int(files[0].Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); !errors.Is(err, unix.EACCES) {
		t.Errorf("another's arena is mapped for writing: %v", err)
	}
}

// TestFlippedBit: what was changed behind the Manager's back is not served, and computed anew.
func TestFlippedBit(t *testing.T) {
	m := begin(t, func(o *Options) { o.Instances = 2 })
	s := m.dial()
	if _, err := publish(s, prompt(1, 0, 8)); err != nil {
		t.Fatal(err)
	}
	slot := m.slotOf(hashOf(1, 5))
	m.mem.RLock()
	m.mem.arenas[slot.Arena].Slot(slot.Index, pageBytes)[pageBytes-1] ^= 4
	m.mem.RUnlock()
	if _, err := restore(s, 1, 8); !errors.Is(err, client.ErrSpoiled) {
		t.Fatalf("a flipped bit was served: %v", err)
	}
	m.until("the page is dropped", func(st Status) bool { return st.Stats.Removed[core.Corrupted] == 1 && st.Spoiled == 1 })
	if n, err := restore(s, 1, 8); n != 5 || err != nil {
		t.Fatalf("what is before it: %d, %v", n, err)
	}
	if got, err := publish(s, prompt(1, 5, 6)); err != nil || got.Sealed != 1 {
		t.Fatalf("published anew: %+v, %v", got, err)
	}
	if n, err := restore(s, 1, 8); n != 8 || err != nil {
		t.Fatalf("all of it again: %d, %v", n, err)
	}
	s.Close()
	m.settled()
}

// slotOf finds a block's slot in what the Manager was told: by asking for a lease, as any client does.
func (m *tester) slotOf(h core.Hash) core.SlotRef {
	m.t.Helper()
	c := raw(m, named("prober"), func(o *client.Options) { o.PoolBytes = 8192 })
	defer c.goodbye()
	c.say(&wire.Query{Ticket: core.Ticket{Op: 1, Revision: 1}, Mode: core.Prefix, Consumers: 1, Wants: []core.Want{{Hashes: []core.Hash{h}}}})
	ready, _ := c.hear()
	c.say(&wire.Start{Lease: ready.(*wire.Ready).Lease})
	plan, _ := c.hear()
	c.say(&wire.Copied{Lease: ready.(*wire.Ready).Lease})
	c.hear()
	return plan.(*wire.Plan).Slots[0].Slot
}

func TestRanksAndGroups(t *testing.T) {
	m := begin(t, func(o *Options) { o.PoolBytes = 4 << 20 })
	ranks := namespaces(2, 5000, 9000)
	one := m.dial(func(o *client.Options) { o.Ranks = ranks })
	two := m.dial(func(o *client.Options) { o.Ranks, o.Join = ranks, ptr(one.Credentials()) })
	blocks := func(part uint32) *client.Publish {
		p := prompt(1, 0, 4)
		for g1 := 2; g1 < 4; g1++ { // the window's last two
			b := p.Blocks[g1]
			b.Group = 1
			p.Blocks = append(p.Blocks, b)
		}
		p.Part = part
		return p
	}
	done := make(chan error, 2)
	for part, s := range []*client.Session{one, two} {
		go func() {
			_, err := publish(s, blocks(uint32(part)))
			done <- err
		}()
	}
	if err := errors.Join(<-done, <-done); err != nil {
		t.Fatal(err)
	}
	contract := m.contractOf(t, ranks)
	demand, err := contract.Demand(state.Span{End: 4 * blockTokens})
	if err != nil {
		t.Fatal(err)
	}
	q := &wire.Query{Mode: core.Exact, Consumers: 2, Demand: demand, Wants: []core.Want{{Group: 0, Hashes: hashes(1, 4)}, {Group: 1, Hashes: hashes(1, 4)[2:]}}}
	a, err := one.Query(context.Background(), q)
	if err != nil || a.Lease == nil || !slices.Equal(a.Lease.Hits, []uint32{4, 2}) {
		t.Fatalf("%+v, %v", a, err)
	}
	for part, s := range []*client.Session{one, two} {
		go func() {
			want := make([]byte, 9000)
			done <- s.Restore(context.Background(), a.Lease, uint32(part), func(i int, page []byte) error {
				g, at := uint32(0), i
				if i >= 4 {
					g, at = 1, i-2
				}
				fill(want[:len(page)], hashOf(1, at), g, uint32(part))
				if len(page) != []int{5000, 9000}[g] || string(page) != string(want[:len(page)]) {
					return errors.New("another page")
				}
				return nil
			})
		}()
	}
	if err := errors.Join(<-done, <-done); err != nil {
		t.Fatal(err)
	}
	// A demand that is not what the contract requires is refused before anything is held.
	q.Demand.Ranges[1].Span.Start = 0
	if _, err := one.Query(context.Background(), q); client.ClassOf(err) != wire.BadDemand {
		t.Errorf("a wrong range: %v", err)
	}
	one.Close()
	two.Close()
	m.settled()
}

func (m *tester) contractOf(t *testing.T, ranks []state.Namespace) *state.Contract {
	t.Helper()
	var enc [][]byte
	for i := range ranks {
		b, err := ranks[i].Encode()
		if err != nil {
			t.Fatal(err)
		}
		enc = append(enc, b)
	}
	id, err := identify(enc)
	if err != nil {
		t.Fatal(err)
	}
	return id.contract
}

// kept is what a log has had so far.
type kept struct {
	mu    sync.Mutex
	lines strings.Builder
}

func (k *kept) Write(b []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lines.Write(b)
}

func (k *kept) String() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lines.String()
}

// TestRefusedInTheLog: an engine that gets no part of the pool works without the Manager, and the Manager's operator is told.
func TestRefusedInTheLog(t *testing.T) {
	var log kept
	m := begin(t, func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	m.dial()
	if _, err := m.tryDial(named("second")); client.ClassOf(err) != wire.NoPool {
		t.Fatalf("the whole pool is an instance's: %v", err)
	}
	m.Close() // the log is complete then
	if said := log.String(); !strings.Contains(said, `level=WARN msg="instance refused" instance=second class=no_pool`) {
		t.Errorf("the log has\n%s", said)
	}
}

// TestReplaced: a vacant arena of another kind makes room, and what was in it is gone; its id names no memory again.
func TestReplaced(t *testing.T) {
	m := begin(t)
	s := m.dial()
	if _, err := publish(s, prompt(1, 0, 4)); err != nil {
		t.Fatal(err)
	}
	if _, err := m.tryDial(named("second")); client.ClassOf(err) != wire.NoPool {
		t.Fatalf("the whole pool is an instance's: %v", err)
	}
	s.Close()
	m.settled()
	s = m.dial(named("other kind"), func(o *client.Options) { o.Ranks = namespaces(1, 6000, 7000) })
	if st := m.Status(); len(st.Arenas) != 1 || st.Usage.Blocks != 0 || st.Arenas[0].ID == 0 {
		t.Fatalf("%+v", st)
	}
	s.Close()
	m.settled()
	s = m.dial()
	if n, err := restore(s, 1, 4); n != 0 || err != nil {
		t.Fatalf("restored %d from an arena that was replaced: %v", n, err)
	}
}

func TestTooSmall(t *testing.T) {
	m := begin(t, func(o *Options) { o.PoolBytes = 4096 })
	if _, err := m.tryDial(); client.ClassOf(err) != wire.PoolTooSmall {
		t.Fatalf("a pool smaller than a page: %v", err)
	}
}

// TestMemoryFull: without memory there is no registration, nothing leaks, and when there is some it works.
func TestMemoryFull(t *testing.T) {
	var full atomic.Bool
	full.Store(true)
	m := begin(t, func(o *Options) {
		o.Pool.FailForTesting = func(step string) error {
			if full.Load() && step == "mmap" {
				return unix.ENOMEM
			}
			return nil
		}
	})
	for range 3 {
		if _, err := m.tryDial(); client.ClassOf(err) != wire.NoPool {
			t.Fatalf("without memory: %v", err)
		}
	}
	full.Store(false)
	s := m.dial()
	if got, err := publish(s, prompt(1, 0, 4)); err != nil || got.Sealed != 4 {
		t.Fatalf("%+v, %v", got, err)
	}
	s.Close()
	m.settled()
}

// TestEviction: a full pool drops leaves, and what is leased stays what it is.
func TestEviction(t *testing.T) {
	m := begin(t, func(o *Options) { o.PoolBytes = 16 * 8192 })
	s := m.dial()
	if _, err := publish(s, prompt(1, 0, 8)); err != nil {
		t.Fatal(err)
	}
	a, err := s.Query(context.Background(), query(1, 8))
	if err != nil || a.Lease == nil {
		t.Fatal(err)
	}
	for p := 2; p < 12; p++ {
		if _, err := publish(s, prompt(p, 0, 6)); err != nil {
			t.Fatal(err)
		}
		if _, err := restore(s, p, 4); err != nil { // queries may hold three quarters of the pool
			t.Fatal(err)
		}
	}
	n := 0
	err = s.Restore(context.Background(), a.Lease, 0, func(i int, page []byte) error {
		want := make([]byte, pageBytes)
		fill(want, hashOf(1, i), 0, 0)
		if string(want) != string(page) {
			return errors.New("a leased page has changed")
		}
		n++
		return nil
	})
	if err != nil || n != 8 {
		t.Fatalf("%d pages, %v", n, err)
	}
	s.Close()
	m.settled()
}

// TestManagerRestarts under a live client: its calls end as lost, its old mappings harm nobody, and it registers again.
func TestManagerRestarts(t *testing.T) {
	m := begin(t)
	s := m.dial()
	if _, err := publish(s, prompt(1, 0, 4)); err != nil {
		t.Fatal(err)
	}
	a, err := s.Query(context.Background(), query(1, 4))
	if err != nil || a.Lease == nil {
		t.Fatal(err)
	}
	old := s.Credentials()
	m.Close()
	<-s.Done()
	for what, err := range map[string]error{
		"query":   second(s.Query(context.Background(), query(1, 4))),
		"restore": s.Restore(context.Background(), a.Lease, 0, func(int, []byte) error { return nil }),
		"publish": second(publish(s, prompt(1, 4, 5))),
	} {
		if !errors.Is(err, client.ErrLost) {
			t.Errorf("%s: %v", what, err)
		}
	}
	next := begin(t, func(o *Options) { o.Socket = m.opt.Socket })
	if _, err := next.tryDial(func(o *client.Options) { o.Join = &old }); client.ClassOf(err) != wire.StaleSession {
		t.Errorf("an old session joins the new Manager: %v", err)
	}
	s2 := next.dial()
	if n, err := restore(s2, 1, 4); n != 0 || err != nil {
		t.Errorf("the new Manager has %d pages: %v", n, err)
	}
}

// TestNothingIsLeft: a memfd has no name, and the socket goes with a clean end.
func TestNothingIsLeft(t *testing.T) {
	before := shm(t)
	m := begin(t)
	m.dial()
	if during := shm(t); during > before {
		t.Errorf("something appeared in /dev/shm")
	}
	m.Close()
	if left, _ := filepath.Glob(m.opt.Socket + "*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestSameInstanceTwice(t *testing.T) {
	m := begin(t, func(o *Options) { o.Instances = 2 })
	m.dial()
	if _, err := m.tryDial(); client.ClassOf(err) != wire.InstanceBusy {
		t.Fatalf("two engines of one name: %v", err)
	}
}

func TestBadIdentity(t *testing.T) {
	m := begin(t)
	hello := m.connect()
	r := hello.refused(&wire.Register{Instance: "x", Ranks: [][]byte{[]byte("no namespace")}})
	if r.Class != wire.BadIdentity || !strings.Contains(r.Text, "namespace") {
		t.Errorf("%+v", r)
	}
	if r := hello.refused(&wire.Register{Instance: "x"}); r.Class != wire.BadIdentity {
		t.Errorf("no ranks: %+v", r)
	}
}

func ptr[T any](v T) *T { return &v }

func second[T any](_ T, err error) error { return err }

// shm counts what is in /dev/shm.
func shm(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/dev/shm")
	if err != nil {
		t.Skip("no /dev/shm here")
	}
	return len(all)
}
