//go:build linux

package manager

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/perigee-llm/perigee/internal/cache/channel/client"
	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
)

// steps are where a victim stops and waits for its end, in the order in which it comes to them.
var steps = []string{"registered", "granted", "half written", "written", "published", "leased", "started", "half read", "restored"}

// victim is an engine in a process of its own, which says where it is and stops at one of the steps. It does not come back.
func victim(step, socket string) {
	at := func(here string) {
		if here == step {
			fmt.Println("at " + step)
			select {}
		}
	}
	if step == "bench" {
		if err := benchManager(socket); err == nil {
			at(step)
		}
	}
	if step == "ring" || step == "futex" {
		fmt.Println("at " + step)
		serveRing(socket, map[string]int{"ring": ringSpins}[step])
	}
	if step == "manager" {
		_, err := Start(Options{Socket: socket, PoolBytes: 64 * 8192, Log: slog.New(slog.DiscardHandler)})
		if err == nil {
			at(step)
		}
		fmt.Println("manager:", err)
		return
	}
	if strings.HasPrefix(step, "offer ") {
		offerVictim(step, socket)
		return
	}
	s, err := client.Dial(context.Background(), client.Options{Socket: socket, Instance: "victim", Ranks: namespaces(1, pageBytes)})
	if err != nil {
		fmt.Println("victim:", err)
		return
	}
	at("registered")
	if step == "forked" {
		fork()
	}
	pub := prompt(1, 0, 8)
	_, err = s.Publish(context.Background(), pub, func(i int, slot []byte) error {
		if i == 3 {
			at("granted")
			fill(slot[:len(slot)/2], pub.Blocks[i].Hash, 0, 0)
			at("half written")
		}
		fill(slot, pub.Blocks[i].Hash, 0, 0)
		if i == 7 {
			at("written")
		}
		return nil
	})
	at("published")
	a, err2 := s.Query(context.Background(), query(1, 8))
	at("leased")
	at("forked")
	if err != nil || err2 != nil || a.Lease == nil {
		fmt.Println("victim:", err, err2)
		return
	}
	err = s.Restore(context.Background(), a.Lease, 0, func(i int, page []byte) error {
		if i == 0 {
			at("started")
		}
		if i == 4 {
			at("half read")
		}
		return nil
	})
	at("restored")
	fmt.Println("victim: past", step, err)
}

// fork starts a child that has all of the process's sockets too, and does nothing.
func fork() {
	child := exec.Command("sleep", "3600")
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		to, err := os.Readlink("/proc/self/fd/" + e.Name())
		n, err2 := strconv.Atoi(e.Name())
		if err != nil || err2 != nil || !strings.HasPrefix(to, "socket:") {
			continue
		}
		if fd, err := unix.Dup(n); err == nil {
			child.ExtraFiles = append(child.ExtraFiles, os.NewFile(uintptr(fd), to))
		}
	}
	if err := child.Start(); err != nil || len(child.ExtraFiles) == 0 {
		fmt.Println("victim: no child with sockets:", err)
	}
}

// spawn starts a victim and waits until it is where it is to be.
func (m *tester) spawn(step string) *exec.Cmd {
	m.t.Helper()
	cmd, err := start(step, m.opt.Socket)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd
}

func start(step, socket string) (*exec.Cmd, error) {
	cmd := exec.Command(os.Args[0])
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Env = append(os.Environ(), "PERIGEE_TEST_VICTIM="+step, "PERIGEE_TEST_SOCKET="+socket)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if strings.TrimSpace(line) != "at "+step {
		cmd.Process.Kill()
		cmd.Wait()
		return nil, fmt.Errorf("the helper says %q, %w", line, err)
	}
	return cmd, nil
}

