//go:build linux

package manager

import (
	"context"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/perigee-llm/perigee/internal/cache/channel/client"
	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/script"
)

// victimOf has a session with pages, leases and grants that others try to get at.
func victimOf(m *tester) (s *client.Session, lease *client.Lease) {
	m.t.Helper()
	s = m.dial(named("honest"))
	if _, err := publish(s, prompt(1, 0, 8)); err != nil {
		m.t.Fatal(err)
	}
	a, err := s.Query(context.Background(), query(1, 4))
	if err != nil || a.Lease == nil {
		m.t.Fatal(err)
	}
	return s, a.Lease
}

// TestForged: leases, slots, sessions and epochs that are not the client's are refused by their class.
func TestForged(t *testing.T) {
	m := begin(t, func(o *Options) { o.Instances = 2 })
	s, lease := victimOf(m)
	c := raw(m)
	for what, r := range map[string]*wire.Refused{
		"another's lease":   c.refused(&wire.Start{Lease: lease.ID}),
		"its release":       c.refused(&wire.Release{Lease: lease.ID}),
		"its end":           c.refused(&wire.Copied{Lease: lease.ID}),
		"an older lease":    c.refused(&wire.Start{Lease: core.LeaseID{Index: lease.ID.Index, Gen: lease.ID.Gen - 1}}),
		"one beyond all":    c.refused(&wire.Start{Lease: core.LeaseID{Index: 1 << 31, Gen: 1}}),
		"a query's lack":    c.refused(&wire.Query{Mode: core.Prefix, Consumers: 1}),
		"an unknown mode":   c.refused(&wire.Query{Ticket: core.Ticket{Op: 1, Revision: 1}, Mode: 99, Consumers: 1, Wants: []core.Want{{Hashes: hashes(1, 1)}}}),
		"a role":            c.refused(&wire.Seal{Slots: []wire.Sealed{{}}}),
		"no descriptor":     c.refused(&wire.OfferPool{Pool: 1, Bytes: 1 << 40}),
		"register again":    c.refused(&wire.Register{Instance: "x"}),
		"a Manager's words": c.refused(&wire.Registered{}),
	} {
		want := map[string]wire.Class{
			"another's lease": wire.StaleLease, "its release": wire.StaleLease, "its end": wire.StaleLease, "an older lease": wire.StaleLease,
			"one beyond all": wire.StaleLease, "a query's lack": wire.Invalid, "an unknown mode": wire.Invalid, "a role": wire.WrongRole,
			"no descriptor": wire.BadPool, "register again": wire.WrongRole, "a Manager's words": wire.WrongRole,
		}[what]
		if r.Class != want {
			t.Errorf("%s: %s, want %s", what, r.Class, want)
		}
	}
	good := c.head
	c.head.Epoch++
	if r := c.refused(&wire.Query{}); r.Class != wire.StaleSession {
		t.Errorf("another epoch: %s", r.Class)
	}
	c.head = good
	c.head.Session-- // the honest one's
	if r := c.refused(&wire.Release{Lease: lease.ID}); r.Class != wire.StaleSession {
		t.Errorf("another session: %s", r.Class)
	}
	p := m.connect()
	p.head.Session = good.Session - 1
	if r := p.refused(&wire.Attach{Role: wire.RolePublish}); r.Class != wire.StaleSession {
		t.Errorf("a token of zeros: %s", r.Class)
	}
	p.attach(s.Credentials(), wire.RolePublish)
	for _, slot := range []core.SlotRef{{}, {Gen: 1}, {Arena: 77}, {Index: 1 << 30}, {Arena: ^uint32(0), Index: ^uint32(0), Gen: ^uint32(0)}} {
		if r := p.refused(&wire.Seal{Slots: []wire.Sealed{{Slot: slot}}}); r.Class != wire.StaleSlot {
			t.Errorf("slot %+v: %s", slot, r.Class)
		}
	}
	if r := p.refused(&wire.Publish{Op: 1, Part: 9, Blocks: []wire.Block{{Hash: hashOf(1, 1)}}}); r.Class != wire.Invalid {
		t.Errorf("a part that is not: %s", r.Class)
	}
	if n, err := restore(s, 1, 8); n != 8 || err != nil {
		t.Errorf("the honest one restores %d: %v", n, err)
	}
}

