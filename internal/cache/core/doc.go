// Package core decides for the Cache Manager: who may write which slot, when a block can be seen, what a query finds, who holds it,
// and what has to go. It is one machine, Step(now, event) → actions, without memory, sockets, disks or a clock: the daemon's shell
// brings what happened and does what comes back, in that order. The same machine runs in the daemon, in tests, and in a simulator.
//
//	publish:  Publish ──Granted──▶ (engine copies) ──Sealed──▶ … all parts ──▶ Visible ──▶ Removed
//	restore:  Query ──Loading──▶ Ready(lease) ──Start──▶ Plan ──▶ (engine copies) ──Copied──▶ Restored
//	                └─Busy: not admitted, ask again     └─ Ready without a lease: nothing here, compute
//	end:      Lost (nothing new is believed) ──▶ quarantine ──Fenced (its process is gone)──▶ all of it is free
//
// It promises:
//
//   - A block is visible only when all its parts are sealed, and what a query was given stays where it is, unchanged, until
//     the lease has ended. A slot that was sealed is never again writable by its grant.
//   - A slot that a process may still write to or read from is not given to anybody else, whatever the clock says: it waits in
//     quarantine for that process's own word or for the proof that it is gone. Time ends waiting and interest, never ownership.
//   - A session, slot, lease, ticket or read of an older generation is refused by its class and never taken for its successor.
//   - A restore happens once a consumer, with all groups of the demand or none; if one consumer fails, all of them have.
//   - Every answer to a query is one of three that must not be mixed up: Busy (not admitted), Loading (admitted, wait), Ready
//     (with a lease, or with nothing: compute).
//   - Every table is bounded, and its full case is an answer (see Limits). At rest no byte is reserved, leased, pinned or granted.
//
// The words for the wire are these types: events are what clients, disks and the shell say, actions what they are told. Slices of an
// event are read during Step and not kept; actions and their slices belong to whoever got them, until he says Recycle if he ever does.
//
// The design that we started from has packages query, registry and publish above storage/dram. Here they are one package of
// small files: a session's end, a lease, a grant and an eviction each touch all of them in one step, and between packages every such step
// would have become a protocol. What stands by itself is below: storage/dram has pages, slots, and the order in which they go.
package core
