//go:build linux

package manager

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/perigee-llm/perigee/internal/cache/channel/client"
	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
)

// manyBlocks are published in several pieces.
const manyBlocks = 1700

func manyPages(o *Options) { o.PoolBytes = 2 * manyBlocks * 8192 }

// pagesOf is what blocks of a prompt have to hold.
func pagesOf(p, n int) func(int) ([]byte, error) {
	return func(i int) ([]byte, error) {
		if i >= n {
			return nil, fmt.Errorf("block %d is none", i)
		}
		b := make([]byte, pageBytes)
		fill(b, hashOf(p, i), 0, 0)
		return b, nil
	}
}

// restoreTo restores what a query finds into memory, and compares it.
func restoreTo(s *client.Session, p, n int) (int, error) {
	a, err := s.Query(context.Background(), query(p, n))
	if err != nil || a.Lease == nil {
		return 0, err
	}
	all := make([]byte, int(a.Lease.Hits[0])*pageBytes)
	err = s.RestoreTo(context.Background(), a.Lease, 0, func(i, bytes int) ([]byte, error) { return all[i*pageBytes:][:bytes], nil })
	for i := 0; err == nil && i < int(a.Lease.Hits[0]); i++ {
		if want, _ := pagesOf(p, n)(i); !bytes.Equal(all[i*pageBytes:][:pageBytes], want) {
			err = fmt.Errorf("page %d of prompt %d is another", i, p)
		}
	}
	return int(a.Lease.Hits[0]), err
}

// TestPages: the way in one pass, with pieces and several copiers, and the way page by page lead to the same pages and names.
func TestPages(t *testing.T) {
	for _, copiers := range []int{1, 3} {
		m := begin(t, manyPages)
		s := m.dial(func(o *client.Options) { o.Copiers = copiers })
		got, err := s.PublishPages(context.Background(), prompt(1, 0, manyBlocks), pagesOf(1, manyBlocks))
		if names := namesOf(1, manyBlocks); err != nil || got.Sealed != manyBlocks || got.Chain != names[manyBlocks-1] {
			t.Fatalf("%+v, %v", got, err)
		}
		again, err := publish(s, prompt(1, 0, manyBlocks))
		if err != nil || again.Present != manyBlocks || again.Chain != got.Chain {
			t.Fatalf("again: %+v, %v", again, err)
		}
		for _, way := range []func(*client.Session, int, int) (int, error){restoreTo, restore} {
			if n, err := way(s, 1, manyBlocks); n != manyBlocks || err != nil {
				t.Fatalf("%d, %v", n, err)
			}
		}
		s.Close()
		m.settled()
	}
}

// TestPagesFail: an error in the middle of a publish in pieces gives back all that was granted, with or without the rest of its piece; so does a
// context's end. What was sealed before stays.
func TestPagesFail(t *testing.T) {
	m := begin(t, manyPages)
	s := m.dial(func(o *client.Options) { o.Copiers = 2 })
	broken := errors.New("broken")
	for p, at := range []int{0, 3, 33, 79, 150, 151, 600, 1100, manyBlocks - 1} {
		ctx, cancel := context.WithCancel(context.Background())
		_, err := s.PublishPages(ctx, prompt(p, 0, manyBlocks), func(i int) ([]byte, error) {
			if i == at && p%2 == 0 {
				return nil, broken
			}
			if i == at {
				cancel()
			}
			return pagesOf(p, manyBlocks)(i)
		})
		if want := map[bool]error{true: broken, false: context.Canceled}[p%2 == 0]; !errors.Is(err, want) {
			t.Fatalf("at %d: %v, want %v", at, err, want)
		}
		cancel()
		m.until("nothing is granted", func(st Status) bool { return st.Usage.Granted == 0 })
		if n, err := restoreTo(s, p, manyBlocks); n > at+p%2*2 || err != nil { // those in hand are finished
			t.Fatalf("at %d: restored %d, %v", at, n, err)
		}
	}
	if _, err := s.PublishPages(context.Background(), prompt(9, 0, 2), func(int) ([]byte, error) { return make([]byte, 7), nil }); err == nil {
		t.Error("a page of another size was published")
	}
	s.Close()
	m.settled()
}

