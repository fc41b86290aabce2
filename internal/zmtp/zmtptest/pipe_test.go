package zmtptest

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestPipe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Pipe()
		if n, err := a.Write([]byte("hello")); n != 5 || err != nil { // nobody reads yet
			t.Fatal(n, err)
		}
		buf := make([]byte, 100)
		if n, err := b.Read(buf); string(buf[:n]) != "hello" || err != nil {
			t.Fatalf("%q, %v", buf[:n], err)
		}
		began := time.Now()
		_ = b.SetReadDeadline(began.Add(time.Second))
		if _, err := b.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != time.Second {
			t.Error(err)
		}
		_ = b.SetReadDeadline(time.Time{})

		_ = a.SetWriteDeadline(time.Now().Add(time.Second))
		if n, err := a.Write(make([]byte, window+1)); n != window || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(n, err)
		}
		time.AfterFunc(time.Second, func() { _ = a.Close() })
		if n, err := io.Copy(io.Discard, b); n != window || err != nil {
			t.Error(n, err)
		}
		if _, err := b.Write(buf); err == nil {
			t.Error("a write to somebody who is gone")
		}
		if _, err := a.Read(buf); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
}

func TestCut(t *testing.T) {
	a, b := Pipe()
	a.CutAfter(3)
	if n, err := a.Write([]byte("hello")); n != 3 || err == nil {
		t.Error(n, err)
	}
	if got, err := io.ReadAll(b); string(got) != "hel" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Pipe()
		a.Silence()
		if n, err := b.Write(make([]byte, 10*window)); n != 10*window || err != nil {
			t.Error(n, err)
		}
		_ = a.SetDeadline(time.Now().Add(time.Hour))
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
	})
}

func TestNetwork(t *testing.T) {
	var n Network
	dial := func() (net.Conn, error) { return n.DialContext(t.Context(), "tcp", "x:1") }
	if _, err := dial(); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Error(err)
	}
	l := n.Listen("x:1")
	for range backlog {
		if _, err := dial(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := dial(); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("more than wait to be accepted: %v", err)
	}
	if _, err := l.Accept(); err != nil {
		t.Error(err)
	}
	_ = l.Close()
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if _, err := n.Dialled()[5].Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("nobody accepted it, and it is open: %v", err)
	}
	_ = n.Listen("x:1").Close() // the address is free again
}