// TestKilled kills an engine at every step of publishing and restoring: all that it held comes back, nothing half is ever seen, another
// engine's pages are untouched, and its successor finds what it had finished.
func TestKilled(t *testing.T) {
	for _, step := range steps {
		t.Run(step, func(t *testing.T) {
			m := begin(t, func(o *Options) { o.Instances = 2 })
			other := m.dial(named("survivor"), func(o *client.Options) { o.Ranks = namespaces(1, pageBytes+1) })
			pub := prompt(9, 0, 5)
			if _, err := publish(other, pub); err != nil {
				t.Fatal(err)
			}
			v := m.spawn(step)
			v.Process.Kill()
			v.Wait()
			m.until("the victim is fenced", func(st Status) bool { return len(st.Sessions) == 1 })
			if u := m.Status().Usage; u.Granted+u.Quarantined+u.Leased+u.Reserved+u.Pinned != 0 {
				t.Errorf("held after its end: %+v", u)
			}
			s := m.dial(named("victim"))
			n, err := restore(s, 1, 8)
			if err != nil {
				t.Fatal(err)
			}
			if finished := step == "published" || step == "leased" || step == "started" || step == "half read" || step == "restored"; finished != (n == 8) || !finished && n != 0 {
				t.Errorf("killed as it was %s, its successor finds %d pages", step, n)
			}
			if got, err := publish(s, prompt(1, 0, 8)); err != nil || int(got.Sealed+got.Present) != 8 {
				t.Errorf("its successor publishes: %+v, %v", got, err)
			}
			if n, err := restore(s, 1, 8); n != 8 || err != nil {
				t.Errorf("its successor restores %d: %v", n, err)
			}
			if a, err := other.Query(context.Background(), query(9, 5)); err != nil || a.Lease == nil || a.Lease.Hits[0] != 5 {
				t.Errorf("the survivor: %+v, %v", a, err)
			}
			s.Close()
			other.Close()
			m.settled()
		})
	}
}

// TestHung stops a process in the middle: its session is closed in time, but what it may still write is nobody's until it is really gone,
// and then it may not have anything any more.
func TestHung(t *testing.T) {
	m := begin(t, func(o *Options) {
		o.Core.Limits = core.Limits{Patience: 200 * time.Millisecond}
	})
	v := m.spawn("half written")
	if err := v.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	m.until("the session is closed", func(st Status) bool { return len(st.Sessions) == 1 && st.Sessions[0].Lost })
	if u := m.Status().Usage; u.Quarantined == 0 || u.Granted != u.Quarantined {
		t.Errorf("nothing in quarantine: %+v", u)
	}
	if _, err := m.tryDial(); client.ClassOf(err) == 0 {
		t.Error("the arena of a process that may still write is given to another")
	}
	v.Process.Kill() // a stopped process, too
	v.Wait()
	m.settled()
	if s := m.dial(); s == nil {
		t.Fatal("no session")
	}
}

// TestWordForOthers: a process says that it has unmapped everything, and another one of its session still writes: the word is for nobody else, and what that one may write stays its own until it
// is gone.
func TestWordForOthers(t *testing.T) {
	m := begin(t)
	v := m.spawn("half written")
	var cred client.Credentials
	m.locked(func() {
		for n, s := range m.mu.sessions {
			cred = client.Credentials{Epoch: m.epoch, Session: n, Token: s.token}
		}
	})
	c := m.connect()
	c.attach(cred, wire.RoleQuery)
	c.goodbye()
	m.until("the session is lost", func(st Status) bool { return len(st.Sessions) != 1 || st.Sessions[0].Lost })
	p := m.connect()
	p.say(&wire.Leave{Token: cred.Token})
	if a, _ := p.hear(); a.Kind() != wire.KindBye {
		t.Errorf("%+v", a)
	}
	p.close()
	if st := m.Status(); len(st.Sessions) != 1 || !slices.Equal(st.Sessions[0].Processes, []int{v.Process.Pid}) || st.Usage.Quarantined == 0 {
		t.Errorf("after the word of another process: %+v, %+v", st.Sessions, st.Usage)
	}
	if _, err := m.tryDial(); client.ClassOf(err) == 0 {
		t.Fatal("the arena of a process that still writes is given to another")
	}
	v.Process.Kill()
	v.Wait()
	m.settled()
}

// TestKilledParent kills an engine whose child has its sockets: they stay open, and the engine is as dead as any.
func TestKilledParent(t *testing.T) {
	m := begin(t)
	v := m.spawn("forked")
	t.Cleanup(func() { _ = syscall.Kill(-v.Process.Pid, syscall.SIGKILL) })
	if u := m.Status().Usage; u.Leased == 0 {
		t.Errorf("nothing is leased: %+v", u)
	}
	v.Process.Kill()
	v.Wait()
	m.until("the victim is fenced", func(st Status) bool { return len(st.Sessions) == 0 })
	m.until("the connections that its child has are closed here", func(st Status) bool { return st.Connections == 0 })
	if err := syscall.Kill(-v.Process.Pid, 0); err != nil {
		t.Errorf("its child has ended too: %v", err)
	}
	if u := m.Status().Usage; u.Granted+u.Quarantined+u.Leased+u.Reserved+u.Pinned != 0 {
		t.Errorf("held after its end: %+v", u)
	}
	if n, err := restore(m.dial(named("victim")), 1, 8); n != 8 || err != nil {
		t.Errorf("its successor restores %d: %v", n, err)
	}
}
