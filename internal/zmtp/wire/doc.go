// Package wire is the encoding of ZMTP, ZeroMQ's protocol, versions 3.0 and 3.1 with the NULL mechanism: the greeting, frame
// headers, commands and subscriptions, as bytes.
//
// It promises to do no I/O, to allocate nothing on the strength of a length that a peer claims, and to refuse what the protocol
// forbids instead of guessing. What it parses it returns as views of the bytes that it was given.
//
// Sources: https://rfc.zeromq.org/spec/23 (ZMTP 3.0) and https://rfc.zeromq.org/spec/37 (ZMTP 3.1), and what libzmq 4.3.5 was seen
// to send (testdata of this package).
//
// # A connection
//
// Both sides send a greeting, then a READY command, then messages. All numbers are big-endian.
//
//	greeting  64 bytes   FF, 8 bytes padding, 7F, major 3, minor 0|1, mechanism 20 bytes padded with 0, as-server, 31 bytes 0
//	frame                flags (bit 0 more, bit 1 long, bit 2 command; the others 0), size of 1 byte or of 8 if long, body
//	command              a frame with the command bit: length of its name in 1 byte, name, data
//	message              one or more frames, all but the last with the more bit
//
//	READY                properties: length in 1 byte, name, length in 4 bytes, value. Socket-Type is required.
//	ERROR                length in 1 byte, reason: ends the handshake
//	PING (3.1)           time to live in tenths of a second in 2 bytes, 0 for none; a context of 0 to 16 bytes
//	PONG (3.1)           the context of the PING
//	SUBSCRIBE, CANCEL    the prefix (3.1). In 3.0 a message of one frame instead: 01 or 00, then the prefix.
package wire
