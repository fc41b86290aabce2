// Package wire is the bytes in which a gateway tells others what it sends to engines, version 1. Each message is one frame:
//
//	magic        4 bytes "PGPR"
//	version      1 byte, 1
//	kind         1 byte: 1 news, 2 everything
//	incarnation  8 bytes, big endian: another with each start of the gateway
//	number       8 bytes, big endian: from 1, one more with each message of an incarnation
//	engines      a count; for each its base URL, as a length and that many bytes
//	records      a count; for each
//	               what    1 byte: 1 sent, 2 sent and its first token will not be seen, 3 has its first token, 4 given up
//	               engine  its place in engines
//	               id      the gateway's number of the prompt
//	               age     microseconds from when it happened to when the message was made
//	               tokens  that the engine has to compute; of 1 and 2 only
//
// where counts, lengths, places, ids, ages and tokens are unsigned varints, as of protocol buffers, of at most 63 bits. Nothing stands behind the last record.
//
// Everything is all prompts that the gateway has in prefill, as records 1 and 2; news are what has changed since the message before. Ages instead
// of times, since clocks of two machines differ by more than a prompt takes; what the message itself was under way makes a record younger by that.
//
// The first five bytes are the topic: those who speak another version subscribe to another, and never meet. A message beyond the bounds below is refused
// whole, and nothing in it is believed.
//
// The package is pure, and its functions may be called at once.
package wire