// TestPagesNoRoom: a run that the pool cannot hold ends where the room does.
func TestPagesNoRoom(t *testing.T) {
	m := begin(t, func(o *Options) { o.PoolBytes = manyBlocks / 2 * 8192 })
	s := m.dial()
	var asked atomic.Int64
	got, err := s.PublishPages(context.Background(), prompt(1, 0, manyBlocks), func(i int) ([]byte, error) {
		asked.Add(1)
		return pagesOf(1, manyBlocks)(i)
	})
	if err != nil || got.Sealed+got.Dropped != manyBlocks || int64(got.Sealed) != asked.Load() || got.Dropped == 0 {
		t.Fatalf("%+v after %d pages, %v", got, asked.Load(), err)
	}
}

// TestTakenFlippedBit: who compares checksums himself finds what was changed, and it goes for everybody.
func TestTakenFlippedBit(t *testing.T) {
	m := begin(t, func(o *Options) { o.Instances = 2 })
	s := m.dial()
	if _, err := publish(s, prompt(1, 0, 8)); err != nil {
		t.Fatal(err)
	}
	slot := m.slotOf(hashOf(1, 5))
	m.mem.RLock()
	m.mem.arenas[slot.Arena].Slot(slot.Index, pageBytes)[17] ^= 1
	m.mem.RUnlock()
	if _, err := restoreTo(s, 1, 8); !errors.Is(err, client.ErrSpoiled) {
		t.Fatalf("a flipped bit was served: %v", err)
	}
	m.until("the page is dropped", func(st Status) bool { return st.Stats.Removed[core.Corrupted] == 1 && st.Spoiled == 1 })
	if n, err := restoreTo(s, 1, 8); n != 5 || err != nil {
		t.Fatalf("what is before it: %d, %v", n, err)
	}
	s.Close()
	m.settled()
}

// TestTakenLie: who says that a good page does not match fails his own restore, and nobody loses the page.
func TestTakenLie(t *testing.T) {
	m := begin(t, func(o *Options) { o.Instances = 2 })
	victimOf(m)
	c := raw(m)
	for op, bad := range []uint32{0, 3, 99} {
		c.say(&wire.Query{Ticket: core.Ticket{Op: uint64(op + 1), Revision: 1}, Mode: core.Prefix, Consumers: 1, Wants: query(1, 4).Wants})
		ready, _ := c.hear()
		lease := ready.(*wire.Ready).Lease
		c.say(&wire.Take{Lease: lease})
		if plan, _ := c.hear(); len(plan.(*wire.Plan).Slots) != 4 {
			t.Fatalf("%+v", plan)
		}
		c.say(&wire.Copied{Lease: lease, Outcome: core.Mismatch, Bad: bad})
		if a, _ := c.hear(); a.(*wire.Restored).OK {
			t.Errorf("%d: it is whole", bad)
		}
	}
	if st := m.Status(); st.Usage.Blocks != 8 || st.Spoiled != 0 || st.Usage.Leased == 0 { // the victim's lease
		t.Errorf("%+v", st)
	}
	if r := c.refused(&wire.Take{Lease: core.LeaseID{Index: 77, Gen: 1}}); r.Class != wire.StaleLease {
		t.Errorf("a lease that is none: %s", r.Class)
	}
}

// TestLeave: a process that has lost its session, and lives on, gives back with its token what it had; without it, nothing.
func TestLeave(t *testing.T) {
	m := begin(t)
	c := m.connect()
	b, err := namespaces(1, pageBytes)[0].Encode()
	if err != nil {
		t.Fatal(err)
	}
	c.say(&wire.Register{Instance: "raw", Ranks: [][]byte{b}})
	a, _ := c.hear()
	token := a.(*wire.Registered).Token
	c.close()
	m.until("it is lost", func(st Status) bool { return len(st.Sessions) == 1 && st.Sessions[0].Lost })
	if _, err := m.tryDial(); client.ClassOf(err) != wire.NoPool {
		t.Errorf("its arena is given to another while it lives: %v", err)
	}
	p := m.connect()
	if r := p.refused(&wire.Leave{Token: [16]byte{1}}); r.Class != wire.StaleSession {
		t.Errorf("another token: %s", r.Class)
	}
	p.say(&wire.Leave{Token: token})
	if a, _ := p.hear(); a.Kind() != wire.KindBye {
		t.Fatalf("%+v", a)
	}
	m.until("it is fenced", func(st Status) bool { return len(st.Sessions) == 0 })
	if r := p.refused(&wire.Leave{Token: token}); r.Class != wire.StaleSession {
		t.Errorf("again: %s", r.Class)
	}
	m.dial()
}

