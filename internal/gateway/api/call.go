package api

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"net"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/perigee-llm/perigee/internal/gateway/api/body"
	"github.com/perigee-llm/perigee/internal/gateway/api/sse"
	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/explain"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/keyring"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/tracing"
)

// usual are the counters that nearly every request counts on, looked up once.
type usual struct{ arrived, answered prometheus.Counter }

func (c *call) countArrival() {
	if c.r.Method == http.MethodPost {
		c.usual.arrived.Inc()
		return
	}
	c.s.Metrics.Requests.WithLabelValues(c.path, methodLabel(c.r.Method)).Inc()
}

func (c *call) countAnswer() {
	if c.r.Method == http.MethodPost && c.status == http.StatusOK {
		c.usual.answered.Inc()
		return
	}
	c.s.Metrics.Responses.WithLabelValues(c.path, methodLabel(c.r.Method), strconv.Itoa(c.status)).Inc()
}

// call is one completion request from its arrival to its end. It belongs to the handler's goroutine.
type call struct {
	s       *Server
	usual   *usual
	v       *served // what it began under
	caller  *keyring.Key
	w       http.ResponseWriter
	rc      http.ResponseController // of w
	r       *http.Request
	path    string // of the endpoint, here and at the engine
	started time.Time
	ids     [1]string // the request's id, as a header's value
	key     uint64
	trace   *tracing.Request // nil while tracing is off

	*asked
	held     int64 // bytes of what all bodies may take together
	streamed bool  // the client asked for a stream
	model    *Model
	in       input
	peak     load.Count
	entry    *explain.Entry // nil until the request was understood

	struck   bool // an engine that had the request was struck for it
	exclude  []string
	attempts int
	stale    atomic.Bool      // the janitor gave it up
	picked   bucket.Selection // of the last attempt
	selected time.Time        // when that was

	auth       []string  // the client's Authorization, as engines get it
	engineRID  string    // at the engine of the last attempt
	writeBy    time.Time // the client's deadline for reading
	legs       *leg      // the last that was begun and is this goroutine's to end
	status     int       // as sent, 0 until then
	code       string    // of our own error
	ttft       time.Duration
	sent       int64 // bytes of the answer's body
	usage      sse.Usage
	took       time.Duration // from arrival to when all was accounted
	ready      bool          // the whole answer was given to the server, which may have written all but its end
	clientLeft bool
	stalled    bool // it did not leave: it was cut off because it read too slowly; clientLeft too
	broken     bool // the answer broke off after its head was sent: the connection must not end cleanly
	unanswered bool // nothing was written, and the server must not make an empty 200 of that
}

// asked is what the client asked. It is kept for as long as another engine may have to get it, and let go when an answer has begun that is
// passed on as it comes: a stream goes on for minutes, and its request may have 32 MiB.
type asked struct {
	body  []byte
	lent  *lent // whose memory the body has; nil: its own
	facts body.Facts
	patch body.Patch
	memo  prefix.Memo // what prefix sources said, through all attempts

	// What one attempt sends: the patch with what the engine makes of it, and the body's pieces. In a stack frame or anew for each request the
	// patch would be 3 KiB.
	attempt body.Patch
	pieces  [][]byte
	header  http.Header
}

// reset empties it, and keeps the memory of its lists: whoever sends them has taken them down. What does not point anywhere is left to the next one to overwrite.
func (a *asked) reset() {
	a.body, a.lent, a.facts, a.memo = nil, nil, body.Facts{}, prefix.Memo{}
	a.patch.Reset()
	a.attempt.Reset()
	clear(a.pieces[:cap(a.pieces)])
	a.pieces = a.pieces[:0]
	clear(a.header)
}

// questions are empty ones. They are large, and in the heap each would leave a hole between what streams keep.
var questions = sync.Pool{New: func() any { return new(asked) }}

// forgetQuestion lets the question go, and all that is held. Nothing may be sent to an engine any more.
func (c *call) forgetQuestion() { c.dropQuestion(0) }

