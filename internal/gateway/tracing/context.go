package tracing

import (
	"context"
	"maps"
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// The headers of W3C Trace Context and Baggage, as net/http spells them.
const (
	headerParent  = "Traceparent"
	headerState   = "Tracestate"
	headerBaggage = "Baggage"
)

// longestBaggage bounds the baggage that goes on to engines, in bytes: the least that W3C's specification wants passed on whole.
const longestBaggage = 8192

// incoming are a request's headers as the propagator reads them: a header that is there twice is ambiguous, but for the one that may be split.
type incoming http.Header

func (h incoming) Get(key string) string {
	values := h[http.CanonicalHeaderKey(key)]
	if len(values) == 1 {
		return values[0]
	}
	if key == "tracestate" {
		return strings.Join(values, ",")
	}
	return ""
}

func (incoming) Set(string, string) {}

func (incoming) Keys() []string { return nil }

// outgoing are an engine's headers as the propagator writes them.
type outgoing http.Header

func (outgoing) Get(string) string { return "" }

func (h outgoing) Set(key, value string) { h[http.CanonicalHeaderKey(key)] = []string{value} }

func (outgoing) Keys() []string { return nil }

// remote returns the context in which a client asks: with its span as the parent, if its headers name one.
func remote(h http.Header) context.Context {
	if len(h[headerParent]) == 0 {
		return context.Background()
	}
	return propagation.TraceContext{}.Extract(context.Background(), incoming(h))
}

// TraceID returns the trace of which the headers say that a request is a part; empty: they name none.
func TraceID(h http.Header) string {
	values := h[headerParent]
	if len(values) != 1 || len(values[0]) < 55 {
		return ""
	}
	if sc := trace.SpanContextFromContext(remote(h)); sc.IsValid() {
		return sc.TraceID().String()
	}
	return ""
}

// luggage returns the baggage that goes on to engines, as it came; nil: none, or none that is well-formed and short enough.
func luggage(h http.Header) []string {
	values := h[headerBaggage]
	size := 0
	for _, v := range values {
		size += len(v) + 1
	}
	if size == 0 || size-1 > longestBaggage {
		return nil
	}
	for _, v := range values {
		if _, err := baggage.Parse(v); err != nil {
			return nil
		}
	}
	return values
}

// carry returns the headers with a span as the parent of what the engine does. The ones that are given are not changed: the halves of a pair
// share them.
func carry(h http.Header, sc trace.SpanContext, baggage []string) http.Header {
	out := maps.Clone(h)
	delete(out, headerState)
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), sc), outgoing(out))
	if len(baggage) > 0 {
		out[headerBaggage] = baggage
	}
	return out
}
