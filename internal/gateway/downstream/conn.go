package downstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/sock"
)

// The states of a connection.
const (
	fresh  uint32 = iota // nothing has come yet
	idle                 // it waits for another request
	active               // a request has begun
	ended                // it is closed, or will be in a moment
)

// conn is one client's connection. It belongs to its goroutine, but for what is said of a field.
type conn struct {
	s      *Server
	nc     net.Conn        // as the listener gave it: what is closed, and whose addresses count
	near   net.Conn        // what is read and written: the innermost, or a pump around it
	base   context.Context // of its requests
	place  Waiter          // nc, if it is one
	secure *secure         // nil: there is no TLS
	heed   *heed           // nil: as that, or a pump reads ahead

	in      input
	writing Deadline
	bare    sock.Writer // if in.raw is set
	vec     [3][]byte
	rest    net.Buffers // of vec

	began  time.Time
	remote string
	state  atomic.Uint32 // any goroutine's
	polite atomic.Bool   // its goroutine ends it, to say goodbye, when the time-out for reading has passed
	post   bool          // the last request was a POST
	torn   bool          // the last answer was not whole

	head   head
	body   body
	resp   response
	header http.Header // of requests

	mu   sync.Mutex
	life *life // of the request at hand, nil: there is none; guarded by mu
	gone bool  // the client has left; guarded by mu
}

func newConn(s *Server, nc net.Conn, t *secure) *conn {
	c := &conn{s: s, nc: nc, secure: t, near: innermost(nc), began: time.Now(), remote: nc.RemoteAddr().String(), header: http.Header{}, base: context.Background()}
	c.place, _ = nc.(Waiter)
	if s.o.ConnContext != nil {
		c.base = s.o.ConnContext(c.base, nc)
	}
	c.body.c, c.resp.c, c.resp.header = c, c, http.Header{}
	return c
}

// innermost returns the connection that others are around, but stops at one that does more than count, as TLS does.
func innermost(nc net.Conn) net.Conn {
	outer := nc
	for {
		below, ok := nc.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		nc = below.NetConn()
	}
	if sock.Raw(nc) == nil {
		return outer
	}
	return nc
}

// serve answers requests until one of the two sides ends the connection.
func (c *conn) serve() {
	end := c.attach()
	defer func() {
		c.state.Store(ended)
		c.heed.close()
		c.leave()
		if c.secure != nil && !c.torn {
			c.secure.goodbye()
		}
		end()
		c.in.rest()
		if c.secure != nil {
			c.secure.records.drop()
		}
		c.s.done(c)
	}()
	for c.next() && c.exchange() {
	}
}

// attach has the system tell when there is something to read and when the client leaves, or else a pump read ahead. end closes the connection.
func (c *conn) attach() (end func()) {
	raw := sock.Raw(c.near)
	c.in.try = c.in.tryRead
	var w *watcher
	if raw != nil {
		w = c.s.watcher()
	}
	name, to := uint64(0), watch{gone: c.leave}
	var h *heed
	if c.secure != nil {
		h = &heed{c: c}
		to.more = h.more
	}
	if w != nil {
		name = w.add(raw, to)
	}
	if name == 0 {
		return c.attachPump()
	}
	c.in.sock, c.in.raw = c.near, raw
	c.bare.Of(raw)
	c.bare.OnWait(c.willWait)
	if c.secure != nil {
		c.secure.link.own(raw, &c.bare, &c.writing)
		c.secure.records.of(c.secure.conn)
		c.in.secure = c.secure
		c.heed = h
		h.arming.of(w, name, raw)
		c.polite.Store(true)
	}
	return func() {
		_ = c.nc.Close()
		w.remove(name)
	}
}

func (c *conn) attachPump() (end func()) {
	if c.secure != nil {
		c.secure.link.own(nil, nil, &c.writing)
		c.near = spoken{c.near, c.secure}
	}
	p := newPump(c.near, c.leave)
	c.near, c.in.sock = p, p
	c.s.wg.Go(p.run)
	return func() {
		_ = p.Close()
		_ = c.nc.Close()
	}
}

