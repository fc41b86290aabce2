//go:build linux

package manager

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/perigee-llm/perigee/internal/cache/channel/client"
	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
)

// TestOffered: what goes in by one route comes out by the other, byte for byte, and a session may have several pools.
func TestOffered(t *testing.T) {
	m := begin(t, func(o *Options) { o.Admin = "127.0.0.1:0" })
	s := m.dial()
	e, other := newMemory(t, 16, pageBytes), newMemory(t, 16, pageBytes)
	e.offer(t, s, 7)
	other.offer(t, s, 8)
	e.fill(1, 0, 6)
	got, err := s.PublishFrom(context.Background(), prompt(1, 0, 6), e.pages(7, 0, 6))
	if err != nil || got.Sealed != 6 || got.Dropped != 0 || got.Chain.IsZero() {
		t.Fatalf("%+v, %v", got, err)
	}
	e.fill(1, 0, 8)
	if got, err = s.PublishFrom(context.Background(), prompt(1, 4, 8), e.pages(7, 4, 8)); err != nil || got.Sealed != 2 || got.Present != 2 {
		t.Fatalf("again, and two more: %+v, %v", got, err)
	}
	for i, there := range got.There {
		if !there {
			t.Errorf("block %d is not there", i)
		}
	}
	if n, err := restore(s, 1, 8); n != 8 || err != nil {
		t.Errorf("by the first route: %d, %v", n, err)
	}
	if _, err := publish(s, prompt(2, 0, 5)); err != nil {
		t.Fatal(err)
	}
	for p, n := range map[int]int{1: 8, 2: 5} {
		if r, err := other.restore(s, 8, p, 3, 9); err != nil || int(r.Good) != n || int(r.Total) != n || r.Outcome != core.Done || other.holds(p, 3, n) != n {
			t.Errorf("prompt %d by the second: %+v, %v", p, r, err)
		}
	}
	// A page in pieces of two pools, of all lengths.
	pages := &core.Pages{Counts: []uint32{pageBytes / 100}}
	for i := range uint32(pageBytes / 100) {
		pages.Pieces = append(pages.Pieces, core.Piece{Pool: 7 + i%2, Offset: uint64(40_000 - 300*i), Length: 100})
	}
	a, err := s.Query(context.Background(), query(1, 1))
	if err != nil {
		t.Fatal(err)
	}
	if r, err := s.RestoreInto(a.Lease, 0, pages); err != nil || r.Good != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	if got, err := s.PublishFrom(context.Background(), prompt(3, 0, 1), pages); err != nil || got.Sealed != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	seen := []byte(nil)
	a, _ = s.Query(context.Background(), query(3, 1))
	s.Restore(context.Background(), a.Lease, 0, func(i int, page []byte) error { seen = append(seen, page...); return nil })
	want := make([]byte, pageBytes)
	if fill(want, hashOf(1, 0), 0, 0); string(seen) != string(want) { // there and back
		t.Error("a page in many pieces is another")
	}
	_, metrics := m.admin("GET", "/metrics", nil)
	for _, want := range []string{
		`perigee_cache_copied_bytes_total{direction="publish"} 45000`, `perigee_cache_copied_bytes_total{direction="restore"} 70000`,
		"perigee_cache_copies 0", "perigee_cache_offered_pools 2", "perigee_cache_offered_pool_bytes 160000",
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("no %q in the metrics", want)
		}
	}
	if !strings.Contains(metrics, `perigee_cache_copy_seconds_total{direction="restore"} `) || strings.Contains(metrics, `copy_seconds_total{direction="restore"} 0`+"\n") {
		t.Error("restores took no time")
	}
	s.Close()
	m.settled()
}

