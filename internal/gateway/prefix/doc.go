// Package prefix holds the words in which engines' events, the prefix index and policies speak of who holds which prefix.
//
//	events  decode what an engine published into [Event]s, and say when they cannot vouch for it
//	index   applies events and answers a [Query] with a [Match]: how much of a prompt each engine holds, tier by tier
//	policy  asks a [Source] through a request's [Memo], once, and never learns whether the answer came from here or from afar
//
// Depths are in tokens, of whole blocks, and never beyond the prompt: engines of one model may have blocks of different sizes, and
// tokens are what a policy reckons with.
//
// An engine is named by its number in the fleet (fleet.Worker.No), which is never given to another engine.
//
// A match is a hint: what it says may be stale by the time it is read, which costs a request time and nothing else. What it must
// not be is wrong without knowing: an engine whose events were lost is listed as blind, not as one that holds nothing.
//
// The package is pure. Its values are not for several goroutines at once unless it is said.
package prefix
