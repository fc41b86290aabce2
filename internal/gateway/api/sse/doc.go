// Package sse reads along while an engine's answer passes to the client, as a stream of server-sent events
// (Sniffer) or as one JSON object (Answer).
//
// It promises: it changes no byte and delays none, for it is only shown what passes; however the answer is
// cut into chunks, the findings are the same; it keeps at most MaxEvent bytes of one event (MaxUsage of a
// JSON answer) and allocates nothing for a chunk in the steady state; what an engine did not say is
// unknown, never zero; and a stream is called clean only when its end was seen.
//
// What it cannot read (other formats, comments, broken JSON, longer events) is no error: it passes, and
// nothing is known of it.
//
// It is pure: no I/O, no clock, no goroutine. A Sniffer or an Answer is for one goroutine at a time; it keeps
// no reference to a chunk after Write returns.
package sse