// TestOfferedSpoiled: a bit that has flipped is found, whether before the copy or during it, and ends the prefix there; what is before it is good.
func TestOfferedSpoiled(t *testing.T) {
	for _, when := range []string{"before", "meanwhile"} {
		t.Run(when, func(t *testing.T) {
			var m *tester
			flip := func(page int) {
				m.mem.RLock()
				defer m.mem.RUnlock()
				a := m.mem.arenas[0]
				for i := range a.Shape.Slots {
					want := make([]byte, pageBytes)
					if fill(want, hashOf(1, page), 0, 0); string(a.Slot(i, pageBytes)) == string(want) {
						a.Slot(i, pageBytes)[4999] ^= 16
					}
				}
			}
			armed := when == "meanwhile"
			m = begin(t, func(o *Options) {
				o.Copiers = 1
				o.CopyForTesting = func(_ core.SessionID, restore bool, page int) {
					if restore && page == 3 && armed {
						armed = false
						flip(3)
					}
				}
			})
			s := m.dial()
			e := newMemory(t, 16, pageBytes)
			e.offer(t, s, 0)
			e.fill(1, 0, 6)
			if _, err := s.PublishFrom(context.Background(), prompt(1, 0, 6), e.pages(0, 0, 6)); err != nil {
				t.Fatal(err)
			}
			if when == "before" {
				flip(3)
			}
			r, err := e.restore(s, 0, 1, 8, 6)
			if err != nil || r.Good != 3 || r.Total != 6 || r.Outcome != core.Mismatch {
				t.Errorf("%+v, %v", r, err)
			}
			if n := e.holds(1, 8, 3); n != 3 {
				t.Errorf("%d pages are as they were published", n)
			}
			if st := m.Status(); st.Spoiled != 1 || st.Stats.Corrupt != 1 {
				t.Errorf("%d spoiled, %d corrupt", st.Spoiled, st.Stats.Corrupt)
			}
			if r, err := e.restore(s, 0, 1, 8, 6); err != nil || r.Good != 3 || r.Outcome != core.Done {
				t.Errorf("afterwards: %+v, %v", r, err)
			}
			s.Close()
			m.settled()
		})
	}
}

// TestOfferedCut: memory that its engine cuts short costs that engine its pages, and the daemon nothing.
func TestOfferedCut(t *testing.T) {
	e := newMemory(t, 16, pageBytes)
	m := begin(t, func(o *Options) {
		o.Copiers, o.Instances = 1, 2
		o.CopyForTesting = func(s core.SessionID, _ bool, page int) {
			if s.Number == 1 && page == 2 {
				e.file.Truncate(0)
			}
		}
	})
	s := m.dial()
	e.offer(t, s, 0)
	other := m.dial(named("other"))
	mine := newMemory(t, 16, pageBytes)
	mine.offer(t, other, 0)
	got, err := s.PublishFrom(context.Background(), prompt(1, 0, 6), e.pages(0, 0, 6))
	if err != nil || got.Sealed != 2 || got.Dropped != 4 || !got.There[1] || got.There[2] {
		t.Errorf("published %+v, %v", got, err)
	}
	mine.fill(2, 0, 8)
	if got, err := other.PublishFrom(context.Background(), prompt(2, 0, 8), mine.pages(0, 0, 8)); err != nil || got.Sealed != 8 {
		t.Errorf("the other: %+v, %v", got, err)
	}
	e.file.Truncate(16 * pageBytes)
	if r, err := e.restore(s, 0, 2, 8, 6); err != nil || r.Good != 2 || r.Total != 6 || r.Outcome != core.Failed {
		t.Errorf("restored %+v, %v", r, err)
	}
	if r, err := mine.restore(other, 0, 2, 8, 8); err != nil || r.Good != 8 || mine.holds(2, 8, 8) != 8 {
		t.Errorf("the other: %+v, %v", r, err)
	}
	s.Close()
	other.Close()
	m.settled()
}

