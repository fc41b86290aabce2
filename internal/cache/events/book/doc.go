// Package book decides what a Cache Manager tells gateways: which blocks by name, to which engines, at what price. docs/manager-events.md has
// the words. It has no sockets and no clock: package events has.
//
// What happens is noted in a [Pending], under the Manager's lock and in constant time. From time to time [Book.Apply] takes the notes
// and returns the events that make of what was told what is so; [Book.Snapshot] returns the same from nothing. Thus
//
//   - the events that Apply has returned so far, applied in their order, give what Snapshot returns.
//   - a name is told only while every group has it, and every part of each is sealed. One name may be several blocks (hashes of
//     several engines): it goes with the last.
//   - Pending has at most one note a block, whatever happened to it: it is bounded by the blocks that are visible now and those that were
//     visible when it was last taken. What came and went in between is never told. So it has no full case.
//   - where nothing is left of a namespace, one AllBlocksCleared says so.
//
// The design not taken was a queue of changes: it has a full case, which is to forget the queue and to tell everything again, and
// that comes when there is most to do.
//
// The package is pure. Each type's owner serialises its calls.
package book
