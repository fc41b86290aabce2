// Package events follows what engines publish: KV events into an index, load reports into load records. It finds the sockets, keeps the
// subscriptions, and does what package stream decides about losses; package wire reads the bytes.
//
// # Promises
//
//   - What a stream claims counts in the index only as package stream says: exact, partial or hidden. A rank of an engine of which
//     nothing is known yet is hidden.
//   - Nothing is subscribed to twice: one subscription for each (engine, rank) and kind. Load and prefix can be had apart.
//   - Memory is bounded. Between a subscription and its applier there is a queue ([Options.Queue], [Options.QueueBytes]). If it is full the
//     subscription waits for a moment ([Options.Patience]), then drops the message, which is a loss like any other: it is
//     counted, asked for again, and the claims are hidden if it does not come. Rejected: to wait for as long as it takes, since the
//     index would be old without knowing it; and to drop at once, since a burst of a vLLM's 50,000 messages onto a machine with
//     other work then cost the replay of half of them, which an engine sends while it publishes the rest.
//   - Feeds of one applier take turns, so one that is flooded delays another by a turn (64 KiB, or one batch) and not by its queue. A replay waits
//     for room instead of being dropped; what it may have waiting is bounded besides.
//   - What was copied from somebody else ([Target.Past]) counts only when the engine's own replay has proven that it is still the process of
//     which the copy is. A block that was stored while the copy was made, on one that was gone by then, makes the rank partial. An engine
//     whose blocks are of another size than the copy's is asked for everything itself.
//   - [Follower.Unfollow] and [Follower.Close] return when the sockets are closed, all goroutines have ended and the claims are gone. What was
//     on its way then is dropped.
//
// # Goroutines
//
//	applier   one for each domain (base model): it alone touches the machines and the claims of its feeds
//	engine    one for each engine: finds the sockets, starts and ends the feeds
//	live      one for each feed that dials, which first gets the past; of those that are dialled, one for each connection to a [hub]
//	replay    one for each feed with a replay socket
//	load      one for each rank with a load stream
//
// All belong to the [Follower]; engines end with Unfollow, the rest with Close.
package events
