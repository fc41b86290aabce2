package zmtptest

import (
	"context"
	"net"
	"sync"
	"syscall"
)

// Network connects those who dial with those who listen, by address. The zero value is empty and ready.
type Network struct {
	mu        sync.Mutex
	listeners map[string]*listener
	dialled   []*Conn
}

// backlog is how many connections may wait to be accepted; one more is refused.
const backlog = 16

type listener struct {
	n       *Network
	address string
	queue   chan net.Conn
	once    sync.Once
	closed  chan struct{}
}

// Listen returns a listener at an address, as "engine-1:5557". It panics if there is one already. Close frees the address.
func (n *Network) Listen(address string) net.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[address] != nil {
		panic("zmtptest: somebody listens at " + address)
	}
	l := &listener{n: n, address: address, queue: make(chan net.Conn, backlog), closed: make(chan struct{})}
	if n.listeners == nil {
		n.listeners = map[string]*listener{}
	}
	n.listeners[address] = l
	return l
}

// DialContext is for Options.DialContext. Where nobody listens it fails with syscall.ECONNREFUSED, at once.
func (n *Network) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	refused := &net.OpError{Op: "dial", Net: network, Addr: Addr(address), Err: syscall.ECONNREFUSED}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l := n.listeners[address]
	if l == nil {
		return nil, refused
	}
	client, server := pipe("client", Addr(address))
	select {
	case l.queue <- server:
		n.dialled = append(n.dialled, client)
		return client, nil
	default:
		return nil, refused
	}
}

// Dialled returns the dialling ends of all connections so far, in order, to be cut or silenced.
func (n *Network) Dialled() []*Conn {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]*Conn(nil), n.dialled...)
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case <-l.closed:
		return nil, net.ErrClosed
	case c := <-l.queue:
		return c, nil
	}
}

// Close also ends the connections that nobody has accepted.
func (l *listener) Close() error {
	l.once.Do(func() {
		l.n.mu.Lock()
		delete(l.n.listeners, l.address)
		l.n.mu.Unlock()
		close(l.closed)
		for {
			select {
			case c := <-l.queue:
				_ = c.Close()
			default:
				return
			}
		}
	})
	return nil
}

func (l *listener) Addr() net.Addr { return Addr(l.address) }
