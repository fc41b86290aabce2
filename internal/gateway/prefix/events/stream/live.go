package stream

import "time"

// becomeConnected begins to find out where the publisher stands.
func (m *Machine) becomeConnected(now time.Time) {
	if m.connected {
		return
	}
	m.connected, m.forgetAt, m.noPast = true, time.Time{}, false
	m.away = now.Sub(m.broke)
	m.join(now)
}

// join asks for what is missing up to now: everything, if nothing is known.
func (m *Machine) join(now time.Time) {
	if !m.connected {
		return
	}
	switch {
	case m.replay:
		if !m.known {
			m.become(now, Blind, Joining)
		}
		m.askNow(now, false)
	case !m.known:
		m.become(now, Blind, NoEvent)
	}
}

func (m *Machine) becomeBroken(now, heard time.Time) {
	if !m.connected {
		return
	}
	if heard.IsZero() || heard.After(now) {
		heard = now
	}
	m.connected, m.broke = false, heard
	m.stopAsking()
	m.dropHeld() // a replay will bring it again, and without one nothing is held
	m.missed, m.probeAt = false, time.Time{}
	if !m.known {
		m.live = -1
		m.become(now, Blind, Disconnected)
		return
	}
	// What the same publisher sends from now on is behind all that we have, also behind what a replay brought first.
	m.unproven, m.live, m.livePr = true, m.next-1, m.print
	m.forgetAt = now.Add(m.lim.Forget)
	m.becomeRepairing(now, Disconnected, heard.Add(m.lim.Break))
	if m.state == Blind {
		m.become(now, Blind, Disconnected)
	}
	m.clock(now) // it may have been silent for long
}

// noSeq is no number, since none can follow it: behind it a stream could never be complete, and would be asked for without end.
const noSeq = 1<<63 - 1

func (m *Machine) onLive(now time.Time, b Batch) {
	switch {
	case b.Seq < -1 || b.Seq == noSeq || !m.connected:
		m.drop(b)
		return
	case b.Seq == -1:
		m.drop(b)
		m.reset(now)
		return
	case b.Seq == m.live && b.Print == m.livePr:
		m.counts.Duplicates++
		m.drop(b)
		return
	case b.Seq <= m.live:
		m.restart(now)
	}
	m.live, m.livePr = b.Seq, b.Print
	m.rest(now)
	switch {
	case m.ask.on && !m.ask.probe || !m.retryAt.IsZero():
		m.hold(b)
	case !m.known:
		m.begin(now, b)
	case m.unproven:
		m.onReturn(now, b)
	case b.Seq == m.next && !m.any:
		m.apply(b)
	case b.Seq < m.next: // a replay was faster
		m.counts.Duplicates++
		m.drop(b)
	case m.any:
		m.apply(b)
		m.becomeExact(now)
	default:
		m.onGap(now, b)
	}
}

// begin takes the first batch of a publisher of which nothing is known.
func (m *Machine) begin(now time.Time, b Batch) {
	switch {
	case b.Seq == 0:
		m.whole = true
	case m.replay && !m.noPast:
		m.hold(b)
		m.join(now)
		return
	}
	m.apply(b)
	m.becomeExact(now)
}

// onReturn takes the first batch after a break, where nobody can be asked.
func (m *Machine) onReturn(now time.Time, b Batch) {
	if b.Seq == m.next && m.away <= m.lim.Quick {
		m.unproven = false
	} else {
		m.lose(now, Disconnected)
	}
	m.apply(b)
	m.becomeExact(now)
}

func (m *Machine) onGap(now time.Time, b Batch) {
	m.counts.Gaps++
	if !m.replay {
		m.lose(now, Gap)
		m.apply(b)
		m.becomeExact(now)
		return
	}
	m.hold(b)
	m.becomeRepairing(now, Gap, now.Add(m.lim.Repair))
	if m.ask.on { // a probe is under way, and brings what is missing
		m.ask.probe = false
		m.stallAt = now.Add(m.lim.Silence)
		return
	}
	m.askNow(now, false)
}

// reset is what the publisher asks for: it begins anew and holds nothing.
func (m *Machine) reset(now time.Time) {
	m.restart(now)
	m.known, m.next, m.whole = true, 0, true
	m.becomeExact(now)
}

// onDropped is a loss that we made ourselves, of batches whose numbers nobody has seen.
func (m *Machine) onDropped(now time.Time) {
	switch {
	case m.ask.on || !m.retryAt.IsZero():
		m.missed = true
		m.ask.probe = false
		m.becomeRepairing(now, Overflow, now.Add(m.lim.Repair))
	case !m.known || m.unproven || !m.connected:
	case m.replay:
		m.becomeRepairing(now, Overflow, now.Add(m.lim.Repair))
		m.askNow(now, false)
	default:
		m.lose(now, Overflow)
	}
}

// hold keeps a batch until the replay has brought what is before it.
func (m *Machine) hold(b Batch) {
	if len(m.held) >= m.lim.Held || m.bytes+len(b.Payload) > m.lim.HeldBytes {
		m.counts.NotHeld++
		m.drop(b) // the replay is asked for again when it has ended, since m.live is beyond it
		return
	}
	m.held, m.bytes = append(m.held, b), m.bytes+len(b.Payload)
}
