package downstream

import (
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
)

// pair returns the two ends of a connection of the system's, which are read and written as those of clients are, past package net.
func pair(t *testing.T) (near, far *net.UnixConn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = c.(*net.UnixConn)
	}
	return ends[0], ends[1]
}

// askRaw is ask over such a connection, with our server.
func askRaw(t *testing.T, data []byte, bytewise bool) (seen []said, wrote string, ok bool) {
	near, far := pair(t)
	var mu sync.Mutex
	s := ours(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := note(r)
		mu.Lock()
		seen = append(seen, x)
		mu.Unlock()
		w.Header()["Content-Type"] = nil
		_, _ = io.WriteString(w, "ok")
	})).(*Server)
	ln := listenerOf(far)
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Serve(ln) })
	wg.Go(func() {
		step := max(len(data), 1)
		if bytewise {
			step = 1
		}
		for part := range slices.Chunk(data, step) {
			if _, err := near.Write(part); err != nil {
				break // the server has seen enough
			}
		}
		_ = near.CloseWrite()
	})
	text, _ := io.ReadAll(near) // a server that has not read everything ends it with a reset
	_ = near.Close()
	_ = s.Close()
	s.Wait()
	wg.Wait()
	mu.Lock()
	defer mu.Unlock()
	return slices.Clone(seen), string(text), true
}
