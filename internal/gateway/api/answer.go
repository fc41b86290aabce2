package api

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/api/sse"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/lifetime"
	"github.com/perigee-llm/perigee/internal/gateway/upstream"
)

// bufferedAnswer is how much of an answer that is not streamed is held back until it is whole, in bytes, so that one that
// breaks off becomes an error and not half an answer. Nearly all answers are smaller; a larger one passes as it comes. It counts among what all
// requests may hold until its client has it, and passes as it comes where they hold that already.
const bufferedAnswer = 1 << 20

// chunk is the size of the buffers that streams are copied with, in bytes: what an engine that is ahead has ready at once, a
// few hundred tokens of text.
const chunk = 8 << 10

// chunks are the buffers. One goes back only when all that was written out of it has been taken: when a write fails, net/http's server of HTTP/2 may
// still be sending it, and would send what another request has in it by then.
var chunks = sync.Pool{New: func() any { return new([chunk]byte) }}

// pass hands an engine's answer on to the client and ends the leg. It returns a failure if it could not begin to.
func (c *call) pass(l *leg, resp *http.Response) *failure {
	defer func() { _ = resp.Body.Close() }() // read errors are seen where they matter
	if c.isStream(resp) {
		c.stream(l, resp)
		return nil
	}
	return c.whole(l, resp)
}

// isStream tells whether each part of an answer is to be passed on at once: an event stream, and what an engine sends instead
// of one when it was asked for one, whatever it calls it. Errors come as JSON, and whole.
func (c *call) isStream(resp *http.Response) bool {
	kind := mediaType(resp)
	return kind == "text/event-stream" ||
		(c.streamed && resp.ContentLength < 0 && resp.StatusCode < 300 && kind != "application/json")
}

// mediaType returns the answer's content type in lower case and without its parameters; empty: none that can be read.
func mediaType(resp *http.Response) string {
	switch t := first(resp.Header["Content-Type"]); t {
	case "", "application/json", "text/event-stream":
		return t // the usual ones need no parser
	default:
		kind, _, err := mime.ParseMediaType(t)
		if err != nil {
			return ""
		}
		return kind
	}
}

// head sends the answer's head: the engine's status, how its body is to be read, and what it says about trying again.
func (c *call) head(resp *http.Response, length int64) {
	c.extend()
	h := c.w.Header()
	for _, name := range [...]string{"Content-Type", "Content-Encoding", "Retry-After"} {
		if v := resp.Header[name]; len(v) > 0 {
			h[name] = v
		}
	}
	if h["Content-Type"] == nil {
		h["Content-Type"] = nil // the server must not guess one
	}
	if length >= 0 {
		h["Content-Length"] = []string{strconv.FormatInt(length, 10)}
	}
	c.status = resp.StatusCode
	c.w.WriteHeader(resp.StatusCode)
}

// ending is how an answer ended.
type ending uint8

const (
	endClean   ending = iota
	endBroken         // the engine's side broke off
	endLeft           // the client's side did
	endExpired        // the janitor gave the request up
)

// stream passes an event stream on, part by part as it comes. The parts are copied through one buffer of fixed size, so a
// client that reads slowly holds that, and its time-out ends it; while the engine is silent there is none.
func (c *call) stream(l *leg, resp *http.Response) {
	c.forgetQuestion()
	c.head(resp, resp.ContentLength)
	var sniff sse.Sniffer
	end, open := endLeft, closeDelimited(resp)
	resp.Header = nil // it was passed on
	l.clock.Stop()
	if c.flush() == nil { // the head: a client may wait for it while the engine thinks
		end = c.copyStream(l, resp, &sniff, open)
	}
	c.usage = sniff.Usage()
	c.closeStream(l, resp, end, &sniff)
}

