package policy

import (
	"context"
	"errors"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// lookup asks the source who holds the request's prefix, unless this request has asked it before. known is false where the source could
// not be asked or did not know; then the policy goes on without prefixes, which is not the same as a miss. The error ends the
// pick: the source refuses the question, or the context has ended. none is an empty match to
// return where there is no other.
func lookup(ctx context.Context, s prefix.Source, r *Request, none *prefix.Match) (m *prefix.Match, known bool, err error) {
	if s == nil || r.Prefix == nil {
		return none, false, nil
	}
	m, _, err = r.Prefix.Lookup(ctx, s)
	if r.Trace != nil {
		r.Trace.Source, r.Trace.SourceErr = s.Name(), err
	}
	if err == nil {
		return m, len(r.Prefix.Query().Tokens) > 0, nil
	}
	var away *prefix.Unavailable
	switch {
	case ctx.Err() != nil:
		return nil, false, context.Cause(ctx)
	case errors.As(err, &away):
		return none, false, nil
	}
	// Whatever else it says, it and we do not agree on something.
	return nil, false, &PickError{Class: InvalidSignal, Stage: r.Stage, Detail: s.Name() + ": " + err.Error()}
}