// TestMadeUpConsumers: a client that ends restores for consumers that there are not is refused, and nothing is kept of them.
func TestMadeUpConsumers(t *testing.T) {
	m := begin(t)
	s, lease := victimOf(m)
	cred := s.Credentials()
	c := raw(m, func(o *client.Options) { o.Join = &cred })
	c.say(&wire.Take{Lease: lease.ID})
	if a, _ := c.hear(); a.Kind() != wire.KindPlan {
		t.Fatalf("%+v", a)
	}
	for i := range uint32(3 * core.MaxParts) {
		if r := c.refused(&wire.Copied{Lease: lease.ID, Consumer: 1 + i}); r.Class != wire.Invalid {
			t.Fatalf("consumer %d: %s", i, r.Class)
		}
	}
	m.locked(func() {
		if n := len(m.mu.sessions[cred.Session].restores[lease.ID].by); n > core.MaxParts {
			t.Errorf("%d wait for the end of a restore by one", n)
		}
	})
}

// TestRevised: of a query that was replaced by one which is answered at once, whatever the answer, nothing is kept.
func TestRevised(t *testing.T) {
	m := begin(t, func(o *Options) { o.Core.Budgets.Total = 4 * 8192 })
	s, _ := victimOf(m) // its lease has all the bytes
	cred := s.Credentials()
	c := raw(m, func(o *client.Options) { o.Join = &cred })
	ask := func(op, revision uint64, mode core.Mode, first int, want wire.Kind) {
		t.Helper()
		q := query(first, 4)
		q.Ticket, q.Mode = core.Ticket{Op: op, Revision: revision}, mode
		c.say(q)
		if a, _ := c.hear(); a.Kind() != want {
			t.Fatalf("operation %d, revision %d: %T %+v", op, revision, a, a)
		}
	}
	for i, mode := range []core.Mode{core.Warm, core.Discover, core.Prefix} {
		op := 100 + uint64(i)
		ask(op, 1, core.Prefix, 1, wire.KindLoading)
		kind := map[core.Mode]wire.Kind{core.Warm: wire.KindBusy, core.Discover: wire.KindCandidates, core.Prefix: wire.KindReady}[mode]
		prompt := 1
		if mode == core.Prefix {
			prompt = 2 // which is not there
		}
		ask(op, 2, mode, prompt, kind)
	}
	m.locked(func() {
		if n := len(m.mu.sessions[cred.Session].queries); n > 0 {
			t.Errorf("%d queries are waited for, and none is under way", n)
		}
	})
}

// TestCancelOfAnOlderRevision: it is passed over, and the query that took its place is answered when it can be.
func TestCancelOfAnOlderRevision(t *testing.T) {
	m := begin(t, func(o *Options) { o.Core.Budgets.Total = 4 * 8192 })
	s, lease := victimOf(m) // it has all the bytes
	cred := s.Credentials()
	c := raw(m, func(o *client.Options) { o.Join = &cred })
	for revision := range uint64(2) {
		q := query(1, 4)
		q.Ticket = core.Ticket{Op: 100, Revision: 1 + revision}
		c.say(q)
		if a, _ := c.hear(); a.Kind() != wire.KindLoading {
			t.Fatalf("%T %+v", a, a)
		}
	}
	for _, revision := range []uint64{1, 3} {
		c.say(&wire.Cancel{Ticket: core.Ticket{Op: 100, Revision: revision}})
	}
	c.say(&wire.Ping{}) // both are taken when it is answered
	if a, _ := c.hear(); a.Kind() != wire.KindPong {
		t.Fatalf("%T %+v", a, a)
	}
	c.say(&wire.Release{Lease: lease.ID})
	if a, _ := c.hear(); a == nil || a.Kind() != wire.KindReady {
		t.Errorf("%T %+v", a, a)
	}
}

