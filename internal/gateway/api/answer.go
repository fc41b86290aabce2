package api

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/api/sse"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
)

// bufferedAnswer is how much of an answer that is not streamed is held back until it is whole, in bytes, so that one that
// breaks off becomes an error and not half an answer. Nearly all answers are smaller; a larger one passes as it comes.
const bufferedAnswer = 1 << 20

// chunk is the size of the buffers that streams are copied with, in bytes: what net/http reads at once from a connection, a
// few hundred tokens of text.
const chunk = 8 << 10

var chunks = sync.Pool{New: func() any { return new([chunk]byte) }}

// pass hands an engine's answer on to the client and ends the leg. It returns a failure if it could not begin to.
func (c *call) pass(l *leg, resp *http.Response) *failure {
	defer func() { _ = resp.Body.Close() }() // read errors are seen where they matter
	if isEventStream(resp.Header.Get("Content-Type")) {
		c.stream(l, resp)
		return nil
	}
	return c.whole(l, resp)
}

func isEventStream(contentType string) bool {
	if contentType == "text/event-stream" {
		return true
	}
	if !strings.Contains(contentType, "event-stream") {
		return false
	}
	kind, _, err := mime.ParseMediaType(contentType)
	return err == nil && kind == "text/event-stream"
}

// head sends the answer's head: the engine's status and content type, and what it says about trying again.
func (c *call) head(resp *http.Response, length int64) {
	h := c.w.Header()
	for _, name := range [...]string{"Content-Type", "Retry-After"} {
		if v := resp.Header[name]; len(v) > 0 {
			h[name] = v
		}
	}
	if h["Content-Type"] == nil {
		h["Content-Type"] = nil // net/http must not guess one
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
// client that reads slowly holds that, and its time-out ends it.
func (c *call) stream(l *leg, resp *http.Response) {
	c.head(resp, resp.ContentLength)
	rc := http.NewResponseController(c.w)
	buf := chunks.Get().(*[chunk]byte)
	defer chunks.Put(buf)
	var (
		sniff    sse.Sniffer
		deadline time.Time
	)
	end := endLeft
	if rc.Flush() == nil { // the head: a client may wait for it while the engine thinks
		end = c.copyStream(l, resp, rc, buf[:], &sniff, &deadline)
	}
	c.usage = sniff.Usage()
	c.closeStream(l, resp, end, &sniff)
}

func (c *call) copyStream(l *leg, resp *http.Response, rc *http.ResponseController, buf []byte, sniff *sse.Sniffer, deadline *time.Time) ending {
	for {
		l.clock.Reset(c.s.Settings.StreamIdle)
		n, err := resp.Body.Read(buf)
		if n > 0 {
			if c.ttft == 0 && resp.StatusCode < 300 {
				c.ttft = time.Since(c.started)
				c.s.Metrics.TTFT.WithLabelValues(c.model.ID).Observe(c.ttft.Seconds())
			}
			sniff.Write(buf[:n])
			if c.send(buf[:n], rc, deadline) != nil || rc.Flush() != nil {
				return endLeft
			}
		}
		switch {
		case err == nil:
			continue
		case errors.Is(err, io.EOF):
			if closeDelimited(resp) && sniff.End() == sse.EndTruncated {
				return endBroken // an engine that died looks the same as one that is done
			}
			return endClean
		case c.r.Context().Err() != nil:
			return endLeft
		case context.Cause(l.ctx) == causeStale:
			return endExpired
		}
		return endBroken
	}
}

// closeDelimited tells whether only the end of the connection says where the body ends.
func closeDelimited(resp *http.Response) bool {
	return resp.ProtoMajor == 1 && resp.ContentLength < 0 && len(resp.TransferEncoding) == 0
}

// closeStream ends the leg of a stream, and the client's connection as the stream ended.
func (c *call) closeStream(l *leg, resp *http.Response, end ending, sniff *sse.Sniffer) {
	outcome, label := judge(resp.StatusCode)
	what := "ok"
	switch {
	case end == endLeft:
		outcome, label, what = fleet.Cancelled, "cancelled", "client_disconnect"
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
		c.s.aborts.send(l.worker, l.rid, c.r.Header)
	}
}

// whole passes an answer on that is not a stream: at once when it is there, or as it comes if it is long.
func (c *call) whole(l *leg, resp *http.Response) *failure {
	if resp.ContentLength > bufferedAnswer {
		c.long(l, resp, nil)
		return nil
	}
	buf := make([]byte, 0, max(512, min(resp.ContentLength+1, bufferedAnswer)))
	for {
		if len(buf) == cap(buf) {
			if len(buf) >= bufferedAnswer {
				c.long(l, resp, buf)
				return nil
			}
			buf = append(buf, 0)[:len(buf)]
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
	c.usage = sse.UsageOf(buf)
	c.head(resp, int64(len(buf)))
	var deadline time.Time
	if c.send(buf, http.NewResponseController(c.w), &deadline) != nil {
		c.clientLeft, c.broken = true, true
	}
	l.end(judge(resp.StatusCode)) // the engine has done its part, whoever left
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
	c.s.aborts.send(l.worker, l.rid, c.r.Header)
	return f
}

// long passes on an answer that is too long to hold back: what has come, then the rest as it comes.
func (c *call) long(l *leg, resp *http.Response, have []byte) {
	c.head(resp, resp.ContentLength)
	rc := http.NewResponseController(c.w)
	buf := chunks.Get().(*[chunk]byte)
	defer chunks.Put(buf)
	var (
		sniff    sse.Answer
		deadline time.Time
	)
	sniff.Write(have)
	end := endClean
	err := c.send(have, rc, &deadline)
	for err == nil {
		var n int
		n, err = resp.Body.Read(buf[:])
		sniff.Write(buf[:n])
		if n > 0 && c.send(buf[:n], rc, &deadline) != nil {
			end = endLeft
			break
		}
	}
	switch {
	case end == endLeft, c.r.Context().Err() != nil:
		end = endLeft
	case !errors.Is(err, io.EOF), closeDelimited(resp) && !sniff.Complete():
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
	c.broken = end != endClean
	l.end(outcome, label)
	if c.broken {
		c.s.aborts.send(l.worker, l.rid, c.r.Header)
	}
}
