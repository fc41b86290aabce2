// Package wire is the bytes that engines and the Cache Manager exchange over a Unix stream socket. It is pure: what reads and writes
// sockets is around it. docs/cache-channel.md has the same for programs in other languages; a test holds it against this package.
//
// # A frame, version 1
//
// All integers are little endian: pages and hashes are handled by machines that are, and a client may lay them out with one copy. (The
// identity of pages is big endian, since there bytes have to sort.) Nothing is padded.
//
//	bytes  0–3   u32 length of the payload
//	byte   4     kind of message
//	byte   5     0
//	bytes  6–7   u16 number of descriptors that come with the frame, as SCM_RIGHTS with its first byte
//	bytes  8–15  u64 ref: the client's number for what it asks; every answer to it carries it. 0 in what nobody asked for
//	bytes 16–23  u64 epoch: the Manager's incarnation. 0 in Hello alone
//	bytes 24–27  u32 session, 0 before there is one
//	bytes 28–31  0
//	then         the payload
//
// Epoch and session are in every frame, and not only in the handshake, because slots, leases and tickets are numbers that a restarted
// Manager counts anew: a client that sends one of a session that has ended is told so by the frame's head, before the number could fit another's.
//
// It promises:
//
//   - What Decode accepts, Append writes again byte for byte; a payload that is cut short, too long or out of its bounds is ErrMalformed.
//   - No more is allocated than a small multiple of the payload's length, and a frame's length is bounded by its kind before it is read.
//   - A message's fields never change within a version. A new message is a new kind: whoever does not know it refuses it (Unknown) and goes
//     on. Version history: 1 is the first.
package wire
