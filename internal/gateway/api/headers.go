package api

import (
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"strings"
	"sync"
)

const headerRequestID = "X-Request-Id"

// maxRequestID bounds the request id that a client may choose, in bytes: longer than any trace id, short enough for a log line.
const maxRequestID = 128

// requestID returns the client's request id if it is short and printable, otherwise a new one.
func requestID(h http.Header) string {
	if id := first(h[headerRequestID]); id != "" && len(id) <= maxRequestID && visible(id) {
		return strings.Clone(id) // the decision log keeps it, and must not keep the head that it is a part of
	}
	return randomHex()
}

// first returns the first of a field's values, empty where there is none. Whoever has the canonical name need not pay for it as [http.Header.Get] does.
func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

func visible(s string) bool {
	for i := range len(s) {
		if s[i] < 0x21 || s[i] > 0x7e {
			return false
		}
	}
	return true
}

// randomBits are places for 128 random bits, which would go to the heap one by one.
var randomBits = sync.Pool{New: func() any { return new([16]byte) }}

// randomHex returns 128 random bits as 32 hexadecimal digits.
func randomHex() string {
	b := randomBits.Get().(*[16]byte)
	defer randomBits.Put(b)
	_, _ = rand.Read(b[:]) // never fails: it ends the program where there is no randomness
	var text [2 * len(b)]byte
	hex.Encode(text[:], b[:])
	return string(text[:])
}

// forwarded tells whether a request header goes on to the engines. The name is canonical. Everything else stays here: cookies and
// session headers are not the engines' business, and hop-by-hop headers are not ours to pass on.
func forwarded(name string) bool {
	switch name {
	case "Authorization", "X-Correlation-Id", "Traceparent", "Tracestate":
		return true
	}
	return strings.HasPrefix(name, headerRequestID+"-") || strings.HasPrefix(name, "X-Sgl-")
}

// engineHeader returns the headers of a request to an engine.
func (c *call) engineHeader(stream bool) http.Header {
	h := make(http.Header, 8)
	c.fillEngineHeader(h, stream)
	return h
}

// fillEngineHeader puts the headers of a request to an engine into an empty one.
func (c *call) fillEngineHeader(h http.Header, stream bool) {
	for name, values := range c.r.Header {
		if forwarded(name) {
			h[name] = values
		}
	}
	h[headerRequestID] = c.ids[:]
	h["Content-Type"] = jsonType
	h["User-Agent"] = userAgent
	if stream {
		h["Accept"] = eventStream
	}
}

// Values that are shared by all requests; servers and transports only read them.
var (
	jsonType    = []string{"application/json"}
	eventStream = []string{"text/event-stream"}
	userAgent   = []string{"perigee"}
)
