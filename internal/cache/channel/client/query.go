package client

import (
	"context"

	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
)

// Outcome is which of the answers a query has got. They must not be mixed up.
type Outcome uint8

// The outcomes.
const (
	// Loading: admitted, and the answer will come.
	Loading Outcome = iota
	// Busy: not admitted. It may be asked again.
	Busy
	// Ready: with a Lease, or without one, and then the engine computes.
	Ready
	// Candidates: of a discovery.
	Candidates
)

// Answer is what a query has got.
type Answer struct {
	Outcome Outcome
	// Why says why a Ready has no lease.
	Why core.Why
	// Lease is nil unless there is something to restore. Its holder restores or releases it.
	Lease *Lease
	// Positions are a discovery's, by group.
	Positions [][]uint32
}

// Pending is a query that was asked.
type Pending struct {
	s      *Session
	call   *call
	ticket core.Ticket
}

// Ask asks, and does not wait. The query's Ticket is given here, Revision 1. End the Pending with an answer from Wait that is not Loading, or
// with Cancel.
func (s *Session) Ask(q *wire.Query) (*Pending, error) {
	c, err := s.query.ask(q, func() {
		s.ops++
		q.Ticket = core.Ticket{Op: s.ops, Revision: 1}
	})
	if err != nil {
		return nil, err
	}
	return &Pending{s, c, q.Ticket}, nil
}

// Ticket is the query's.
func (p *Pending) Ticket() core.Ticket { return p.ticket }

// Next waits for the next answer: Loading at most once, then the last one.
func (p *Pending) Next(ctx context.Context) (Answer, error) {
	a, err := p.call.next(ctx)
	if err != nil {
		return Answer{}, err
	}
	switch m := a.m.(type) {
	case *wire.Loading:
		return Answer{}, nil
	case *wire.Busy:
		p.call.link.forget(p.call)
		return Answer{Outcome: Busy}, nil
	case *wire.Candidates:
		p.call.link.forget(p.call)
		return Answer{Outcome: Candidates, Positions: m.Positions}, nil
	case *wire.Ready:
		p.call.link.forget(p.call)
		out := Answer{Outcome: Ready, Why: m.Why}
		if m.Lease != (core.LeaseID{}) {
			out.Lease = &Lease{ID: m.Lease, Hits: m.Hits, Arenas: m.Arenas}
		}
		return out, nil
	}
	p.call.link.uc.Close()
	return Answer{}, ErrProtocol
}

// Cancel ends the interest in the query. A lease that it has got and that nobody has started on ends with it.
func (p *Pending) Cancel() {
	p.call.link.say(0, &wire.Cancel{Ticket: p.ticket})
	p.call.link.forget(p.call)
}

// Query asks and waits for the last answer. If the context ends first the query is cancelled.
func (s *Session) Query(ctx context.Context, q *wire.Query) (Answer, error) {
	p, err := s.Ask(q)
	if err != nil {
		return Answer{}, err
	}
	for {
		a, err := p.Next(ctx)
		if err != nil {
			p.Cancel()
			return Answer{}, err
		}
		if a.Outcome != Loading {
			return a, nil
		}
	}
}

// Release gives up a lease that was not started on.
func (s *Session) Release(l *Lease) error { return s.query.say(0, &wire.Release{Lease: l.ID}) }
