package zmtp

import (
	"net"
	"syscall"
)

const tcpUserTimeout = 18 // TCP_USER_TIMEOUT of linux/tcp.h; package syscall has no name for it

// giveUpEarly sets userTimeout. Not for a publisher's or a router's connections: the kernel counts a peer whose window is full as one that
// acknowledges nothing, and a slow subscriber shall lose messages, not its connection.
func giveUpEarly(nc net.Conn) {
	t, ok := nc.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return // closed: what comes next will say so
	}
	_ = raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(userTimeout.Milliseconds()))
	})
}