// dropQuestion lets the question go; n bytes stay held, of an answer.
func (c *call) dropQuestion(n int64) {
	if c.asked != nil {
		m := c.lent
		c.asked.reset()
		m.giveBack()
		questions.Put(c.asked)
		c.asked = nil
		c.forgetHead()
	}
	c.in.ids, c.in.prompt = nil, nil
	c.giveBack(c.held - n)
}

// statusClientLeft is what the log shows when the client left before an answer began; it is nginx's.
const statusClientLeft = 499

// completions returns the handler of a completion endpoint.
func (s *Server) completions(kind body.Kind) http.Handler {
	path := "/v1/completions"
	if kind == body.Chat {
		path = "/v1/chat/completions"
	}
	usual := usual{
		arrived: s.Metrics.Requests.WithLabelValues(path, http.MethodPost), answered: s.Metrics.Responses.WithLabelValues(path, http.MethodPost, "200"),
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &call{usual: &usual, asked: questions.Get().(*asked), s: s, v: s.current.Load(), w: w, rc: *http.NewResponseController(w), r: r, path: path, started: time.Now(), ids: [1]string{requestID(r.Header)}}
		c.trace = s.Tracer.Begin(r, path, c.started)
		c.key = bits.RotateLeft64(s.Seed, 17) ^ s.requests.Add(1)*0x9e3779b97f4a7c15
		c.answer(kind)
		c.pushOut()
		c.tell()
		if c.broken {
			resetOldClient(r)
		}
		if c.broken || c.unanswered { // one that closed only its own direction still reads
			panic(http.ErrAbortHandler) // the one way to end a connection so that the client sees it
		}
	})
}

// answer answers the request, which counts as one under way for so long.
func (c *call) answer(kind body.Kind) {
	c.s.active.Add(1)
	defer c.s.active.Add(-1)
	c.v.active.Add(1)
	defer c.v.active.Add(-1)
	c.countArrival()
	c.w.Header()[headerRequestID] = c.ids[:]
	c.serve(kind)
}

// pushOut has the client get the end of its answer: all else is accounted, and it need not wait for a span and a line of a log that are written later anyway. Who
// does not read it is a slow reader as any other, but for the decision log, which has the answer as one that was given.
func (c *call) pushOut() {
	if !c.ready {
		return
	}
	if c.rc.Flush() != nil {
		c.whyFailed()
		c.clientLeft, c.broken = true, true
		c.countSlow()
	}
}

// serve answers the request.
func (c *call) serve(kind body.Kind) {
	defer c.finish()
	defer c.survive()
	defer c.extend() // for what the server has still to write
	defer c.forgetQuestion()
	c.rest()
	if e := c.prepare(kind); e != nil {
		c.refuse(e)
	} else {
		c.run()
	}
}

// survive turns a panic, which is a fault of ours, into an answer, and gives back what the request holds. Deferred by serve.
func (c *call) survive() {
	p := recover()
	if p == nil {
		return
	}
	c.s.Log.Error("a request panicked", "request_id", c.ids[0], "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	for l := c.legs; l != nil; l = l.before {
		if !l.ended {
			l.end(fleet.Cancelled, "error")
		}
	}
	if c.entry != nil {
		c.entry.Outcome("the gateway failed")
	}
	if c.status != 0 {
		c.broken = true
		return
	}
	c.refuse(errInternal)
}

// connKey is the context key of a request's connection.
type connKey struct{}

// ConnContext is for the listener's [http.Server]: with it, an answer that breaks off can be told from one that ended by
// clients of HTTP/1.0 too, as proxies are by default.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// ConnOf returns the connection that a request came over; nil: its server has no [ConnContext].
func ConnOf(r *http.Request) net.Conn {
	c, _ := r.Context().Value(connKey{}).(net.Conn)
	return c
}

// connStalled tells whether the request's connection has ended because its client read nothing of it in its time, which HTTP/2 tells no stream.
func connStalled(r *http.Request) bool {
	c := ConnOf(r)
	for c != nil {
		if s, ok := c.(interface{ Stalled() bool }); ok {
			return s.Stalled()
		}
		below, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		c = below.NetConn()
	}
	return false
}

