package sock

import (
	"syscall"
	"time"
)

// tcpUserTimeout is TCP_USER_TIMEOUT (tcp(7)), which package syscall does not name.
const tcpUserTimeout = 18

// Patience bounds how long what was sent on a TCP socket may go without acknowledgement, probes of [net.KeepAliveConfig] among it, and how long its
// other end may take nothing; then it fails with ETIMEDOUT. Without it the system tries for some fifteen minutes.
func Patience(fd uintptr, d time.Duration) error {
	return syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(d.Milliseconds()))
}
