// Package remote holds the prefix sources of a gateway that asks elsewhere: [Index] asks a `perigee index` service (perigee.index.v1),
// [KVIndexer] an indexer of SGLang's (kv_indexer.v1). A gateway that uses only these keeps no index and follows no KV events.
//
// # Promises
//
//   - A look-up takes no longer than [Options.Timeout], whoever answers or does not; the deadline is sent along too.
//   - Nothing waits for its turn: a look-up beyond [Options.MaxInFlight] is Overloaded at once.
//   - No connection is made before the first look-up, and one that is lost is made anew by the look-ups that follow.
//   - Of several endpoints the one that answered last is asked first, and the next where one is unreachable, late, overloaded or not
//     ready. The deadline is shared out: an endpoint gets an equal part of what is left with those behind it.
//   - What comes back is not trusted: an engine that the gateway does not have is left out, and one of which the answer says what cannot be (more
//     than the prompt, less on all tiers than on one, twice, a price that is none) is blind. An answer that contradicts itself as a whole is rejected.
//   - An engine of the gateway's that the service does not follow is blind, and never taken for one that holds nothing (Index only: a
//     KVIndexer does not say which engines it follows).
//   - Prices of restores are those of the endpoint that answered last, and of no other. They count for 10 s after it heard of them.
//
// # Statuses
//
//	OK                                    the match; without holders a miss
//	Unavailable, no connection            Unavailable: unreachable
//	DeadlineExceeded, Cancelled, our own  Unavailable: timeout
//	ResourceExhausted, our own bound      Unavailable: overloaded
//	OutOfRange                            Unavailable: too_large
//	OK, of a model without engines        Unavailable: not_ready
//	anything else                         Rejected
//
// What a policy does without an answer is the policy's matter. A source has no goroutines of its own but its connections'; Close ends them.
package remote
