// Package managerwire is the bytes in which a Cache Manager tells gateways what it can restore, version 1: the words, and how they are
// written. docs/manager-events.md is the same for people. The gateway reads them with package events/wire, which is tolerant of more than
// what is written here.
//
// A Manager publishes each batch with [Message], keeps the last ones for those who ask with [Replayed] and [ReplayEnd], and answers
// [SnapshotRequest] with [SnapshotHeader], [SnapshotChunk] and [SnapshotEnd]:
//
//	n := next                                               // dense, from 0
//	batch := AppendBatch(nil, head, events)
//	publisher.Publish(Message(n, batch)...)
//
//	conn.Send(SnapshotHeader(epoch, next, records)...)      // next: the first live batch that is not in it
//	conn.Send(SnapshotChunk(AppendBatch(nil, head, part))...)
//	conn.Send(SnapshotEnd()...)
//
// It promises that equal events are equal bytes, that a batch's memory is the caller's, and that nothing is written beyond what the events
// hold. It does not check them: the bounds below are the caller's to keep, and a gateway refuses what is beyond.
//
// The package is pure, and its functions may be called at once.
package managerwire
