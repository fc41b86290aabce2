package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/perigee-llm/perigee/internal/gateway/api"
	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/downstream"
	"github.com/perigee-llm/perigee/internal/gateway/sock"
	"github.com/perigee-llm/perigee/internal/telemetry"
)

// door is a listener with a bound on its connections, which tells for what each of them was cut off. Package downstream serves them, with and without
// TLS; those over TLS with which HTTP/2 was agreed it gives to net/http.
//
// The full case: a connection too many takes the place of one that waits for a request, and has waited long: or a client that asks for next to nothing
// every two minutes could hold all places. Where none waits it is closed at once, over plain HTTP with a 503. Leaving it in the system's queue
// would keep its client waiting for as long as those that hold the places like, without a word.
//
// A system that gives no descriptor for one more is the full case, too.
//
// Requests are bounded too, for the sake of HTTP/2, which has many on one connection.
type door struct {
	net.Listener
	name     string // of the listener
	secure   bool
	limits   config.ClientLimits
	send     func() time.Duration // the time-out for sending that is configured now; nil: that of limits
	metrics  *telemetry.Metrics
	handlers handlers // of net/http's requests
	open     atomic.Int64
	active   atomic.Int64 // requests under way
	shakes   func() int   // handshakes under way; nil: there are none

	mu     sync.Mutex
	places map[*place]struct{} // that are open; guarded by mu
}

var _ net.Listener = (*door)(nil)

// Accept implements net.Listener.
func (d *door) Accept() (net.Conn, error) {
	for {
		c, err := d.Listener.Accept()
		if err != nil {
			if sock.Shortage(err) && d.makeRoom(settledFor) {
				<-time.After(lettingGo)
				continue
			}
			return nil, err
		}
		if d.open.Add(1) <= int64(d.limits.MaxConnections) || d.makeRoom(0) {
			at := d.take(c)
			if !d.secure {
				return at, nil
			}
			return &clientConn{place: at, since: time.Now()}, nil // net/http may get it
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

// unread bounds what a client's socket holds of an answer that the client does not read, in bytes: what a round trip of 50 ms has on its way at 5 MB/s. Linux lets it
// grow to 4 MiB else.
const unread = 256 << 10

// boundUnread bounds the sockets that a listener will accept.
func boundUnread(_, _ string, c syscall.RawConn) (err error) {
	if e := c.Control(func(fd uintptr) { err = sock.SendRoom(fd, unread) }); e != nil {
		return e
	}
	return err
}

// refusalPatience bounds the write of a refusal, which must not keep others waiting at the door.
const refusalPatience = 10 * time.Millisecond

const (
	// lettingGo is how long the goroutine of a connection that was closed may take to let go of its descriptor; net/http waits as long for one.
	lettingGo = 5 * time.Millisecond
	// settledFor is how long a connection must have waited for a request to be closed for want of a descriptor. Linux says that there is none before anybody wants it, right
	// after the last one was taken: who took it is not to go for that before its request has come.
	settledFor = time.Second
)

func (d *door) cut(reason string) { d.metrics.ConnectionsCut.WithLabelValues(d.name, reason).Inc() }

// register has metrics show what is open. It is for when the server is made.
func (d *door) register(r prometheus.Registerer) {
	gauge := func(name, help string, value func() float64) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: prometheus.Labels{"listener": d.name}}, value))
	}
	gauge("perigee_client_connections", "Connections of clients that are open, by listener.", func() float64 { return float64(d.open.Load()) })
	if d.shakes != nil {
		gauge("perigee_client_handshakes", "Handshakes of TLS that are under way, by listener.", func() float64 { return float64(d.shakes()) })
	}
}

// take gives a connection its place.
func (d *door) take(c net.Conn) *place {
	p := &place{Conn: c, door: d}
	p.Waits(time.Now())
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.places == nil {
		d.places = map[*place]struct{}{}
	}
	d.places[p] = struct{}{}
	return p
}

// looked is how many connections are looked at for one that has waited long: all of them would take a millisecond, and the longest of so
// many is among the oldest twentieth of those that wait but for one time in twenty-seven.
const looked = 64