// TestOfferRefused: what cannot be offered is refused by its class, keeps nothing, and the session goes on.
func TestOfferRefused(t *testing.T) {
	m := begin(t, func(o *Options) { o.Instances, o.Core.Budgets.Offered = 2, 40*pageBytes })
	s, other := m.dial(), m.dial(named("other"))
	dir := t.TempDir()
	folder, _ := os.Open(dir)
	defer folder.Close()
	file, err := os.Create(filepath.Join(dir, "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	file.Truncate(4096)
	r, w, _ := os.Pipe()
	defer r.Close()
	defer w.Close()
	e, more := newMemory(t, 16, pageBytes), newMemory(t, 16, pageBytes)
	big := newMemory(t, 32, pageBytes)
	e.offer(t, s, 1)
	before := descriptors(t)
	for what, c := range map[string]struct {
		s     *client.Session
		f     *os.File
		pool  uint32
		bytes uint64
		want  wire.Class
	}{
		"a folder":             {s, folder, 2, 4096, wire.BadPool},
		"a file":               {s, file, 2, 1 << 62, wire.BadPool},
		"a pipe":               {s, w, 2, 4096, wire.BadPool},
		"longer than it is":    {s, more.file, 2, 16*pageBytes + 1, wire.BadPool},
		"as long as can be":    {s, more.file, 2, ^uint64(0), wire.BadPool},
		"nothing":              {s, more.file, 2, 0, wire.BadPool},
		"the number again":     {s, more.file, 1, 4096, wire.Repeated},
		"the memory again":     {s, e.file, 2, 4096, wire.Repeated},
		"another's memory":     {other, e.file, 1, 4096, wire.Repeated},
		"more than all may be": {other, big.file, 1, 32 * pageBytes, wire.TooMany},
	} {
		for range 3 {
			if err := c.s.OfferPool(context.Background(), c.pool, c.f, c.bytes); client.ClassOf(err) != c.want {
				t.Errorf("%s: %v, want %s", what, err, c.want)
			}
		}
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
	if u := m.Status().Usage; u.Pools != 1 || u.Offered != 16*pageBytes {
		t.Errorf("%+v", u)
	}
	s.Close()
	m.until("the memory is nobody's", func(st Status) bool { return st.Usage.Pools == 0 })
	e.offer(t, other, 1)
	other.Close()
	m.settled()
}

// TestOfferedFrames sends pieces and pools that are not there, too many, too long, of another epoch: all of it is refused, and nothing is kept.
func TestOfferedFrames(t *testing.T) {
	m := begin(t, func(o *Options) { o.Instances = 2 })
	s, honest := victimOf(m)
	c := raw(m)
	e := newMemory(t, 16, pageBytes)
	fd := int(e.file.Fd())
	offer := func(msg wire.Message, descriptors uint16, rights ...int) wire.Message {
		c.head.Ref++
		h := c.head
		h.Descriptors = descriptors
		if _, _, err := c.uc.WriteMsgUnix(wire.Append(nil, h, msg), unix.UnixRights(rights...), nil); err != nil {
			t.Fatal(err)
		}
		a, _ := c.hear()
		return a
	}
	before := descriptors(t)
	for what, a := range map[string]wire.Message{
		"none told of":         offer(&wire.OfferPool{Pool: 1, Bytes: 4096}, 0, fd),
		"of a message without": offer(&wire.Ping{}, 1, fd),
	} {
		switch a := a.(type) {
		case *wire.Refused:
			if a.Class != wire.BadPool {
				t.Errorf("%s: %+v", what, a)
			}
		case *wire.Pong:
		default:
			t.Errorf("%s: %T", what, a)
		}
	}
	if r := c.refused(&wire.OfferPool{Pool: 1, Bytes: 4096}); r.Class != wire.BadPool {
		t.Errorf("the one before it: %+v", r)
	}
	// Of several the first counts; told of or not, none stays.
	if a, ok := offer(&wire.OfferPool{Pool: 1, Bytes: 16 * pageBytes}, 3, fd, 0, 1, 2).(*wire.Offered); !ok || a.Pool != 1 {
		t.Errorf("one of four: %+v", a)
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
	page := func(pieces ...core.Piece) wire.Message {
		return &wire.RestorePieces{Lease: honest.ID, Pages: core.Pages{Counts: []uint32{uint32(len(pieces))}, Pieces: pieces}}
	}
	for what, r := range map[string]*wire.Refused{
		"another's lease":  c.refused(page(core.Piece{Pool: 1, Length: pageBytes})),
		"no lease":         c.refused(&wire.RestorePieces{}),
		"another's by one": c.refused(&wire.RestoreInto{Lease: honest.ID, Targets: []wire.Target{{Pool: 1}}}),
		"a role":           c.refused(&wire.PublishPieces{}),
		"a role, in one":   c.refused(&wire.PublishFrom{}),
		"a Manager's word": c.refused(&wire.CopiedOut{}),
	} {
		want := map[string]wire.Class{"another's lease": wire.StaleLease, "no lease": wire.StaleLease, "another's by one": wire.StaleLease}[what]
		if want == 0 {
			want = wire.WrongRole
		}
		if r.Class != want {
			t.Errorf("%s: %s, want %s", what, r.Class, want)
		}
	}
	// Its own lease, and wrong pieces.
	q := query(1, 2)
	q.Ticket = core.Ticket{Op: 1, Revision: 1}
	c.say(q)
	ready, _ := c.hear()
	lease := ready.(*wire.Ready).Lease
	max := ^uint64(0)
	for what, pages := range map[string]core.Pages{
		"nothing":        {},
		"one page":       {Counts: []uint32{1}, Pieces: []core.Piece{{Pool: 1, Length: pageBytes}}},
		"no such pool":   {Counts: []uint32{1, 1}, Pieces: []core.Piece{{Pool: 1, Length: pageBytes}, {Pool: 2, Length: pageBytes}}},
		"beyond":         {Counts: []uint32{1, 1}, Pieces: []core.Piece{{Pool: 1, Length: pageBytes}, {Pool: 1, Offset: 15*pageBytes + 1, Length: pageBytes}}},
		"over all":       {Counts: []uint32{1, 1}, Pieces: []core.Piece{{Pool: 1, Length: pageBytes}, {Pool: 1, Offset: max - pageBytes + 1, Length: pageBytes}}},
		"the last byte":  {Counts: []uint32{1, 1}, Pieces: []core.Piece{{Pool: 1, Length: pageBytes}, {Pool: 1, Offset: max, Length: pageBytes}}},
		"too long":       {Counts: []uint32{1, 1}, Pieces: []core.Piece{{Pool: 1, Length: pageBytes}, {Pool: 1, Offset: pageBytes, Length: pageBytes + 1}}},
		"as long as can": {Counts: []uint32{1, 1}, Pieces: []core.Piece{{Pool: 1, Length: pageBytes}, {Pool: 1, Offset: pageBytes, Length: ^uint32(0)}}},
		"counts of more": {Counts: []uint32{1, 2}, Pieces: []core.Piece{{Pool: 1, Length: pageBytes}, {Pool: 1, Offset: pageBytes, Length: pageBytes}}},
		"counts of all":  {Counts: []uint32{1, ^uint32(0)}, Pieces: []core.Piece{{Pool: 1, Length: pageBytes}, {Pool: 1, Offset: pageBytes, Length: pageBytes}}},
		"counts of less": {Counts: []uint32{1, 1}, Pieces: []core.Piece{{Pool: 1, Length: pageBytes}, {Pool: 1, Offset: pageBytes, Length: pageBytes}, {Pool: 1, Length: 1}}},
		"an empty piece": {Counts: []uint32{1, 2}, Pieces: []core.Piece{{Pool: 1, Length: pageBytes}, {Pool: 1, Offset: pageBytes, Length: pageBytes}, {Pool: 1}}},
	} {
		if r := c.refused(&wire.RestorePieces{Lease: lease, Pages: pages}); r.Class != wire.Invalid {
			t.Errorf("%s: %s", what, r.Class)
		}
	}
	twice := core.Pages{Counts: []uint32{1, 1}, Pieces: []core.Piece{{Pool: 1, Length: pageBytes}, {Pool: 1, Offset: pageBytes - 1, Length: pageBytes}}}
	if r := c.refused(&wire.RestorePieces{Lease: lease, Pages: twice}); r.Class != wire.Overlap {
		t.Errorf("a byte twice: %s", r.Class)
	}
	good := c.head
	c.head.Epoch++
	if r := c.refused(&wire.RestorePieces{Lease: lease, Pages: twice}); r.Class != wire.StaleSession {
		t.Errorf("another epoch: %s", r.Class)
	}
	c.head = good
	// And in one piece each it is restored.
	c.say(&wire.RestoreInto{Lease: lease, Targets: []wire.Target{{Pool: 1}, {Pool: 1, Offset: pageBytes}}})
	out, _ := c.hear()
	if a, ok := out.(*wire.CopiedOut); !ok || a.Good != 2 || a.Total != 2 {
		t.Errorf("%+v", out)
	}
	if a, _ := c.hear(); !a.(*wire.Restored).OK {
		t.Errorf("%+v", a)
	}
	want := make([]byte, pageBytes)
	if fill(want, hashOf(1, 1), 0, 0); string(want) != string(e.mem[pageBytes:2*pageBytes]) {
		t.Error("a page in one piece is another")
	}
	if n, err := restore(s, 1, 8); n != 8 || err != nil {
		t.Errorf("the honest one restores %d: %v", n, err)
	}
	c.goodbye()
	s.Close()
	m.settled()
}

// TestOfferWithoutDescriptors: when the process has none left, an offer is refused, and all else goes on.
func TestOfferWithoutDescriptors(t *testing.T) {
	m := begin(t)
	s := m.dial()
	e := newMemory(t, 16, pageBytes)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	full := limit
	full.Cur = uint64(highest(t))
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &full); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	var taken []*os.File
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			break
		}
		taken = append(taken, f)
	}
	err := s.OfferPool(context.Background(), 1, e.file, 16*pageBytes)
	for _, f := range taken {
		f.Close()
	}
	if client.ClassOf(err) != wire.BadPool {
		t.Errorf("without descriptors: %v", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	e.offer(t, s, 1)
	e.fill(1, 0, 4)
	if got, err := s.PublishFrom(context.Background(), prompt(1, 0, 4), e.pages(1, 0, 4)); err != nil || got.Sealed != 4 {
		t.Errorf("%+v, %v", got, err)
	}
}

// tooEarly is how long tests give to what ends too early: without it they would only see what has ended at once.
const tooEarly = 100 * time.Millisecond

// TestLostWhileCopying ends a session in the middle of copies: the engine's call ends only when nothing is copied any more, and until then
// the slots, the memory and the arena are nobody else's.
func TestLostWhileCopying(t *testing.T) {
	for _, way := range []string{"publish", "restore"} {
		t.Run(way, func(t *testing.T) {
			g := newGate()
			m := begin(t, func(o *Options) {
				o.CopyForTesting = func(_ core.SessionID, restore bool, page int) {
					if restore == (way == "restore") && page == 2 {
						g.wait(page)
					}
				}
			})
			s := m.dial()
			e := newMemory(t, 32, pageBytes)
			e.offer(t, s, 0)
			e.fill(1, 0, 8)
			joined := m.connect()
			cred := s.Credentials()
			joined.attach(cred, wire.RoleQuery)
			if way == "restore" {
				if got, err := s.PublishFrom(context.Background(), prompt(1, 0, 8), e.pages(0, 0, 8)); err != nil || got.Sealed != 8 {
					t.Fatalf("%+v, %v", got, err)
				}
			}
			ended := make(chan error, 1)
			go func() {
				var err error
				if way == "restore" {
					_, err = e.restore(s, 0, 1, 16, 8)
				} else {
					_, err = s.PublishFrom(context.Background(), prompt(1, 0, 8), e.pages(0, 0, 8))
				}
				ended <- err
			}()
			<-g.reached
			joined.close() // a rank has died
			<-s.Done()
			m.until("the session is lost", func(st Status) bool { return len(st.Sessions) == 1 && st.Sessions[0].Lost })
			if u := m.Status().Usage; u.Copies != 1 || u.Pools != 1 || u.Pinned+u.Granted == 0 {
				t.Errorf("while it is copied: %+v", u)
			}
			select {
			case err := <-ended:
				t.Errorf("the call ended while the Manager copies: %v", err)
				ended <- err
			case <-time.After(tooEarly):
			}
			if _, err := m.tryDial(named("next")); client.ClassOf(err) != wire.ArenaBusy && client.ClassOf(err) != wire.NoPool {
				t.Errorf("its arena is given away: %v", err)
			}
			close(g.open)
			if err := <-ended; !errors.Is(err, client.ErrLost) {
				t.Errorf("the call: %v", err)
			}
			m.until("nothing is copied", func(st Status) bool { return st.Usage.Copies == 0 && st.Usage.Pools == 0 })
			s.Close()
		})
	}
}

// TestCloseWaitsForCopies: Close of either side ends when nothing is copied any more.
func TestCloseWaitsForCopies(t *testing.T) {
	for _, side := range []string{"client", "manager"} {
		t.Run(side, func(t *testing.T) {
			g := newGate()
			m := begin(t, func(o *Options) {
				o.CopyForTesting = func(_ core.SessionID, _ bool, page int) {
					if page == 1 {
						g.wait(page)
					}
				}
			})
			s := m.dial()
			e := newMemory(t, 16, pageBytes)
			e.offer(t, s, 0)
			ended := make(chan error, 1)
			go func() {
				_, err := s.PublishFrom(context.Background(), prompt(1, 0, 8), e.pages(0, 0, 8))
				ended <- err
			}()
			<-g.reached
			closed := make(chan struct{})
			go func() {
				if side == "client" {
					s.Close()
				} else {
					m.Close()
				}
				close(closed)
			}()
			<-s.Done()
			select {
			case <-closed:
				t.Error("closed while it is copied")
			case err := <-ended:
				t.Errorf("the call ended while it is copied: %v", err)
				ended <- err
			case <-time.After(tooEarly):
			}
			close(g.open)
			<-closed
			<-ended
		})
	}
}
