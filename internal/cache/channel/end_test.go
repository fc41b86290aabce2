//go:build linux

package channel

import (
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
)

// letGo is a handler that has work for a connection after its end, as a Manager that copies for it has.
type letGo struct {
	echo
	begun, end chan struct{}
}

func (e *letGo) Gone(*Conn) {
	close(e.begun)
	<-e.end
}

// TestEndIsTheLastWord: a peer that does not read sees the connection's end when the handler has let go, and not when a write to it has
// failed: the end is what tells it that nothing is copied any more.
func TestEndIsTheLastWord(t *testing.T) {
	e := &letGo{begun: make(chan struct{}), end: make(chan struct{})}
	e.pongs = 4000 // 4 MB: more than a socket holds
	s, err := Listen(Options{Path: path(t), Epoch: 7, Handler: e})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	released := false
	release := func() {
		if !released {
			released = true
			close(e.end)
		}
	}
	t.Cleanup(release) // before Close
	c := dial(t, s)
	c.Write(wire.Append(nil, wire.Header{Ref: 1}, &wire.Hello{MinVersion: 1, MaxVersion: 1}))
	if _, m := hear(t, c); m == nil || m.Kind() != wire.KindWelcome {
		t.Fatalf("%+v", m)
	}
	c.Write(wire.Append(nil, wire.Header{Ref: 2, Epoch: 7}, &wire.Ping{}))
	hear(t, c) // it is being answered
	e.mu.Lock()
	conn := e.conns[0]
	e.mu.Unlock()
	conn.End(wire.StaleSession, "") // the write that waits fails a second later
	<-e.begun
	if err := drain(t, c); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("behind what there was to be read: %v, want nothing yet", err)
	}
	release()
	for {
		if _, err := c.Read(make([]byte, 1<<16)); err != nil {
			return // the end
		}
	}
}

// drain reads what there is without waiting, and returns why there is no more; nil is the end.
func drain(t *testing.T, c net.Conn) (why error) {
	t.Helper()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1<<16)
	raw.Control(func(fd uintptr) {
		for n := 1; n > 0 && why == nil; {
			n, _, why = unix.Recvfrom(int(fd), b, unix.MSG_DONTWAIT)
		}
	})
	return why
}
