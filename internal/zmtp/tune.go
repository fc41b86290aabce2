package zmtp

import (
	"net"
	"time"
)

// keepAlive finds out about a peer that is gone where no PING can be sent. Seconds are the finest that the kernel takes.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 3}

// userTimeout lets Linux give up a connection whose peer acknowledges nothing for that long, probes included: keep-alive by
// itself would take Idle + Count × Interval, 4 s.
const userTimeout = 2 * time.Second

// tune sets what TCP is asked for; other connections are left as they are. Failing is no fault: it is what a kernel may not know.
func tune(nc net.Conn) {
	t, ok := nc.(*net.TCPConn)
	if !ok {
		return
	}
	_ = t.SetKeepAliveConfig(keepAlive)
	_ = t.SetNoDelay(true) // Go's default; a replay's request must not wait for an acknowledgement
}
