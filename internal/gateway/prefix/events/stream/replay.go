package stream

import "time"

// askNow asks for a replay of what is missing.
func (m *Machine) askNow(now time.Time, probe bool) {
	from := int64(0)
	m.asks++
	a := asking{on: true, no: m.asks, probe: probe}
	if m.known {
		from = m.next
	}
	if m.unproven && m.known && m.printed {
		from, a.verify = m.next-1, true
	}
	if m.stallAt.IsZero() || probe {
		m.stallAt = now.Add(m.lim.Silence)
	}
	if probe {
		m.counts.Probes++
	} else {
		m.counts.Asks++
	}
	m.ask, m.retryAt, m.probeAt = a, time.Time{}, time.Time{}
	m.do(Action{Kind: Ask, From: from, Ask: m.asks})
}

// stalled is a replay that has brought nothing for long.
func (m *Machine) stalled(now time.Time) {
	m.stallAt = time.Time{}
	if !m.ask.on || !m.ask.progress {
		m.giveUp(now)
		return
	}
	m.becomeRepairing(now, Gap, now.Add(m.lim.Repair))
	m.again(now)
}

// again asks once more, from where the replay stopped.
func (m *Machine) again(now time.Time) {
	if m.ask.on {
		m.do(Action{Kind: Hangup})
	}
	m.stallAt = time.Time{} // it has brought something, so that there is time for the rest
	m.askNow(now, false)
}

func (m *Machine) onReplayed(now time.Time, b Batch, ask uint64) {
	if !m.ask.is(ask) || b.Seq < 0 || b.Seq == noSeq {
		m.drop(b)
		return
	}
	m.ask.got++
	if m.ask.verify {
		m.ask.verify = false
		switch {
		case b.Seq == m.next-1 && b.Print == m.print:
			m.unproven = false
			m.drop(b)
			return
		case b.Seq < m.next:
			m.drop(b)
			m.restart(now)
			m.join(now)
			return
		}
		// The batch that we know is gone from the buffer, so nothing proves that this is the same publisher.
		m.accept(now, b)
		return
	}
	switch {
	case !m.known:
		m.whole = b.Seq == 0
		m.progress(now, b)
	case b.Seq < m.next:
		m.counts.Duplicates++
		m.drop(b)
	case b.Seq == m.next:
		m.progress(now, b)
	case m.ask.got == 1:
		m.accept(now, b)
	default: // a hole: the engine's socket dropped some of the replay
		m.drop(b)
		m.becomeRepairing(now, Gap, now.Add(m.lim.Repair))
		m.again(now)
	}
}

// accept goes on from a batch, though those before it are lost.
func (m *Machine) accept(now time.Time, b Batch) {
	m.lose(now, TooLate)
	m.progress(now, b)
}

// progress applies a batch that a replay brought.
func (m *Machine) progress(now time.Time, b Batch) {
	m.apply(b)
	m.ask.progress = true
	m.stallAt = now.Add(m.lim.Pause)
}

func (m *Machine) onReplayEnd(now time.Time) {
	a := m.ask
	m.ask = asking{}
	m.heard()
	switch {
	case a.verify: // it does not have the batch that we know, nor any later one
		m.restart(now)
		m.join(now)
		return
	case !m.known: // nothing was ever published
		m.known, m.next, m.whole = true, 0, true
	}
	m.unproven = false
	m.splice(now, a.progress)
}

// splice puts what was held behind what the replay brought. Progress says whether the replay was of any use: if not, it does not have what is
// still missing.
func (m *Machine) splice(now time.Time, progress bool) {
	for {
		m.applyHeld()
		switch {
		case len(m.held) == 0 && m.live < m.next && !m.missed:
			if m.state != Exact {
				m.becomeExact(now)
			} else {
				m.stallAt = time.Time{}
				m.rest(now)
			}
			return
		case progress || m.missed && len(m.held) == 0 && m.live < m.next:
			m.missed = false
			m.becomeRepairing(now, Gap, now.Add(m.lim.Repair))
			m.again(now)
			return
		}
		why := TooLate
		if m.noPast {
			why = ReplayFailed
		}
		m.lose(now, why)
		m.jump()
		progress = true // what is missing behind this place was not asked for yet
	}
}

// jump goes on from the first batch that there is.
func (m *Machine) jump() {
	begins := !m.known
	m.known, m.printed, m.next = true, false, m.live+1
	if len(m.held) > 0 {
		m.next = m.held[0].Seq
	}
	if begins && m.next == 0 {
		m.whole = true
	}
}

// applyHeld applies what was held up to the next gap.
func (m *Machine) applyHeld() {
	n := 0
	for ; n < len(m.held) && m.held[n].Seq <= m.next; n++ {
		b := m.held[n]
		m.bytes -= len(b.Payload)
		if b.Seq == m.next {
			m.apply(b)
			continue
		}
		m.counts.Duplicates++
		m.drop(b)
	}
	rest := copy(m.held, m.held[n:])
	clear(m.held[rest:])
	m.held = m.held[:rest]
}

// onReplayBroken tries again soon, while there is time.
func (m *Machine) onReplayBroken(now time.Time) {
	probe, progress := m.ask.probe, m.ask.progress
	m.ask = asking{}
	if probe {
		m.notHeard(now)
		m.stallAt = time.Time{}
		m.rest(now)
		return
	}
	m.retryAt = now.Add(m.lim.Retry)
	if due := now.Add(m.lim.Silence); progress {
		m.stallAt = due
	}
}

// giveUp goes on without what the replay should have brought.
func (m *Machine) giveUp(now time.Time) {
	probe := m.ask.probe
	m.stopAsking()
	if probe {
		m.notHeard(now)
		m.rest(now)
		return
	}
	m.noPast, m.missed = true, false
	if m.known {
		m.applyHeld()
		m.lose(now, ReplayFailed)
	} else {
		m.partWhy, m.partSince = ReplayFailed, now
	}
	if len(m.held) == 0 && (m.live < 0 || m.known && m.live < m.next) {
		// Nothing has come since: where the publisher stands will be known with its next batch.
		m.any = m.known
		m.become(now, Blind, NoEvent)
		return
	}
	m.jump()
	m.splice(now, false)
}
