package api

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/lifetime"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
	"github.com/perigee-llm/perigee/internal/gateway/sock"
	"github.com/perigee-llm/perigee/internal/gateway/tracing"
	"github.com/perigee-llm/perigee/internal/gateway/upstream"
)

// failure is an attempt in which no answer to the client began.
type failure struct {
	answer  *Error // what the client gets if nothing else is tried
	what    string // for the decision log
	again   bool   // nothing of an answer has come, so another engine may be tried
	exclude string // the engine that must not be tried again; empty: nothing was learned of it
}

// The causes for which a leg's context is cancelled by us.
var (
	causeTimeout = errors.New("time-out")
	causeStale   = errors.New("stale request")
	causeOther   = errors.New("the other half of the pair failed")
)

// leg is one request to one engine: its guard in the accounts, its claim on the breaker, its clock. Whoever began it ends it.
type leg struct {
	s      *Server
	worker *fleet.Worker
	config uint64 // the number of the one that it began under
	model  string
	mode   string // plain, prefill, decode

	parent context.Context   // ends when the client leaves, or never
	life   lifetime.Lifetime // under parent
	url    url.URL           // of the request, which lives as long
	guard  load.Guard
	call   *call      // whose it is
	body   bodyReader // of the request
	ticket fleet.Ticket
	clock  *time.Timer // calls timedOut
	sentAt time.Time
	limit  time.Duration // for the whole answer, from sentAt
	rid    string        // by which the engine can abort it; empty: it cannot

	before *leg         // of the same request
	span   *tracing.Leg // nil while tracing is off
	ended  bool
	status uint16 // of the answer; 0: none came

	silence struct {
		sync.Mutex
		limit time.Duration // of a stream: how long the engine may say nothing; 0: the clock's end is the leg's
		over  bool          // the leg has ended
	}
	silent atomic.Int64 // of a stream: nanoseconds from sentAt to where the engine fell silent, and one; 0: nobody waits for it

	connected bool // there was a connection
	answered  bool // a byte of an answer came
	reused    bool // it went over a connection that had been used before
	refused   bool // it could not be sent as it is, whichever the engine
}

// begin takes the accounts and the breaker's claim for one dispatch. It fails when the breaker closed the door meanwhile.
//
// The leg is the request's goroutine's to end, unless it calls handOver.
func (c *call) begin(parent context.Context, p *policy.Pick, stage fleet.Stage, tokens int64) (*leg, *failure) {
	s, now, w := c.s, c.selected, p.Engine // a microsecond ago
	ticket, ok := s.Registry.Claim(w, now)
	if !ok && p.Floored {
		ticket, ok = s.Registry.ClaimAnyway(w, now), true
	}
	if !ok {
		c.notDispatched(w, stage)
		return nil, &failure{answer: errBreakerOpen, what: "breaker open", again: true, exclude: w.ID}
	}
	l := &leg{s: s, call: c, worker: w, config: c.v.number, model: c.model.ID, mode: stage.String(), ticket: ticket, parent: parent}
	l.life.Under(parent)
	account := load.StagePrefill
	if stage == fleet.Decode {
		account = load.StageDecode
	}
	s.Tracker.AcquireAt(&l.guard, w.Load, now, account, tokens, l)
	if stage != fleet.Decode {
		l.guard.Computes(uncached(p, tokens), stage == fleet.Plain && !c.streamed)
	}
	l.span = c.trace.Leg(w.ID, w.URL, l.mode, c.attempts)
	l.before, c.legs = c.legs, l
	return l, nil
}

// Expired implements [load.Expirer].
func (l *leg) Expired() {
	if l.call.stale.CompareAndSwap(false, true) { // the halves of a pair are one request
		l.s.Metrics.Stale.WithLabelValues("expired").Inc()
	}
	l.life.End(causeStale)
}

