package tracing

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/perigee-llm/perigee/internal/gateway/explain"
	"github.com/perigee-llm/perigee/internal/gateway/load"
)

// Attributes of our own. What `perigee explain` and the access log say has the same name here, with the prefix.
const (
	keyRequestID   = attribute.Key("perigee.request_id")
	keyStream      = attribute.Key("perigee.stream")
	keyOutcome     = attribute.Key("perigee.outcome")
	keyInputTokens = attribute.Key("perigee.input_tokens")
	keyInputExact  = attribute.Key("perigee.input_exact")
	keyInputSource = attribute.Key("perigee.input_source")
	keyAttempts    = attribute.Key("perigee.attempts")
	keyAttempt     = attribute.Key("perigee.attempt")
	keyBucket      = attribute.Key("perigee.bucket")
	keyWorker      = attribute.Key("perigee.worker")
	keyStage       = attribute.Key("perigee.stage")
	keyClientLeft  = attribute.Key("perigee.client_left")
	keyBroken      = attribute.Key("perigee.broken")
	keyCached      = attribute.Key("perigee.cached_tokens")
	keyBecause     = attribute.Key("perigee.because")
	keyFailed      = attribute.Key("perigee.failed")

	keyPolicy         = attribute.Key("perigee.policy")
	keyLive           = attribute.Key("perigee.live")
	keyConsidered     = attribute.Key("perigee.considered")
	keyOmitted        = attribute.Key("perigee.omitted")
	keyPrefixSource   = attribute.Key("perigee.prefix_source")
	keySourceError    = attribute.Key("perigee.prefix_source_error")
	keyPicked         = attribute.Key("perigee.picked")
	keyReason         = attribute.Key("perigee.reason")
	keyError          = attribute.Key("perigee.error")
	keyDetail         = attribute.Key("perigee.detail")
	keyRejections     = attribute.Key("perigee.rejections")
	keyMoreRejections = attribute.Key("perigee.more_rejections")
	keyFloored        = attribute.Key("perigee.breakers_did_not_count")
)

// OpenTelemetry's names for what concerns language models. They are in development there, and the SDK has no constants for them.
const (
	keyOperation    = attribute.Key("gen_ai.operation.name")
	keyModel        = attribute.Key("gen_ai.request.model")
	keyUsageInput   = attribute.Key("gen_ai.usage.input_tokens")
	keyUsageOutput  = attribute.Key("gen_ai.usage.output_tokens")
	operationChat   = "chat"
	operationPrompt = "text_completion"
)

// Request is the trace of one request: the span of the whole, and what makes its children. It belongs to the request's goroutine, and so do its
// steps. Its legs may be anybody's.
type Request struct {
	p       *provider
	ctx     context.Context // with span
	span    trace.Span
	sc      trace.SpanContext // of span
	records bool
	baggage []string
}

// Begin begins the trace of a request that arrived at a time, or continues that of which its headers name the parent. It returns nil while
// tracing is off. End must be called on what it returns.
func (t *Tracer) Begin(r *http.Request, route string, at time.Time) *Request {
	if t == nil || t.current.Load() == nil {
		return nil
	}
	p := t.acquire()
	if p == nil {
		return nil
	}
	method, name := known(r.Method)
	q := &Request{p: p, baggage: luggage(r.Header)}
	q.ctx, q.span = p.tracer.Start(remote(r.Header), name+" "+route, trace.WithTimestamp(at), trace.WithSpanKind(trace.SpanKindServer))
	q.sc, q.records = q.span.SpanContext(), q.span.IsRecording()
	if q.records {
		scheme := "http"
		if r.TLS != nil {
			scheme = "https"
		}
		q.span.SetAttributes(semconv.HTTPRequestMethodKey.String(method), semconv.HTTPRoute(route), semconv.URLPath(route), semconv.URLScheme(scheme),
			semconv.NetworkProtocolVersion(protocol(r)))
		switch {
		case strings.HasSuffix(route, "/chat/completions"):
			q.span.SetAttributes(keyOperation.String(operationChat))
		case strings.HasSuffix(route, "/completions"):
			q.span.SetAttributes(keyOperation.String(operationPrompt))
		}
	}
	return q
}

// protocol is the version of HTTP as OpenTelemetry writes it.
func protocol(r *http.Request) string {
	if r.ProtoMajor == 1 {
		return "1." + strconv.Itoa(r.ProtoMinor)
	}
	return strconv.Itoa(r.ProtoMajor)
}

// known keeps a client from inventing methods: it returns what OpenTelemetry calls others, and how their spans begin.
func known(method string) (label, name string) {
	switch method {
	case http.MethodGet, http.MethodPost, http.MethodHead, http.MethodPut, http.MethodDelete, http.MethodOptions, http.MethodPatch, http.MethodTrace:
		return method, method
	}
	return "_OTHER", "HTTP"
}

// Records tells whether anything of the request is taken down.
func (q *Request) Records() bool { return q != nil && q.records }

// TraceID returns the trace's id; empty while tracing is off.
func (q *Request) TraceID() string {
	if q == nil {
		return ""
	}
	return q.sc.TraceID().String()
}

// Step is a part of the gateway's own work. The zero value is none.
type Step struct{ span trace.Span }

// Step begins one.
func (q *Request) Step(name string) Step {
	if !q.Records() {
		return Step{}
	}
	_, span := q.p.tracer.Start(q.ctx, name)
	return Step{span}
}

