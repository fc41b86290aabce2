//go:build linux

package channel

import (
	"bytes"
	"io"
	"net"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/perigee-llm/perigee/internal/script"
)

// TestReceiver reads a stream, which comes in pieces of any size, by random calls: each byte comes once and in its place.
func TestReceiver(t *testing.T) {
	r := script.Rand(t)
	sent := make([]byte, 1<<20)
	for i := range sent {
		sent[i] = byte(r.Uint32())
	}
	var pieces []int
	for n := 0; n < len(sent); n += pieces[len(pieces)-1] {
		pieces = append(pieces, 1+r.IntN(min(3*readAhead, len(sent)-n)))
	}
	ours, theirs := pair(t)
	wrote := make(chan error, 1)
	go func() {
		rest := sent
		for _, n := range pieces {
			if _, err := theirs.Write(rest[:n]); err != nil {
				wrote <- err
				return
			}
			rest = rest[n:]
		}
		wrote <- theirs.CloseWrite()
	}()
	in, err := newReceiver(ours)
	if err != nil {
		t.Fatal(err)
	}
	rest := sent
	wrong := func(what string, got []byte) {
		t.Fatalf("%s %d bytes: not those from %d on", what, len(got), len(sent)-len(rest))
	}
	for len(rest) > 0 {
		switch r.IntN(4) {
		case 0:
			if err := in.wait(); err != nil || in.buffered() == 0 {
				t.Fatalf("%d are buffered: %v", in.buffered(), err)
			}
		case 1:
			n := min(1+r.IntN(readAhead), len(rest))
			got, err := in.peek(n)
			if err != nil || !bytes.Equal(got, rest[:n]) {
				t.Log(err)
				wrong("peeked at", got)
			}
			n = r.IntN(n + 1)
			in.discard(n)
			rest = rest[n:]
		default:
			got := make([]byte, 1+r.IntN(2*readAhead))
			n, err := in.Read(got)
			if err != nil || !bytes.HasPrefix(rest, got[:n]) {
				t.Log(err)
				wrong("read", got[:n])
			}
			rest = rest[n:]
		}
	}
	if err := in.wait(); err != io.EOF {
		t.Errorf("behind the last byte: %v", err)
	}
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	in.close()
	if in.buf != nil {
		t.Error("it keeps a buffer")
	}
}

// TestReceiverAtRest: while nothing comes it has no buffer, also when much came before.
func TestReceiverAtRest(t *testing.T) {
	ours, theirs := pair(t)
	in, err := newReceiver(ours)
	if err != nil {
		t.Fatal(err)
	}
	defer in.close()
	for range 3 {
		in.raw.Control(func(fd uintptr) {
			if in.receive(fd) || in.buf != nil {
				t.Errorf("it has read %d bytes, and keeps its buffer: %v", in.n, in.buf != nil)
			}
		})
		theirs.Write(make([]byte, 100))
		if _, err := io.ReadFull(in, make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
	}
}

// pair is two ends of one connection.
func pair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		ends[i] = c.(*net.UnixConn)
	}
	return ends[0], ends[1]
}

// TestDescriptorsThatAreClosed: a descriptor that is being sent stays what it is though its file is closed meanwhile, and one that is closed before is not sent.
func TestDescriptorsThatAreClosed(t *testing.T) {
	file := func() *os.File {
		fd, err := unix.MemfdCreate("sent", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		return os.NewFile(uintptr(fd), "sent")
	}
	a, b := file(), file()
	defer b.Close()
	open := func(fd int) bool { _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); return err == nil }
	var sent []int
	err := withFDs([]*os.File{a, b}, nil, func(fds []int) error {
		a.Close()
		if sent = fds; !open(fds[0]) || !open(fds[1]) {
			t.Error("closed while it is sent")
		}
		return nil
	})
	if err != nil || len(sent) != 2 || open(sent[0]) {
		t.Errorf("%v: %v, and the first is still open", err, sent)
	}
	if withFDs([]*os.File{b, a}, nil, func([]int) error { t.Error("a closed one is sent"); return nil }) == nil {
		t.Error("a closed one is no error")
	}
}

// TestHungUpSignals: a signal that comes while it is looked whether a peer has hung up is not taken for his end.
func TestHungUpSignals(t *testing.T) {
	ours, theirs := pair(t)
	c := &Conn{uc: ours}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread, over, ended := unix.Gettid(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-over:
				return
			default:
				unix.Tgkill(os.Getpid(), thread, unix.SIGURG) // as the runtime does
			}
		}
	}()
	for i := range 100_000 {
		if c.HungUp() {
			t.Errorf("at look %d who is there has hung up", i)
			break
		}
	}
	theirs.Close()
	if !c.HungUp() {
		t.Error("who has hung up is there")
	}
	close(over)
	<-ended
}
