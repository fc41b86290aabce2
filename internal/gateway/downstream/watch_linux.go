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
	conns map[uint64]watch // by what the system gives back; guarded by mu
}

// watch is what a connection wants to be told of. Neither may block.
type watch struct {
	gone func() // the client has left
	more func() // something came; nil: it is never told of that
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
	return &watcher{f: f, raw: raw, fd: fd, conns: map[uint64]watch{}}, nil
}

// leaving are the events: EPOLLERR and EPOLLHUP come unasked. Edges, since nothing takes away what they tell of.
const leaving = syscall.EPOLLRDHUP | 1<<31 // EPOLLET, which package syscall has as a negative number

// add has gone called when the client leaves, also if it has left already. It returns a name for remove; 0: the connection cannot be watched.
func (w *watcher) add(raw syscall.RawConn, to watch) (name uint64) {
	w.mu.Lock()
	w.next++
	name = w.next
	w.conns[name] = to
	w.mu.Unlock()
	var failed error
	err := raw.Control(func(fd uintptr) {
		ev := eventsOf(name, leaving)
		failed = syscall.EpollCtl(w.fd, syscall.EPOLL_CTL_ADD, int(fd), &ev)
	})
	if err != nil || failed != nil {
		w.remove(name)
		return 0
	}
	return name
}

func eventsOf(name uint64, events uint32) syscall.EpollEvent {
	return syscall.EpollEvent{Events: events, Fd: int32(uint32(name)), Pad: int32(uint32(name >> 32))}
}

// arming switches on and off that a connection is told that something came. The zero value does nothing.
type arming struct {
	w    *watcher
	name uint64
	raw  syscall.RawConn
	on   bool
	ctl  func(uintptr) // control, made once
}

func (a *arming) of(w *watcher, name uint64, raw syscall.RawConn) {
	a.w, a.name, a.raw, a.ctl = w, name, raw, a.control
}

// set fails only for a connection that is closed.
func (a *arming) set(on bool) {
	if a.ctl != nil {
		a.on = on
		_ = a.raw.Control(a.ctl)
	}
}

func (a *arming) control(fd uintptr) {
	ev := eventsOf(a.name, leaving)
	if a.on {
		ev.Events |= syscall.EPOLLIN
	}
	_ = syscall.EpollCtl(a.w.fd, syscall.EPOLL_CTL_MOD, int(fd), &ev)
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
			w.tell(uint64(uint32(ev.Fd))|uint64(uint32(ev.Pad))<<32, ev.Events)
		}
	}
}

func (w *watcher) tell(name uint64, events uint32) {
	w.mu.Lock()
	to := w.conns[name]
	w.mu.Unlock()
	switch {
	case to.gone == nil:
	case events&^syscall.EPOLLIN != 0:
		to.gone()
	case to.more != nil:
		to.more()
	}
}

// close ends run.
func (w *watcher) close() { _ = w.f.Close() }
