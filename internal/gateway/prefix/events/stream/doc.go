// Package stream decides, for the events of one data-parallel rank of one engine, what may be believed: it follows their numbers, asks
// for what is missing, and says when claims are to be withdrawn. It is a state machine without I/O: [Machine.Step] takes what happened
// and when, and returns what is to be done, in that order.
//
// # What a publisher does
//
// Each batch has a number, dense, from 0 in each process of the engine. The publisher may drop batches without a word, it keeps the
// last ones (10,000 by default) and sends them again on another socket to whoever asks from a number on, in order, with a marker
// behind the last. A number of -1 on the live stream says that the publisher begins anew.
//
// # States
//
//	        a gap, a break,                  not repaired within Limits.Repair,
//	        our own queue was full           the connection away for Limits.Break
//	Exact ─────────────────────▶ Repairing ─────────────────────▶ Blind ◀── at first; restarted
//	  ▲                              │                              │
//	  └── the numbers are complete ──┴──────────────────────────────┘
//
// In Exact and in Repairing the claims count; in Blind they are kept and followed, and nobody sees them. Exact means: whatever is claimed
// is held. Whether it is also all that is held is another question, [Status.Whole]: it is so if the numbers are known from 0, or from an
// event on by which the engine said that it holds nothing, and all that it stored since could be followed ([Holed]). Where they are not, the claims are good, and the engine may hold more:
// [Partial] trust. That is how "exact" is defined here, because a history that the engine has thrown away cannot be had again.
//
// # Promises
//
//   - A claim that has become wrong counts for a second at most, and what a message takes: [Limits.Probe] until a loss shows at the
//     latest, and [Limits.Repair] or [Limits.Break] to its repair or to [Hide]. What nobody can see is a batch that was dropped when no
//     other follows. Therefore a replay is also asked for when the stream has been quiet. An engine without a replay socket can hide
//     such a loss until its next batch, and one whose replay does not answer for as long as it does not. A batch that is lost on both ways,
//     and the last on both, shows one question later.
//   - Nothing is applied twice or out of order, whatever the two sockets bring when.
//   - Nothing that was published by one process is taken for another's. After a break a replay begins with the last batch that was
//     applied, which must be the same byte for byte ([Batch.Print]): a publisher that began anew may have the right numbers. Without
//     a replay socket, numbers that go on are believed only if the connection was away for less than [Limits.Quick].
//   - Memory is bounded: batches that come while a replay is awaited are held up to [Limits.Held] and [Limits.HeldBytes]; what goes
//     beyond is dropped and asked for again.
//   - Every batch that goes in comes out exactly once, by [Apply] or by [Drop], so that its memory can be used again.
//
// # What is done about a loss
//
// A gap is asked for from its first number. What the replay brings is applied, then what was held, without duplicates. A replay that
// begins too late, brings nothing or does not come at all means that events are lost for good: [Doubt], and the claims go on from
// there, partially. A replay with a hole in it (a ROUTER drops beyond its high-water mark) is asked for again from the hole.
//
// Numbers that go backwards on the live stream are a restart, and so is a last batch that is not the one that we know: [Withdraw],
// then all is asked for from 0. A stream that is joined late begins in the same way, and stays Blind until it has caught up.
//
// Two gateways, or one that lost much and one that lost nothing, reach the same claims: the order of applying is that of the numbers.
//
// The package is pure. A [Machine] belongs to one goroutine.
package stream