// uncached is how much of a prompt the engine that was picked has to compute: as the policy expects, all of it where it did not look.
func uncached(p *policy.Pick, tokens int64) int64 {
	if n, ok := p.Uncached.Get(); ok {
		return min(n, tokens)
	}
	return tokens
}

// notDispatched counts a dispatch that did not happen because of the worker as an error of it.
func (c *call) notDispatched(w *fleet.Worker, stage fleet.Stage) {
	c.s.Metrics.WorkerRequests.WithLabelValues(w.ID, c.model.ID, stage.String(), "error").Inc()
}

// handOver makes the leg another goroutine's to end. It is one of the last two that were begun.
func (c *call) handOver(l *leg) {
	if c.legs == l {
		c.legs = l.before
	} else {
		c.legs.before = l.before
	}
}

// end gives everything back and says what became of the dispatch.
func (l *leg) end(o fleet.Outcome, label string) {
	l.ended = true
	if l.clock != nil {
		l.silence.Lock()
		l.silence.over = true
		l.silence.Unlock()
		l.clock.Stop()
	}
	l.life.End(nil)
	l.guard.Release()
	now := time.Now()
	l.s.Registry.Done(l.ticket, o, now)
	l.span.End(int(l.status), label, now)
	l.countEnd(label)
}

// success is how nearly all dispatches end, for the metrics.
const success = "success"

// usualEnds are the counters of the dispatches to one engine that succeed, kept beside it: with 1,000 engines a look-up compares labels that nobody has read for long. Another
// configuration may have dropped a model's series since, and looks them up anew. They never change.
type usualEnds struct {
	config uint64
	shelf  *upstream.Shelf // where connections to the engine are kept, as the last request to find out has it
	n      int             // of ends
	ends   [endsKept]usualEnd
}

type usualEnd struct {
	model, mode string
	count       prometheus.Counter
}

// endsKept bounds the models and modes whose counters are kept for one engine. An engine serves one model in one mode, or a few with adapters; of a hundred the
// others are looked up each time, which takes no memory.
const endsKept = 8

// of returns the counter, nil where it is not kept.
func (k *usualEnds) of(config uint64, model, mode string) prometheus.Counter {
	if k == nil || k.config != config {
		return nil
	}
	for i := range k.ends[:k.n] {
		if e := &k.ends[i]; e.mode == mode && e.model == model {
			return e.count
		}
	}
	return nil
}

// with returns them with another counter, nil where it is not to be kept: there are as many as may be, or the counter is that of a request that began under a configuration
// before theirs.
func (k *usualEnds) with(config uint64, e usualEnd) *usualEnds {
	if k != nil && (k.config > config || k.config == config && k.n == endsKept) {
		return nil
	}
	next := &usualEnds{config: config}
	if k != nil {
		next.shelf = k.shelf
	}
	if k != nil && k.config == config {
		*next = *k
	}
	next.ends[next.n] = e
	next.n++
	return next
}

// countEnd counts the dispatch by how it ended.
func (l *leg) countEnd(label string) {
	if label != success {
		l.s.Metrics.WorkerRequests.WithLabelValues(l.worker.ID, l.model, l.mode, label).Inc()
		return
	}
	kept, _ := l.worker.Kept.Load().(*usualEnds)
	count := kept.of(l.config, l.model, l.mode)
	if count == nil {
		count = l.s.Metrics.WorkerRequests.WithLabelValues(l.worker.ID, l.model, l.mode, success)
		if next := kept.with(l.config, usualEnd{l.model, l.mode, count}); next != nil {
			l.worker.Kept.Store(next) // what another request stored meanwhile is looked up again
			kept = next
		}
	}
	count.Inc()
	if s := l.body.shelf; s != nil && kept != nil && kept.shelf != s {
		next := *kept
		next.shelf = s
		l.worker.Kept.Store(&next)
	}
}

