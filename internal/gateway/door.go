package gateway

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/perigee-llm/perigee/internal/gateway/api"
	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/telemetry"
)

// door is a listener with a bound on its connections, which tells for what each of them was cut off. It stands below TLS, so net/http still
// sees the *tls.Conn that HTTP/2 needs.
//
// The full case: a connection too many is taken and closed at once, over plain HTTP with a 503. Leaving it in the system's queue would keep
// its client waiting for as long as those that hold the places like, without a word.
type door struct {
	net.Listener
	name    string // of the listener
	secure  bool
	limits  config.ClientLimits
	metrics *telemetry.Metrics
	// handlers count the requests of all listeners.
	handlers *handlers
	open     atomic.Int64
}

var _ net.Listener = (*door)(nil)

// Accept implements net.Listener.
func (d *door) Accept() (net.Conn, error) {
	for {
		c, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if d.open.Add(1) <= int64(d.limits.MaxConnections) {
			return &clientConn{Conn: c, door: d, since: time.Now()}, nil
		}
		d.open.Add(-1)
		d.cut("over_cap")
		if !d.secure {
			d.metrics.Refused.WithLabelValues(tooMany.Code).Inc()
			_ = c.SetWriteDeadline(time.Now().Add(refusalPatience))
			_, _ = c.Write(refusalOf(tooMany)) // an empty socket takes it at once
		}
		_ = c.Close()
	}
}

// refusalPatience bounds the write of a refusal, which must not keep others waiting at the door.
const refusalPatience = 10 * time.Millisecond

func (d *door) cut(reason string) { d.metrics.ConnectionsCut.WithLabelValues(d.name, reason).Inc() }

// collect returns the gauge of open connections.
func (d *door) collect() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "perigee_client_connections", Help: "Connections of clients that are open, by listener.", ConstLabels: prometheus.Labels{"listener": d.name},
	}, func() float64 { return float64(d.open.Load()) })
}

// clientConn is a client's connection. net/http tells it, through [door.state] and [door.served], how far it is:
//
//	new ──head read──▶ active ──handler──▶ idle ──head read──▶ active …
//
// so that at its end it is known what it was waiting for.
type clientConn struct {
	net.Conn
	door   *door
	closed sync.Once
	// reading and writing are the time-outs.
	reading, writing deadline
	late             atomic.Bool // a read met its deadline; since it was last idle
	began            atomic.Bool // something was read; since it was last idle
	served           atomic.Bool // a handler ran since it was last active: the head was good
	said             atomic.Bool // more than an alert of TLS was written since then

	// Of net/http's goroutine for the connection, which calls door.state.
	last  http.ConnState
	since time.Time // of that state
}

// NetConn returns the connection below, as that of a *tls.Conn does.
func (c *clientConn) NetConn() net.Conn { return c.Conn }

// CloseWrite lets net/http say that nothing more comes, and wait until the client has read it.
func (c *clientConn) CloseWrite() error {
	if t, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return t.CloseWrite()
	}
	return errors.ErrUnsupported
}

// Read implements net.Conn.
func (c *clientConn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if n > 0 && !c.began.Load() {
			c.began.Store(true)
		}
		if err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
			if !c.reading.passed(c.Conn.SetReadDeadline) && n == 0 {
				continue
			}
			c.late.Store(true)
		}
		return n, err
	}
}

// SetReadDeadline implements net.Conn.
func (c *clientConn) SetReadDeadline(t time.Time) error {
	return c.reading.set(t, c.Conn.SetReadDeadline)
}

// SetWriteDeadline implements net.Conn.
func (c *clientConn) SetWriteDeadline(t time.Time) error {
	return c.writing.set(t, c.Conn.SetWriteDeadline)
}

// SetDeadline implements net.Conn.
func (c *clientConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// longestAlert is more than an alert of TLS takes with its record, in bytes: the goodbye of a connection on which nothing else was said.
const longestAlert = 64

// Write implements net.Conn. A refusal that net/http wrote becomes one of ours.
func (c *clientConn) Write(p []byte) (int, error) {
	if len(p) > longestAlert && !c.said.Load() {
		c.said.Store(true)
	}
	e := refused(p)
	if e == nil {
		return c.write(p)
	}
	c.door.metrics.Refused.WithLabelValues(e.Code).Inc()
	if _, err := c.write(refusalOf(e)); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (c *clientConn) write(p []byte) (n int, err error) {
	for {
		k, err := c.Conn.Write(p[n:])
		n += k
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) || c.writing.passed(c.Conn.SetWriteDeadline) {
			return n, err
		}
	}
}

// Close implements net.Conn.
func (c *clientConn) Close() error {
	c.closed.Do(func() { c.door.open.Add(-1) })
	return c.Conn.Close()
}

// doorConn returns the door's connection below c.
func doorConn(c net.Conn) *clientConn {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	cc, _ := c.(*clientConn)
	return cc
}

// state is net/http's ConnState hook.
func (d *door) state(nc net.Conn, s http.ConnState) {
	c := doorConn(nc)
	if c == nil {
		return
	}
	switch s {
	case http.StateIdle:
		c.late.Store(false) // net/http interrupts its own reads with a deadline of the past
		c.began.Store(false)
	case http.StateActive:
		c.served.Store(false)
		c.said.Store(false)
	case http.StateClosed:
		if reason := c.whyCut(nc); reason != "" {
			d.cut(reason)
		}
	}
	c.last, c.since = s, time.Now()
}

// whyCut says why the gateway ended the connection; empty: it did not, or after an answer.
func (c *clientConn) whyCut(nc net.Conn) string {
	if t, ok := nc.(*tls.Conn); ok && !t.ConnectionState().HandshakeComplete {
		if c.late.Load() || c.said.Load() {
			return "tls_handshake"
		}
		return "" // it came and went
	}
	switch c.last {
	case http.StateIdle:
		switch { // net/http calls it idle until it has read more of a head than the first packet
		case c.began.Load() && c.late.Load():
			return "slow_head"
		case time.Since(c.since) >= c.door.limits.IdleTimeout:
			return "idle"
		}
	case http.StateNew:
		if c.late.Load() {
			return "slow_head"
		}
	case http.StateActive:
		switch {
		case c.served.Load():
		case c.late.Load():
			return "slow_head"
		case c.said.Load():
			return "bad_head"
		}
	}
	return ""
}

// around returns the handler of the listener's requests: they are counted, so that their end can be waited for, and their connections are
// told that their heads were good. One function does both, for the sake of the stacks of streams.
func (d *door) around(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.handlers.begin()
		defer d.handlers.done()
		if c := doorConn(api.ConnOf(r)); c != nil {
			c.served.Store(true)
		}
		h.ServeHTTP(w, r)
	})
}
