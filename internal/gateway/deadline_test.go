package gateway

import (
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/downstream"
	"github.com/perigee-llm/perigee/internal/script"
	"github.com/perigee-llm/perigee/internal/telemetry"
)

// plan is what is done to a connection: at each step, by turns of this order, deadlines are set, the other side sends or takes something, and
// time passes, while a read and a write go on all the time.
type plan []struct {
	read, write time.Duration // from now; 0: not set; 1: none; negative: in the past
	send, take  bool
	pass        time.Duration
}

// follow does all that is planned and notes what the reads and writes met, and when.
func follow(wrap func(net.Conn) net.Conn, p plan) (noted []string) {
	ours, theirs := net.Pipe()
	c := wrap(ours)
	began := time.Now()
	notes := [2][]string{}
	ended := make(chan struct{})
	next := [2]chan struct{}{make(chan struct{}, 1), make(chan struct{}, 1)}
	run := func(i int, do func() error) {
		for {
			err := do()
			if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			notes[i] = append(notes[i], fmt.Sprint(i, time.Since(began), err))
			if err != nil { // else it would spin
				<-next[i]
			}
		}
		ended <- struct{}{}
	}
	go run(0, func() error { _, err := c.Read(make([]byte, 1)); return err })
	go run(1, func() error { _, err := c.Write([]byte{1}); return err })
	set := func(f func(time.Time) error, d time.Duration) {
		switch d {
		case 0:
		case 1:
			_ = f(time.Time{})
		default:
			_ = f(time.Now().Add(d))
		}
	}
	for _, x := range p {
		set(c.SetReadDeadline, x.read)
		set(c.SetWriteDeadline, x.write)
		synctest.Wait()
		signal(next[0])
		signal(next[1])
		synctest.Wait()
		if x.send {
			_ = theirs.SetWriteDeadline(time.Now().Add(time.Microsecond))
			_, _ = theirs.Write([]byte{2})
		}
		if x.take {
			_ = theirs.SetReadDeadline(time.Now().Add(time.Microsecond))
			_, _ = theirs.Read(make([]byte, 1))
		}
		time.Sleep(x.pass) // on the fake clock
	}
	_ = c.Close()
	_ = theirs.Close()
	signal(next[0])
	signal(next[1])
	<-ended
	<-ended
	return append(notes[0], notes[1]...)
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// TestDeadlines: a client's connection meets its deadlines when a plain one does, however they are moved.
func TestDeadlines(t *testing.T) {
	rng := script.Rand(t)
	for range 300 {
		var p plan
		moved := func() time.Duration {
			switch rng.IntN(5) {
			case 0:
				return 0
			case 1:
				return 1
			case 2:
				return -time.Hour
			}
			return time.Duration(1+rng.IntN(60))*10*time.Millisecond + 300*time.Microsecond
		}
		for range 1 + rng.IntN(20) {
			p = append(p, plan{{moved(), moved(), rng.IntN(2) == 0, rng.IntN(2) == 0, time.Duration(rng.IntN(30))*10*time.Millisecond + 500*time.Microsecond}}...)
		}
		var want, got []string
		synctest.Test(t, func(*testing.T) { want = follow(func(c net.Conn) net.Conn { return c }, p) })
		synctest.Test(t, func(*testing.T) {
			d := &door{metrics: telemetry.New()}
			got = follow(func(c net.Conn) net.Conn { return &clientConn{place: &place{Conn: c, door: d}} }, p)
		})
		for i := range max(len(got), len(want)) {
			if i >= len(got) || i >= len(want) || got[i] != want[i] {
				t.Fatalf("%+v\n got %v\nwant %v", p, got[i:min(i+3, len(got))], want[i:min(i+3, len(want))])
			}
		}
	}
}

// TestDeadlinesMoved: a deadline that moves on, as it does with each request, reaches the runtime once.
func TestDeadlinesMoved(t *testing.T) {
	var d downstream.Deadline
	armed := 0
	arm := func(time.Time) error { armed++; return nil }
	now := time.Now()
	for i := range 100 {
		_ = d.Set(now.Add(time.Minute+time.Duration(i)*time.Second), arm)
		_ = d.Set(time.Time{}, arm)
	}
	if armed != 1 {
		t.Errorf("%d times", armed)
	}
	_ = d.Set(now, arm)
	if armed != 2 {
		t.Error("a sooner one did not")
	}
}
