package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
)

// Error is an answer of the gateway's own, in the envelope {"error":{"type","code","message"}}.
type Error struct {
	Status int
	// Code is stable and names the condition; it stands in the header x-router-error-code too.
	Code string
	// Message is for people. It names no engine, no address and no internal cause.
	Message string
	// RetryAfter is when a client may try again, in seconds; 0: nothing is said of it.
	RetryAfter int
	// UpstreamStatus is the engine's status where it had answered one already, else 0.
	UpstreamStatus int
}

// Error returns the code and the message.
func (e *Error) Error() string { return e.Code + ": " + e.Message }

// headerErrorCode and headerUpstreamStatus are sgl-router's names, which its users' dashboards know.
const (
	headerErrorCode      = "X-Router-Error-Code"
	headerUpstreamStatus = "X-Router-Upstream-Status"
)

func badRequest(message string) *Error {
	return &Error{Status: http.StatusBadRequest, Code: "bad_request", Message: message}
}

var (
	errBodyTooLarge  = &Error{Status: http.StatusRequestEntityTooLarge, Code: "request_too_large", Message: "the request body is longer than this gateway takes"}
	errBodyBroken    = badRequest("the request body broke off")
	errBodyStalled   = &Error{Status: http.StatusRequestTimeout, Code: "request_timeout", Message: "the request body did not come in time"}
	errEncoded       = &Error{Status: http.StatusUnsupportedMediaType, Code: "unsupported_content_encoding", Message: "this gateway takes no compressed request bodies: send it without Content-Encoding"}
	errNotFound      = &Error{Status: http.StatusNotFound, Code: "not_found", Message: "there is nothing at this path"}
	errMethod        = &Error{Status: http.StatusMethodNotAllowed, Code: "method_not_allowed", Message: "this path does not take this method"}
	errInternal      = &Error{Status: http.StatusInternalServerError, Code: "internal_error", Message: "the gateway could not serve the request"}
	errUnreachable   = &Error{Status: http.StatusBadGateway, Code: "upstream_unreachable", Message: "the engine could not be reached"}
	errBadAnswer     = &Error{Status: http.StatusBadGateway, Code: "upstream_invalid_answer", Message: "the engine's answer could not be read"}
	errTimeout       = &Error{Status: http.StatusGatewayTimeout, Code: "upstream_timeout", Message: "the engine did not answer in time"}
	errStale         = &Error{Status: http.StatusGatewayTimeout, Code: "stale_request_expired", Message: "the request outlived the longest life of a request"}
	errBreakerOpen   = &Error{Status: http.StatusServiceUnavailable, Code: "breaker_open", Message: "the engine has failed too often to be tried now"}
	errMisconfigured = &Error{Status: http.StatusServiceUnavailable, Code: "worker_misconfigured", Message: "the engine cannot serve this request as it is configured"}
	errOverloaded    = &Error{Status: http.StatusServiceUnavailable, Code: "gateway_overloaded", Message: "this gateway holds as many request bodies as it may", RetryAfter: 1}
	errNoDescriptor  = &Error{Status: http.StatusServiceUnavailable, Code: "gateway_overloaded", Message: "this gateway has as many connections as its system lets it have", RetryAfter: 1}
	errDraining      = &Error{Status: http.StatusServiceUnavailable, Code: "draining", Message: "this gateway is shutting down"}
)

func errIncomplete(upstreamStatus int) *Error {
	return &Error{
		Status: http.StatusBadGateway, Code: "upstream_body_incomplete",
		Message: "the engine's answer broke off", UpstreamStatus: upstreamStatus,
	}
}

// selectionError says what a failed selection means for the client.
func selectionError(err error) *Error {
	var exhausted *bucket.ExhaustedError
	switch {
	case errors.Is(err, bucket.ErrNoMatchingBucket):
		return badRequest("no bucket of this model takes a request of this length")
	case errors.As(err, &exhausted) && len(exhausted.Rejections) > 0:
		return &Error{Status: http.StatusServiceUnavailable, Code: "policy_selection_failed", Message: exhausted.Error()}
	case errors.As(err, &exhausted):
		return &Error{Status: http.StatusServiceUnavailable, Code: missingCode(exhausted.Missing), Message: exhausted.Error()}
	}
	return errInternal
}

func missingCode(s fleet.Stage) string {
	switch s {
	case fleet.Prefill:
		return "no_prefill_workers_available"
	case fleet.Decode:
		return "no_decode_workers_available"
	}
	return "no_healthy_workers"
}

// isFault tells whether a failed selection is a fault of ours or of the configuration, which belongs in the log.
func isFault(err error) bool {
	var pe *policy.PickError
	return errors.As(err, &pe) && !pe.Class.NextBucket()
}

// Envelope returns the error as the body of an answer.
func (e *Error) Envelope() []byte {
	kind := "invalid_request_error"
	if e.Status >= 500 {
		kind = "server_error"
	}
	var envelope struct {
		Error struct {
			Type    string `json:"type"`
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	envelope.Error.Type, envelope.Error.Code, envelope.Error.Message = kind, e.Code, e.Message
	text, err := json.Marshal(envelope)
	if err != nil { // three strings always encode
		panic(err)
	}
	return text
}

// Write answers with the error. The caller has not written anything before.
func (e *Error) Write(w http.ResponseWriter) {
	text := e.Envelope()
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	h.Set(headerErrorCode, e.Code)
	if e.RetryAfter != 0 {
		h.Set("Retry-After", strconv.Itoa(e.RetryAfter))
	}
	if e.UpstreamStatus != 0 {
		h.Set(headerUpstreamStatus, strconv.Itoa(e.UpstreamStatus))
	}
	w.WriteHeader(e.Status)
	_, _ = w.Write(text) // a client that left needs no answer
}

// Refused tells whether an answer is an error of the gateway's own. It is for when its handler has returned.
func Refused(w http.ResponseWriter) bool { return w.Header()[headerErrorCode] != nil }
