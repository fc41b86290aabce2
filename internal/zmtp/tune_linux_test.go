package zmtp

import (
	"net"
	"syscall"
	"testing"
	"time"
)

// TestTCPOptions reads back what TCP was asked for: what finds out about peers that do not know PING.
func TestTCPOptions(t *testing.T) {
	p, err := NewPublisher(PublisherOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	endpoint, err := p.Listen("tcp://127.0.0.1:*")
	if err != nil {
		t.Fatal(err)
	}
	c, err := Dial(t.Context(), Sub, endpoint, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := p.WaitSubscribed(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	option := func(nc net.Conn, level, name int) (v int) {
		t.Helper()
		raw, err := nc.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		_ = raw.Control(func(fd uintptr) { v, err = syscall.GetsockoptInt(int(fd), level, name) })
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if got := option(c.nc, syscall.IPPROTO_TCP, tcpUserTimeout); got != int(userTimeout/time.Millisecond) {
		t.Errorf("the subscriber's user timeout is %d ms", got)
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	for s := range p.mu.subscribers {
		if got := option(s.c.nc, syscall.IPPROTO_TCP, tcpUserTimeout); got != 0 {
			t.Errorf("the publisher's user timeout is %d ms: a slow subscriber would lose its connection", got)
		}
		if option(s.c.nc, syscall.SOL_SOCKET, syscall.SO_KEEPALIVE) == 0 || option(s.c.nc, syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE) != 1 {
			t.Error("the publisher does not look after idle connections")
		}
	}
}
