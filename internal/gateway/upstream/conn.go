package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"syscall"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/sock"
)

// writePatience is how long a request's write may take before the answer is awaited at the same time. Nearly every request fits
// into the socket's buffers and is written at once; one that does not waits for the engine to read, and an engine may answer
// without having read it all.
const writePatience = 5 * time.Millisecond

// atOnce is how much is written without a time-out for it, which would cost the runtime a timer for each request: the least that systems buffer
// for a connection is twice that, and an idle one's is empty. Where the system has no memory for it, the write waits as a request for an
// answer does, until the request's context ends.
const atOnce = 8 << 10

// conn is one connection. It serves one request at a time.
type conn struct {
	net.Conn
	t      *Transport
	key    place
	shelf  *Shelf          // where it lies while it is idle; nil: it never did. Guarded by the transport's mutex.
	raw    syscall.RawConn // nil where there is none
	in     input
	out    *outgoing          // nil: nothing is to be written
	listen func(uintptr)      // finds out whether it is silent; made once
	ask    func(uintptr) bool // tryAsk, made once

	silent bool
	asked  bool  // the request was written, as far as it can be at once
	stale  bool  // it was not: the connection is not as an idle one should be
	whole  bool  // all of it was written
	hasty  bool  // a write's time-out is set, and may have passed
	fault  error // what writing met

	trace  *httptrace.ClientTrace // of the request at hand; nil: nobody's
	served int                    // answers read to their end
	idleAt time.Duration          // when it was put aside, on the transport's clock

	hung    ender       // the request's context, which tells of its end by Ended; nil: there is none, or by stop
	stop    func() bool // takes a context of another kind off; nil: there is none
	written chan error  // of the writer that was split off; nil: none was
}

func newConn(t *Transport, nc net.Conn, key place) *conn {
	c := &conn{Conn: nc, t: t, key: key}
	c.in.of(nc)
	below := nc
	if tc, ok := nc.(*tls.Conn); ok {
		below = tc.NetConn() // what the engine sends while nobody asks, a farewell above all, shows there too
	}
	if sc, ok := below.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			c.raw = raw
		}
	}
	c.ask = c.tryAsk
	c.listen = func(fd uintptr) { c.silent = sock.Quiet(fd) }
	return c
}

// quiet tells whether an idle connection is as it should be: open, with nothing to read. It looks without waiting and without
// taking anything, so a connection that the engine closed a while ago is not tried first.
func (c *conn) quiet() bool {
	if c.raw == nil {
		return true // nothing can be known; a request that fails on it says that the connection was reused
	}
	c.silent = false
	return c.raw.Control(c.listen) == nil && c.silent
}

// ender is a context that tells of its end without an object in between, as those of package lifetime do.
type ender interface {
	OnEnd(e interface{ Ended() })
	OffEnd(e interface{ Ended() }) (was bool)
}

// hook has the connection be closed when the request's context ends.
func (c *conn) hook(ctx context.Context) {
	if e, ok := ctx.(ender); ok {
		c.hung = e
		e.OnEnd(c)
	} else {
		c.stop = context.AfterFunc(ctx, c.Ended)
	}
}

// unhook takes the request's context off, once. False: it has ended, and Ended runs or ran.
func (c *conn) unhook() (was bool) {
	hung, stop := c.hung, c.stop
	c.hung, c.stop = nil, nil // an idle connection must not keep what was sent over it
	switch {
	case hung != nil:
		return hung.OffEnd(c)
	case stop != nil:
		return stop()
	}
	return false
}

// Ended closes the connection from another goroutine, because the request's context ended.
func (c *conn) Ended() { _ = c.Close() }

// discard ends the connection, and the writer if there is one.
func (c *conn) discard() {
	c.unhook()
	_ = c.Close()
	c.in.rest()
	if c.written != nil {
		<-c.written
		c.written = nil
	}
	c.sent()
}