// TestHostileFrames sends rubbish of many kinds: each connection ends or is told, and the honest one notices nothing.
func TestHostileFrames(t *testing.T) {
	m := begin(t, func(o *Options) { o.Instances = 2 })
	s, _ := victimOf(m)
	r := script.Rand(t)
	hello := wire.Append(nil, wire.Header{}, &wire.Hello{MinVersion: 1, MaxVersion: 1})
	first := map[string][]byte{
		"nothing":           nil,
		"zeros":             make([]byte, 64),
		"a long claim":      {0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 31: 0},
		"http":              []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
		"no hello":          wire.Append(nil, wire.Header{}, &wire.Ping{}),
		"a version to come": wire.Append(nil, wire.Header{}, &wire.Hello{MinVersion: 2, MaxVersion: 9}),
		"cut":               hello[:len(hello)-1],
		"register cut":      append(hello[:len(hello):len(hello)], 0, 0, 0xff, 0, 2, 0, 0, 0, 0),
	}
	for range 50 {
		b := make([]byte, 1+r.IntN(300))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		first["random "+string(rune('0'+len(first)))] = append(hello[:len(hello):len(hello)], b...)
	}
	for what, b := range first {
		c, err := net.Dial("unix", m.opt.Socket)
		if err != nil {
			t.Fatal(err)
		}
		c.Write(b)
		c.(*net.UnixConn).CloseWrite()
		c.SetReadDeadline(time.Now().Add(patience))
		buf := make([]byte, 4096)
		for err == nil {
			_, err = c.Read(buf)
		}
		if e, ok := err.(net.Error); ok && e.Timeout() {
			t.Errorf("%s: the connection stays", what)
		}
		c.Close()
	}
	if n, err := restore(s, 1, 8); n != 8 || err != nil {
		t.Errorf("the honest one restores %d: %v", n, err)
	}
}

// TestUnread: a client that asks and never reads loses its connection, when more waits than is kept, and nobody waits for it.
func TestUnread(t *testing.T) {
	m := begin(t, func(o *Options) { o.Instances = 2 })
	s, _ := victimOf(m)
	c := raw(m)
	c.uc.SetWriteDeadline(time.Now().Add(time.Second))
	b := wire.Append(nil, c.head, &wire.MapArenas{Arenas: []uint32{1 << 30}})
	for range 1 << 20 {
		if _, err := c.uc.Write(b); err != nil {
			break // it stopped reading us, as we do it
		}
	}
	if n, err := restore(s, 1, 8); n != 8 || err != nil {
		t.Errorf("the honest one restores %d: %v", n, err)
	}
	c.close()
	m.until("the stuck one is lost", func(st Status) bool { return len(st.Sessions) < 2 || st.Sessions[1].Lost })
}

// TestSilent: a connection that never becomes part of a session is let go.
func TestGreetingIsBounded(t *testing.T) {
	m := begin(t)
	m.connect() // says Hello, and no more
	c, err := net.Dial("unix", m.opt.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	m.until("both are let go", func(st Status) bool { return st.Connections == 0 })
}

// TestDescriptors: those that a client sends are dropped, and when the process has none left for new connections, the old ones go on.
func TestDescriptors(t *testing.T) {
	m := begin(t)
	s := m.dial()
	if _, err := publish(s, prompt(1, 0, 4)); err != nil {
		t.Fatal(err)
	}
	c := m.connect()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	before := descriptors(t)
	for range 20 {
		c.head.Ref++
		fd := int(null.Fd())
		if _, _, err := c.uc.WriteMsgUnix(wire.Append(nil, c.head, &wire.Ping{}), unix.UnixRights(fd, fd, fd, fd), nil); err != nil {
			t.Fatal(err)
		}
		if a, _ := c.hear(); a.Kind() != wire.KindPong {
			t.Fatalf("%+v", a)
		}
	}
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	full := limit
	full.Cur = uint64(highest(t)) + 3
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &full); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	var all []net.Conn
	for range 8 {
		conn, err := net.Dial("unix", m.opt.Socket)
		if err != nil {
			break
		}
		all = append(all, conn)
	}
	if n, err := restore(s, 1, 4); n != 4 || err != nil {
		t.Errorf("without descriptors: restored %d, %v", n, err)
	}
	for _, conn := range all {
		conn.Close()
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	m.connect() // and new ones are served again
}

func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// highest is the highest descriptor in use.
func highest(t *testing.T) (n int) {
	t.Helper()
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, _ := os.ReadDir("/proc/self/fd")
	for _, e := range all {
		i := 0
		for _, c := range e.Name() {
			i = 10*i + int(c-'0')
		}
		n = max(n, i)
	}
	return n
}
