package api

import (
	"net/http"
	"strings"
)

// longHeader is what a handler's ResponseWriter has beside net/http's, if package downstream made it.
type longHeader interface {
	LongHead() int64
	ForgetHead(r *http.Request)
}

// What is a long head where net/http made it: as package downstream has it.
const (
	longHead   = 4 << 10
	manyFields = 64
	fieldBytes = 256
)

// headBytes returns about what the request's head has in memory, in bytes, if that is worth counting; else 0. A usual one has a few hundred bytes.
func (c *call) headBytes() int64 {
	if l, ok := c.w.(longHeader); ok {
		return l.LongHead()
	}
	text := 0
	for name, values := range c.r.Header {
		text += len(name)
		for _, v := range values {
			text += len(v)
		}
	}
	if text <= longHead && len(c.r.Header) <= manyFields {
		return 0
	}
	return int64(text + fieldBytes*len(c.r.Header))
}

// traceHeader is what is wanted of a head until its request's end.
const traceHeader = "Traceparent"

// forgetHead lets a long head go. A stream goes on for minutes, and its head may have 320 KiB, by a thousand fields.
func (c *call) forgetHead() {
	if c.headBytes() == 0 {
		return
	}
	for i, v := range c.auth {
		if i == 0 {
			c.auth = append(make([]string, 0, len(c.auth)), c.auth...) // the header's is not ours to change
		}
		c.auth[i] = strings.Clone(v)
	}
	parents := c.r.Header[traceHeader]
	if l, ok := c.w.(longHeader); ok {
		l.ForgetHead(c.r)
	} else {
		c.r.Header = http.Header{}
	}
	if len(parents) == 1 && len(parents[0]) <= maxRequestID {
		c.r.Header[traceHeader] = []string{strings.Clone(parents[0])}
	}
}
