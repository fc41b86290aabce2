package upstream

import (
	"net"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"
)

// TestPatience: connections to engines are set to notice a host that vanished. That the system then ends them is its own promise.
func TestPatience(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer s.Close()
	tr := New(Options{})
	defer tr.Close()
	nc, err := tr.o.Dial(t.Context(), "tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = nc.Close() }()
	raw, err := nc.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var room int
	if e := raw.Control(func(fd uintptr) { room, err = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF) }); e != nil || err != nil || room > 2*unread {
		t.Errorf("SO_RCVBUF is %d (%v, %v)", room, e, err) // less where net.core.rmem_max is
	}
	const userTimeout = 18
	for name, c := range map[string]struct{ level, option, want int }{
		"TCP_USER_TIMEOUT": {syscall.IPPROTO_TCP, userTimeout, int(patience / time.Millisecond)},
		"SO_KEEPALIVE":     {syscall.SOL_SOCKET, syscall.SO_KEEPALIVE, 1},
		"TCP_KEEPIDLE":     {syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE, int(probeAfter / time.Second)},
		"TCP_KEEPINTVL":    {syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL, int(probeEvery / time.Second)},
		"TCP_KEEPCNT":      {syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT, 2},
	} {
		var got int
		var err error
		if e := raw.Control(func(fd uintptr) { got, err = syscall.GetsockoptInt(int(fd), c.level, c.option) }); e != nil || err != nil || got != c.want {
			t.Errorf("%s is %d, want %d (%v, %v)", name, got, c.want, e, err)
		}
	}
}
