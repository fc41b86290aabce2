package keeper

import (
	"errors"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/ask"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/introspect"
	"github.com/perigee-llm/perigee/internal/gateway/load/source"
)

// member is what is decided about one engine: when it is asked, and what its answers change. It has no clock and does no I/O.
//
//	            answers                        polls fail
//	(new) ──▶ unregistered ──────▶ registered ───────────▶ silent
//	            │  ▲ retried 1, 2, 4 … 30 s     ▲                │ answers again: reports forgotten, asked anew
//	            └──┘                            └────────────────┘
type member struct {
	target   introspect.Target
	registry *fleet.Registry
	worker   *fleet.Worker

	polls, refresh grid
	retryMost      time.Duration
	nextAsk        time.Time // introspection
	nextPoll       time.Time
	lastPoll       time.Time // when the last one ended; zero before the first

	answered bool // the engine once said what it is
	failures int  // introspections that failed in a row
	silent   bool // the last poll failed
	refused  bool // the last poll was refused: there is no load to read, as opposed to no answer
	short    bool // the last poll's answer lacked ranks
	told     int  // ranks as introspection said, 0 unknown
	shown    int  // ranks as its load showed, 0 none yet
	life     source.Life
	renewed  bool // the introspection since the last poll found its connection ended
}

func newMember(t introspect.Target, r *fleet.Registry, origin time.Time, poll, retry time.Duration) *member {
	return &member{
		target: t, registry: r, retryMost: retry, nextAsk: origin,
		polls: gridOf(t.ID, origin, poll), refresh: gridOf(t.ID, origin, retry),
	}
}

// step is what is due.
type step uint8

const (
	stepAsk step = iota
	stepPoll
)

// next says what is due next, and when.
func (m *member) next() (step, time.Time) {
	if m.worker != nil && source.Pollable(m.worker.Kind) && m.nextPoll.Before(m.nextAsk) {
		return stepPoll, m.nextPoll
	}
	return stepAsk, m.nextAsk
}

// asked takes in the outcome of an introspection that ended at now. changed tells whether something is to be told.
func (m *member) asked(now time.Time, spec fleet.Spec, err error) (changed bool) {
	truth := err == nil || errors.Is(err, introspect.ErrUnroutable)
	if err != nil {
		m.failures++
		changed = m.failures == 1
		m.nextAsk = now.Add(retryDelay(m.failures, m.retryMost))
	} else {
		changed = m.failures > 0 || !m.answered
		m.failures = 0
		// Also an engine in good health is asked again now and then: adapters are loaded and unloaded while it runs,
		// and an engine of an unknown kind shows a restart in no other way.
		m.nextAsk = m.refresh.after(now)
	}
	switch {
	case truth:
		if spec.Ranks != m.told || m.short || (m.worker != nil && m.worker.Kind != spec.Kind) {
			m.shown = 0 // it may have fewer now
		}
		m.answered, m.told = true, spec.Ranks
		if m.put(spec) {
			changed = true
			m.nextPoll, m.refused = m.firstPoll(now), false // what was refused before may be there now
		}
	case m.worker == nil:
		m.put(m.target.Unknown())
	}
	if m.nextPoll.Before(now) {
		m.nextPoll = m.polls.after(now)
	}
	return changed
}

// firstPoll is when an engine that was just registered is polled: at once, or the first requests would choose blindly for up to
// an interval. The polls after it keep to the beat, which spreads them. One that was polled a moment ago waits for the beat, too:
// behind a URL that is now one engine and now another, each question would otherwise be followed by the next without a pause.
func (m *member) firstPoll(now time.Time) time.Time {
	if now.Sub(m.lastPoll) < m.polls.every {
		return m.polls.after(now)
	}
	return now
}

// put registers the spec. Of what the engine said and what its load showed, the larger number of ranks counts: a report
// of too few would pass for the whole engine's.
func (m *member) put(spec fleet.Spec) (changed bool) {
	spec.Ranks = max(spec.Ranks, m.shown)
	before := m.worker
	m.worker = m.registry.Put(spec)
	return before != m.worker
}

// event is what a poll changed.
type event uint8

const (
	nothing   event = iota
	wentQuiet       // the first poll that failed
	cameBack        // the first that succeeded again
	restarted       // another process answers
)

// polled takes in the outcome of a poll that ended at now, and returns the error that the outcome amounts to.
func (m *member) polled(now time.Time, a *source.Answer, err error) (event, error) {
	m.lastPoll, m.nextPoll = now, m.polls.after(now)
	what := nothing
	if err == nil {
		expected := m.worker.Ranks
		if a.RestartedSince(m.life) {
			what, expected = restarted, 0 // the new process may have fewer
		} else if m.silent {
			what = cameBack
		}
		if !a.Complete(expected) {
			err = ErrIncomplete
		}
	}
	m.short = err == ErrIncomplete
	if err != nil {
		m.refuse(now, refusal(err))
		return m.quiet(), err
	}
	spec := m.worker.Spec
	if what != nothing {
		m.worker.Load.Forget()
		m.shown, m.nextAsk, spec.Ranks = 0, now, 0
	}
	if n := a.RankCount(); n > spec.Ranks {
		m.shown = n
		m.put(spec)
	}
	m.life, m.silent, m.refused = a.Life(), false, false
	a.Observe(m.worker.Load)
	return what, nil
}

func (m *member) quiet() event {
	if m.silent {
		return nothing
	}
	m.silent = true
	return wentQuiet
}

// refuse slows the polls down while they are refused: the engine will not have in a second what it does not have now. The
// first refusal may also mean that it became another engine, so that it is asked at once.
func (m *member) refuse(now time.Time, refused bool) {
	if refused {
		m.nextPoll = m.refresh.after(now)
		if !m.refused {
			m.nextAsk = now
		}
	}
	m.refused = refused
}

// refusal tells whether the engine answered that it has no load for us, as opposed to not answering. A malformed answer
// is none of it: what is broken for a moment must not blind us for longer.
func refusal(err error) bool {
	return errors.Is(err, source.ErrNoLoad) || errors.Is(err, ask.ErrTooLarge) ||
		(errors.Is(err, ask.ErrStatus) && !ask.Retryable(err))
}
