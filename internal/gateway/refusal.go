package gateway

import (
	"fmt"
	"net/http"

	"github.com/perigee-llm/perigee/internal/gateway/api"
	"github.com/perigee-llm/perigee/internal/gateway/downstream"
)

// Answers to what no handler sees: connections too many, and heads that cannot be served.

var (
	tooMany         = &api.Error{Status: http.StatusServiceUnavailable, Code: "too_many_connections", Message: "this gateway has as many connections as it may", RetryAfter: 1}
	tooManyRequests = &api.Error{Status: http.StatusServiceUnavailable, Code: "too_many_requests", Message: "this gateway has as many requests under way as it may", RetryAfter: 1}
	needsTLS        = &api.Error{Status: http.StatusBadRequest, Code: "bad_request", Message: "this port speaks HTTPS"}
	refusals        = map[int]*api.Error{
		http.StatusExpectationFailed:           {Code: "expectation_failed", Message: "the only expectation that this gateway knows is 100-continue"},
		http.StatusNotImplemented:              {Code: "unsupported_transfer_encoding", Message: "the only transfer encoding that this gateway takes is chunked"},
		http.StatusHTTPVersionNotSupported:     {Code: "unsupported_http_version", Message: "this gateway does not speak that version of HTTP"},
		http.StatusRequestHeaderFieldsTooLarge: {Code: "request_header_too_large", Message: "the request's head is longer than this gateway takes"},
	}
)

// refuse returns the whole answer to a request that downstream refused.
func (d *door) refuse(r downstream.Refusal) []byte {
	e := &api.Error{Code: "bad_request", Message: "the request is not proper HTTP: " + r.Why}
	if known := refusals[r.Status]; known != nil {
		*e = *known
	}
	e.Status = r.Status
	d.metrics.Refused.WithLabelValues(e.Code).Inc()
	return refusalOf(e)
}

// refusePlain returns the whole answer to a client that speaks HTTP where TLS is spoken.
func (d *door) refusePlain() []byte {
	d.metrics.Refused.WithLabelValues(needsTLS.Code).Inc()
	return refusalOf(needsTLS)
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