// hangUp ends a connection that has nothing under way: its state is ended already. Any goroutine may call it.
func (c *conn) hangUp() {
	if c.polite.Load() {
		_ = c.in.until(time.Now().Add(-time.Second))
		return
	}
	_ = c.nc.Close()
}

// leave ends the request at hand, and those that follow: the client has left, or the connection is closed. Any goroutine may call it.
func (c *conn) leave() {
	c.mu.Lock()
	c.gone = true
	l := c.life
	c.mu.Unlock()
	if l != nil {
		l.end()
	}
}

// next waits for a request and reads its head. False: the connection is over.
func (c *conn) next() bool {
	first := c.state.Load() == fresh
	limit := c.began.Add(c.s.o.HeaderTimeout) // also for what has not begun
	if !first {
		now := time.Now()
		limit = now.Add(c.s.o.IdleTimeout)
		if !c.state.CompareAndSwap(active, idle) || c.s.draining.Load() {
			return false
		}
		if c.place != nil {
			c.place.Waits(now)
		}
	}
	if c.in.buffered() == 0 {
		_ = c.in.until(limit)
		if c.state.Load() == ended {
			return false // it was hung up before the limit was set
		}
		if err := c.in.fill(); err != nil {
			switch {
			case !errors.Is(err, os.ErrDeadlineExceeded), c.state.Load() == ended:
			case first:
				c.s.cut(CutSlowHead)
			default:
				c.s.cut(CutIdle)
			}
			return false
		}
	}
	if !c.state.CompareAndSwap(fresh, active) && !c.state.CompareAndSwap(idle, active) {
		return false // it was closed as the request came
	}
	if c.place != nil && !c.place.Begins() {
		return false // as above
	}
	n, r, err := c.readHead(first)
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			c.s.cut(CutSlowHead)
		}
		return false
	}
	if r == nil {
		r = c.head.parse(c.in.buf[c.in.r : c.in.r+n])
	}
	if r != nil {
		c.refuse(r)
		return false
	}
	c.in.skip(n)
	c.in.shrink()
	return true
}

// readHead reads until a head is in the buffer and returns its length.
func (c *conn) readHead(first bool) (n int, r *Refusal, err error) {
	var look cut
	limited := first
	strayed := 0
	for {
		if c.post { // clients of old end a body with a line's end that they do not count; net/http takes up to four bytes
			for c.in.buffered() > 0 && strayed < 4 && (c.in.buf[c.in.r] == '\r' || c.in.buf[c.in.r] == '\n') {
				c.in.skip(1)
				strayed++
			}
		}
		if n, r = look.find(c.in.buf[c.in.r:c.in.w]); r != nil {
			return 0, r, nil
		}
		if n > c.s.o.MaxHeaderBytes || n == 0 && c.in.buffered() > c.s.o.MaxHeaderBytes {
			return 0, errLongHead, nil
		}
		if n > 0 {
			return n, nil, nil
		}
		if !limited { // nearly all heads come in one packet, and need no time-out
			limited = true
			_ = c.in.until(time.Now().Add(c.s.o.HeaderTimeout))
		}
		if err := c.in.fill(); err != nil {
			return 0, nil, err
		}
	}
}

// refusalPatience bounds the write of a refusal, and how long a client is waited for that has not read it.
const refusalPatience = 500 * time.Millisecond

// refuse answers a head that no handler sees.
func (c *conn) refuse(r *Refusal) {
	c.s.cut(CutBadHead)
	_ = c.writeBy(time.Now().Add(refusalPatience))
	if c.write(c.s.o.Refuse(*r), nil, nil) == nil {
		c.linger()
	}
}

// linger lets the client read an answer before the connection ends although it may be sending still: closing with something unread would
// reset it, and take the answer away.
func (c *conn) linger() {
	if c.secure != nil {
		c.secure.goodbye()
	}
	if half, ok := c.near.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // it fails where the client has gone, which the read tells too
	}
	_ = c.in.until(time.Now().Add(refusalPatience))
	scratch := readBuffers.Get().(*[readBuffer]byte)
	defer readBuffers.Put(scratch)
	for {
		if _, err := c.in.readSocket(scratch[:]); err != nil {
			return
		}
	}
}

