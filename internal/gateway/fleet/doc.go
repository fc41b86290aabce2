// Package fleet is the gateway's picture of its engines: which are there, what each serves, and whether it may be used now.
//
// A [Registry] holds the workers and publishes an immutable [View] of them, sorted by id; whoever selects works on one view
// from beginning to end. Whether a worker is live is the one thing that changes under a view: a circuit breaker opens and
// closes. A [Set] is a subset of one view's workers, held as bits, so that filtering a thousand engines costs a few words
// and no allocation.
//
// The package is pure: discovery, registration and health come from outside as method calls with their time. Methods of
// Registry, View and Worker may be called at once from any goroutine; a Set belongs to one goroutine at a time.
package fleet
