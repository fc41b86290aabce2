package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"
)

// Options are the limits of a [Transport]. Zero fields mean the defaults.
type Options struct {
	// Dial opens a connection, until its context ends; the default is net.Dialer's, with bounds on the network's silence ([patience]).
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// DialTimeout bounds a connection's opening and its TLS handshake, each. Default 5 s, sgl-router's.
	DialTimeout time.Duration
	// IdlePerHost is how many idle connections to one engine are kept. Default 64, sgl-router's.
	IdlePerHost int
	// IdleTimeout is how long an idle connection is kept. Default 120 s. Engines behind uvicorn close theirs after 5 s; we notice.
	IdleTimeout time.Duration
	// MaxHead bounds an answer's head, in bytes, and a chunked body's trailer. Default 64 KiB.
	MaxHead int
	// Trace has the httptrace.ClientTrace of a request's context told of its connection: by GotConn, and by PutIdleConn where it is kept.
	Trace bool
	// TLS is used for https. Default: TLS 1.2 or newer with the system's roots.
	TLS *tls.Config
}

// ReadBuffer is the size of each connection's read buffer, in bytes: the parts of a stream are some hundred bytes, and larger
// reads go past it.
const ReadBuffer = 4 << 10

// Transport keeps connections to engines and makes requests over them. Make one with [New] and Close it.
type Transport struct {
	o     Options
	began time.Time // of its clock
	stop  context.CancelFunc
	wg    sync.WaitGroup

	mu struct {
		sync.Mutex
		shelves map[place]*Shelf
		closed  bool
	}
}

// place is where connections go to.
type place struct{ scheme, host string }

// Shelf is where a transport keeps its idle connections to one place. Who asks one engine again and again remembers it ([Shelved]): among a thousand, to find it by its
// address is to read a few cache lines that nobody has read for long.
type Shelf struct {
	t   *Transport
	key place

	// Guarded by the transport's mutex.
	idle []*conn // the last used is last
	gone bool    // it is none of the transport's any more
}

// Shelved is a request body that remembers from one request to the next, for all of the same URL, where the connections for them are kept. The transport reads and writes
// what Shelf returns before RoundTrip returns; nil: nothing is remembered. What is remembered may be of any age and of another URL, and is then looked up.
type Shelved interface{ Shelf() **Shelf }

