// Package ledger decides what is to be believed of a Cache Manager, and keeps what follows from it: which blocks it can restore to which
// engines, in shelves of package local, and at what price, in prefix.Costs. It is a state machine without I/O: [Ledger.Step] takes what
// happened and when, and returns whom to ask.
//
// Numbers, gaps, breaks and time limits are package stream's, which does the same for engines. What differs:
//
//   - A Manager says in each batch which incarnation of it speaks (the epoch). Another epoch is a restart, whatever the number, and equal epoch
//     and number are the same batch.
//   - What a replay does not have any more is not lost: a snapshot has all of it. It is built beside what counts, and takes its place as
//     if it were the batch before the first that is not in it; so it is spliced with the live batches that came meanwhile by
//     their numbers, as a replay is.
//
// # Promises
//
//   - Whatever is claimed can be restored, or is gone from sight within a second (stream.Limits). A snapshot that is not whole counts for
//     nothing; a removal that could not be read drops everything, and a snapshot is asked for.
//   - Blocks belong to (epoch, namespace) and count for the engines that are attached, as long as they are. An engine is known by its base URL
//     and its registration (instance): what an older registration says changes nothing.
//   - A price counts only for an engine that is attached and a medium that it can use, from its arrival for prefix.CostFreshness.
//   - A Manager's namespaces, attachments and claims are bounded ([Limits]). One that has more is cut off: it counts for nothing, and
//     is named, until it begins anew.
//
// The package is pure. A [Ledger] belongs to one goroutine.
package ledger
