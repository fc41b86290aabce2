// Package zmtp is the part of ZeroMQ that Perigee needs: subscribing to what engines publish (KV events, loads), asking for a replay
// of it, and both from the other side, for the simulated engine. It speaks ZMTP 3.0 and 3.1 with the NULL mechanism over TCP and unix sockets,
// with libzmq 4.3 on the other side or with itself.
//
// It promises:
//
//   - A broken connection is reported, at once when the network knows and within 1.5 s when a peer is silent (see Options.Heartbeat), and never
//     mended in secret: the caller learns that messages may have been lost. Maintain dials again and reports.
//   - A message costs no allocation, and a peer a bounded amount of memory whatever it claims. One message that is too long costs
//     that message, not the connection.
//   - A publisher never waits for a subscriber. What its queue cannot take is dropped and counted; a PUB socket of libzmq drops it too.
//   - Close and the end of a context end every goroutine, and are waited for.
//
// Nothing is encrypted or authenticated: NULL has neither, and engines offer nothing else. Such an endpoint belongs in a trusted network.
//
// Who does what:
//
//	Dial(ctx, Sub, ...)      a subscriber: Receive      Listen(Sub, ...)     publishers connect to it: Serve hands out a Conn each
//	Dial(ctx, Dealer, ...)   a requester: Send, Receive Listen(Router, ...)  Serve hands out a Conn for each requester
//	NewPublisher             Listen, Connect, Publish
//
// A ROUTER of libzmq is one queue whose messages begin with the name of their peer. Here each peer is a Conn, whose messages do not:
// an answer goes where the question came from, and a peer that takes no answers keeps nobody else waiting.
//
// What nobody can promise here is that nothing is lost: PUB drops what a subscriber does not take, and so does a ROUTER of libzmq with the
// answers of a replay, above 1000 by default. Whoever needs all of it looks at the numbers in it.
//
// Why not a library: docs/design-notes/zmtp.md has the figures.
package zmtp