// timedOut is called when the clock has run down. A stream's runs on while parts come, since to stop and start it with each would cost more than the look
// at it here: if the engine has not been silent for as long as it may, it is started for the rest.
func (l *leg) timedOut() {
	l.silence.Lock()
	defer l.silence.Unlock()
	if l.silence.over {
		return
	}
	if left := l.silence.limit; left > 0 {
		if since := l.silent.Load(); since > 0 {
			left -= time.Since(l.sentAt) - time.Duration(since-1)
		}
		if left > 0 {
			l.clock.Reset(left)
			return
		}
	}
	l.life.End(causeTimeout)
}

// boundSilence has the leg end when the engine says nothing for so long between listen and heard. The clock stands still until then.
func (l *leg) boundSilence(limit time.Duration) {
	l.silence.Lock()
	defer l.silence.Unlock()
	l.silence.limit = limit
	l.clock.Reset(limit)
}

func (l *leg) listen() { l.silent.Store(int64(time.Since(l.sentAt)) + 1) }

func (l *leg) heard() { l.silent.Store(0) }

// send posts the body and returns the engine's answer once its head is there, within the limit. On an error the leg has not ended.
func (l *leg) send(path string, header http.Header, pieces [][]byte, limit time.Duration) (*http.Response, error) {
	l.sentAt, l.limit, l.url = time.Now(), limit, joinURL(l.worker.URL, path)
	l.clock, l.body.pieces = time.AfterFunc(limit, l.timedOut), pieces
	l.body.begin()
	if kept, ok := l.worker.Kept.Load().(*usualEnds); ok {
		l.body.shelf = kept.shelf
	}
	req := (&http.Request{
		Method: http.MethodPost, URL: &l.url, Header: l.span.Send(http.MethodPost, path, header, l.sentAt), ContentLength: lengthOf(pieces),
		Body: &l.body,
	}).WithContext(&l.life)
	resp, err := l.s.Engines.RoundTrip(req)
	if err != nil {
		var e *upstream.Error
		if errors.As(err, &e) {
			l.refused = e.Stage == upstream.Refused
			l.connected, l.answered, l.reused = e.Stage >= upstream.Asking && !l.refused, e.Stage == upstream.Answering, e.Reused
		}
		return nil, err
	}
	l.connected, l.answered, l.status = true, true, uint16(resp.StatusCode)
	resp.Request = nil // it has the body
	return resp, nil
}

// blame says what an error before the end of an answer means: for the engine's breaker, for the metrics, and for the client.
func (l *leg) blame(err error) (fleet.Outcome, string, *failure) {
	outcome, label, f := l.judgeError(err)
	l.span.Blame(f.answer.Code, f.what)
	return outcome, label, f
}

func (l *leg) judgeError(err error) (fleet.Outcome, string, *failure) {
	id := l.worker.ID
	switch cause := lifetime.Cause(&l.life); {
	case cause == causeStale:
		return fleet.Cancelled, "cancelled", &failure{answer: errStale, what: "outlived the stale time-out"}
	case cause == causeOther:
		return fleet.Cancelled, "cancelled", &failure{answer: errInternal, what: "the other half of the pair failed"}
	case cause == causeTimeout:
		return fleet.Failure, "error", &failure{answer: errTimeout, what: "no answer in time", exclude: id}
	case l.parent.Err() != nil:
		return fleet.Cancelled, "cancelled", &failure{answer: errInternal, what: "the client left"}
	case l.refused:
		l.s.Log.Error("a request cannot be sent to any engine", "err", err)
		return fleet.Cancelled, "cancelled", &failure{answer: errInternal, what: "the request cannot be sent: " + err.Error()}
	case l.answered:
		return fleet.Failure, "error", &failure{answer: errBadAnswer, what: "unreadable answer: " + err.Error(), exclude: id}
	case l.reused:
		// A kept connection that the engine closed says nothing of the engine: it may have been restarted, or its
		// keep-alive ran out as we wrote. The next attempt may go there again, over a new connection that will tell.
		return fleet.Cancelled, "error", &failure{answer: errUnreachable, what: "a kept connection was closed: " + err.Error(), again: true}
	}
	if !l.connected && sock.Shortage(err) {
		// Another engine may have a kept connection, or ports left on the way to it. The fault is none of theirs.
		return fleet.Cancelled, "cancelled", &failure{answer: errNoDescriptor, what: "no connection can be made here: " + err.Error(), again: true, exclude: id}
	}
	outcome := fleet.Failure
	if !l.connected && nobodyThere(err) {
		outcome = fleet.Absent
		if l.s.Absent != nil {
			l.s.Absent(id)
		}
	}
	return outcome, "error", &failure{answer: errUnreachable, what: "no connection: " + err.Error(), again: true, exclude: id}
}

