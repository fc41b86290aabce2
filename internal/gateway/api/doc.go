// Package api is the gateway's request path over HTTP: it reads a request, selects engines for it bucket by bucket, dispatches
// to them, and passes the answer on.
//
// It promises:
//
//   - What it does not read passes byte for byte: unknown fields and numbers of a request, and the whole of an answer.
//   - Every error of its own is one envelope with a code, names no engine and no internal cause, and says which limits
//     rejected how many engines when the fleet is full.
//   - Nothing is sent before a selection is complete. A forwarding failure never resumes the bucket loop: if nothing of an
//     answer has come, a new attempt is a whole new selection without the engine that failed.
//   - A client that leaves ends its request at the engine at once and is no strike against the engine; an answer that
//     breaks is never made to look like a clean end.
//   - Everything that a request takes (guards, probes, connections, goroutines) is given back on every path.
//
// The public handler serves the OpenAI endpoints, health and readiness; everything that names engines is on the admin handler.
package api
