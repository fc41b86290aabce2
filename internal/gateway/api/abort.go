package api

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
)

const (
	// abortLimit bounds one abort call: the reference's. The engine notices the closed connection anyway; the call only makes
	// it certain.
	abortLimit = 5 * time.Second
	// abortsQueued bounds the aborts that wait for one engine: every client of a busy gateway may leave at once. Beyond it they are dropped.
	abortsQueued = 1024
	// abortSenders send them to one engine: more would help only while it is slow, and then it needs not more work.
	abortSenders = 4
	// abortsKept is how long an abort may wait. An engine that answers nothing for so long has the end of the request's connection to look at when it goes on, and each call to
	// one that hangs takes abortLimit: those that wait would take twenty minutes.
	abortsKept = 30 * time.Second
)

type abort struct {
	since  time.Time
	worker *fleet.Worker
	rid    string
	auth   []string
}

// aborter tells engines to forget requests, apart from the requests' own goroutines, which must not wait for that, and each engine apart from the others, which must not
// wait for one that hangs. The senders of an engine are there while it has something to be told; the server's WaitGroup joins them.
type aborter struct {
	s   *Server
	ctx context.Context // ends with the server

	mu     sync.Mutex
	to     map[string]*abortQueue // by the engine's URL: those with senders; guarded by mu
	closed bool                   // guarded by mu
}

// abortQueue is what waits for one engine. It is guarded by the aborter's mu.
type abortQueue struct {
	waiting []abort
	senders int
}

// start is for the server's beginning. What is not sent when the context ends is dropped.
func (a *aborter) start(ctx context.Context, s *Server) {
	a.s, a.ctx, a.to = s, ctx, map[string]*abortQueue{}
}

// close has no senders begin any more. It is for before they are joined.
func (a *aborter) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
}

// send queues an abort in the name of the client whose Authorization auth is, nil where it is none of the engine's business. It does nothing where the engine has no way to abort, and never blocks.
func (a *aborter) send(w *fleet.Worker, rid string, auth []string) {
	if rid != "" && !a.queue(abort{since: time.Now(), worker: w, rid: rid, auth: auth}) {
		a.s.Metrics.Aborts.WithLabelValues("dropped").Inc()
	}
}

// queue tells whether there was room.
func (a *aborter) queue(x abort) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return false
	}
	q := a.to[x.worker.URL]
	if q == nil {
		q = new(abortQueue)
		a.to[x.worker.URL] = q
	}
	if len(q.waiting) == abortsQueued {
		return false
	}
	q.waiting = append(q.waiting, x)
	if q.senders < abortSenders {
		q.senders++
		a.s.wg.Go(func() {
			for x, ok := a.next(q, x.worker.URL); ok; x, ok = a.next(q, x.worker.URL) {
				a.s.Metrics.Aborts.WithLabelValues(a.post(a.ctx, x)).Inc()
			}
		})
	}
	return true
}

// next takes out what has waited longest, and drops what has waited too long. False: there is nothing, and the sender ends.
func (a *aborter) next(q *abortQueue, url string) (x abort, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	late := 0
	for late < len(q.waiting) && (a.ctx.Err() != nil || time.Since(q.waiting[late].since) > abortsKept) {
		q.waiting[late] = abort{} // an array that is used up must not keep it
		late++
	}
	if late > 0 {
		a.s.Metrics.Aborts.WithLabelValues("dropped").Add(float64(late))
		q.waiting = q.waiting[late:]
	}
	if len(q.waiting) == 0 {
		if q.senders--; q.senders == 0 {
			delete(a.to, url)
		}
		return abort{}, false
	}
	x = q.waiting[0]
	q.waiting[0] = abort{}
	q.waiting = q.waiting[1:]
	return x, true
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
