package downstream

import (
	"os"
	"sync"
	"syscall"
)

// watcher learns from the system which clients have left, or have closed their direction: each connection is registered once, for its whole
// life, and the system speaks only of these events. What a client sends does not wake it.
//
// One goroutine runs it. The descriptor of the epoll is itself waited for by the runtime, so no thread is held.
type watcher struct {
	f   *os.File
	raw syscall.RawConn
	fd  int

	mu    sync.Mutex
	next  uint64
	conns map[uint64]func() // by what the system gives back; guarded by mu
}

func newWatcher() (*watcher, error) {
	fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := syscall.SetNonblock(fd, true); err != nil {
		_ = syscall.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	f := os.NewFile(uintptr(fd), "epoll")
	raw, err := f.SyscallConn()
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return &watcher{f: f, raw: raw, fd: fd, conns: map[uint64]func(){}}, nil
}

// leaving are the events: EPOLLERR and EPOLLHUP come unasked. Edges, since nothing takes away what they tell of.
const leaving = syscall.EPOLLRDHUP | 1<<31 // EPOLLET, which package syscall has as a negative number

// add has gone called once when the client leaves, also if it has left already. gone must not block. It returns a name for remove; 0: the
// connection cannot be watched.
func (w *watcher) add(raw syscall.RawConn, gone func()) (name uint64) {
	w.mu.Lock()
	w.next++
	name = w.next
	w.conns[name] = gone
	w.mu.Unlock()
	var failed error
	err := raw.Control(func(fd uintptr) {
		ev := syscall.EpollEvent{Events: leaving, Fd: int32(uint32(name)), Pad: int32(uint32(name >> 32))}
		failed = syscall.EpollCtl(w.fd, syscall.EPOLL_CTL_ADD, int(fd), &ev)
	})
	if err != nil || failed != nil {
		w.remove(name)
		return 0
	}
	return name
}

// remove forgets a connection that is closed, which took it out of the system's list.
func (w *watcher) remove(name uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, name)
}

// run tells of those that leave until close.
func (w *watcher) run() {
	var events [128]syscall.EpollEvent
	var n int
	look := func(fd uintptr) bool {
		var err error
		if n, err = syscall.EpollWait(int(fd), events[:], 0); err != nil {
			n = 0 // it was interrupted, and is looked at again
			return true
		}
		return n > 0
	}
	for w.raw.Read(look) == nil {
		for i := range events[:n] {
			ev := &events[i]
			w.tell(uint64(uint32(ev.Fd)) | uint64(uint32(ev.Pad))<<32)
		}
	}
}

func (w *watcher) tell(name uint64) {
	w.mu.Lock()
	gone := w.conns[name]
	w.mu.Unlock()
	if gone != nil {
		gone()
	}
}

// close ends run.
func (w *watcher) close() { _ = w.f.Close() }
