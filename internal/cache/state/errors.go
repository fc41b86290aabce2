package state

import "errors"

// Classes of errors. Every error of this package wraps exactly one of them; the text says what is wrong where.
var (
	// ErrInvalid says that an identity lacks a field or has one out of its bounds. Whoever registers has to mend it.
	ErrInvalid = errors.New("invalid identity")
	// ErrEncoding says that bytes are not what an encoder of this version writes: cut short, too long, not canonical, or of a
	// value that is invalid.
	ErrEncoding = errors.New("bad encoding")
	// ErrVersion says that bytes are of a version that is not ours. They may be good; they are a miss, not damage.
	ErrVersion = errors.New("other version")
	// ErrContract says that requirements make no contract: nothing could ever be restored under them, or too much.
	ErrContract = errors.New("no recovery contract")
	// ErrSpan says that a span is reversed, empty where it may not be, not on page ends, or beyond MaxTokens.
	ErrSpan = errors.New("bad span")
	// ErrForeign says that pages or demands are of another namespace. They are a miss.
	ErrForeign = errors.New("other namespace")
	// ErrCoverage says that evidence of which pages exist is malformed: a group is missing, unknown or given twice, or its page ends are
	// not sorted, not aligned or out of their span.
	ErrCoverage = errors.New("bad coverage")
	// ErrDemand says that a demand does not ask for what its contract requires. The asker and the Manager disagree about the model,
	// so nothing may be read for it.
	ErrDemand = errors.New("demand breaks the contract")
)

// fault is an error of a class, with its story.
type fault struct {
	class error
	text  string
}

// Error implements error.
func (f *fault) Error() string { return f.class.Error() + ": " + f.text }

// Unwrap returns the class, for errors.Is.
func (f *fault) Unwrap() error { return f.class }

// fail makes an error of a class. This package cannot format with fmt, which reaches os.
func fail(class error, parts ...string) error {
	text := ""
	for _, p := range parts {
		text += p
	}
	return &fault{class, text}
}
