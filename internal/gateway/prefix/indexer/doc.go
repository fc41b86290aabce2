// Package indexer serves a prefix index to gateways over gRPC, as perigee.index.v1 (indexpb/index.proto).
//
// # Promises
//
//   - An answer is what the index said at one moment, and complete: of each engine that the service follows for the model, it says how much it
//     holds, or that it cannot say, or nothing, which means that it holds nothing.
//   - Prices of restores go along where the caller has others than the service, and each is told about once a second. What no longer counts is
//     not told.
//   - Nothing waits. A call beyond [Options.MaxInFlight] is refused at once with ResourceExhausted, before its message is read; a call whose
//     deadline has passed is refused with DeadlineExceeded before any work.
//   - Requests are bounded: [MaxRequest] bytes (ResourceExhausted, by the library) and [MaxNames] names (OutOfRange). What a request allocates is
//     proportional to its size.
//   - A request never makes the index remember anything: names of models that nobody serves leave no trace.
//   - Snapshots are few at a time ([Options.MaxSnapshots]), read the index in slices of a millisecond, and wait for their reader's flow
//     control, never the index for them.
//   - Prompts do not travel: a request has the names of blocks, in which the cache salt is hashed. Whoever may ask can find out whether
//     some engine holds a prompt that he can guess, salt included; so the service is for gateways, not for clients.
//
// Who may call: see [Options.Token] and [Options.TLS]. Health (grpc.health.v1) is answered without a token.
//
// A [Server] has the goroutines of its listener's connections; [Server.Close] ends them all and waits.
package indexer
