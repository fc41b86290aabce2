package prefix

import "context"

// Source knows who holds which prefix.
type Source interface {
	// Name returns the source's name in the decision log and in metrics.
	Name() string
	// Lookup fills the match, which it is given empty, or returns an *[Unavailable] or an *[Rejected]; the match is then not to be
	// used. The context bounds a source that has to ask elsewhere. Several goroutines may call it at once, each with its own match.
	Lookup(ctx context.Context, q *Query, into *Match) error
}

// Reason says why a source is unavailable.
type Reason string

// The reasons. The set is small: it labels a metric.
const (
	Unreachable Reason = "unreachable"
	TimedOut    Reason = "timeout"
	Overloaded  Reason = "overloaded" // there, or here, where so many look-ups are under way that another would wait
	TooLarge    Reason = "too_large"
	NotReady    Reason = "not_ready" // it has no index of that model yet
)

// Unavailable says that the source does not know just now. A policy then goes on without it; that is not a miss.
type Unavailable struct {
	Reason Reason
	Err    error // the cause, or nil
}

// Error implements error.
func (e *Unavailable) Error() string {
	s := "the prefix source is unavailable: " + string(e.Reason)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *Unavailable) Unwrap() error { return e.Err }

// Rejected says that the source refuses the question: it and we do not agree on something, and going on would hide that. A
// policy answers with an invalid signal.
type Rejected struct{ Err error }

// Error implements error.
func (e *Rejected) Error() string { return "the prefix source refuses the look-up: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *Rejected) Unwrap() error { return e.Err }

// Memo remembers what sources answered for one request, so that each is asked once however many buckets and attempts look. A miss
// and an unavailable source are remembered too, and apart; what ended with the request's own context is not.
//
// It belongs to one request and to one goroutine at a time. The zero value has no tokens: every look-up is a miss without a question.
type Memo struct {
	query   Query
	answers []answer
}

type answer struct {
	source Source
	match  Match
	err    error
}

// Reset makes the memo one of a new request. The query's tokens are kept until the next Reset; they must not change meanwhile.
func (m *Memo) Reset(q Query) {
	m.query = q
	m.answers = m.answers[:0]
}

// Query returns what is asked.
func (m *Memo) Query() *Query { return &m.query }

// Lookup returns the source's answer, which stays good until the memo is reset. Asked says whether this call asked the source.
func (m *Memo) Lookup(ctx context.Context, s Source) (match *Match, asked bool, err error) {
	for i := range m.answers {
		if a := &m.answers[i]; a.source == s {
			return &a.match, false, a.err
		}
	}
	n := len(m.answers)
	if n < cap(m.answers) {
		m.answers = m.answers[:n+1] // with the memory of an earlier match
	} else {
		m.answers = append(m.answers, answer{})
	}
	a := &m.answers[n]
	a.source, a.err = s, nil
	a.match.Reset()
	if len(m.query.Tokens) == 0 {
		return &a.match, false, nil
	}
	a.err = s.Lookup(ctx, &m.query, &a.match)
	if a.err != nil {
		a.match.Reset()
		if ctx.Err() != nil {
			err := a.err
			m.answers = m.answers[:n]
			return &Match{}, true, err
		}
	}
	return &a.match, true, a.err
}
