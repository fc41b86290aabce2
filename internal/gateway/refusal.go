package gateway

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"

	"github.com/perigee-llm/perigee/internal/gateway/api"
)

// What net/http refuses before any handler sees it, it answers in plain text. Here its words are known again and put into the envelope. They
// are known by the whole form of their head, which no handler's answer has: those have a Date. If another version of Go words them
// differently they pass as they are, and a test says so.
//
// Looking at what is written is the least that does it: net/http has no hook for this. A parser of our own before net/http's would be a
// second opinion of where a request ends, which is what smuggling is made of. Over TLS the connection must be a *tls.Conn for HTTP/2's sake,
// and what goes through it cannot be looked at; there the refusals stay text, and only their number is known.

// plainHead stands behind the status line of net/http's refusals.
const plainHead = "\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"

// expectationHead begins net/http's answer to an Expect that is not 100-continue. Ours to a handler's request has other fields first.
const expectationHead = "HTTP/1.1 417 Expectation Failed\r\nConnection: close\r\nDate: "

// notTLS is what net/http says to a client that speaks HTTP to a TLS listener.
const notTLS = "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"

var (
	tooMany   = &api.Error{Status: http.StatusServiceUnavailable, Code: "too_many_connections", Message: "this gateway has as many connections as it may", RetryAfter: 1}
	needsTLS  = &api.Error{Status: http.StatusBadRequest, Code: "bad_request", Message: "this port speaks HTTPS"}
	noExpect  = &api.Error{Status: http.StatusExpectationFailed, Code: "expectation_failed", Message: "the only expectation that this gateway knows is 100-continue"}
	noCoding  = &api.Error{Status: http.StatusNotImplemented, Code: "unsupported_transfer_encoding", Message: "the only transfer encoding that this gateway takes is chunked"}
	noVersion = &api.Error{Status: http.StatusHTTPVersionNotSupported, Code: "unsupported_http_version", Message: "this gateway does not speak that version of HTTP"}
	longHead  = &api.Error{Status: http.StatusRequestHeaderFieldsTooLarge, Code: "request_header_too_large", Message: "the request's head is longer than this gateway takes"}
)

// refused returns what a refusal of net/http's own means, or nil for anything else.
func refused(p []byte) *api.Error {
	const version = "HTTP/1.1 "
	if len(p) < len(version)+3 || (p[len(version)] != '4' && p[len(version)] != '5') || !bytes.HasPrefix(p, []byte("HTTP/1.")) {
		return nil
	}
	line, rest, _ := bytes.Cut(p, []byte("\r\n"))
	switch {
	case string(p) == notTLS:
		return needsTLS
	case bytes.HasPrefix(p, []byte(expectationHead)):
		return noExpect
	case !bytes.HasPrefix(rest, []byte(plainHead[2:])):
		return nil
	}
	switch status, text, _ := strings.Cut(string(line[len(version):]), " "); status {
	case "431":
		return longHead
	case "501":
		return noCoding
	case "505":
		return noVersion
	case "400":
		_, why, found := strings.Cut(text, ": ") // a constant of net/http's
		if !found {
			why = "it cannot be read"
		}
		return &api.Error{Status: http.StatusBadRequest, Code: "bad_request", Message: "the request is not proper HTTP: " + why}
	}
	return nil
}

// refusalOf returns a whole answer, after which the connection ends.
func refusalOf(e *api.Error) []byte {
	text := e.Envelope()
	again := ""
	if e.RetryAfter > 0 {
		again = fmt.Sprintf("Retry-After: %d\r\n", e.RetryAfter)
	}
	return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nX-Router-Error-Code: %s\r\n%sConnection: close\r\n\r\n%s",
		e.Status, http.StatusText(e.Status), len(text), e.Code, again, text)
}