// TestClosedWhenLost: a Session that the Manager took to hang says at its Close what its process has let go of.
func TestClosedWhenLost(t *testing.T) {
	m := begin(t, func(o *Options) { o.Core.Limits = core.Limits{Patience: 200 * time.Millisecond} })
	s := m.dial()
	_, err := s.Publish(context.Background(), prompt(1, 0, 4), func(i int, slot []byte) error {
		if i == 2 {
			<-s.Done()
			if u := m.Status().Usage; u.Granted == 0 {
				t.Error("what it may still write is free")
			}
		}
		return nil
	})
	if !errors.Is(err, client.ErrLost) {
		t.Fatalf("%v", err)
	}
	s.Close()
	m.settled()
	m.dial()
}

// TestTakeThatPanics: a restore ends when the caller's function panics, or ends its goroutine, and the session is good for the next; else it would be closed when the
// Manager's patience is over.
func TestTakeThatPanics(t *testing.T) {
	m := begin(t)
	s := m.dial()
	if _, err := publish(s, prompt(1, 0, 8)); err != nil {
		t.Fatal(err)
	}
	for how, f := range map[string]func(){"panic": func() { panic("of the caller's") }, "Goexit": runtime.Goexit} {
		for _, to := range []bool{false, true} {
			a, err := s.Query(t.Context(), query(1, 8))
			if err != nil || a.Lease == nil {
				t.Fatalf("%+v, %v", a, err)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				defer func() { recover() }()
				if to {
					s.RestoreTo(t.Context(), a.Lease, 0, func(int, int) ([]byte, error) { f(); return nil, nil })
					return
				}
				s.Restore(t.Context(), a.Lease, 0, func(int, []byte) error { f(); return nil })
			}()
			<-done
			m.until("nothing is leased after a "+how, func(st Status) bool { return st.Usage.Leased == 0 })
		}
	}
	if n, err := restore(s, 1, 8); n != 8 || err != nil {
		t.Errorf("restored %d: %v", n, err)
	}
}

// TestWriteThatPanics: a caller's function that panics, or ends its goroutine, leaves no goroutine behind and nothing granted, and the session is good for
// the same publish.
func TestWriteThatPanics(t *testing.T) {
	m := begin(t, manyPages)
	s := m.dial()
	leave := map[string]func(){"panic": func() { panic("of the caller's") }, "Goexit": runtime.Goexit}
	before := goleak.IgnoreCurrent()
	for n, at := range []int{0, 3, 100, 900, manyBlocks - 1} {
		for how, f := range leave {
			for _, pages := range []bool{false, true} {
				pub := prompt(1+n, 0, manyBlocks)
				if at == 3 { // a single piece
					pub = prompt(1+n, 0, 10)
				}
				done := make(chan struct{})
				go func() {
					defer close(done)
					defer func() { recover() }()
					if pages {
						page := make([]byte, pageBytes)
						s.PublishPages(t.Context(), pub, func(i int) ([]byte, error) {
							if i == at {
								f()
							}
							return page, nil
						})
						return
					}
					s.Publish(t.Context(), pub, func(i int, _ []byte) error {
						if i == at {
							f()
						}
						return nil
					})
				}()
				<-done
				goleak.VerifyNone(t, before)
				m.until(fmt.Sprintf("nothing is granted after a %s at %d", how, at), func(st Status) bool { return st.Usage.Granted == 0 })
				m.Flush(core.Namespace{})
			}
		}
	}
	pub := prompt(1, 0, manyBlocks)
	if got, err := publish(s, pub); err != nil || got.Sealed != manyBlocks {
		t.Errorf("%+v, %v", got, err)
	}
	s.Close()
	m.settled()
}
