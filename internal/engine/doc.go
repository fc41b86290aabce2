// Package engine is the core of the simulated engine: a paged KV pool with a prefix cache, a continuous-batching
// scheduler with chunked prefill and preemption, and a timing model, as one state machine.
//
// Promises:
//   - The core reads no clock, draws no randomness, starts no goroutine and does no I/O. Time comes in with each call,
//     as a [time.Duration] since an epoch that the driver chooses; what happened comes out as [Action] values. The same
//     calls give the same actions, so one core serves a replay in virtual time, a test with a fake clock, and HTTP.
//   - A cached block's parent is cached too, so what the cache holds of a prompt is always a prefix of it.
//   - The bytes of a page (with [Config.PageBytes] set) are a function of the token chain up to and including its block.
//     Each reuse of a page compares them; a page that a restore filled with anything else ends the request that
//     would have used it with [ReasonCorrupt]. A real engine would answer from it without a word.
//   - What an outer cache has of a prompt is found and brought by the driver, at its own time ([Config.Restore], [Lookup], [Restore]). The core
//     waits for its answers alone, and computes what does not come. Pages that the driver may write to are nobody else's until it says
//     that it has ended, whatever becomes of the request.
//   - A request that cannot ever be served is refused when it is submitted, with a typed error. One that is accepted ends,
//     by its last token, by [Core.Abort], or by a corrupt page.
//
// A Core is not safe for concurrent use: one goroutine owns it.
package engine
