package api

import (
	"bytes"
	"context"
	"net/http"
	"runtime"
	"strconv"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/tokens"
	"github.com/perigee-llm/perigee/internal/gateway/tokens/bpe"
	"github.com/perigee-llm/perigee/internal/gateway/tracing"
)

const (
	// longText is from how many bytes on a text needs a place to be encoded: what is shorter takes milliseconds at the slowest pace of a
	// tokenizer (some 5 MB a second), and need not queue behind what takes seconds.
	longText = 64 << 10
	// measurePatience is how long a completion request waits for a place. Then its length is estimated: what is lost is exactness, and the
	// request has waited less than its prefill will take.
	measurePatience = 2 * time.Second
)

// encoders are the places for texts that are encoded at once. All cores but one may be at it, so that streams go on whatever clients send.
//
// The full case is a wait, and it is bounded: by the client's patience and by a limit. A completion request is then measured by its bytes;
// what asks for the tokens themselves gets a 503.
type encoders chan struct{}

func newEncoders() encoders { return make(encoders, max(1, runtime.GOMAXPROCS(0)-1)) }

// enter waits for a place for a text of so many bytes. The caller leaves with the size that it entered with, if it was let in.
func (e encoders) enter(ctx context.Context, size int, patience time.Duration) bool {
	if size < longText {
		return true
	}
	select {
	case e <- struct{}{}:
		return true
	default:
	}
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case e <- struct{}{}:
		return true
	case <-t.C:
	case <-ctx.Done():
	}
	return false
}

func (e encoders) leave(size int) {
	if size >= longText {
		<-e
	}
}

// What rendering and encoding work with, in bytes: for each byte of the text, copies of it, what a template makes of it and its ids; for each value of JSON
// in it, which a comma, a colon or a bracket stands before, the value as templates see it.
const (
	workByte, workValue = 24, 160
	// smallText is up to how many bytes what a text needs is not counted: it is there for less than a millisecond.
	smallText = 4 << 10
)

// encodingNeeds is the most that rendering and encoding work with, in bytes, for a plain text of so many bytes and for what is JSON.
func encodingNeeds(plain int, values ...[]byte) (n int64) {
	size, count := plain, 0
	for _, text := range values {
		size += len(text)
		for _, b := range [...]byte{',', ':', '[', '{'} {
			count += bytes.Count(text, []byte{b})
		}
	}
	if size < smallText {
		return 0
	}
	return workByte*int64(size) + workValue*int64(count) + bpe.WordBytes*int64(min(size, tokens.MaxWord))
}

// encoding is the rendering and encoding of one request's input. It belongs to the request's goroutine.
type encoding struct {
	c        *call
	patience time.Duration // for a place
	size     int           // of the text that its place is for; 0: it was not let in
	work     int64         // bytes that it holds

	// Why it was not let go on: for the metric, and for who asks for the tokens themselves.
	reason  string
	refusal *Error
}

// enter waits for a place for a text of so many bytes.
func (e *encoding) enter(size int) bool {
	if !e.c.s.encoders.enter(e.c.r.Context(), size, e.patience) {
		e.reason, e.refusal = reasonNoPlace, errBusy
		return false
	}
	e.size = size
	return true
}

// hold has it hold n bytes in all.
func (e *encoding) hold(n int64) bool {
	switch {
	case n <= e.work:
	case n > e.c.v.Settings.MaxBuffered/2:
		e.reason, e.refusal = reasonNoMemory, errBodyTooLarge
		return false
	case !e.c.holdWork(n - e.work):
		e.reason, e.refusal = reasonNoMemory, errOverloaded
		return false
	}
	e.work = max(e.work, n)
	return true
}

// dearer is for a conversation that turns out to be as dear as a text of so many bytes, however short it is: it needs what that does.
func (e *encoding) dearer(bytes int) bool {
	if e.size < longText && !e.enter(max(bytes, longText)) {
		return false
	}
	return e.hold(encodingNeeds(bytes))
}

// leave gives the place back. What it holds is the caller's to give back.
func (e *encoding) leave() { e.c.s.encoders.leave(e.size) }

// settle gives back what it worked with but for what the input keeps, which goes when the answer begins.
func (e *encoding) settle(in *input) {
	e.c.giveBack(e.work - min(e.work, in.kept()))
	e.work = 0
}

// begin enters and holds what a completion request's input needs, as its body is long; false: it is not to be encoded, which is counted, and has left.
func (e *encoding) begin(r *tokens.Request) bool {
	text, prompts := 0, r.Prompt
	if len(prompts) > 0 && prompts[0] == '"' {
		text, prompts = len(prompts), nil // one text has no values in it, whatever it looks like
	}
	if !e.enter(len(e.c.body)) {
		e.c.notEncoded(e.reason)
		return false
	}
	if !e.hold(encodingNeeds(text, prompts, r.Messages, r.Tools, r.Documents, r.Kwargs)) {
		e.c.notEncoded(e.reason)
		e.leave()
		return false
	}
	return true
}

// holdWork takes n bytes of what all requests may hold for work that can be left undone, and so of half of it: the other half is for their bodies.
func (c *call) holdWork(n int64) bool {
	for {
		held := c.s.buffered.Load()
		if held+n > c.v.Settings.MaxBuffered/2 {
			return false
		}
		if c.s.buffered.CompareAndSwap(held, held+n) { // who only added would pass the half with others who look at the same time
			c.held += n
			return true
		}
	}
}

// Why a text was not encoded whose model has a tokenizer, for the metric.
const (
	reasonNoPlace  = "no_place"  // as many long texts as there are places were encoded all the time that it waited
	reasonNoMemory = "no_memory" // half of what requests may hold is held; also of ids that came as such, which are not looked up then
	reasonLongWord = "long_word"
)

func (c *call) notEncoded(reason string) {
	c.s.Metrics.NotEncoded.WithLabelValues(c.model.ID, reason).Inc()
}

// measured counts the requests of a route and the answers to them.
func (s *Server) measured(route string, h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.Metrics.Requests.WithLabelValues(route, methodLabel(r.Method)).Inc()
		sw := &statusWriter{ResponseWriter: w, status: statusClientLeft}
		if trace := s.Tracer.Begin(r, route, time.Now()); trace != nil {
			defer endQuestion(trace, sw)
		}
		h(sw, r)
		s.Metrics.Responses.WithLabelValues(route, methodLabel(r.Method), strconv.Itoa(sw.status)).Inc()
	}
}

// endQuestion ends the trace of a request that no engine is asked for.
func endQuestion(t *tracing.Request, w *statusWriter) {
	e := tracing.End{RequestID: w.Header().Get(headerRequestID), Status: w.status, Code: w.Header().Get(headerErrorCode), Outcome: "cancelled"}
	switch {
	case w.status == statusClientLeft:
		e.Status, e.ClientLeft = 0, true
	case w.slow:
		e.Outcome, e.Slow, e.Broken = outcomeSlow, true, true
	default:
		_, e.Outcome = judge(w.status)
	}
	t.End(&e, time.Now())
}

// statusWriter notes the status of an answer, and for whoever writes it how it ended.
type statusWriter struct {
	http.ResponseWriter
	status int
	slow   bool // its client did not read it in its time, and was cut off
}

// WriteHeader implements http.ResponseWriter.
func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