// copyStream copies what comes until it ends. open says that what comes has to tell by itself whether it is whole.
func (c *call) copyStream(l *leg, resp *http.Response, sniff *sse.Sniffer, open bool) ending {
	waiter, _ := resp.Body.(upstream.Waiter)
	l.boundSilence(c.v.Settings.StreamIdle)
	for {
		l.listen()
		if waiter != nil {
			waiter.Wait()
		}
		left, err := c.copyPart(l, resp, sniff)
		switch {
		case left:
			return endLeft
		case err == nil:
			continue
		case errors.Is(err, io.EOF):
			if open && sniff.End() == sse.EndTruncated {
				return endBroken // an engine that died looks the same as one that is done
			}
			return endClean
		case c.r.Context().Err() != nil:
			return endLeft
		case lifetime.Cause(&l.life) == causeStale:
			return endExpired
		}
		return endBroken
	}
}

// copyPart copies what is there. It tells whether the client left, and else how the engine's side ended, if it did.
func (c *call) copyPart(l *leg, resp *http.Response, sniff *sse.Sniffer) (left bool, err error) {
	buf := chunks.Get().(*[chunk]byte)
	defer func() {
		if !left {
			chunks.Put(buf)
		}
	}()
	n, err := resp.Body.Read(buf[:])
	l.heard() // the client's slowness is not the engine's silence
	if n == 0 {
		return false, err
	}
	if c.ttft == 0 && resp.StatusCode < 300 {
		now := time.Now()
		c.ttft = now.Sub(c.started)
		l.guard.Prefilled(now)
		c.s.Registry.Answers(l.ticket)
		l.span.FirstByte(now)
		c.s.Metrics.TTFT.WithLabelValues(c.model.ID).Observe(c.ttft.Seconds())
	}
	sniff.Write(buf[:n])
	return c.send(buf[:n]) != nil || c.flush() != nil, err
}

// closeDelimited tells whether only the end of the connection says where the body ends, and the body can be read: of one that is compressed nothing tells
// whether it is whole.
func closeDelimited(resp *http.Response) bool {
	return resp.ProtoMajor == 1 && resp.ContentLength < 0 && len(resp.TransferEncoding) == 0 && !encoded(resp.Header)
}

// brokenJSON tells whether an answer of which the end of the connection was the end is half a JSON value: an engine that died looks the
// same as one that is done.
func brokenJSON(resp *http.Response, complete func() bool) bool {
	return closeDelimited(resp) && mediaType(resp) == "application/json" && !complete()
}

// closeStream ends the leg of a stream, and the client's connection as the stream ended.
func (c *call) closeStream(l *leg, resp *http.Response, end ending, sniff *sse.Sniffer) {
	outcome, label := judge(resp.StatusCode)
	what := "ok"
	switch {
	case end == endLeft:
		outcome, label, what = fleet.Cancelled, "cancelled", "client_disconnect"
		if c.stalled = c.stalled || connStalled(c.r); c.stalled {
			what = outcomeSlow
		}
		c.clientLeft = true
	case end == endExpired:
		outcome, label, what = fleet.Cancelled, "cancelled", "expired"
	case end == endBroken:
		outcome, label, what = fleet.Failure, "error", "upstream_error"
	case sniff.Failed():
		what = "stream_error_event"
	}
	c.broken = end != endClean
	l.end(outcome, label)
	c.s.Metrics.Streams.WithLabelValues(l.worker.ID, c.model.ID, what).Inc()
	if end != endClean && resp.StatusCode < 300 {
		c.s.aborts.send(l.worker, l.rid, c.auth)
	}
}

