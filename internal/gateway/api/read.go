package api

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

// firstRead bounds what is allocated on the word of a Content-Length, in bytes; beyond it the buffer grows with what comes.
const firstRead = 1 << 20

// readBody reads the whole body within the limits on its size, on the sender's silence and on what all requests hold together. A
// sender that sends a little now and then has as long as an engine would have for its answer. The caller gives the memory back
// with letGo.
func (c *call) readBody() ([]byte, *Error) {
	if encoded(c.r.Header) {
		return nil, errEncoded // engines would not undo it either
	}
	limit := c.v.Settings.MaxBody
	if c.r.ContentLength > limit {
		return nil, errBodyTooLarge // the server closes the connection rather than reading it all
	}
	in := c.r.Body
	if c.r.ContentLength < 0 {
		in = http.MaxBytesReader(c.w, in, limit)
	}
	first := max(512, min(c.r.ContentLength+1, firstRead))
	if !c.hold(first) {
		return nil, errOverloaded
	}
	buf := make([]byte, 0, first)
	end := c.started.Add(c.v.Settings.RequestTimeout)
	for {
		if len(buf) == cap(buf) {
			more := min(2*int64(cap(buf)), limit+1) // one more than the limit finds out that there is more
			if !c.hold(more - int64(cap(buf))) {
				return nil, errOverloaded
			}
			buf = append(make([]byte, 0, more), buf...)
		}
		_ = c.rc.SetReadDeadline(earlier(time.Now().Add(c.v.Settings.BodyStall), end))
		n, err := in.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case err == nil:
			continue
		case errors.Is(err, io.EOF):
			return buf, nil // the deadline counts for nothing any more: net/http lifts it, our own server reads no more of this request
		}
		// The deadline stays: the server would wait for the rest of the body, and after an error of its reading it closes.
		return nil, bodyError(err)
	}
}

// encoded tells whether a body has a content coding.
func encoded(h http.Header) bool {
	for _, v := range h["Content-Encoding"] {
		if v != "" && !strings.EqualFold(v, "identity") {
			return true
		}
	}
	return false
}

// hold takes n bytes of what all requests may hold, and tells whether they were to be had. A request is refused rather than kept
// waiting: those that wait would hold their connections and what they have read so far.
func (c *call) hold(n int64) bool {
	if c.s.buffered.Add(n) > c.v.Settings.MaxBuffered {
		c.s.buffered.Add(-n)
		return false
	}
	c.held += n
	return true
}

// letGo gives back what hold took.
func (c *call) letGo() {
	c.s.buffered.Add(-c.held)
	c.held = 0
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func bodyError(err error) *Error {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return errBodyTooLarge
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errBodyStalled
	}
	return errBodyBroken
}
