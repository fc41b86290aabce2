package enginehttp

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/perigee-llm/perigee/internal/engine"
)

// errorBody writes an error as the flavor does: vLLM in an "error" object, SGLang flat.
func errorBody(f Flavor, status int, param, message string) []byte {
	type vllmError struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    int     `json:"code"`
	}
	e := vllmError{Message: message, Type: errorType(status), Code: status}
	if param != "" {
		e.Param = &param
	}
	var v any = map[string]vllmError{"error": e}
	if f == SGLang {
		v = struct {
			Object string `json:"object"`
			vllmError
		}{"error", e}
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and numbers always have a JSON form
	}
	return b
}

// errorType is the class name that both engines give a status.
func errorType(status int) string {
	switch status {
	case http.StatusBadRequest:
		return "BadRequestError"
	case http.StatusNotFound:
		return "NotFoundError"
	case http.StatusRequestEntityTooLarge:
		return "RequestEntityTooLargeError"
	case http.StatusTooManyRequests:
		return "RateLimitError"
	case http.StatusServiceUnavailable:
		return "ServiceUnavailableError"
	}
	if status < 500 {
		return "BadRequestError"
	}
	return "InternalServerError"
}

// fail answers with an error. param names the field at fault, or is empty.
func (s *Server) fail(w http.ResponseWriter, status int, param, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(errorBody(s.opt.Flavor, status, param, message)) // a client that has left needs no error
}

// failLater answers a request that the engine has taken and finds wrong then: in a stream as an event of it.
func (s *Server) failLater(w http.ResponseWriter, j *job, status int, message string) {
	if !j.body.Stream {
		s.fail(w, status, "", message)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	b := append([]byte("data: "), errorBody(s.opt.Flavor, status, "", message)...)
	_, _ = w.Write(append(b, "\n\ndata: [DONE]\n\n"...)) // a client that has left needs no error
}

// failBody answers a body that could not be read.
func (s *Server) failBody(w http.ResponseWriter, err error) {
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		s.fail(w, http.StatusRequestEntityTooLarge, "", err.Error())
		return
	}
	s.fail(w, http.StatusBadRequest, "", "the body is not the JSON that this endpoint takes: "+err.Error())
}

// failSubmit answers a request that the engine does not take.
func (s *Server) failSubmit(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, engine.ErrQueueFull):
		if s.opt.Flavor == SGLang {
			s.fail(w, http.StatusServiceUnavailable, "", "The request queue is full.")
			return
		}
		s.fail(w, http.StatusServiceUnavailable, "", err.Error())
	case errors.Is(err, engine.ErrRoomTaken):
		s.fail(w, http.StatusInternalServerError, "bootstrap_room", err.Error()+": a real engine would crash")
	case errors.Is(err, errStopped):
		s.fail(w, http.StatusServiceUnavailable, "", err.Error())
	default: // too long, never fits, empty: the request is at fault
		s.fail(w, http.StatusBadRequest, "", err.Error())
	}
}
