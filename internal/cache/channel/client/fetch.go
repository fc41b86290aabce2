package client

import (
	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
)

// Fetched is what became of a Fetch.
type Fetched struct {
	// Busy says that nothing was done, since a Query would have to wait: ask with one.
	Busy bool
	// Why says why nothing was found.
	Why core.Why
	// Good pages, the first ones, are what was sealed. The pieces up to page Found may hold anything; those behind it were not touched.
	Good, Found uint32
	// Outcome is core.Done if Good is Found, core.Mismatch if page Good was found to be other than was sealed.
	Outcome core.Outcome
}

// Fetch has the Manager copy those of the blocks that it has, from the first on, into offered pools: Query and RestoreInto in one message. It returns when
// nothing is copied any more: until then the pieces are the Manager's, and no context ends that. A Manager that does not know it refuses it as
// wire.Unknown, and the two others do.
func (s *Session) Fetch(m *wire.Fetch) (Fetched, error) {
	if err := s.begin(); err != nil {
		return Fetched{}, err
	}
	defer s.work.Done()
	s.copies.Add(1) // before the Manager can have it: Close must not cut the connection in between
	defer s.copies.Add(-1)
	c, err := s.query.ask(m, nil)
	if err != nil { // half a message begins nothing
		return Fetched{}, err
	}
	defer s.query.forget(c)
	a, err := c.last()
	if err != nil {
		return Fetched{}, s.lost(err)
	}
	switch a := a.m.(type) {
	case *wire.Fetched:
		return Fetched{Why: a.Why, Good: a.Good, Found: a.Found, Outcome: a.Outcome}, nil
	case *wire.Busy:
		return Fetched{Busy: true}, nil
	}
	s.query.uc.Close()
	return Fetched{}, ErrProtocol
}