// Read ends a step that has read so many bytes of a body; code says why it did not read them all.
func (s Step) Read(size int, code string) {
	if s.span == nil {
		return
	}
	s.span.SetAttributes(semconv.HTTPRequestBodySize(size))
	if code != "" {
		s.span.SetAttributes(semconv.ErrorTypeKey.String(code))
	}
	s.span.End()
}

// Measured ends a step that has measured an input, in the words of the decision log.
func (s Step) Measured(tokens int64, exact bool, source string) {
	if s.span == nil {
		return
	}
	s.span.SetAttributes(keyInputTokens.Int64(tokens), keyInputExact.Bool(exact), keyInputSource.String(source))
	s.span.End()
}

// Pick takes down one group that was asked, from a time to a time.
func (q *Request) Pick(attempt int, t *explain.Try, from, to time.Time) {
	if !q.Records() {
		return
	}
	list := []attribute.KeyValue{
		keyAttempt.Int(attempt), keyBucket.String(t.Bucket), keyStage.String(t.Stage), keyPolicy.String(t.Policy), keyLive.Int(t.Live),
	}
	text := func(k attribute.Key, v string) {
		if v != "" {
			list = append(list, words(k, v))
		}
	}
	number := func(k attribute.Key, v int) {
		if v > 0 {
			list = append(list, k.Int(v))
		}
	}
	text(keyPicked, t.Picked)
	text(keyReason, t.Reason)
	if because := t.Because(); because != t.Reason {
		text(keyBecause, because)
	}
	text(keyError, t.Error)
	text(keyDetail, t.Detail)
	text(keyPrefixSource, t.Source)
	text(keySourceError, t.SourceError)
	number(keyOmitted, t.Omitted)
	number(keyMoreRejections, t.MoreRejections)
	if t.Floored {
		list = append(list, keyFloored.Bool(true))
	}
	if lines := t.Seen(); len(lines) > 0 {
		list = append(list, keyConsidered.StringSlice(lines))
	}
	if lines := t.Refused(); len(lines) > 0 {
		list = append(list, keyRejections.StringSlice(lines))
	}
	_, span := q.p.tracer.Start(q.ctx, "pick "+t.Stage, trace.WithTimestamp(from), trace.WithAttributes(list...))
	span.End(trace.WithTimestamp(to))
}

// words is an attribute of a text that others may have written, as an error's: one that is no UTF-8 would cost its whole batch.
func words(k attribute.Key, v string) attribute.KeyValue {
	return k.String(strings.ToValidUTF8(v, "\ufffd"))
}

// NewAttempt notes that another attempt follows one that failed at an engine (empty: at none that is left out now), and why.
func (q *Request) NewAttempt(attempt int, failed, because string) {
	if !q.Records() {
		return
	}
	q.span.AddEvent("new attempt", trace.WithAttributes(keyAttempt.Int(attempt), keyFailed.String(failed), words(keyBecause, because)))
}

// End is how a request ended, in the words of the access log.
type End struct {
	RequestID string
	Status    int    // as the client got it; 0: it got none
	Code      string // of an error of the gateway's own
	Outcome   string
	Model     string // empty: none that is served here
	Stream    bool
	Tokens    int64 // of the input, as the gateway measured it; 0: it did not
	Attempts  int
	Bucket    string
	Worker    string
	// Prompt, Cached and Completion are the engine's usage.
	Prompt, Cached, Completion load.Count
	ClientLeft, Slow, Broken   bool // Slow: it was cut off because it read too slowly, which is not ClientLeft
}

// End ends the trace, but for legs that outlive their request.
func (q *Request) End(e *End, at time.Time) {
	if q == nil {
		return
	}
	defer q.p.release()
	if !q.records {
		return
	}
	q.span.SetAttributes(e.attributes()...)
	switch {
	case e.Broken && !e.ClientLeft && !e.Slow:
		q.fail(brokenOff)
	case e.Status >= 500 && e.Code != "":
		q.fail(e.Code)
	case e.Status >= 500:
		q.fail(strconv.Itoa(e.Status))
	case e.Code != "": // the client's fault, which is none of a server's span
		q.span.SetAttributes(semconv.ErrorTypeKey.String(e.Code))
	}
	q.span.End(trace.WithTimestamp(at))
}

func (q *Request) fail(class string) {
	q.span.SetAttributes(semconv.ErrorTypeKey.String(class))
	q.span.SetStatus(codes.Error, "")
}

// brokenOff is the class of an answer that ended before its end: the code of the same before its head is sent.
const brokenOff = "upstream_body_incomplete"

func (e *End) attributes() []attribute.KeyValue {
	list := make([]attribute.KeyValue, 0, 16)
	list = append(list, keyRequestID.String(e.RequestID), keyOutcome.String(e.Outcome))
	if e.Status > 0 {
		list = append(list, semconv.HTTPResponseStatusCode(e.Status))
	}
	if e.Model != "" {
		list = append(list, keyModel.String(e.Model), keyStream.Bool(e.Stream), keyAttempts.Int(e.Attempts), keyInputTokens.Int64(e.Tokens))
	}
	if e.Worker != "" {
		list = append(list, keyBucket.String(e.Bucket), keyWorker.String(e.Worker))
	}
	count := func(k attribute.Key, c load.Count) {
		if n, ok := c.Get(); ok {
			list = append(list, k.Int64(n))
		}
	}
	count(keyUsageInput, e.Prompt)
	count(keyCached, e.Cached)
	count(keyUsageOutput, e.Completion)
	if e.ClientLeft {
		list = append(list, keyClientLeft.Bool(true))
	}
	if e.Broken {
		list = append(list, keyBroken.Bool(true))
	}
	return list
}