// makeRoom closes the connection that has waited longest for a request, of some that are picked without system (the map's order is no order), and
// tells whether there was one that had waited for so long at least.
func (d *door) makeRoom(least time.Duration) bool {
	var longest *place
	var since int64
	d.mu.Lock()
	n := 0
	for p := range d.places {
		if at := p.waits.Load(); at > 0 && (longest == nil || at < since) {
			longest, since = p, at
		}
		if n++; n == looked {
			break
		}
	}
	d.mu.Unlock()
	if longest == nil || time.Now().UnixNano()-since < int64(least) || !longest.waits.CompareAndSwap(since, given) {
		return false
	}
	d.cut("made_room")
	_ = longest.Close()
	return true
}

// place is a connection that counts at its door until it is closed.
type place struct {
	net.Conn
	door   *door
	closed sync.Once
	waits  atomic.Int64 // since when it waits for a request, in nanoseconds since 1970; 0: it does not, or given
}

// given is what waits is of a place that was given to somebody else.
const given = -1

var _ downstream.Waiter = (*place)(nil)

// Waits implements [downstream.Waiter].
func (p *place) Waits(since time.Time) {
	if p.waits.Load() != given {
		p.waits.Store(since.UnixNano())
	}
}

// Begins implements [downstream.Waiter].
func (p *place) Begins() bool {
	at := p.waits.Load()
	return at != given && (at == 0 || p.waits.CompareAndSwap(at, 0))
}

// NetConn returns the connection below, as that of a *tls.Conn does.
func (p *place) NetConn() net.Conn { return p.Conn }

// Close implements net.Conn.
func (p *place) Close() error {
	p.closed.Do(func() {
		p.door.open.Add(-1)
		p.door.mu.Lock()
		delete(p.door.places, p)
		p.door.mu.Unlock()
	})
	return p.Conn.Close()
}

// clientConn is a client's connection below TLS. Where HTTP/2 is spoken net/http tells it, through [door.state] and [door.around], how far it is, so that at
// its end it is known what it was waiting for. For HTTP/1.1 downstream reads and writes what is below.
type clientConn struct {
	*place
	// reading and writing are the time-outs.
	reading, writing downstream.Deadline
	late             atomic.Bool // a read met its deadline; since it was last idle
	served           atomic.Bool // a handler ran since it was last active: the head was good
	stalled          atomic.Bool // nobody has read for as long as that may be
	two              bool        // HTTP/2 is spoken; from when net/http begins

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

// Write implements net.Conn. Over HTTP/2 each write has the time that a stream's has: where nobody reads the connection a stream's own time-out is of no use, since it is
// ended by what is written to the client.
func (c *clientConn) Write(p []byte) (n int, err error) {
	if c.two {
		_ = c.SetWriteDeadline(time.Now().Add(c.door.sendTimeout()))
	}
	for {
		k, err := c.Conn.Write(p[n:])
		n += k
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if c.writing.Passed(c.Conn.SetWriteDeadline) {
			c.stalled.Store(c.two)
			return n, err
		}
	}
}

// Stalled tells package api whether the connection ends because nobody has read it for as long as that may be.
func (c *clientConn) Stalled() bool { return c.stalled.Load() }

func (d *door) sendTimeout() time.Duration {
	if d.send != nil {
		return d.send()
	}
	return d.limits.SendTimeout
}

// doorConn returns the door's connection below c.
func doorConn(c net.Conn) *clientConn {
	for {
		if cc, ok := c.(*clientConn); ok {
			return cc
		}
		below, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return nil
		}
		c = below.NetConn()
	}
}

// state is net/http's ConnState hook.
func (d *door) state(nc net.Conn, s http.ConnState) {
	c := doorConn(nc)
	if c == nil {
		return
	}
	switch s {
	case http.StateNew:
		c.two = true
	case http.StateIdle:
		c.late.Store(false) // net/http interrupts its own reads with a deadline of the past
		c.Waits(time.Now())
	case http.StateActive:
		c.Begins() // if it is closed already, the request will find out
		c.served.Store(false)
	case http.StateClosed:
		if reason := c.whyCut(); reason != "" {
			d.cut(reason)
		}
	}
	c.last, c.since = s, time.Now()
}

