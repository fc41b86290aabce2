// Package tracing makes the spans of requests and sends them to an OpenTelemetry collector, over OTLP/HTTP.
//
// It promises:
//
//   - Off is a nil pointer: every method of a nil [*Tracer], [*Request] or [*Leg], and of a zero [Step], does nothing and allocates nothing.
//   - A request never waits for it and never fails for it. What a client sends as trace context is used if it is well-formed, and else as if
//     it were not there.
//   - What waits to be exported is bounded; what is beyond that, or could not be exported, is dropped and counted, and the log says so at most once
//     a minute.
//   - No text of a prompt or an answer and no key is in any span: attributes come from the configuration, from counts, and from words of this
//     gateway's own. The request's id, which a client may choose, is the one exception, and is short and printable.
//
// Batches, retries and encoding are OpenTelemetry's SDK's.
package tracing