// resetOldClient has the connection end with a reset if its protocol has no other way to say that an answer is not whole. Over TLS its server must not say
// goodbye before, which would make a clean end of it; package downstream does not.
func resetOldClient(r *http.Request) {
	if r.ProtoAtLeast(1, 1) {
		return
	}
	c := ConnOf(r)
	for {
		below, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		c = below.NetConn()
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	_ = tcp.SetLinger(0) // it fails only on a connection that is gone already
}

// methodLabel keeps a client from inventing label values.
func methodLabel(m string) string {
	switch m {
	case http.MethodGet, http.MethodPost, http.MethodHead, http.MethodPut, http.MethodDelete, http.MethodOptions, http.MethodPatch:
		return m
	}
	return "other"
}

// prepare reads and understands the request. Nothing is held when it fails.
func (c *call) prepare(kind body.Kind) *Error {
	var e *Error
	if c.caller, e = c.v.admit(c.v.Keys, c.w, c.r); e != nil {
		return e
	}
	if c.r.Method != http.MethodPost {
		c.w.Header().Set("Allow", http.MethodPost)
		return errMethod
	}
	if !c.hold(c.headBytes()) {
		return errOverloaded
	}
	if e = c.read(); e != nil {
		return e
	}
	if err := c.facts.Scan(c.body, kind); err != nil {
		if errors.Is(err, body.ErrTooLarge) {
			return errBodyTooLarge
		}
		return badRequest(err.Error())
	}
	c.streamed = c.facts.Stream
	if c.model = c.v.models[string(c.facts.Model)]; c.model == nil || !c.v.allows(c.caller, c.model) {
		c.model = nil // also for the log: a model that the caller may not use is one that is not there
		return &Error{Status: http.StatusNotFound, Code: "model_not_found", Message: "this gateway does not serve the model that the request names"}
	}
	c.patch.Begin(c.body, &c.facts)
	if e := c.guardFields(); e != nil {
		return e
	}
	if e := c.applyContract(); e != nil {
		return e
	}
	measuring := c.trace.Step("measure input")
	c.in = c.measure()
	measuring.Measured(c.inputTokens(), c.in.exact, c.in.source.String())
	if out := c.facts.MaxOutput(); out.Known {
		if out.N > math.MaxInt64-c.inputTokens() {
			return badRequest("the requested output is beyond any model")
		}
		c.peak = load.Known(c.inputTokens() + out.N)
	}
	return nil
}

// read reads the body.
func (c *call) read() (e *Error) {
	reading, code := c.trace.Step("read body"), ""
	if c.body, e = c.readBody(); e != nil {
		code = e.Code
	}
	reading.Read(len(c.body), code)
	return e
}

// guardFields refuses or takes out what a client may not set.
func (c *call) guardFields() *Error {
	if refused := c.facts.Keys() & c.v.Settings.Refused; refused != 0 {
		k, _ := refused.First()
		return badRequest("a client may not set " + k.String() + " here")
	}
	c.patch.RemoveAll(c.facts.Keys() & c.v.Settings.Stripped)
	return nil
}

// applyContract holds the request to the operator's sampling rules.
func (c *call) applyContract() *Error {
	if c.model.Contract == nil {
		return nil
	}
	v := c.model.Contract.Apply(c.body, &c.facts)
	if v.Violations != 0 {
		for k := range v.Violations.All() {
			c.s.Metrics.SamplingRejections.WithLabelValues(k.String()).Inc()
		}
		k, _ := v.Violations.First()
		return &Error{
			Status: http.StatusBadRequest, Code: "sampling_contract_violation",
			Message: "the operator does not allow this value of " + k.String(),
		}
	}
	c.model.Contract.Inject(&c.patch, v)
	return nil
}

// inputTokens is the length that buckets are matched by: a batch of prompts is as many sequences as it has prompts, each of
// which must fit by itself, so the longest counts.
func (c *call) inputTokens() int64 { return c.in.longest }

// run selects and dispatches until an answer has begun, the attempts are used up, or nothing is left to try.
func (c *call) run() {
	c.enter()
	var last *failure
	for c.attempts = 1; ; c.attempts++ {
		if err := c.selectEngines(); err != nil {
			c.noSelection(last, err)
			return
		}
		if last = c.dispatch(&c.picked); last == nil {
			c.entry.Outcome(c.outcome())
			return
		}
		c.entry.Outcome(last.what)
		if !last.again || c.attempts >= c.v.Settings.MaxAttempts {
			c.refuse(last.answer)
			return
		}
		c.tryAgain(last)
	}
}

// enter begins the request's entry in the decision log. This and what else run needs once are functions of their own, so that the stack of
// a stream need not have room for them.
func (c *call) enter() {
	c.auth = c.r.Header["Authorization"]
	c.entry = c.s.Explain.Begin(explain.Facts{
		Started: c.started, RequestID: c.ids[0], Route: c.path, Model: c.model.ID, Stream: c.streamed,
		InputTokens: c.inputTokens(), InputExact: c.in.exact, InputSource: c.in.source.String(), PeakTokens: c.peak,
	})
}

// noSelection answers when nothing could be selected; last is the attempt before, if there was one.
func (c *call) noSelection(last *failure, err error) {
	if last != nil { // without the engines that failed nothing is left: they are the cause
		c.refuse(last.answer)
		return
	}
	if isFault(err) {
		c.s.Log.Error("selection stopped", "model", c.model.ID, "request_id", c.ids[0], "err", err)
	}
	c.refuse(selectionError(err))
}

// tryAgain prepares for another attempt after one that failed.
func (c *call) tryAgain(last *failure) {
	if last.exclude != "" {
		c.exclude = append(c.exclude, last.exclude)
	}
	c.s.Metrics.Attempts.WithLabelValues(last.answer.Code).Inc()
	c.trace.NewAttempt(c.attempts+1, last.exclude, last.what)
	c.s.Log.Info("new attempt", "request_id", c.ids[0], "model", c.model.ID, "attempt", c.attempts+1, "failed", last.exclude, "because", last.what)
}

// outcome says for the decision log how the last attempt ended.
func (c *call) outcome() string {
	switch {
	case c.stalled:
		return "the client read too slowly, and was cut off"
	case c.clientLeft:
		return "the client left"
	case c.broken:
		return "the answer broke off"
	}
	return "answered"
}

// selectEngines makes one whole selection, into c.picked.
func (c *call) selectEngines() error {
	now := time.Now()
	view := c.v.view(c.s.Registry)
	req := bucket.Request{
		Key: c.key + uint64(c.attempts), Now: now,
		InputTokens: c.inputTokens(), PeakTokens: c.peak, Exclude: c.exclude,
	}
	if c.model.Prefixes {
		if c.attempts == 1 {
			c.memo.Reset(c.query())
		}
		req.Prefix = &c.memo
	}
	var tries []bucket.Try
	var err error
	c.picked, err = c.entry.Attempt(now, func(t *bucket.Trace) (bucket.Selection, error) {
		req.Trace = t
		if c.trace.Records() {
			t.Clock = func() time.Duration { return time.Since(now) }
		}
		sel, err := c.model.Resolver.Select(c.r.Context(), view, &req)
		tries = t.Tries()
		return sel, err
	})
	took := time.Since(now)
	c.selected = now.Add(took)
	c.s.Metrics.SelectionSeconds.Observe(took.Seconds())
	if c.trace.Records() {
		c.tracePicks(tries, now, took)
	}
	for i := range tries {
		if t := &tries[i]; t.Err != nil {
			c.s.Metrics.SelectionFailures.WithLabelValues(t.Policy, t.Failed()).Inc()
		} else {
			c.s.decided.of(c.s.Metrics.Decisions, t.Policy, string(t.Pick.Reason)).Inc()
		}
	}
	return err
}

// tracePicks takes down each group that was asked in a selection that began at a time and took so long.
func (c *call) tracePicks(tries []bucket.Try, at time.Time, took time.Duration) {
	for i := range tries {
		until := took
		if i+1 < len(tries) {
			until = tries[i+1].Began
		}
		told := explain.TryOf(tries[i], at)
		c.trace.Pick(c.attempts, &told, at.Add(tries[i].Began), at.Add(until))
	}
}

// refuse answers with an error of our own, unless the client has left or an answer has begun.
func (c *call) refuse(e *Error) {
	if c.status != 0 {
		return
	}
	// Who closed only its own direction, which is no different from leaving, still reads what is wrong with its request; for that no engine was
	// asked. A body that broke off is the other's doing, and is taken down as that. (net/http, which serves HTTP/2, takes a client that is silent
	// for one that left.)
	if c.r.Context().Err() != nil && e != errBodyStalled && (c.entry != nil || e == errBodyBroken) {
		c.clientLeft = true
		if e == errBodyBroken {
			c.status, c.code = statusClientLeft, e.Code
			e.Write(c.w)
		}
		return
	}
	c.status, c.code = e.Status, e.Code
	c.s.Metrics.Refused.WithLabelValues(e.Code).Inc()
	c.extend()
	e.Write(c.w)
}

// finish takes down how the request ended.
func (c *call) finish() {
	took := time.Since(c.started)
	c.took = took
	if c.status == 0 {
		c.status, c.unanswered = statusClientLeft, true
	}
	m := c.s.Metrics
	c.countAnswer()
	if c.caller != nil {
		m.KeyRequests.WithLabelValues(c.caller.Name, strconv.Itoa(c.status)).Inc()
	}
	if c.model != nil {
		ends := c.v.series[c.model].endsOf(m, c.model.ID)
		ends.duration.Observe(took.Seconds())
		addKnown(ends.prompt, c.usage.Prompt)
		addKnown(ends.cached, c.usage.Cached)
		addKnown(ends.completion, c.usage.Completion)
	}
	c.countSlow()
	if c.entry != nil {
		c.entry.Finish(explain.End{
			Status: c.status, Code: c.code, TTFT: c.ttft, Duration: took,
			PromptTokens: count(c.usage.Prompt), CachedTokens: count(c.usage.Cached), CompletionTokens: count(c.usage.Completion),
		})
	}
}

// countSlow counts a client that was cut off because it read too slowly.
func (c *call) countSlow() {
	if c.stalled && c.model != nil {
		c.s.Metrics.SlowReaders.WithLabelValues(c.model.ID).Inc()
	}
}

// tell tells how the request ended where that is written later: in its span and in the access log.
func (c *call) tell() {
	if c.trace != nil {
		c.endTrace(c.took)
	}
	c.logAccess()
}

// endTrace ends the request's span.
func (c *call) endTrace(took time.Duration) {
	e := tracing.End{
		RequestID: c.ids[0], Status: c.status, Code: c.code, Outcome: c.ending(), ClientLeft: c.clientLeft && !c.stalled, Slow: c.stalled, Broken: c.broken,
		Prompt: count(c.usage.Prompt), Cached: count(c.usage.Cached), Completion: count(c.usage.Completion),
	}
	if c.unanswered {
		e.Status = 0
	}
	if c.model != nil {
		e.Model, e.Stream, e.Tokens, e.Attempts = c.model.ID, c.streamed, c.inputTokens(), c.attempts
	}
	if b := c.picked.Bucket; b != nil {
		e.Bucket, e.Worker = b.ID(), workersOf(&c.picked)
	}
	c.trace.End(&e, c.started.Add(took))
}

// outcomeSlow is how an answer ended whose client did not read it in its time.
const outcomeSlow = "slow_reader"

// ending says in the words of the dispatches' metric, and in one that they have not, how the request ended for its client.
func (c *call) ending() string {
	switch {
	case c.stalled:
		return outcomeSlow
	case c.clientLeft || c.status == statusClientLeft:
		return "cancelled"
	case c.broken:
		return "error"
	}
	_, label := judge(c.status)
	return label
}

func workersOf(s *bucket.Selection) string {
	if s.PD() {
		return strings.Join([]string{s.Prefill.Engine.ID, s.Decode.Engine.ID}, ">")
	}
	return s.Plain.Engine.ID
}

func count(n sse.Count) load.Count {
	if !n.Known {
		return load.Count{}
	}
	return load.Known(n.N)
}

func addKnown(c interface{ Add(float64) }, n sse.Count) {
	if n.Known {
		c.Add(float64(n.N))
	}
}