// nobodyThere tells whether a connection could not be made because nobody was there to take it. One that took too long is none of it, as
// with load polls: an engine that is too busy to accept looks the same, and its polls, which go over a connection that is kept, would end
// its cool-down second by second.
func nobodyThere(err error) bool {
	dial, ok := errors.AsType[*net.OpError](err)
	return ok && dial.Op == "dial" && !dial.Timeout()
}

// judge says what an answer's status means for the breaker and for the metrics.
func judge(status int) (fleet.Outcome, string) {
	switch {
	case status == http.StatusServiceUnavailable, status == http.StatusTooManyRequests:
		return fleet.Neutral, "backpressure"
	case status >= 500:
		return fleet.Failure, "error"
	case status >= 400:
		return fleet.Success, "client_error"
	case status >= 200 && status < 300:
		return fleet.Success, success
	}
	return fleet.Success, "error" // an engine that redirects is alive, but of no use
}

// engineURL joins a worker's base, which was checked when it registered, and a path.
func engineURL(base, path string) *url.URL {
	u := joinURL(base, path)
	return &u
}

func joinURL(base, path string) url.URL {
	scheme, rest, _ := strings.Cut(base, "://")
	host, prefix, _ := strings.Cut(rest, "/")
	if prefix != "" {
		path = "/" + strings.TrimSuffix(prefix, "/") + path
	}
	return url.URL{Scheme: scheme, Host: host, Path: path}
}

func lengthOf(pieces [][]byte) (n int64) {
	for _, p := range pieces {
		n += int64(len(p))
	}
	return n
}

// bodyReader reads a body that is in pieces, which it neither owns nor changes.
type bodyReader struct {
	pieces [][]byte
	off    int             // into the first piece
	lent   *lent           // that they are in; nil: nothing that is used again
	shelf  *upstream.Shelf // where connections for it are kept, as far as is known
}

func newBodyReader(pieces [][]byte) *bodyReader { return &bodyReader{pieces: pieces} }

var _ upstream.Pieces = (*bodyReader)(nil)

var _ upstream.Shelved = (*bodyReader)(nil)

// Shelf implements upstream.Shelved.
func (b *bodyReader) Shelf() **upstream.Shelf { return &b.shelf }

// Pieces implements upstream.Pieces.
func (b *bodyReader) Pieces() [][]byte { return b.pieces }

// begin is for before it is sent.
func (b *bodyReader) begin() {
	if b.lent != nil {
		b.lent.readers++
	}
}

// Sent implements upstream.Pieces.
func (b *bodyReader) Sent() {
	if b.lent != nil {
		b.lent.readers--
	}
}

// Read implements io.Reader, for transports that know no pieces.
func (b *bodyReader) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) && len(b.pieces) > 0 {
		k := copy(p[n:], b.pieces[0][b.off:])
		n, b.off = n+k, b.off+k
		if b.off == len(b.pieces[0]) {
			b.pieces, b.off = b.pieces[1:], 0
		}
	}
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// Close implements io.Closer.
func (b *bodyReader) Close() error { return nil }