// What a connection keeps of a head for its next request is at most so long, in bytes, and has at most so many fields: more than clients of language
// models send. A head of 64 KiB with a thousand fields takes 200 KiB, which those who only keep thousands of connections must not hold by them.
const (
	keptHead   = 4 << 10
	keptFields = 64
)

// exchange has the handler answer the request, and tells whether another may come.
func (c *conn) exchange() (again bool) {
	h := &c.head
	c.post = h.method == http.MethodPost
	c.body.begin(h.length, h.expect)
	c.resp.begin(h)
	r := c.request()
	l := r.Context().(*life)
	whole := c.handle(r)
	if whole {
		again = c.resp.finish()
	} else {
		c.resp.forget()
	}
	c.heed.end()
	c.torn = !whole || c.resp.err != nil || c.resp.short()
	c.mu.Lock()
	c.life = nil
	c.mu.Unlock()
	l.end()
	if h.long() {
		c.head, c.header = head{}, http.Header{}
	}
	clear(c.header) // what they point to is not to be kept while the connection waits
	clear(c.resp.header)
	if whole && !again && c.resp.err == nil && (!errors.Is(c.body.err, io.EOF) || c.in.buffered() > 0) {
		c.linger()
	}
	return again
}

// request makes the request of the head, and begins its life.
func (c *conn) request() *http.Request {
	h := &c.head
	l := &life{url: h.url}
	l.Beside(c.base)
	h.fill(c.header)
	r := (&http.Request{
		Method: h.method, URL: &l.url, Proto: protos[h.minor], ProtoMajor: 1, ProtoMinor: h.minor, Header: c.header, Host: h.host,
		ContentLength: h.length, Body: &c.body, Close: h.close, RemoteAddr: c.remote, RequestURI: h.target,
	}).WithContext(l)
	switch {
	case h.length < 0:
		r.TransferEncoding = chunkedCoding
	case h.length == 0:
		r.Body = http.NoBody
	}
	c.mu.Lock()
	c.life = l
	gone := c.gone
	c.mu.Unlock()
	if gone {
		l.end()
	}
	return r
}

var (
	protos        = [2]string{"HTTP/1.0", "HTTP/1.1"}
	chunkedCoding = []string{"chunked"}
)

// handle calls the handler and tells whether it returned as it should.
func (c *conn) handle(r *http.Request) (whole bool) {
	defer func() {
		p := recover()
		if err, ok := p.(error); p != nil && !(ok && errors.Is(err, http.ErrAbortHandler)) {
			c.s.o.Log.Error("a handler panicked", "remote", c.remote, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
	}()
	if r.RequestURI == "*" && r.Method == http.MethodOptions {
		c.resp.header["Content-Length"] = zero // as net/http has it: it asks what the server can
		return true
	}
	c.s.o.Handler.ServeHTTP(&c.resp, r)
	return true
}

var zero = []string{"0"}

// willWait is called before a write waits for the client.
func (c *conn) willWait() { c.writing.Arm(c.near.SetWriteDeadline) }

// writeBy sets the time-out for writing, the zero time for none.
func (c *conn) writeBy(t time.Time) error { return c.writing.Set(t, c.near.SetWriteDeadline) }

// write writes up to three pieces with one system call, if the socket takes them.
func (c *conn) write(a, b, e []byte) error {
	c.rest = net.Buffers(c.vec[:0])
	for _, p := range [...][]byte{a, b, e} {
		if len(p) > 0 {
			c.rest = append(c.rest, p)
		}
	}
	if c.secure != nil {
		err := c.secure.write(c.rest)
		clear(c.vec[:])
		return err
	}
	for {
		err := c.writeRest()
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) || c.writing.Passed(c.near.SetWriteDeadline) {
			clear(c.vec[:])
			return err
		}
	}
}

func (c *conn) writeRest() error {
	if c.in.raw != nil {
		return c.bare.Write(&c.rest)
	}
	if len(c.rest) != 1 {
		_, err := c.rest.WriteTo(c.near)
		return err
	}
	n, err := c.near.Write(c.rest[0])
	c.rest[0] = c.rest[0][n:]
	return err
}
