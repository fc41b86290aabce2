package api

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
)

const (
	// abortLimit bounds one abort call: the reference's. The engine notices the closed connection anyway; the call only makes
	// it certain.
	abortLimit = 5 * time.Second
	// abortsQueued bounds the aborts that wait: every client of a busy gateway may leave at once. Beyond it they are dropped.
	abortsQueued = 1024
	// abortSenders send them: more would help only while engines are slow, and then they need not more work.
	abortSenders = 4
)

type abort struct {
	worker *fleet.Worker
	rid    string
	auth   []string
}

// aborter tells engines to forget requests, apart from the requests' own goroutines, which must not wait for that.
type aborter struct {
	s     *Server
	queue chan abort
}

// start runs the senders until the context ends; the server's WaitGroup joins them.
func (a *aborter) start(ctx context.Context, s *Server) {
	a.s, a.queue = s, make(chan abort, abortsQueued)
	for range abortSenders {
		s.wg.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case x := <-a.queue:
					a.s.Metrics.Aborts.WithLabelValues(a.post(ctx, x)).Inc()
				}
			}
		})
	}
}

// send queues an abort in the name of the client whose Authorization auth is, nil where it is none of the engine's business. It does nothing where the engine has no way to abort, and never blocks.
func (a *aborter) send(w *fleet.Worker, rid string, auth []string) {
	if rid == "" {
		return
	}
	select {
	case a.queue <- abort{worker: w, rid: rid, auth: auth}:
	default:
		a.s.Metrics.Aborts.WithLabelValues("dropped").Inc()
	}
}

// post makes the call and returns its result for the metric.
func (a *aborter) post(ctx context.Context, x abort) string {
	ctx, cancel := context.WithTimeout(ctx, abortLimit)
	defer cancel()
	text, err := json.Marshal(map[string]any{"rid": x.rid, "abort_all": false})
	if err != nil { // a string and a bool always encode
		panic(err)
	}
	header := http.Header{"Content-Type": jsonType, "User-Agent": userAgent}
	if x.auth != nil {
		header["Authorization"] = x.auth
	}
	req := (&http.Request{
		Method: http.MethodPost, URL: engineURL(x.worker.URL, "/abort_request"), Header: header,
		ContentLength: int64(len(text)), Body: newBodyReader([][]byte{text}),
	}).WithContext(ctx)
	resp, err := a.s.Engines.RoundTrip(req)
	if err != nil {
		return "failed"
	}
	_, _ = io.CopyN(io.Discard, resp.Body, 4<<10) // so that the connection can be used again
	_ = resp.Body.Close()
	if resp.StatusCode >= 300 {
		return "failed"
	}
	return "sent"
}