// New returns a transport, and starts the goroutine that closes connections which were idle too long.
func New(o Options) *Transport {
	if o.DialTimeout <= 0 {
		o.DialTimeout = 5 * time.Second
	}
	if o.Dial == nil {
		o.Dial = dialer().DialContext
	}
	if o.IdlePerHost <= 0 {
		o.IdlePerHost = 64
	}
	if o.IdleTimeout <= 0 {
		o.IdleTimeout = 120 * time.Second
	}
	if o.MaxHead <= 0 {
		o.MaxHead = 64 << 10
	}
	if o.TLS == nil {
		o.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	ctx, stop := context.WithCancel(context.Background())
	t := &Transport{o: o, began: time.Now(), stop: stop}
	t.mu.shelves = map[place]*Shelf{}
	t.wg.Go(func() { t.sweep(ctx) })
	return t
}

// Close closes the idle connections and those that become idle from now on, and joins the goroutine. Requests under way go on.
// Closing again does nothing.
func (t *Transport) Close() {
	t.stop()
	t.wg.Wait()
	t.mu.Lock()
	t.mu.closed = true
	t.mu.Unlock()
	t.CloseIdleConnections()
}

// CloseIdleConnections closes the connections that are idle now.
func (t *Transport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.mu.shelves {
		t.clearLocked(s)
	}
}

// clearLocked closes what is on a shelf, and gives the shelf up.
func (t *Transport) clearLocked(s *Shelf) {
	for _, c := range s.idle {
		_ = c.Close()
	}
	t.dropLocked(s)
}

// dropLocked gives up a shelf on which nothing is left.
func (t *Transport) dropLocked(s *Shelf) {
	s.idle, s.gone = nil, true
	delete(t.mu.shelves, s.key)
}

// Stage is how far a request got.
type Stage uint8

// The stages.
const (
	// Dialing: there was no connection, so nothing was sent.
	Dialing Stage = iota
	// Asking: the request, or a part of it, was sent and no byte of an answer came.
	Asking
	// Answering: an answer began, and its head could not be read.
	Answering
	// Refused: the request itself cannot be sent; it is the caller's fault.
	Refused
)

// Error is a request that got no answer's head.
type Error struct {
	Stage Stage
	// Reused tells that the connection had carried a request before: that it ended says nothing of the engine.
	Reused bool
	Err    error
}

// Error returns the cause's text.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Pieces is a request body that is there as a whole, in pieces. A request whose Body implements it is written with one system
// call; the pieces must not change until Sent.
type Pieces interface {
	io.ReadCloser
	// Pieces returns the body; the caller may use the slice of slices up.
	Pieces() [][]byte
	// Sent is called once, when nobody reads the pieces any more, by who makes the request or reads or closes its answer: often before there is one, at the
	// latest when it is closed. Where there was no connection to send them over it is not called.
	Sent()
}

var _ http.RoundTripper = (*Transport)(nil)

// RoundTrip implements http.RoundTripper for bodies whose length is known. It follows no redirect, adds no header but Host and
// Content-Length, and undoes no encoding. The caller closes the response's body.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	if err := ctx.Err(); err != nil {
		return nil, &Error{Stage: Dialing, Err: err}
	}
	pieces, err := bodyOf(req)
	if err != nil {
		return nil, &Error{Stage: Refused, Err: err}
	}
	var none *Shelf
	remembered := &none
	if s, ok := req.Body.(Shelved); ok {
		remembered = s.Shelf()
	}
	var c *conn
	for {
		if c, err = t.get(ctx, place{req.URL.Scheme, req.URL.Host}, remembered); err != nil {
			return nil, &Error{Stage: Dialing, Err: err}
		}
		if t.o.Trace {
			c.tell(ctx)
		}
		c.hook(ctx)
		var resp *http.Response
		if resp, err = c.exchange(req, pieces); err == nil {
			return resp, nil
		}
		if !errors.Is(err, errStale) {
			break
		}
		c.discard()
	}
	reused := c.served > 0
	c.discard()
	if ctxErr := ctx.Err(); ctxErr != nil {
		err = ctxErr
	} else if reused {
		t.forget(c.key)
	}
	var e *Error
	if errors.As(err, &e) {
		e.Reused = reused
		return nil, e
	}
	return nil, &Error{Stage: Asking, Reused: reused, Err: err}
}

// tell tells who traces the request that it has the connection.
func (c *conn) tell(ctx context.Context) {
	if c.trace = httptrace.ContextClientTrace(ctx); c.trace != nil && c.trace.GotConn != nil {
		c.trace.GotConn(httptrace.GotConnInfo{Conn: c.Conn, Reused: c.served > 0})
	}
}

// bodyOf returns the request's body in pieces.
func bodyOf(req *http.Request) ([][]byte, error) {
	if req.Body == nil || req.Body == http.NoBody {
		return nil, nil
	}
	if p, ok := req.Body.(Pieces); ok {
		return p.Pieces(), nil
	}
	defer func() { _ = req.Body.Close() }()
	text, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	if int64(len(text)) != req.ContentLength {
		return nil, errors.New("the body is not as long as its Content-Length")
	}
	return [][]byte{text}, nil
}

// get returns an idle connection, or a new one.
func (t *Transport) get(ctx context.Context, key place, remembered **Shelf) (*conn, error) {
	for {
		c := t.pop(key, remembered)
		if c == nil {
			return t.dialAside(ctx, key)
		}
		if time.Since(t.began)-c.idleAt < t.o.IdleTimeout && (c.in.bare != nil || c.quiet()) { // bare ones are looked at when the request is written
			return c, nil
		}
		_ = c.Close()
	}
}

func (t *Transport) pop(key place, remembered **Shelf) *conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := *remembered
	if s == nil || s.t != t || s.gone || s.key != key {
		if s = t.mu.shelves[key]; s == nil {
			return nil
		}
		*remembered = s
	}
	if len(s.idle) == 0 {
		return nil
	}
	c := s.idle[len(s.idle)-1] // the warmest; the others may then grow old and go
	s.idle[len(s.idle)-1] = nil
	s.idle = s.idle[:len(s.idle)-1]
	return c
}

