package stream

import "time"

// Adopt says that the claims are those of somebody who has followed the publisher up to a batch: next is the number of the one that follows,
// print that of the one before it if printed, and whole whether the claims are all there is. It is called before the first step, after the
// claims were taken over; they stay hidden.
//
// What is adopted is doubted like what was followed before a break of the connection: the replay begins with the last batch that is in the
// claims, which must be the same byte for byte, and the claims are withdrawn if it is not. Without a replay socket nothing proves that the
// publisher is the same: the first batch that comes then makes them doubted.
func (m *Machine) Adopt(now time.Time, next int64, print uint64, printed, whole bool) {
	if m.known || m.connected || next < 0 {
		return
	}
	m.known, m.next, m.print, m.printed = true, next, print, printed
	m.unproven = true
	m.live, m.livePr = next-1, print
	m.whole = whole
	if whole {
		m.partSince = now
	}
	m.forgetAt = now.Add(m.lim.Forget) // if there is no connection by then
}