// whole passes an answer on that is not a stream: at once when it is there, or as it comes if it is long.
func (c *call) whole(l *leg, resp *http.Response) *failure {
	if resp.ContentLength > bufferedAnswer {
		c.long(l, resp, nil)
		return nil
	}
	lent := chunks.Get().(*[chunk]byte)
	defer func() {
		if !c.clientLeft {
			chunks.Put(lent)
		}
	}()
	buf, e := lent[:0], (*Error)(nil)
	if resp.ContentLength >= chunk { // one byte more than it says finds its end
		buf, e = c.grow(nil, min(resp.ContentLength+1, bufferedAnswer))
	} else if !c.hold(chunk) {
		e = errOverloaded
	}
	for {
		if e == nil && len(buf) == cap(buf) && len(buf) < bufferedAnswer {
			buf, e = c.grow(buf, min(2*int64(cap(buf)), bufferedAnswer))
		}
		if e != nil || len(buf) == cap(buf) { // where no more can be held, it passes as it comes
			c.long(l, resp, buf)
			return nil
		}
		n, err := resp.Body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err == nil {
			continue
		}
		if !errors.Is(err, io.EOF) {
			return c.brokeOff(l, resp, err)
		}
		break
	}
	if brokenJSON(resp, func() bool { var a sse.Answer; a.Write(buf); return a.Complete() }) {
		return c.brokeOff(l, resp, io.ErrUnexpectedEOF)
	}
	c.usage = sse.UsageOf(buf)
	// The engine has done its part, whoever leaves now: a client that reads slowly must not keep its place, nor the request.
	l.end(judge(resp.StatusCode))
	c.dropQuestion(int64(cap(buf)))
	c.head(resp, int64(len(buf)))
	if c.ready = c.send(buf) == nil; !c.ready {
		c.clientLeft, c.broken = true, true
	}
	return nil
}

// brokeOff ends the leg of an answer whose head came and whose body did not.
func (c *call) brokeOff(l *leg, resp *http.Response, err error) *failure {
	outcome, label, f := l.blame(err)
	l.end(outcome, label)
	if c.leftBefore(l) {
		return nil
	}
	if f.answer == errBadAnswer {
		f = &failure{answer: errIncomplete(resp.StatusCode), what: "the answer broke off: " + err.Error()}
	}
	c.s.aborts.send(l.worker, l.rid, c.auth)
	return f
}

// long passes on an answer that is too long to hold back: what has come, then the rest as it comes.
func (c *call) long(l *leg, resp *http.Response, have []byte) {
	c.dropQuestion(int64(cap(have)))
	l.clock.Stop()
	within := l.limit - time.Since(l.sentAt)
	c.head(resp, resp.ContentLength)
	var sniff sse.Answer
	sniff.Write(have)
	left := c.send(have) != nil
	var err error
	if !left {
		c.letGo()
		left, err = c.copyLong(l, resp, &sniff, within)
	}
	end := endClean
	switch {
	case left, c.r.Context().Err() != nil:
		end = endLeft
	case !errors.Is(err, io.EOF), brokenJSON(resp, sniff.Complete):
		end = endBroken
	}
	c.usage = sniff.Usage()
	outcome, label := judge(resp.StatusCode)
	switch end {
	case endLeft:
		outcome, label = fleet.Cancelled, "cancelled"
		c.clientLeft = true
	case endBroken:
		outcome, label, _ = l.blame(err)
	}
	c.broken, c.ready = end != endClean, end == endClean
	l.end(outcome, label)
	if c.broken {
		c.s.aborts.send(l.worker, l.rid, c.auth)
	}
}

// copyLong copies the rest of a long answer, of which the engine may take so much time; the client's does not count. It tells
// whether the client left, and else how the engine's side ended.
func (c *call) copyLong(l *leg, resp *http.Response, sniff *sse.Answer, within time.Duration) (left bool, err error) {
	buf := chunks.Get().(*[chunk]byte)
	defer func() {
		if !left {
			chunks.Put(buf)
		}
	}()
	for {
		began := time.Now()
		l.clock.Reset(within)
		n, err := resp.Body.Read(buf[:])
		l.clock.Stop()
		within -= time.Since(began)
		sniff.Write(buf[:n])
		if n > 0 && c.send(buf[:n]) != nil {
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
}
