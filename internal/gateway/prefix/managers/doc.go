// Package managers follows what Cache Managers publish, into the indexes and the prices of the gateway. It keeps the connections; what is
// to be believed is package ledger's to decide. docs/manager-events.md has the wire.
//
// # Promises
//
//   - A Manager that is gone, silent or behind is credited with nothing within a second.
//   - Memory is bounded: [inbox] messages wait for each Manager, what its ledger holds is bounded (ledger.Limits), and a Manager that sends
//     faster than we apply is waited for ([Options.Patience]) before a message is dropped, which is a loss like any other. A snapshot is
//     never dropped: its connection waits.
//   - [Follower.Set] and [Follower.Close] return when what is no longer followed has no connection, no goroutine and no claim left.
//
// # Goroutines
//
//	run    one for each Manager: it alone touches the ledger
//	live   one for each: the subscription
//	ask    one for each: replays and snapshots
package managers
