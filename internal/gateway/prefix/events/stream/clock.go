package stream

import "time"

// Deadline is when a [Tick] is due at the latest; zero: there is nothing to wait for.
func (m *Machine) Deadline() time.Time {
	var first time.Time
	for _, t := range [...]time.Time{m.hideAt, m.stallAt, m.retryAt, m.forgetAt, m.probeAt} {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}

func due(t, now time.Time) bool { return !t.IsZero() && !now.Before(t) }

// clock does what is due.
func (m *Machine) clock(now time.Time) {
	if due(m.hideAt, now) {
		m.hideAt = time.Time{}
		if m.state == Repairing {
			m.counts.Hides++
			m.become(now, Blind, m.why)
			m.mark(Hide)
		}
	}
	if due(m.stallAt, now) {
		m.stalled(now)
	}
	if due(m.retryAt, now) {
		m.askNow(now, false)
	}
	if due(m.forgetAt, now) {
		m.forget(now, Disconnected)
	}
	if due(m.probeAt, now) {
		m.probeAt = time.Time{}
		if m.state == Exact && !m.ask.on {
			m.askNow(now, true)
		}
	}
}

// rest begins the time after which a quiet stream is asked for.
func (m *Machine) rest(now time.Time) {
	m.probeAt = time.Time{}
	if m.replay && m.connected {
		m.probeAt = now.Add(m.lim.Probe)
	}
}
