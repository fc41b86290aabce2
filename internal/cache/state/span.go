package state

import "strconv"

// MaxTokens bounds positions in a prompt. It is far beyond any model, and keeps sums of positions from overflowing.
const MaxTokens = 1 << 40

// Span is the tokens from Start up to, and without, End.
type Span struct{ Start, End uint64 }

// Len is the number of tokens.
func (s Span) Len() uint64 { return s.End - s.Start }

// IsEmpty says that there is no token in it.
func (s Span) IsEmpty() bool { return s.Start == s.End }

// String is "[start,end)".
func (s Span) String() string {
	return "[" + strconv.FormatUint(s.Start, 10) + "," + strconv.FormatUint(s.End, 10) + ")"
}

// check wants a span that starts and ends at page ends and below MaxTokens; it may be empty.
func (s Span) check(page uint64) error {
	switch {
	case s.Start > s.End:
		return fail(ErrSpan, s.String(), " is reversed")
	case s.End > MaxTokens:
		return fail(ErrSpan, s.String(), " is beyond MaxTokens")
	case s.Start%page != 0 || s.End%page != 0:
		return fail(ErrSpan, s.String(), " is not on page ends")
	default:
		return nil
	}
}

// Publishable returns the last page end up to which an engine may publish, of a request with computed tokens in its pages of which the
// target model has accepted the first ones. Under speculative decoding pages also hold tokens that were proposed and not, or not
// yet, accepted: a page that has one of them is no state of any prefix. pageTokens must not be 0.
func Publishable(computed, accepted, pageTokens uint64) uint64 {
	return min(computed, accepted) / pageTokens * pageTokens
}
