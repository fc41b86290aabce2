//go:build linux

package channel

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo answers Ping with as many Pongs as it is told.
type echo struct {
	pongs int
	mu    sync.Mutex
	gone  int
	conns []*Conn
	left  chan *Conn // told of each that has gone, if it is there
	idle  bool       // no connection becomes part of a session
}

// Frame implements Handler.
func (e *echo) Frame(c *Conn, h wire.Header, m wire.Message) {
	e.mu.Lock()
	e.conns = append(e.conns, c)
	e.mu.Unlock()
	if !e.idle {
		c.Settle()
	}
	for range e.pongs {
		c.Send(c.Header(h.Ref, 0), &wire.Closing{Text: string(make([]byte, 1000))})
	}
	c.Send(c.Header(h.Ref, 0), &wire.Pong{})
}

// Gone implements Handler.
func (e *echo) Gone(c *Conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gone++
	if e.left != nil {
		e.left <- c
	}
}

func path(t *testing.T) string {
	dir, err := os.MkdirTemp("", "pc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

func listen(t *testing.T, o Options, e *echo) *Server {
	t.Helper()
	if o.Path == "" {
		o.Path = path(t)
	}
	o.Epoch, o.Handler = 7, e
	s, err := Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func dial(t *testing.T, s *Server) net.Conn {
	t.Helper()
	c, err := net.Dial("unix", s.opt.Path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(2 * time.Minute))
	return c
}

// hear returns the kind of the next message; 0 at the end.
func hear(t *testing.T, c net.Conn) (wire.Header, wire.Message) {
	t.Helper()
	head := make([]byte, wire.HeaderSize)
	if _, err := io.ReadFull(c, head); err != nil {
		return wire.Header{}, nil
	}
	h, err := wire.ParseHeader(head)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, h.Length)
	io.ReadFull(c, b)
	m, err := wire.Decode(h.Kind, b)
	if err != nil {
		t.Fatal(err)
	}
	return h, m
}

// TestStuckGreeting: a connection that asks before it is part of a session and does not read its answers is let go in time, also while the answer is
// being written.
func TestStuckGreeting(t *testing.T) {
	e := &echo{pongs: 4000, idle: true, left: make(chan *Conn, 1)} // 4 MB: more than a socket holds
	s := listen(t, Options{Greeting: 50 * time.Millisecond}, e)
	b := wire.Append(nil, wire.Header{Ref: 1}, &wire.Hello{MinVersion: 1, MaxVersion: 1})
	b = wire.Append(b, wire.Header{Ref: 2, Epoch: 7}, &wire.Ping{})
	for asked := false; !asked; { // one whose time was over before it was heard, on a machine that is busy, shows nothing: once more
		_, _ = dial(t, s).Write(b)
		select {
		case c := <-e.left:
			e.mu.Lock()
			asked = slices.Contains(e.conns, c)
			e.mu.Unlock()
		case <-time.After(time.Minute):
			t.Fatalf("it stays: %d connections", s.Conns())
		}
	}
}

func TestServe(t *testing.T) {
	e := &echo{}
	s := listen(t, Options{Welcome: wire.Welcome{Manager: "test"}}, e)
	if info, err := os.Stat(s.opt.Path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	c := dial(t, s)
	var out []byte
	out = wire.Append(out, wire.Header{Ref: 1}, &wire.Hello{MinVersion: 1, MaxVersion: 3})
	out = wire.Append(out, wire.Header{Ref: 2}, &wire.Ping{})
	unknown := wire.Append(nil, wire.Header{Ref: 3}, &wire.Refused{Text: "what a later version says"})
	unknown[4] = 60
	out = append(out, unknown...)
	out = wire.Append(out, wire.Header{Ref: 4}, &wire.Ping{})
	for _, b := range out { // byte by byte
		if _, err := c.Write([]byte{b}); err != nil {
			t.Fatal(err)
		}
	}
	want := []wire.Kind{wire.KindWelcome, wire.KindPong, wire.KindRefused, wire.KindPong}
	for i, k := range want {
		h, m := hear(t, c)
		if h.Kind != k || h.Ref != uint64(i+1) || h.Epoch != 7 {
			t.Fatalf("answer %d: %+v %+v", i, h, m)
		}
		if w, ok := m.(*wire.Welcome); ok && (w.Version != 1 || w.Manager != "test") {
			t.Errorf("%+v", w)
		}
		if r, ok := m.(*wire.Refused); ok && r.Class != wire.Unknown {
			t.Errorf("%+v", r)
		}
	}
	s.Close()
	if _, m := hear(t, c); m == nil || m.(*wire.Closing).Class != wire.Stopping {
		t.Errorf("the last word is %+v", m)
	}
	if e.gone != 1 {
		t.Errorf("gone %d times", e.gone)
	}
}

func TestTurnedAway(t *testing.T) {
	s := listen(t, Options{Conns: 1}, &echo{})
	first := dial(t, s)
	first.Write(wire.Append(nil, wire.Header{}, &wire.Hello{MinVersion: 1, MaxVersion: 1}))
	hear(t, first)
	if _, m := hear(t, dial(t, s)); m == nil || m.(*wire.Closing).Class != wire.TooMany {
		t.Errorf("beyond the bound: %+v", m)
	}
	if s.Turned.Load() != 1 {
		t.Errorf("%d turned away", s.Turned.Load())
	}
}

// TestLastDescriptor: who is accepted with the last descriptor, so that there is none by which his process could be awaited, is told to come again, and not that it never can be.
func TestLastDescriptor(t *testing.T) {
	s := listen(t, Options{}, &echo{})
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	last, highest := 0, 0
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		n, _ := strconv.Atoi(e.Name())
		highest = max(highest, n)
	}
	for last <= highest { // so that no number below is free
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		last = int(f.Fd())
	}
	full := limit
	full.Cur = uint64(last) + 3 // the next two are this end's and the other's
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &full); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	if _, m := hear(t, dial(t, s)); m == nil || m.(*wire.Closing).Class != wire.TooMany {
		t.Errorf("with the last descriptor: %+v", m)
	}
}

// TestSlow: a peer that does not read what others send it is let go, and nobody has waited.
func TestSlow(t *testing.T) {
	e := &echo{left: make(chan *Conn, 1)}
	s := listen(t, Options{Queue: 64 << 10}, e)
	c := dial(t, s)
	c.Write(wire.Append(wire.Append(nil, wire.Header{}, &wire.Hello{MinVersion: 1, MaxVersion: 1}), wire.Header{}, &wire.Ping{}))
	hear(t, c)
	hear(t, c)
	e.mu.Lock()
	to := e.conns[0]
	e.mu.Unlock()
	for range 10000 {
		to.Send(to.Header(0, 0), &wire.Closing{Text: string(make([]byte, 1000))})
		to.Kick()
	}
	<-e.left
	if s.Conns() != 0 || !to.mu.ended {
		t.Error("the connection goes on")
	}
}

func TestStale(t *testing.T) {
	p := path(t)
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: p, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(Options{Path: p, Epoch: 1, Handler: &echo{}}); !errors.Is(err, ErrInUse) {
		t.Errorf("another's socket: %v", err)
	}
	ln.SetUnlinkOnClose(false)
	ln.Close()
	s := listen(t, Options{Path: p}, &echo{}) // what was killed leaves its socket, and is replaced
	dial(t, s)
	if err := os.Remove(p); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte("the operator's"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(Options{Path: p, Epoch: 1, Handler: &echo{}}); err == nil {
		t.Error("a file was replaced")
	}
	s.Close()
	if b, err := os.ReadFile(p); err != nil || !bytes.Equal(b, []byte("the operator's")) {
		t.Errorf("Close removed what is not its own: %v", err)
	}
}

// TestOtherUser: who is not allowed is told so, by the kernel's word on who he is. It needs root, to be somebody else.
func TestOtherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be somebody else")
	}
	const allowed, other = 65533, 65534
	s := listen(t, Options{UIDs: []uint32{allowed}}, &echo{})
	if err := os.Chmod(filepath.Dir(s.opt.Path), 0o711); err != nil {
		t.Fatal(err)
	}
	for uid, want := range map[uint32]wire.Kind{allowed: wire.KindWelcome, other: wire.KindClosing} {
		c := dialAs(t, s.opt.Path, uid)
		c.SetDeadline(time.Now().Add(2 * time.Minute))
		c.Write(wire.Append(nil, wire.Header{Ref: 1}, &wire.Hello{MinVersion: 1, MaxVersion: 1}))
		h, m := hear(t, c)
		if h.Kind != want {
			t.Errorf("user %d: %+v", uid, m)
		}
		if c, ok := m.(*wire.Closing); ok && c.Class != wire.NotAllowed {
			t.Errorf("user %d: %s", uid, c.Class)
		}
	}
}