// sent gives back what the request was sent with, and says so. There is no writer any more.
func (c *conn) sent() {
	if c.out == nil {
		return
	}
	of := c.out.of
	c.out.done()
	c.out = nil
	if of != nil {
		of.Sent()
	}
}

// release puts the connection aside if it can serve again, else it ends it.
func (c *conn) release(keep bool) {
	if !c.unhook() {
		keep = false // it is closed, or will be in a moment
	}
	if c.written != nil {
		select {
		case err := <-c.written:
			keep = keep && err == nil
			c.written = nil
			c.sent()
		case <-time.After(writePatience): // a writer that is done may still be about to say so
			keep = false // answered before it was asked in full
		}
	}
	if !keep || c.in.buffered() > 0 {
		c.discard()
		return
	}
	c.served++
	c.in.rest()
	c.t.put(c)
}

// errStale is what exchange returns where the connection was not as an idle one should be. Nothing was sent.
var errStale = errors.New("the idle connection has ended")

// exchange writes the request and reads the answer's head.
func (c *conn) exchange(req *http.Request, pieces [][]byte) (*http.Response, error) {
	var err error
	c.out = takeOutgoing(c.in.bare)
	c.out.of, _ = req.Body.(Pieces)
	if c.out.head, err = appendHead(c.out.head[:0], req); err != nil {
		return nil, &Error{Stage: Refused, Err: err}
	}
	c.out.parts = append(append(c.out.parts[:0], c.out.head), pieces...)
	c.out.rest = c.out.parts
	if c.in.bare != nil {
		err = c.askBare()
	} else {
		err = c.write(c.small(pieces))
	}
	if errors.Is(err, errStale) {
		c.out.of = nil // another connection gets it
	}
	if c.written == nil {
		c.sent()
	}
	// An engine that refuses a body closes its side while we write; its answer may be here all the same.
	if _, heard := errors.AsType[*Error](err); err != nil && (heard || errors.Is(err, errStale) || !c.answerWaits()) {
		return nil, err
	}
	return c.await(req)
}

// askBare writes the request and waits for the answer's first bytes, which is one waiting: before the request is written nothing can be there,
// and a read would find that out with a system call. It returns without an answer if the request was not taken at once, and is being written.
// What reading met is an *Error, other errors are those of writing.
func (c *conn) askBare() error {
	c.asked, c.stale, c.whole, c.fault, c.in.waitErr = false, false, false, nil, nil
	if err := c.in.bare.Read(c.ask); err != nil {
		return unheard(err)
	}
	switch {
	case c.stale:
		return errStale
	case c.fault != nil:
		return c.fault
	case !c.whole:
		return c.write(false)
	case c.in.waitErr != nil:
		return unheard(c.in.waitErr)
	}
	return nil
}

// unheard is a connection that ended before an answer.
func unheard(err error) *Error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return &Error{Stage: Asking, Err: err}
}

// tryAsk writes the request when it is called first, and then is tryRead. The runtime notes from before that call on what comes, so the idle
// connection is looked at here: what has come before shows now, and what comes later calls again.
func (c *conn) tryAsk(fd uintptr) bool {
	if c.asked {
		return c.in.tryRead(fd)
	}
	c.asked = true
	silent := sock.Quiet(fd)
	if !silent && c.served > 0 {
		c.stale = true
		return true
	}
	c.whole, c.fault = c.out.bare.Now(fd, &c.out.rest)
	if !c.whole {
		return true
	}
	return !silent && c.in.tryRead(fd) // who speaks before it is asked is read at once
}

// write sends the parts with one system call where it can. What is not taken at once is left to a goroutine of its own, which ends
// with the connection.
func (c *conn) write(small bool) error {
	if whole, err := c.writeNow(small); whole || err != nil {
		return err
	}
	written := make(chan error, 1)
	c.written = written
	go func() { // joined by discard or release; closing the connection ends it
		written <- c.writeRest()
	}()
	return nil
}

