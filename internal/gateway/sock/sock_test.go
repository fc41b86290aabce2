//go:build unix

package sock

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/script"
)

// pair returns the two ends of a connection; the system does not keep much for it, so that long writes are cut.
func pair(t *testing.T) (ours, theirs *net.TCPConn) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	a, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs = a.(*net.TCPConn), b.(*net.TCPConn)
	_ = ours.SetWriteBuffer(128 << 10)
	t.Cleanup(func() { _, _ = ours.Close(), theirs.Close() })
	return ours, theirs
}

// TestWriter: whatever the pieces, their bytes arrive once and in order, and nothing is left.
func TestWriter(t *testing.T) {
	rng := script.Rand(t)
	ours, theirs := pair(t)
	var w Writer
	w.Of(Raw(ours))
	var sent bytes.Buffer
	got := make(chan []byte)
	go func() {
		text, _ := io.ReadAll(theirs)
		got <- text
	}()
	sizes := []int{0, 1, 10, 1000, 10_000, Most - 1, Most, Most + 1, 200_000}
	for range 50 {
		var rest net.Buffers
		for range rng.IntN(2 * pieces) {
			p := make([]byte, sizes[rng.IntN(len(sizes))])
			for i := range p {
				p[i] = byte(rng.Uint32())
			}
			sent.Write(p)
			rest = append(rest, p)
		}
		if err := w.Write(&rest); err != nil || len(rest) != 0 {
			t.Fatalf("%v, %d pieces are left", err, len(rest))
		}
	}
	_ = ours.CloseWrite()
	if text := <-got; !bytes.Equal(text, sent.Bytes()) {
		t.Errorf("%d bytes arrived of %d, or others", len(text), sent.Len())
	}
}

// TestWriterFails: a deadline and a closed connection end a write that waits, and what was not written stays.
func TestWriterFails(t *testing.T) {
	ours, theirs := pair(t)
	var w Writer
	w.Of(Raw(ours))
	const size = 16 << 20 // more than the system keeps
	rest := net.Buffers{make([]byte, size)}
	var whole bool
	var err error
	if failed := Raw(ours).Control(func(fd uintptr) { whole, err = w.Now(fd, &rest) }); failed != nil {
		t.Fatal(failed)
	}
	if whole || err != nil || len(rest) != 1 || len(rest[0]) == size {
		t.Fatalf("without waiting: %v, %v, %d pieces", whole, err, len(rest))
	}
	_ = ours.SetWriteDeadline(time.Now().Add(time.Millisecond))
	if err := w.Write(&rest); !errors.Is(err, os.ErrDeadlineExceeded) || len(rest) != 1 || len(rest[0]) == 0 {
		t.Fatalf("%v, %d pieces", err, len(rest))
	}
	_ = ours.SetWriteDeadline(time.Time{})
	var wg sync.WaitGroup
	wg.Go(func() {
		n, err := io.CopyN(io.Discard, theirs, size)
		if err != nil {
			t.Errorf("%d bytes came, then %v", n, err)
		}
		_ = theirs.SetLinger(0)
		_ = theirs.Close()
	})
	if err := w.Write(&rest); err != nil || len(rest) != 0 {
		t.Errorf("%v, %d pieces", err, len(rest))
	}
	wg.Wait()
	for { // the reset may be under way
		rest = net.Buffers{[]byte("x"), []byte("y")}
		err := w.Write(&rest)
		if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	_ = ours.Close()
	if err := w.Write(&rest); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}

// TestRead: what is there is read, and nothing is told from an end.
func TestRead(t *testing.T) {
	ours, theirs := pair(t)
	raw := Raw(ours)
	now := func() (text string, quiet bool, err error) {
		p := make([]byte, 10)
		n := 0
		if e := raw.Control(func(fd uintptr) { quiet = Quiet(fd); n, err = Read(fd, p) }); e != nil {
			t.Fatal(e)
		}
		return string(p[:n]), quiet, err
	}
	wait := func() {
		if err := raw.Read(func(fd uintptr) bool { return !Quiet(fd) }); err != nil {
			t.Fatal(err)
		}
	}
	if text, quiet, err := now(); text != "" || !quiet || !errors.Is(err, ErrNothing) {
		t.Errorf("before anything: %q, %v, %v", text, quiet, err)
	}
	_, _ = io.WriteString(theirs, "abc")
	wait()
	if text, quiet, err := now(); text != "abc" || quiet || err != nil {
		t.Errorf("%q, %v, %v", text, quiet, err)
	}
	_ = theirs.Close()
	wait()
	if text, quiet, err := now(); text != "" || quiet || err != io.EOF {
		t.Errorf("after the end: %q, %v, %v", text, quiet, err)
	}
}
