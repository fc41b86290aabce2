package gateway

import (
	"errors"
	"net/http"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/upstream"
)

// questions is the way on which engines are asked what they are, how busy they are and what they publish: the client that requests take, with connections of its
// own, one to each engine. net/http's has two goroutines and 8 KiB of buffers for each connection; with 1,000 engines that are asked every second these were most of the
// gateway's goroutines, and each collection of garbage looked at their stacks.
type questions struct{ *upstream.Transport }

func newQuestions() questions {
	return questions{upstream.New(upstream.Options{
		DialTimeout: 2 * time.Second, IdleTimeout: 90 * time.Second,
		IdlePerHost: 1, // an engine is never asked twice at once
		Trace:       true,
	})}
}

var _ http.RoundTripper = questions{}

// RoundTrip implements http.RoundTripper. Asking twice harms nobody: a question that met a kept connection at its end is asked again over a new one. Errors are the
// causes themselves, as [http.Client] wants them.
func (q questions) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := q.Transport.RoundTrip(r)
	e, ok := errors.AsType[*upstream.Error](err)
	if ok && e.Reused && e.Stage == upstream.Asking && r.Context().Err() == nil && (r.Body == nil || r.Body == http.NoBody) {
		resp, err = q.Transport.RoundTrip(r)
		e, ok = errors.AsType[*upstream.Error](err)
	}
	if ok {
		return nil, e.Err
	}
	return resp, err
}
