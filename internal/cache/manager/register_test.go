//go:build linux

package manager

import (
	"context"
	"io"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/perigee-llm/perigee/internal/cache/channel/client"
	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
)

// TestRegisterBeside: an arena that goes for a newcomer takes its time to be given back, and meanwhile everybody but newcomers is served.
// Its bytes are the pool's again only when it has gone.
func TestRegisterBeside(t *testing.T) {
	closing, goOn := make(chan struct{}), make(chan struct{})
	var armed atomic.Bool
	m := begin(t, func(o *Options) {
		o.Instances, o.Admin = 2, "127.0.0.1:0"
		o.Pool.FailForTesting = func(step string) error {
			if step == "close" && armed.CompareAndSwap(true, false) {
				close(closing)
				<-goOn
			}
			return nil
		}
	})
	a, b := m.dial(named("a")), m.dial(named("b"), other(1))
	for _, s := range []*client.Session{a, b} {
		if _, err := publish(s, prompt(1, 0, 4)); err != nil {
			t.Fatal(err)
		}
	}
	b.Close()
	m.until("b gone", func(st Status) bool { return len(st.Sessions) == 1 })
	used := m.pool.Usage().Used
	armed.Store(true)
	dialed := make(chan error, 1)
	go func() {
		s, err := m.tryDial(named("c"), other(2))
		if err == nil {
			s.Close()
		}
		dialed <- err
	}()
	<-closing
	if n, err := restore(a, 1, 4); n != 4 || err != nil {
		t.Errorf("restored %d: %v", n, err)
	}
	if _, err := publish(a, prompt(2, 0, 4)); err != nil {
		t.Error(err)
	}
	if st := m.Status(); st.Pool.Used != used || len(st.Arenas) != 1 {
		t.Errorf("%d bytes of the pool are in use, %d before, in %d arenas", st.Pool.Used, used, len(st.Arenas))
	}
	close(goOn)
	if err := <-dialed; err != nil {
		t.Fatal(err)
	}
	a.Close()
	m.settled()
	if got := m.pool.Usage().Used; got != used {
		t.Errorf("%d bytes of the pool are in use, %d before", got, used)
	}
}

// other is an instance whose pages are of no use to others.
func other(n uint64) func(*client.Options) {
	return func(o *client.Options) { o.Ranks = namespaces(1, pageBytes+n) }
}

// TestRegisterWithoutMemory: registrations for which there is no memory, each under another identity, leave nothing: no holding, no books of its
// slots, no number, and no memory of an arena of theirs that there was room for.
func TestRegisterWithoutMemory(t *testing.T) {
	asked := 0
	var enough atomic.Bool
	m := begin(t, func(o *Options) {
		o.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
		o.Pool.FailForTesting = func(step string) error {
			if step == "memfd" {
				if asked++; asked%2 == 0 && !enough.Load() { // each instance has two arenas: the second one fails
					return unix.EMFILE
				}
			}
			return nil
		}
	})
	two := func(n uint64) func(*client.Options) {
		return func(o *client.Options) { o.Ranks = namespaces(1, pageBytes+n, 3*pageBytes) }
	}
	for i := range uint64(20) {
		if _, err := m.tryDial(two(i)); client.ClassOf(err) != wire.NoPool {
			t.Fatalf("registration %d: %v", i, err)
		}
	}
	m.locked(func() {
		if len(m.mu.holdings) != 0 || m.mu.session != 0 || m.mu.arena != 0 {
			t.Errorf("%d holdings, session %d, arena %d", len(m.mu.holdings), m.mu.session, m.mu.arena)
		}
		if u := m.mu.core.Usage(); u.Pool != 0 {
			t.Errorf("the books have %d bytes of slots", u.Pool)
		}
	})
	if u := m.pool.Usage(); u.Used != 0 {
		t.Errorf("%d bytes of the pool are in use", u.Used)
	}
	enough.Store(true)
	s := m.dial(two(0))
	if got, err := publish(s, prompt(1, 0, 4)); err != nil || got.Dropped != 0 {
		t.Errorf("with memory again: %+v, %v", got, err)
	}
	s.Close()
	m.settled()
}

// TestUnseenProcesses: processes of other pid namespaces all have the number 0, and each connection of theirs is another one's: the session's memory is free
// when all of them have ended, and not with the first.
func TestUnseenProcesses(t *testing.T) {
	fd, err := unix.PidfdOpen(os.Getpid(), unix.PIDFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	s := &session{procs: []*process{{pid: 0, pidfd: f}, {pid: 7, pidfd: f}, {pid: 8, pidfd: f, gone: true}}}
	for pid, want := range map[int]bool{0: false, 7: true, 8: false, 9: false} {
		if got := s.has(pid); got != want {
			t.Errorf("process %d is one that is awaited: %v", pid, got)
		}
	}
}

// TestRefusedTakesNoNumbers: who is refused over and over uses up no session's number and no arena's.
func TestRefusedTakesNoNumbers(t *testing.T) {
	m := begin(t, func(o *Options) {
		o.Instances, o.Log = 2, slog.New(slog.NewTextHandler(io.Discard, nil))
	})
	a := m.dial(named("a"))
	for range 100 {
		if _, err := m.tryDial(named("a"), other(1)); client.ClassOf(err) != wire.InstanceBusy {
			t.Fatal(err)
		}
	}
	b := m.dial(named("b"))
	if x, y := a.Credentials().Session, b.Credentials().Session; x != 1 || y != 2 {
		t.Errorf("sessions %d and %d", x, y)
	}
	if st := m.Status(); len(st.Arenas) != 2 || st.Arenas[1].ID != 1 || len(st.Sessions) != 2 || st.Sessions[1].Session != 2 {
		t.Errorf("%+v", st)
	}
}

// TestRegisterTooLate: a client that hangs up while memory is made for it holds nothing afterwards, though its process lives on: it gets the same memory when it asks
// again, and so does another.
func TestRegisterTooLate(t *testing.T) {
	making, goOn := make(chan struct{}), make(chan struct{})
	var armed atomic.Bool
	armed.Store(true)
	m := begin(t, func(o *Options) {
		o.Instances = 1
		o.Pool.FailForTesting = func(step string) error {
			if step == "memfd" && armed.CompareAndSwap(true, false) {
				close(making)
				<-goOn
			}
			return nil
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	dialed := make(chan error, 1)
	go func() {
		s, err := client.Dial(ctx, client.Options{Socket: m.opt.Socket, Program: "test", Instance: "a", Ranks: namespaces(1, pageBytes), Model: "m"})
		if err == nil {
			s.Close()
		}
		dialed <- err
	}()
	<-making
	cancel()
	if err := <-dialed; err == nil {
		t.Fatal("who has hung up is registered")
	}
	close(goOn)
	m.until("it is vacant", func(st Status) bool { return len(st.Arenas) == 1 && len(st.Sessions) == 0 })
	used := m.pool.Usage().Used
	a := m.dial(named("a"))
	if _, err := publish(a, prompt(1, 0, 4)); err != nil {
		t.Fatal(err)
	}
	if n, err := restore(a, 1, 4); n != 4 || err != nil {
		t.Errorf("restored %d: %v", n, err)
	}
	if got := m.pool.Usage().Used; got != used {
		t.Errorf("%d bytes of the pool are in use, %d before", got, used)
	}
	a.Close()
	m.until("a gone", func(st Status) bool { return len(st.Sessions) == 0 })
	m.dial(named("b"), other(1)).Close()
	m.settled()
}