// writeNow writes what the connection takes without much waiting, and tells whether that was all of it.
func (c *conn) writeNow(small bool) (whole bool, err error) {
	if _, ok := c.Conn.(*tls.Conn); ok { // it does not outlive a write that timed out
		return false, nil
	}
	if small {
		err = c.patience(time.Time{})
	} else {
		err = c.patience(time.Now().Add(writePatience))
	}
	if err != nil {
		return false, err
	}
	err = c.writeRest()
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return err == nil, err
	}
	return false, c.patience(time.Time{})
}

// writeRest writes what is left of the parts.
func (c *conn) writeRest() error {
	if c.in.bare != nil {
		return c.out.bare.Write(&c.out.rest)
	}
	_, err := c.out.rest.WriteTo(c.Conn)
	return err
}

// patience sets the time-out for writing.
func (c *conn) patience(until time.Time) error {
	if until.IsZero() && !c.hasty {
		return nil
	}
	c.hasty = !until.IsZero()
	return c.SetWriteDeadline(until)
}

// small tells whether head and body need no time-out.
func (c *conn) small(pieces [][]byte) bool {
	n := len(c.out.head)
	for _, p := range pieces {
		n += len(p)
	}
	return n <= atOnce
}

// answerWaits looks whether something can be read after a write failed, for as long as a packet may be under way.
func (c *conn) answerWaits() bool {
	if c.in.buffered() > 0 {
		return true
	}
	_ = c.SetReadDeadline(time.Now().Add(writePatience))
	err := c.in.wait()
	_ = c.SetReadDeadline(time.Time{})
	return err == nil
}

// await reads the answer's head; informational answers are passed over.
func (c *conn) await(req *http.Request) (*http.Response, error) {
	if err := c.in.wait(); err != nil {
		return nil, unheard(err)
	}
	a := new(answer)
	// A server sends 100 or 103 once or twice, if at all; one that goes on would hold us for ever.
	for range 8 {
		h, err := readHead(c.in.reader(), c.t.o.MaxHead, a.values[:0])
		if err != nil {
			return nil, &Error{Stage: Answering, Err: err}
		}
		if h.status < 200 {
			if h.status == http.StatusSwitchingProtocols {
				return nil, &Error{Stage: Answering, Err: errors.New("the engine switched protocols")}
			}
			continue
		}
		c.answer(a, req, h)
		return &a.Response, nil
	}
	return nil, &Error{Stage: Answering, Err: errors.New("informational answers without end")}
}

// answer is an answer with what belongs to it, made at once.
type answer struct {
	http.Response
	body   body
	values [8]string // of its fields: engines behind uvicorn send four
}

// answer makes the answer of a head.
func (c *conn) answer(a *answer, req *http.Request, h head) {
	resp, b := &a.Response, &a.body
	b.c, b.keep = c, h.keepAlive
	resp.Status, resp.StatusCode, resp.Proto, resp.ProtoMajor, resp.ProtoMinor = h.statusText, h.status, protos[h.minor], 1, h.minor
	resp.Header, resp.ContentLength, resp.Body, resp.Request = h.fields, -1, b, req
	switch {
	case req.Method == http.MethodHead, h.status == http.StatusNoContent, h.status == http.StatusNotModified:
		resp.ContentLength = 0
		b.kind = bodyFixed
	case h.chunked:
		resp.TransferEncoding = chunkedEncoding
		b.kind = bodyChunked
	case h.length >= 0:
		resp.ContentLength = h.length
		b.kind, b.left = bodyFixed, h.length
	default:
		b.kind, b.keep = bodyToClose, false
	}
	if b.kind == bodyFixed && b.left == 0 {
		b.finish(io.EOF)
	}
}

var protos = [2]string{"HTTP/1.0", "HTTP/1.1"}

var chunkedEncoding = []string{"chunked"}
