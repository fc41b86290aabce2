package body

// Class says what is wrong with a body. It is an error itself, so that a caller branches with
// errors.Is(err, body.ErrTooDeep). All of them are the client's mistakes (HTTP 400; ErrTooLarge is 413).
type Class uint8

// The classes of a refused body. A body with several mistakes is refused for the first one in it.
const (
	ErrSyntax        Class = iota + 1 // not one JSON value by RFC 8259 and nothing else; also empty, truncated, or behind a byte order mark
	ErrUTF8                           // a string is not UTF-8, or a name that we read has half a surrogate pair
	ErrTooDeep                        // nested deeper than MaxDepth
	ErrTooLarge                       // longer than MaxLen
	ErrNotObject                      // JSON, but not an object
	ErrDuplicateKey                   // a key that we read occurs twice
	ErrWrongType                      // a key that we read has a value of another kind, or out of its range
	ErrMissingModel                   // no model, or null
	ErrMissingPrompt                  // a completion without a prompt, or with an empty list as one
	ErrUnknownKey                     // a key that [ReadFields] was not asked for
)

// Error is the fixed text of the class. It holds nothing of the body.
func (c Class) Error() string {
	switch c {
	case ErrSyntax:
		return "the request body is not valid JSON"
	case ErrUTF8:
		return "the request body is not valid UTF-8"
	case ErrTooDeep:
		return "the request body is nested too deeply"
	case ErrTooLarge:
		return "the request body is too large"
	case ErrNotObject:
		return "the request body is not a JSON object"
	case ErrDuplicateKey:
		return "the request body repeats a key"
	case ErrWrongType:
		return "the request body has a value of the wrong type"
	case ErrMissingModel:
		return "the request body has no model"
	case ErrMissingPrompt:
		return "the request body has no prompt"
	case ErrUnknownKey:
		return "the request body has a key that this path does not know"
	}
	return "the request body is refused"
}

// Error is what Scan returns for every refused body. Its text may go to the client: the class's fixed text
// and the name of one of our own keys, never a part of the body.
type Error struct {
	Class Class
	// Key is the name of the key with ErrDuplicateKey and ErrWrongType, else empty. A member of another
	// object is written with a dot: stream_options.include_usage.
	Key string
	// Offset is the byte at which the scan stopped, for logs; at most the body's length.
	Offset int
}

// Error is safe to send to the client.
func (e *Error) Error() string {
	if e.Key == "" {
		return e.Class.Error()
	}
	return e.Class.Error() + ": " + e.Key
}

// Unwrap returns the class, for errors.Is.
func (e *Error) Unwrap() error { return e.Class }
