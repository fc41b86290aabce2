// Package index knows which engine holds which prefix of a prompt: exactly, in few bytes, and without ever making a reader wait.
//
// An [Index] is one domain: a base model and a block size. It is told what engines publish, through [Index.Apply], and answers
// [Index.Lookup] with how many leading tokens of a prompt each engine holds, tier by tier (prefix.Depth).
//
// # Words
//
//	block    a full block of tokens behind certain others, named by package chain; the same block whoever holds it
//	holder   who can hold blocks: a rank of an engine, or a store: a Cache Manager's namespace, which engines are attached to
//	claim    a holder says that it holds a block on some tiers, under a hash of its own (prefix.Hash, an alias)
//	tenure   a holder's claims from one beginning to the next; to withdraw all of them is to end the tenure
//
// # Promises
//
//   - A holder is credited with a block only while it claims it. What is not certain is not credited: a store behind an unknown
//     parent is refused, and so is one without tokens whose hash is unknown; no claim is ever attached to a guess.
//   - An alias means something only for the holder that used it: two engines that have one hash for different tokens stay apart, and
//     engines that have different hashes for the same tokens meet.
//   - Depth is contiguous from the first block on. A hole ends it, on each tier for itself.
//   - What holders claim is a set: doubled stores change nothing, and the order of changes to different tiers does not matter.
//   - A holder's claims are bounded ([Config.Limit]). One that claims more is cut off: its claims are dropped and it is blind.
//   - Readers take no lock, wait for nobody and never try again, whatever the writer does.
//
// # Who may call what
//
// Lookups may run at once with everything. All else changes the index, and takes its turn on a mutex; each call is short and bounded,
// by the event that it is given or the budget of [Index.Sweep]. The package is pure: it starts no goroutine and reads no clock, so
// whoever owns an index calls Sweep while it says that there is more to do.
//
// How it is built, and what was not: docs/design-notes/prefix-index.md.
package index
