package manager

import (
	"strconv"

	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/cache/state"
)

// checkDemand returns what is wrong with a query's demand, before anything is admitted or reserved for it, or "".
func checkDemand(s *session, e *wire.Query) string {
	if e.Mode == core.Exact {
		return checkExact(s, e)
	}
	if e.Demand.PageTokens == 0 {
		return ""
	}
	if e.Demand.PageTokens != s.tokens {
		return "pages have " + strconv.FormatUint(s.tokens, 10) + " tokens"
	}
	if _, err := s.contract.RequiredRanges(state.NamespaceID(s.namespace), e.Demand.Span); err != nil {
		return err.Error()
	}
	for _, w := range e.Wants {
		if uint64(len(w.Hashes)) > e.Demand.Span.Len()/s.tokens {
			return "group " + strconv.FormatUint(uint64(w.Group), 10) + " names more blocks than the span has pages"
		}
	}
	return ""
}

// checkExact wants all groups, each with exactly what the contract requires.
func checkExact(s *session, e *wire.Query) string {
	if len(e.Wants) != len(s.parts) {
		return "a restore needs all " + strconv.Itoa(len(s.parts)) + " groups"
	}
	for _, w := range e.Wants {
		if err := s.contract.Validate(&e.Demand, w.Group, len(w.Hashes)); err != nil {
			return err.Error()
		}
	}
	return ""
}
