package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/perigee-llm/perigee/internal/gateway/api"
	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/downstream"
	"github.com/perigee-llm/perigee/internal/telemetry"
)

// door is a listener with a bound on its connections, which tells for what each of them was cut off. A plain one's connections are served by
// package downstream. With TLS they are net/http's, which has HTTP/2; the door stands below TLS, so net/http still sees the *tls.Conn that it needs.
//
// The full case: a connection too many is taken and closed at once, over plain HTTP with a 503. Leaving it in the system's queue would keep
// its client waiting for as long as those that hold the places like, without a word.
type door struct {
	net.Listener
	name     string // of the listener
	secure   bool
	limits   config.ClientLimits
	metrics  *telemetry.Metrics
	handlers handlers // of net/http's requests
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
			at := &place{Conn: c, door: d}
			if !d.secure {
				return at, nil // downstream reads and writes what is below
			}
			return &clientConn{place: at, since: time.Now()}, nil
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

// place is a connection that counts at its door until it is closed.
type place struct {
	net.Conn
	door   *door
	closed sync.Once
}

// NetConn returns the connection below, as that of a *tls.Conn does.
func (p *place) NetConn() net.Conn { return p.Conn }

// Close implements net.Conn.
func (p *place) Close() error {
	p.closed.Do(func() { p.door.open.Add(-1) })
	return p.Conn.Close()
}

// clientConn is a client's connection to net/http, which tells it, through [door.state] and [door.served], how far it is:
//
//	new ──head read──▶ active ──handler──▶ idle ──head read──▶ active …
//
// so that at its end it is known what it was waiting for.
type clientConn struct {
	*place
	// reading and writing are the time-outs.
	reading, writing downstream.Deadline
	late             atomic.Bool // a read met its deadline; since it was last idle
	began            atomic.Bool // something was read; since it was last idle
	served           atomic.Bool // a handler ran since it was last active: the head was good
	said             atomic.Bool // more than an alert of TLS was written since then

	// Of net/http's goroutine for the connection, which calls door.state.
	last  http.ConnState
	since time.Time // of that state
}

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
			if !c.reading.Passed(c.Conn.SetReadDeadline) && n == 0 {
				continue
			}
			c.late.Store(true)
		}
		return n, err
	}
}

// SetReadDeadline implements net.Conn.
func (c *clientConn) SetReadDeadline(t time.Time) error {
	return c.reading.Set(t, c.Conn.SetReadDeadline)
}

// SetWriteDeadline implements net.Conn.
func (c *clientConn) SetWriteDeadline(t time.Time) error {
	return c.writing.Set(t, c.Conn.SetWriteDeadline)
}

// SetDeadline implements net.Conn.
func (c *clientConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// longestAlert is more than an alert of TLS takes with its record, in bytes: the goodbye of a connection on which nothing else was said.
const longestAlert = 64

// Write implements net.Conn. What net/http says in text to a client that speaks plain HTTP becomes a refusal of ours.
func (c *clientConn) Write(p []byte) (int, error) {
	if len(p) > longestAlert && !c.said.Load() {
		c.said.Store(true)
	}
	if string(p) != notTLS {
		return c.write(p)
	}
	c.door.metrics.Refused.WithLabelValues(needsTLS.Code).Inc()
	if _, err := c.write(refusalOf(needsTLS)); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (c *clientConn) write(p []byte) (n int, err error) {
	for {
		k, err := c.Conn.Write(p[n:])
		n += k
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) || c.writing.Passed(c.Conn.SetWriteDeadline) {
			return n, err
		}
	}
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

// server is what serves a door's connections.
type server interface {
	Serve(net.Listener) error
	Shutdown(context.Context) error
	Close() error
	// Wait returns when what was served has ended, handlers included. It is for after Close.
	Wait()
}

// server returns the door's server; cert is the certificate in use. Its own limits are on heads and on idle connections; the handlers set those on bodies and answers.
func (d *door) server(h http.Handler, cert func() *tls.Certificate, log *slog.Logger) server {
	if d.secure {
		s := d.netHTTP(h, log)
		s.TLSConfig = &tls.Config{
			MinVersion:     tls.VersionTLS12,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert(), nil },
		}
		return &secureServer{s, &d.handlers}
	}
	return downstream.New(downstream.Options{
		Handler: h, ConnContext: api.ConnContext, Log: log, Cut: d.cut, Refuse: d.refuse,
		HeaderTimeout: d.limits.HeaderTimeout, IdleTimeout: d.limits.IdleTimeout, MaxHeaderBytes: int(d.limits.MaxHeaderBytes),
	})
}

func (d *door) netHTTP(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: d.around(h), ConnContext: api.ConnContext, ConnState: d.state,
		ReadHeaderTimeout: d.limits.HeaderTimeout, IdleTimeout: d.limits.IdleTimeout, MaxHeaderBytes: int(d.limits.MaxHeaderBytes),
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug), // what clients do wrong is theirs to see
	}
}

// secureServer is net/http's, with TLS.
type secureServer struct {
	*http.Server
	handlers *handlers
}

// Serve implements server.
func (s *secureServer) Serve(ln net.Listener) error { return s.ServeTLS(ln, "", "") }

// Wait implements server.
func (s *secureServer) Wait() { s.handlers.close() }

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

// handlers counts requests, so that their end can be waited for: net/http's Close does not.
type handlers struct {
	wg sync.WaitGroup
	mu struct {
		sync.Mutex
		closed bool
	}
}

// begin counts a request, which ends it with done. It ends requests that come after close.
func (c *handlers) begin() {
	c.mu.Lock()
	if c.mu.closed {
		c.mu.Unlock()
		panic(http.ErrAbortHandler)
	}
	c.wg.Add(1)
	c.mu.Unlock()
}

func (c *handlers) done() { c.wg.Done() }

// close waits for the requests that are under way and lets none begin. Their connections are closed already.
func (c *handlers) close() {
	c.mu.Lock()
	c.mu.closed = true
	c.mu.Unlock()
	c.wg.Wait()
}