// whyCut says why the gateway ended the connection; empty: it did not, or after an answer.
func (c *clientConn) whyCut() string {
	switch {
	case c.last == http.StateIdle && time.Since(c.since) >= c.door.limits.IdleTimeout:
		return "idle"
	case c.late.Load() && (c.last == http.StateNew || c.last == http.StateActive && !c.served.Load()):
		return "slow_head"
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
	o := downstream.Options{
		Handler: d.bounded(h), ConnContext: api.ConnContext, Log: log, Cut: d.cut, Refuse: d.refuse,
		HeaderTimeout: d.limits.HeaderTimeout, IdleTimeout: d.limits.IdleTimeout, MaxHeaderBytes: int(d.limits.MaxHeaderBytes),
	}
	if !d.secure {
		return downstream.New(o)
	}
	s := &secureServer{two: d.netHTTP(h, log), agreed: newAgreed(d.Listener), handlers: &d.handlers}
	o.TLS = &downstream.TLS{
		Config: &tls.Config{
			MinVersion: tls.VersionTLS12, NextProtos: protocols(),
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert(), nil },
		},
		MaxHandshakes: maxHandshakes(d.limits.MaxConnections), Other: s.agreed.give, Plain: d.refusePlain,
	}
	s.one = downstream.New(o)
	d.shakes = s.one.Handshakes
	return s
}

// maxHandshakes returns how many handshakes there are at once, of so many connections. Each takes some 30 KiB while it waits for its client.
func maxHandshakes(connections int) int { return max(connections/8, min(connections, 16)) }

// protocols are those that TLS's handshake offers. HTTP/2 can be left out as net/http's can: GODEBUG=http2server=0.
func protocols() []string {
	if strings.Contains(os.Getenv("GODEBUG"), "http2server=0") {
		return []string{"http/1.1"}
	}
	return []string{"h2", "http/1.1"}
}

func (d *door) netHTTP(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: d.around(h), ConnContext: api.ConnContext, ConnState: d.state,
		ReadHeaderTimeout: d.limits.HeaderTimeout, IdleTimeout: d.limits.IdleTimeout, MaxHeaderBytes: int(d.limits.MaxHeaderBytes),
		WriteTimeout: shortWindow, // handlers set their own
		HTTP2:        &http.HTTP2Config{MaxConcurrentStreams: d.limits.MaxStreams},
		ErrorLog:     slog.NewLogLogger(log.Handler(), slog.LevelDebug), // what clients do wrong is theirs to see
	}
}

const (
	// shortWindow is how long a client of HTTP/2 may have no window for what needs no key and no engine: what net/http answers by itself, to heads that are no good, which
	// counts nowhere; refusals; and probes. All else has its send_timeout.
	shortWindow = 2 * time.Second
	// shortestWindow is the same where there are as many requests as may be: these answers take places beyond those.
	shortestWindow = 100 * time.Millisecond
)

// around returns the handler of the listener's requests: they are counted, so that their end can be waited for, and their connections are
// told that their heads were good. One function does both, for the sake of the stacks of streams.
//
// A request counts until its answer was written. The end of an answer is net/http's to write when the handler has returned, and waits for a window then: clients without
// one, with thousands of requests on a few connections, would hold memory for what counts nowhere.
func (d *door) around(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.handlers.begin()
		defer d.handlers.done()
		if c := doorConn(api.ConnOf(r)); c != nil {
			c.served.Store(true)
		}
		if d.enter(w, r) {
			defer d.active.Add(-1)
			h.ServeHTTP(w, r)
			switch {
			case isProbe(r) && d.active.Load() > int64(d.limits.MaxRequests):
				hurry(w, shortestWindow)
			case isProbe(r) || api.Refused(w):
				hurry(w, shortWindow)
			}
			_ = http.NewResponseController(w).Flush()
		}
	})
}

// bounded returns the handler of HTTP/1's requests. Where there can be no more of them than connections, they need no bound of their own.
func (d *door) bounded(h http.Handler) http.Handler {
	if !d.secure && d.limits.MaxRequests >= d.limits.MaxConnections {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d.enter(w, r) {
			defer d.active.Add(-1)
			h.ServeHTTP(w, r)
		}
	})
}

// enter counts a request in, or refuses it if there are as many as may be. The probes of load balancers always come in: their answers take nothing.
func (d *door) enter(w http.ResponseWriter, r *http.Request) bool {
	if d.active.Add(1) <= int64(d.limits.MaxRequests) || isProbe(r) {
		return true
	}
	d.active.Add(-1)
	d.metrics.Refused.WithLabelValues(tooManyRequests.Code).Inc()
	hurry(w, shortestWindow)
	tooManyRequests.Write(w)
	return false
}

func isProbe(r *http.Request) bool { return r.URL.Path == "/healthz" || r.URL.Path == "/readyz" }

// hurry gives a client little time for what it is answered.
func hurry(w http.ResponseWriter, window time.Duration) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(window))
}
