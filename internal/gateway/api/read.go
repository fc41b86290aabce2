package api

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

// onItsWord is how much is allocated on the word of a Content-Length once something of a body has come, in bytes. More is taken only beside what
// has come: thousands of clients that send a head and hardly more must not hold what all bodies may take together. Less would have usual requests
// copied.
const onItsWord = 64 << 10

// readBody reads the whole body within the limits on its size, on the sender's silence and on what all requests hold together. A
// sender that sends a little now and then has as long as an engine would have for its answer. The caller gives the memory back
// with letGo.
//
// A body is held whole, and in one piece: another engine may have to get it, its length decides the bucket, and what is to be guarded may stand
// at its end. While it grows the old memory and the new are both there, and both count.
func (c *call) readBody() ([]byte, *Error) {
	if encoded(c.r.Header) {
		return nil, errEncoded // engines would not undo it either
	}
	limit, declared := c.v.Settings.MaxBody, c.r.ContentLength
	if declared > limit {
		return nil, errBodyTooLarge // the server closes the connection rather than reading it all
	}
	in := c.r.Body
	if declared < 0 {
		in = http.MaxBytesReader(c.w, in, limit)
	}
	if !c.hold(chunk) {
		return nil, errOverloaded
	}
	end := c.started.Add(c.v.Settings.RequestTimeout)
	buf, e, err := c.readFirst(in, end)
	for e == nil && err == nil {
		if len(buf) == cap(buf) {
			if buf, e = c.growBody(buf, room(int64(len(buf)), declared, limit)); e != nil {
				return nil, e
			}
		}
		var n int
		n, err = c.readPart(in, buf[len(buf):cap(buf)], time.Now(), end)
		buf = buf[:len(buf)+n]
	}
	switch {
	case e != nil:
		return nil, e
	case errors.Is(err, io.EOF):
		return buf, nil // the deadline counts for nothing any more: net/http lifts it, our own server reads no more of this request
	}
	// The deadline stays: the server would wait for the rest of the body, and after an error of its reading it closes.
	return nil, bodyError(err)
}

// readFirst waits for the beginning of a body with a buffer from the pool, of which the caller holds the size, and returns it in one of its own.
func (c *call) readFirst(in io.Reader, end time.Time) (buf []byte, e *Error, err error) {
	first := chunks.Get().(*[chunk]byte)
	defer chunks.Put(first)
	n, err := c.readPart(in, first[:], c.started, end)
	size := int64(n)
	switch {
	case err == nil:
		size = room(size, c.r.ContentLength, c.v.Settings.MaxBody)
	case !errors.Is(err, io.EOF):
		return nil, nil, err
	}
	buf, e = c.growBody(first[:n], size)
	return buf, e, err
}

// readPart reads what is there of a body, within the sender's time from now on, which ends with that of the whole body.
func (c *call) readPart(in io.Reader, p []byte, now, end time.Time) (int, error) {
	_ = c.rc.SetReadDeadline(earlier(now.Add(c.v.Settings.BodyStall), end))
	return in.Read(p)
}

// room is how long the buffer of a body should be of which so much has come, in bytes. One that is declared has one byte more than
// it needs, so that its end is met without another step; limit is what another may have, and one byte more finds out that it has more.
func room(have, declared, limit int64) int64 {
	if declared >= 0 {
		return min(declared, max(onItsWord, 4*have)) + 1
	}
	return min(max(512, 2*have), limit+1)
}

// grow moves what is in a buffer, of which the size is held, to a new one, or returns the old one where no more can be held.
func (c *call) grow(old []byte, size int64) ([]byte, *Error) {
	if !c.hold(size) {
		return old, errOverloaded
	}
	buf := append(make([]byte, 0, size), old...)
	c.giveBack(int64(cap(old)))
	return buf, nil
}

// growBody is grow for a completion's body, whose memory is lent where its size is usual. What it was in before nobody reads any more.
func (c *call) growBody(old []byte, size int64) ([]byte, *Error) {
	if c.asked == nil {
		return c.grow(old, size)
	}
	m := lend(size)
	if m == nil && c.lent == nil {
		return c.grow(old, size)
	}
	if !c.hold(size) {
		m.giveBack()
		return old, errOverloaded
	}
	var buf []byte
	if m != nil {
		buf = append(m.room[:0:size], old...)
	} else {
		buf = append(make([]byte, 0, size), old...)
	}
	c.giveBack(int64(cap(old)))
	c.lent.giveBack()
	c.lent = m
	return buf, nil
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

// giveBack gives back n bytes of what hold took.
func (c *call) giveBack(n int64) {
	c.s.buffered.Add(-n)
	c.held -= n
}

// keep has the call hold n bytes, however many it held, and tells whether they were to be had.
func (c *call) keep(n int64) bool {
	if n > c.held {
		return c.hold(n - c.held)
	}
	c.giveBack(c.held - n)
	return true
}

// letGo gives back all that hold took.
func (c *call) letGo() { c.giveBack(c.held) }

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