// forget closes the idle connections to an engine that ended a kept one: whatever did that, a restart behind a proxy or a
// machine that came back, has most likely ended all of them, and who tries again must not meet them one by one.
func (t *Transport) forget(key place) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.mu.shelves[key]; s != nil {
		t.clearLocked(s)
	}
}

// put keeps a connection for later, or closes it.
func (t *Transport) put(c *conn) {
	c.idleAt = time.Since(t.began)
	trace := c.trace
	c.trace = nil // once it is put, it is another's
	t.mu.Lock()
	keep := !t.mu.closed
	if keep {
		s := t.shelfLocked(c)
		if keep = len(s.idle) < t.o.IdlePerHost; keep {
			s.idle = append(s.idle, c)
		}
	}
	t.mu.Unlock()
	switch {
	case !keep:
		_ = c.Close()
	case trace != nil && trace.PutIdleConn != nil:
		trace.PutIdleConn(nil)
	}
}

// shelfLocked returns the connection's shelf.
func (t *Transport) shelfLocked(c *conn) *Shelf {
	if c.shelf == nil || c.shelf.gone {
		c.shelf = t.mu.shelves[c.key]
	}
	if c.shelf == nil {
		c.shelf = &Shelf{t: t, key: c.key}
		t.mu.shelves[c.key] = c.shelf
	}
	return c.shelf
}

// dialAside dials on a goroutine of its own and waits for it. The system's dialer goes deep, and a goroutine's stack does not shrink as
// long as something long waits on it: each stream over a new connection would keep the 16 KiB that dialling took, in place of 8.
func (t *Transport) dialAside(ctx context.Context, key place) (c *conn, err error) {
	done := make(chan struct{})
	go func() { // joined below; ctx ends it
		defer close(done)
		c, err = t.dial(ctx, key)
	}()
	<-done
	return c, err
}

func (t *Transport) dial(ctx context.Context, key place) (*conn, error) {
	addr, name, err := address(key.scheme, key.host)
	if err != nil {
		return nil, err
	}
	dctx, cancel := context.WithTimeout(ctx, t.o.DialTimeout)
	nc, err := t.o.Dial(dctx, "tcp", addr)
	cancel()
	if err != nil {
		return nil, err
	}
	if key.scheme == "https" {
		cfg := t.o.TLS.Clone()
		if cfg.ServerName == "" {
			cfg.ServerName = name
		}
		tc := tls.Client(nc, cfg)
		hctx, cancel := context.WithTimeout(ctx, t.o.DialTimeout)
		err := tc.HandshakeContext(hctx)
		cancel()
		if err != nil {
			_ = nc.Close()
			return nil, err
		}
		nc = tc
	}
	return newConn(t, nc, key), nil
}

// address returns where to dial, and the host's name for TLS.
func address(scheme, host string) (addr, name string, err error) {
	port := "80"
	switch scheme {
	case "http":
	case "https":
		port = "443"
	default:
		return "", "", errors.New("scheme " + scheme + " is neither http nor https")
	}
	if h, _, err := net.SplitHostPort(host); err == nil {
		return host, h, nil
	}
	if len(host) > 1 && host[0] == '[' && host[len(host)-1] == ']' {
		host = host[1 : len(host)-1]
	}
	return net.JoinHostPort(host, port), host, nil
}

// sweep closes connections that were idle too long, so that they do not stay half-closed until somebody asks for one.
func (t *Transport) sweep(ctx context.Context) {
	tick := time.NewTicker(min(t.o.IdleTimeout/2, 5*time.Second))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, c := range t.stale() {
			_ = c.Close()
		}
	}
}

// stale takes out the connections that grew old or that the engine closed.
func (t *Transport) stale() (out []*conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.mu.shelves {
		kept := s.idle[:0]
		for _, c := range s.idle {
			if time.Since(t.began)-c.idleAt >= t.o.IdleTimeout || !c.quiet() {
				out = append(out, c)
			} else {
				kept = append(kept, c)
			}
		}
		clear(s.idle[len(kept):])
		if s.idle = kept; len(kept) == 0 {
			t.dropLocked(s)
		}
	}
	return out
}

// Idle returns how many idle connections are kept.
func (t *Transport) Idle() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.mu.shelves {
		n += len(s.idle)
	}
	return n
}
