package api

import (
	"strconv"
	"sync"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/api/body"
	"github.com/perigee-llm/perigee/internal/gateway/api/sse"
	"github.com/perigee-llm/perigee/internal/gateway/tracing"
)

// record is one line of the access log while it is put together: a JSON object as slog writes it, {"time","level","msg"} first, whose names and
// order stay as they are. slog itself takes a tenth of a short request: it walks the stack for a place in the code that is always the same one,
// and keeps each value as one of any type.
type record []byte

// records are those that are not in use. Their memory is at most some KiB: every text in a record is bounded.
var lineRecords = sync.Pool{New: func() any { r := make(record, 0, 1<<10); return &r }}

// begin starts the line.
func (r *record) begin(now time.Time) {
	b := append((*r)[:0], `{"time":"`...)
	b = now.AppendFormat(b, time.RFC3339Nano)
	*r = append(b, `","level":"INFO","msg":"request"`...)
}

// name appends a member's name, which is a constant that needs no escapes.
func (r *record) name(name string) {
	b := append(*r, `,"`...)
	b = append(b, name...)
	*r = append(b, `":`...)
}

func (r *record) text(name, value string) {
	r.name(name)
	*r = body.AppendQuoted(*r, value)
}

func (r *record) int(name string, value int64) {
	r.name(name)
	*r = strconv.AppendInt(*r, value, 10)
}

func (r *record) bool(name string, value bool) {
	r.name(name)
	*r = strconv.AppendBool(*r, value)
}

// millis appends a time in milliseconds with three digits behind the point, which are microseconds.
func (r *record) millis(name string, d time.Duration) {
	r.name(name)
	us := max(d.Microseconds(), 0)
	b := strconv.AppendInt(*r, us/1000, 10)
	*r = append(b, '.', '0'+byte(us/100%10), '0'+byte(us/10%10), '0'+byte(us%10))
}

func (r *record) count(name string, n sse.Count) {
	if n.Known {
		r.int(name, n.N)
	}
}

// logAccess writes the request's record.
func (c *call) logAccess() {
	if c.s.Access == nil {
		return
	}
	r := lineRecords.Get().(*record)
	defer lineRecords.Put(r)
	r.begin(c.started.Add(c.took))
	r.text("request_id", c.ids[0])
	r.text("method", shortMethod(c.r.Method))
	r.text("path", c.path)
	r.int("status", int64(c.status))
	r.text("outcome", c.ending())
	r.millis("duration_ms", c.took)
	r.int("sent_bytes", c.sent)
	if c.code != "" {
		r.text("error_code", c.code)
	}
	if id := c.traceID(); id != "" {
		r.text("trace_id", id)
	}
	if c.caller != nil {
		r.text("key", c.caller.Name)
	}
	if c.model != nil {
		r.text("model", c.model.ID)
		r.bool("stream", c.streamed)
		r.int("input_tokens", c.inputTokens())
		r.text("input_source", c.in.source.String())
		r.int("attempts", int64(c.attempts))
	}
	if b := c.picked.Bucket; b != nil {
		r.text("bucket", b.ID())
		r.text("worker", workersOf(&c.picked))
	}
	if c.engineRID != "" {
		r.text("engine_rid", c.engineRID[:min(len(c.engineRID), maxRequestID)]) // a client may have chosen it
	}
	if c.ttft > 0 {
		r.millis("ttft_ms", c.ttft)
	}
	r.count("prompt_tokens", c.usage.Prompt)
	r.count("cached_tokens", c.usage.Cached)
	r.count("completion_tokens", c.usage.Completion)
	if c.clientLeft && !c.stalled {
		r.bool("client_left", true)
	}
	if c.broken {
		r.bool("broken", true)
	}
	*r = append(*r, '}', '\n')
	_, _ = c.s.Access.Write(*r) // a log that fails is no reason to fail a request
}

// traceID returns the trace that the request is a part of: ours, or, while tracing is off, that of which the client says so. Empty: none.
func (c *call) traceID() string {
	if c.trace != nil {
		return c.trace.TraceID()
	}
	return tracing.TraceID(c.r.Header)
}

// shortMethod bounds a method, which is any token of the client's, to what a log needs to know it.
func shortMethod(m string) string { return m[:min(len(m), 32)] }
