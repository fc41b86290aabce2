// Package peers lets gateways tell each other what they send: which prompts each has at which engine without a first token. The cost policy counts
// what others told as what its own gateway sent, so that a second gateway is not blind to it until the engine's next report.
//
// Each gateway publishes on a PUB socket (package wire has the bytes) what enters and leaves its accounts, gathered for 10 ms, and all of it once
// a second; and it subscribes to those of the others. It promises:
//
//   - Requests never wait for it: what happens is put in a queue of bounded size, and when that is full, everything is told instead of the news.
//   - What a gateway told counts for at most 2 s after it was last heard of. Then, as before the first word, reports alone speak of its prompts.
//   - News that are missed are put right by the next full list, within a second. What comes after them is believed meanwhile: a record is true by
//     itself, and to believe nothing for up to a second would be the blindness that this package is there against.
//   - A gateway that finds itself in its list, or another twice, counts nothing twice. So all may have the same list.
//   - Close ends every goroutine and waits for them.
//
// Engines are named by their base URLs: gateways that reach an engine by different URLs do not know that it is one, and tell each other nothing of it.
//
// Nothing is encrypted or authenticated; whoever can reach the socket sees which engines there are and how busy they are, and whoever is
// subscribed to can make engines look busy. It belongs in a trusted network.
//
// Rejected: a log in one place that all write to and read (one more thing that can be away, and slower by a hop); passing requests on to
// the gateway that owns an engine (a request would pay for it every time, and cost needs one view of all engines); asking each other before each pick (a round trip a request).
package peers
