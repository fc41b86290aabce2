package channel

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
)

// ErrInUse says that another process listens at the socket's path.
var ErrInUse = errors.New("another process listens there")

// Server accepts connections. Start one with Listen; end it with Close.
type Server struct {
	opt  Options
	ln   *net.UnixListener
	file os.FileInfo // of the socket, as it was made
	wg   sync.WaitGroup
	done chan struct{}

	mu struct {
		sync.Mutex
		conns  map[*Conn]bool
		closed bool
	}
	// Turned counts connections that were not served, for want of place or permission.
	Turned atomic.Int64
}

// Listen begins to serve. The socket appears under its path only when it has its mode: 0600, or 0666 if other users may connect, since
// then the kernel's word on who they are decides.
func Listen(o Options) (*Server, error) {
	o = o.withDefaults()
	if err := removeStale(o.Path); err != nil {
		return nil, err
	}
	temp := o.Path + "." + strconv.Itoa(os.Getpid())
	os.Remove(temp)
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: temp, Net: "unix"})
	if err != nil {
		return nil, err
	}
	ln.SetUnlinkOnClose(false)
	mode := os.FileMode(0o600)
	if len(o.UIDs) > 0 {
		mode = 0o666
	}
	s := &Server{opt: o, ln: ln, done: make(chan struct{})}
	if err = os.Chmod(temp, mode); err == nil {
		if err = os.Rename(temp, o.Path); err == nil {
			s.file, err = os.Stat(o.Path)
		}
	}
	if err != nil {
		ln.Close()
		os.Remove(temp)
		return nil, err
	}
	s.mu.conns = map[*Conn]bool{}
	s.wg.Go(s.accept)
	return s, nil
}

// removeStale removes a socket that a Manager left behind. Anything else under its name is the operator's.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode()&os.ModeSocket == 0:
		return fmt.Errorf("%s is there and is no socket", path)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		c.Close()
		return fmt.Errorf("%s: %w", path, ErrInUse)
	}
	if errors.Is(err, unix.ECONNREFUSED) {
		return os.Remove(path)
	}
	return fmt.Errorf("%s: %w (%w)", path, ErrInUse, err)
}

// acceptPause is how long Accept rests when it fails, most likely for want of descriptors: a fiftieth of what a client waits.
const acceptPause = 50 * time.Millisecond

func (s *Server) accept() {
	for {
		uc, err := s.ln.AcceptUnix()
		if err == nil {
			s.welcome(uc)
			continue
		}
		select {
		case <-s.done:
			return
		case <-time.After(acceptPause):
		}
	}
}

// welcome takes in one connection, or turns it away.
func (s *Server) welcome(uc *net.UnixConn) {
	c := &Conn{server: s, uc: uc}
	var full bool
	c.Peer, c.pidfd, full = peerOf(uc)
	s.mu.Lock()
	defer s.mu.Unlock()
	class := wire.Class(0)
	switch {
	case s.mu.closed:
		class = wire.Stopping
	case c.Peer.UID != uint32(os.Geteuid()) && !slices.Contains(s.opt.UIDs, c.Peer.UID):
		class = wire.NotAllowed
	case full, len(s.mu.conns) >= s.opt.Conns:
		class = wire.TooMany
	}
	if class != 0 {
		s.Turned.Add(1)
		// A new socket has room for it: this does not wait.
		uc.SetWriteDeadline(time.Now().Add(endGrace))
		uc.Write(wire.Append(nil, wire.Header{Epoch: s.opt.Epoch}, &wire.Closing{Class: class}))
		c.release()
		return
	}
	s.mu.conns[c] = true
	uc.SetDeadline(time.Now().Add(s.opt.Greeting)) // of writing, too: who asks and does not read has the reader write for ever
	s.wg.Go(c.read)
}

// peerOf asks the kernel who is at the other end. The pidfd is nil if there is none to be had; full says that this is for want of descriptors, and passes.
func peerOf(uc *net.UnixConn) (p Peer, pidfd *os.File, full bool) {
	raw, err := uc.SyscallConn()
	if err != nil {
		return Peer{UID: ^uint32(0)}, nil, false
	}
	p.UID = ^uint32(0) // nobody
	raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			p.PID, p.UID = int(cred.Pid), cred.Uid
		}
		n, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD) // Linux 6.5
		if err != nil && p.PID > 0 {
			// Should the peer have ended and its number be another's, its connection has ended too, and what we wait for is
			// only longer.
			n, err = unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
		}
		full = errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)
		if err == nil {
			unix.SetNonblock(n, true) // so that the runtime waits for it with all the others
			pidfd = os.NewFile(uintptr(n), "pidfd")
		}
	})
	return p, pidfd, full
}

// Conns is how many connections there are.
func (s *Server) Conns() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.conns)
}

// Close stops accepting, ends all connections, and waits until the handler knows. The socket's file goes if it is still ours.
func (s *Server) Close() {
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		s.wg.Wait()
		return
	}
	s.mu.closed = true
	conns := make([]*Conn, 0, len(s.mu.conns))
	for c := range s.mu.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	close(s.done)
	if now, err := os.Stat(s.opt.Path); err == nil && os.SameFile(now, s.file) {
		os.Remove(s.opt.Path)
	}
	s.ln.Close()
	for _, c := range conns {
		c.End(wire.Stopping, "")
	}
	s.wg.Wait()
}

func (s *Server) forget(c *Conn) {
	s.mu.Lock()
	delete(s.mu.conns, c)
	s.mu.Unlock()
}
