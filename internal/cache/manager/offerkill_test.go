//go:build linux

package manager

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/perigee-llm/perigee/internal/cache/channel/client"
	"github.com/perigee-llm/perigee/internal/cache/core"
)

// offerSteps are where an engine that lets the Manager copy is killed, in the order in which it comes to them. At "filling", "fetching" and "restoring" the
// Manager is in the middle of its copies.
var offerSteps = []string{"offer offered", "offer filling", "offer filled", "offer fetching", "offer leased", "offer restoring", "offer restored"}

// offerVictim is victim by the second route.
func offerVictim(step, socket string) {
	at := func(here string) {
		if here == step {
			fmt.Println("at " + step)
			select {}
		}
	}
	during := func(here string) {
		if here == step {
			fmt.Println("at " + step) // and it goes on; the Manager does not
		}
	}
	s, err := client.Dial(context.Background(), client.Options{Socket: socket, Instance: "victim", Ranks: namespaces(1, pageBytes)})
	if err != nil {
		fmt.Println("victim:", err)
		return
	}
	e, err := makeMemory(16, pageBytes)
	if err == nil {
		err = s.OfferPool(context.Background(), 0, e.file, 16*pageBytes)
	}
	if err != nil {
		fmt.Println("victim:", err)
		return
	}
	at("offer offered")
	e.fill(1, 0, 8)
	during("offer filling")
	got, err := s.PublishFrom(context.Background(), prompt(1, 0, 8), e.pages(0, 0, 8))
	at("offer filled")
	if during("offer fetching"); step == "offer fetching" {
		s.Fetch(e.fetch(0, 1, 8, 8))
	}
	a, err2 := s.Query(context.Background(), query(1, 8))
	at("offer leased")
	if err != nil || err2 != nil || a.Lease == nil {
		fmt.Println("victim:", got, err, err2)
		return
	}
	during("offer restoring")
	r, err := s.RestoreInto(a.Lease, 0, e.pages(0, 8, 16))
	at("offer restored")
	fmt.Println("victim: past", step, r, err)
}

// TestKilledWhileCopying kills an engine at every step of the second route. Copies of ours that were under way end by themselves; all that it
// held comes back, nothing half is ever seen, and its successor finds what it had finished.
func TestKilledWhileCopying(t *testing.T) {
	for _, step := range offerSteps {
		t.Run(strings.TrimPrefix(step, "offer "), func(t *testing.T) {
			g, armed := newGate(), slices.Contains([]string{"offer filling", "offer fetching", "offer restoring"}, step)
			m := begin(t, func(o *Options) {
				o.Instances = 2
				o.CopyForTesting = func(s core.SessionID, restore bool, page int) {
					if armed && s.Number == 2 && page == 4 && restore == (step != "offer filling") {
						g.wait(page)
					}
				}
			})
			other := m.dial(named("survivor"), func(o *client.Options) { o.Ranks = namespaces(1, pageBytes+1) })
			mine := newMemory(t, 16, pageBytes+1)
			mine.offer(t, other, 0)
			if got, err := other.PublishFrom(context.Background(), prompt(9, 0, 5), mine.pages(0, 0, 5)); err != nil || got.Sealed != 5 {
				t.Fatalf("%+v, %v", got, err)
			}
			v := m.spawn(step)
			if armed {
				<-g.reached
			}
			v.Process.Kill()
			v.Wait()
			if armed {
				// Its process is gone, and the kernel has said so; what we copy for it is still nobody else's.
				m.until("the victim is fenced", func(st Status) bool { return len(st.Sessions) == 1 })
				if u := m.Status().Usage; u.Copies != 1 || u.Pools != 2 || u.Sessions != 2 || u.Pinned+u.Granted == 0 {
					t.Errorf("while we copy for the dead: %+v", u)
				}
				if r, err := mine.restore(other, 0, 9, 8, 5); err != nil || r.Good != 5 {
					t.Errorf("the survivor meanwhile: %+v, %v", r, err)
				}
				close(g.open)
			}
			m.until("nothing is held for the victim", func(st Status) bool {
				u := st.Usage
				return u.Sessions == 1 && u.Copies == 0 && u.Pools == 1 && u.Granted+u.Quarantined+u.Leased+u.Reserved+u.Pinned == 0
			})
			s := m.dial(named("victim"))
			n, err := restore(s, 1, 8)
			if err != nil {
				t.Fatal(err)
			}
			if finished := step != "offer offered" && step != "offer filling"; finished != (n == 8) || !finished && n != 0 {
				t.Errorf("killed as it was %s, its successor finds %d pages", step, n)
			}
			e := newMemory(t, 16, pageBytes)
			e.offer(t, s, 0)
			e.fill(1, 0, 8)
			if got, err := s.PublishFrom(context.Background(), prompt(1, 0, 8), e.pages(0, 0, 8)); err != nil || int(got.Sealed+got.Present) != 8 {
				t.Errorf("its successor publishes: %+v, %v", got, err)
			}
			if r, err := e.restore(s, 0, 1, 8, 8); err != nil || r.Good != 8 || e.holds(1, 8, 8) != 8 {
				t.Errorf("its successor restores %+v: %v", r, err)
			}
			s.Close()
			other.Close()
			m.settled()
		})
	}
}

// TestStoppedManager: the Manager is killed while it copies; the engine's call ends, since what is dead copies nothing.
func TestStoppedManager(t *testing.T) {
	socket := socketPath(t)
	cmd, err := start("manager", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	s, err := client.Dial(context.Background(), client.Options{Socket: socket, Instance: "engine", Ranks: namespaces(1, pageBytes)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	e := newMemory(t, 16, pageBytes)
	e.offer(t, s, 0)
	if got, err := s.PublishFrom(context.Background(), prompt(1, 0, 8), e.pages(0, 0, 8)); err != nil || got.Sealed != 8 {
		t.Fatalf("%+v, %v", got, err)
	}
	a, err := s.Query(context.Background(), query(1, 8))
	if err != nil || a.Lease == nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for err = unix.EINTR; err == unix.EINTR; { // what it was about to do it may do until all its threads stand still
		_, err = unix.Wait4(cmd.Process.Pid, nil, unix.WUNTRACED, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := s.RestoreInto(a.Lease, 0, e.pages(0, 8, 16))
		ended <- err
	}()
	cmd.Process.Kill()
	if err := <-ended; err == nil {
		t.Error("a dead Manager has restored")
	}
}
