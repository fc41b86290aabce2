package zmtp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// Listener waits for peers at an endpoint. Whoever has it closes it, or has Serve do so.
type Listener struct {
	ln  net.Listener
	typ Type
	opt Options

	mu struct {
		sync.Mutex
		peers map[net.Conn]struct{} // also those that still shake hands
		done  bool
	}
	wg sync.WaitGroup // a handler each
}

// Listen binds an endpoint as a Sub, to which publishers connect, or as a Router. Errors: *EndpointError, those of Options, and the
// system's, of which syscall.EADDRINUSE is the usual one. A socket file that an earlier process left behind is removed.
func Listen(typ Type, endpoint string, o Options) (*Listener, error) {
	network, address, err := split(endpoint, true)
	if err != nil {
		return nil, err
	}
	if o, err = o.withDefaults(); err != nil {
		return nil, err
	}
	if network == "unix" {
		removeStale(address)
	}
	lc := net.ListenConfig{KeepAliveConfig: keepAlive}
	ln, err := lc.Listen(context.Background(), network, address)
	if err != nil {
		return nil, fmt.Errorf("zmtp: listen on %s: %w", endpoint, err)
	}
	return newListener(ln, typ, o), nil
}

// NewListener waits at a listener that is there already, which it owns from then on.
func NewListener(ln net.Listener, typ Type, o Options) (*Listener, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return newListener(ln, typ, o), nil
}

func newListener(ln net.Listener, typ Type, o Options) *Listener {
	l := &Listener{ln: ln, typ: typ, opt: o}
	l.mu.peers = map[net.Conn]struct{}{}
	return l
}

// removeStale removes a socket file that nobody listens on.
func removeStale(path string) {
	if info, err := os.Stat(path); err != nil || info.Mode().Type() != os.ModeSocket {
		return
	}
	if nc, err := net.Dial("unix", path); err == nil {
		_ = nc.Close() // somebody does; Listen will say so
		return
	}
	_ = os.Remove(path)
}

// Endpoint returns what a peer on the same machine dials, with the port that the system chose.
func (l *Listener) Endpoint() string {
	switch a := l.ln.Addr().(type) {
	case *net.TCPAddr:
		host := a.IP.String()
		if a.IP.IsUnspecified() {
			host = "127.0.0.1"
		}
		return "tcp://" + net.JoinHostPort(host, fmt.Sprint(a.Port))
	case *net.UnixAddr:
		return "ipc://" + a.Name
	default:
		return "tcp://" + a.String()
	}
}

// Serve accepts peers until the context ends or Close is called, and calls handle for each that has shaken hands, in a goroutine of its own:
// the connection is closed when handle returns. In the end it closes the listener and all connections, waits for the handlers, and
// returns nil. An error means that the listener failed.
func (l *Listener) Serve(ctx context.Context, handle func(*Conn)) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	err := l.accept(ctx, handle)
	closing := l.isDone()
	_ = l.Close()
	l.wg.Wait()
	if closing {
		return nil
	}
	return err
}

// accept returns when the listener is closed or fails.
func (l *Listener) accept(ctx context.Context, handle func(*Conn)) error {
	backoff := Backoff{Min: 5 * time.Millisecond, Max: time.Second} // as net/http does when it runs out of file descriptors
	for {
		nc, err := l.ln.Accept()
		if err != nil {
			if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() || isShortage(err) {
				if backoff.Wait(ctx) == nil {
					continue
				}
			}
			return fmt.Errorf("zmtp: accept: %w", err)
		}
		backoff.Reset()
		if err := l.add(nc); err != nil {
			_ = nc.Close()
			l.refused(nc, err)
			continue
		}
		l.wg.Go(func() {
			defer l.remove(nc)
			l.serve(ctx, nc, handle)
		})
	}
}

func (l *Listener) serve(ctx context.Context, nc net.Conn, handle func(*Conn)) {
	c, err := newConn(ctx, nc, l.typ, l.opt)
	if err != nil {
		l.refused(nc, err)
		return
	}
	defer c.Close()
	handle(c)
}

func (l *Listener) refused(nc net.Conn, err error) {
	if l.opt.Refused != nil {
		l.opt.Refused(nc.RemoteAddr().String(), err)
	}
}

func (l *Listener) add(nc net.Conn) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.mu.done:
		return ErrClosed
	case len(l.mu.peers) >= l.opt.MaxPeers:
		return ErrTooManyPeers
	}
	l.mu.peers[nc] = struct{}{}
	return nil
}

func (l *Listener) remove(nc net.Conn) {
	_ = nc.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.mu.peers, nc)
}

func (l *Listener) isDone() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.done
}

// Close stops listening and ends all connections at once; it does not wait for the handlers, Serve does. It may be called twice.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.done {
		return nil
	}
	l.mu.done = true
	err := l.ln.Close()
	for nc := range l.mu.peers {
		_ = nc.Close()
	}
	return err
}