// dialAs connects as another user: a thread becomes him, and ends.
func dialAs(t *testing.T, path string, uid uint32) net.Conn {
	t.Helper()
	done := make(chan error, 1)
	var fd int
	go func() {
		runtime.LockOSThread() // and never unlocks it, so that the thread ends with the goroutine
		if _, _, e := syscall.RawSyscall(syscall.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); e != 0 {
			done <- e
			return
		}
		var err error
		if fd, err = syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0); err == nil {
			err = syscall.Connect(fd, &syscall.SockaddrUnix{Name: path})
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestSealed: what answers a Seal goes with the answer to what came right behind it, and without that at once.
func TestSealed(t *testing.T) {
	s := listen(t, Options{}, &echo{})
	c := dial(t, s)
	c.Write(wire.Append(nil, wire.Header{Ref: 1}, &wire.Hello{MinVersion: 1, MaxVersion: 1}))
	if _, m := hear(t, c); m.Kind() != wire.KindWelcome {
		t.Fatalf("%+v", m)
	}
	seal := wire.Append(nil, wire.Header{Ref: 2, Epoch: 7}, &wire.Seal{})
	ping := wire.Append(nil, wire.Header{Ref: 3, Epoch: 7}, &wire.Ping{})
	refs := func(want ...uint64) {
		t.Helper()
		for _, ref := range want {
			if h, m := hear(t, c); m == nil || h.Ref != ref {
				t.Fatalf("%+v, %+v, want the answer to %d", h, m, ref)
			}
		}
	}
	c.Write(seal)
	refs(2)
	c.Write(append(bytes.Clone(seal), ping...))
	got := make([]byte, 4096)
	if n, err := c.Read(got); n != 2*wire.HeaderSize || err != nil { // one write
		t.Fatalf("%d bytes, %v", n, err)
	}
	c.Write(append(bytes.Clone(seal), ping[:wire.HeaderSize-1]...))
	refs(2)
	c.Write(ping[wire.HeaderSize-1:])
	refs(3)
}
