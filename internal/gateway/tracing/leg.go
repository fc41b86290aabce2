package tracing

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// Leg is one request to one engine. It belongs to whoever sends that, one at a time, and may outlive the client's request.
type Leg struct {
	q           *Request
	worker, url string
	stage       string
	attempt     int
	span        trace.Span // nil: not sent yet, or not recorded

	code, because string // why it failed, by Blame
}

// Leg prepares one, to a worker under its base URL, of an attempt (0: it is before the first); nil while tracing is off. End must be called on it, also if nothing was sent.
func (q *Request) Leg(worker, base, stage string, attempt int) *Leg {
	if q == nil {
		return nil
	}
	q.p.users.Add(1) // the request is one of them, so there was one before
	return &Leg{q: q, worker: worker, url: base, stage: stage, attempt: attempt}
}

// Send begins the leg's span and returns the headers with which it is sent.
func (l *Leg) Send(method, path string, h http.Header, at time.Time) http.Header {
	if l == nil {
		return h
	}
	if !l.q.records {
		return carry(h, l.q.sc, l.q.baggage)
	}
	list := append(make([]attribute.KeyValue, 0, 16),
		semconv.HTTPRequestMethodKey.String(method), semconv.URLFull(strings.TrimSuffix(l.url, "/")+path), semconv.URLTemplate(path),
		keyWorker.String(l.worker), keyStage.String(l.stage),
	)
	if u, err := url.Parse(l.url); err == nil {
		list = append(list, semconv.ServerAddress(u.Hostname()))
		if port, err := strconv.Atoi(u.Port()); err == nil {
			list = append(list, semconv.ServerPort(port))
		}
	}
	if l.attempt > 0 {
		list = append(list, keyAttempt.Int(l.attempt))
	}
	if l.attempt > 1 {
		list = append(list, semconv.HTTPRequestResendCount(l.attempt-1))
	}
	_, l.span = l.q.p.tracer.Start(l.q.ctx, method+" "+path, trace.WithTimestamp(at), trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(list...))
	return carry(h, l.span.SpanContext(), l.q.baggage)
}

// FirstByte notes when the first byte of a stream came.
func (l *Leg) FirstByte(at time.Time) {
	if l != nil && l.span != nil {
		l.span.AddEvent("first byte", trace.WithTimestamp(at))
	}
}

// Blame notes why the leg is about to end without a whole answer: the code of the error that the client would get, and the decision log's words.
func (l *Leg) Blame(code, because string) {
	if l != nil {
		l.code, l.because = code, because
	}
}

// End ends the leg. The status is the engine's, 0 where it gave none; the outcome is in the words of the dispatches' metric.
func (l *Leg) End(status int, outcome string, at time.Time) {
	if l == nil {
		return
	}
	defer l.q.p.release()
	if l.span == nil {
		return
	}
	if status > 0 {
		l.span.SetAttributes(semconv.HTTPResponseStatusCode(status))
	}
	if outcome != "" {
		l.span.SetAttributes(keyOutcome.String(outcome))
	}
	if l.because != "" {
		l.span.SetAttributes(words(keyBecause, l.because))
	}
	if class := l.class(status, outcome); class != "" {
		l.span.SetAttributes(semconv.ErrorTypeKey.String(class))
		l.span.SetStatus(codes.Error, "")
	}
	l.span.End(trace.WithTimestamp(at))
}

// class is what went wrong, in a word; empty: nothing that is the engine's doing.
func (l *Leg) class(status int, outcome string) string {
	switch {
	case outcome == "cancelled":
		return ""
	case l.code != "":
		return l.code
	case status >= 300:
		return strconv.Itoa(status)
	case outcome == "error":
		return brokenOff
	}
	return ""
}
