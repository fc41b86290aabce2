// Package events is where a Cache Manager tells gateways what it can restore: a PUB socket, one for replays and one for snapshots, in the
// bytes of package managerwire. docs/manager-events.md has the protocol; what is said is package book's to decide.
//
// # Promises
//
//   - Batches are numbered densely from 0. What was said up to number n, and a snapshot that resumes at n+1, say the same.
//   - Visible, Removed, Attach, Detach and Restored never wait for a socket or for a snapshot: they note and return.
//   - What happened is said [gather] after it at the latest, or as soon as a snapshot that is being made is done: some 0.7 s with a million
//     names, in which a replay waits too.
//   - Close ends every goroutine and waits. It says nothing more: a gateway takes back what it was told within a second of the silence.
//
// # Bounds
//
//	what is noted      a note for each block, at most the blocks visible then and now: package book; no full case
//	live batches       1,000 or 64 MiB wait for a subscriber (package zmtp); one more is dropped for it and counted, and it asks for a replay
//	replay             the last 10,000 batches, at most 64 MiB; older ones are not sent, and a gateway asks for a snapshot
//	snapshots          4 are made or sent at once; the next waits 5 s for its turn and is refused then: a gateway asks again
//	peers              64 of each socket: one more is turned away
//
// Nobody is asked who he is. Listen on loopback or in a network of which everybody may know which prompts are repeated.
package events
