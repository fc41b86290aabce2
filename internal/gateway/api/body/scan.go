package body

import "github.com/perigee-llm/perigee/internal/gateway/api/body/lex"

// Scan checks all of b and reads its facts. The error is always an *Error, and the facts are zero then.
//
// It is stricter than RFC 8259 asks: see MaxDepth, MaxLen, and ErrDuplicateKey. It is as lax as the engines
// about half a surrogate pair written as an escape ("\ud800"), which Python reads: it passes on in every
// value, and only in names that we must compare (model, rid) it is refused, because an engine would see
// another name than we do.
//
// Scan keeps nothing of b but through the facts. Calls may overlap.
func Scan(b []byte, kind Kind) (f Facts, err error) {
	err = f.Scan(b, kind)
	return f, err
}

// Scan is like the function Scan, and fills f, which is large, where it stands. After an error f is empty.
func (f *Facts) Scan(b []byte, kind Kind) error {
	if len(b) > MaxLen {
		*f = Facts{}
		return &Error{Class: ErrTooLarge}
	}
	r := reader{Scanner: lex.Of(b), b: b}
	*f = Facts{Kind: kind}
	if !r.object(f) || !r.finish(f) {
		*f = Facts{}
		return r.error()
	}
	return nil
}

// reader is one scan. A method that refuses the body notes why, in class or in the Scanner's own fault, and
// returns a negative offset.
type reader struct {
	lex.Scanner
	b     []byte
	class Class // set when the refusal is ours and not the Scanner's
	key   string
	at    int
}

func (r *reader) refuse(c Class, key string, at int) int {
	r.class, r.key, r.at = c, key, at
	return -1
}

func (r *reader) error() *Error {
	if r.class != 0 {
		return &Error{Class: r.class, Key: r.key, Offset: r.at}
	}
	e := &Error{Class: ErrSyntax, Offset: r.At}
	switch r.Fault {
	case lex.UTF8:
		e.Class = ErrUTF8
	case lex.TooDeep:
		e.Class = ErrTooDeep
	}
	return e
}

// object reads the whole body.
func (r *reader) object(f *Facts) bool {
	i := r.Space(0)
	if r.Byte(i) != '{' {
		if r.Value(i) >= 0 || r.Fault == lex.TooDeep {
			r.refuse(ErrNotObject, "", i)
		}
		return false
	}
	f.open = int32(i)
	if i = r.Enter(i); r.Byte(i) == '}' {
		i = r.Leave(i)
	} else if i = r.memberList(f, i); i < 0 {
		return false
	}
	f.close = int32(i - 1)
	if i = r.Space(i); i != len(r.b) {
		r.Fail(lex.Syntax, i)
		return false
	}
	return true
}

// memberList reads from the first name to the closing brace.
func (r *reader) memberList(f *Facts, i int) int {
	comma := i
	for index := int32(0); ; index++ {
		start, shrink := i, r.Shrink
		end, value := r.Key(i)
		if value < 0 {
			return -1
		}
		k, ok := keyAt(r.b[start+1:end-1], r.Shrink != shrink)
		if !ok {
			i = r.Value(value)
		} else if f.keys.Has(k) {
			return r.refuse(ErrDuplicateKey, k.String(), start)
		} else {
			f.keys |= 1 << k
			i = r.member(f, k, value)
		}
		if i < 0 {
			return -1
		}
		next := r.Space(i)
		if ok {
			f.at[k] = member{index: index, comma: int32(comma), key: int32(start), value: int32(value), end: int32(i)}
			if r.Byte(next) == ',' {
				f.at[k].next = int32(next)
			}
		}
		comma = next
		var more bool
		if i, more = r.Next(next); !more {
			f.members = index + 1
			return i
		}
	}
}

// member reads the value of a known key.
func (r *reader) member(f *Facts, k Key, i int) int {
	switch k {
	case Model:
		return r.name(&f.Model, k, i)
	case RID:
		if r.Byte(i) != '"' {
			return r.Value(i) // SGLang takes lists, too; whether a client may say any of it is decided elsewhere
		}
		return r.name(&f.RID, k, i)
	case Stream:
		return r.bool(&f.Stream, k.String(), i)
	case MaxTokens:
		return r.count(&f.MaxTokens, k, i)
	case MaxCompletionTokens:
		return r.count(&f.MaxCompletionTokens, k, i)
	case StreamOptions:
		return r.streamOptions(f, i)
	case Prompt:
		if f.Kind == Completion {
			return r.prompt(&f.Prompt, i)
		}
	}
	return r.Value(i)
}

// wrongType refuses the value at i, which is not of the kind that key needs, but calls it a syntax error if
// it is one.
func (r *reader) wrongType(key string, i int) int {
	if r.Value(i) < 0 {
		return -1
	}
	return r.refuse(ErrWrongType, key, i)
}

// null reads null, when it is one: the offset behind it, and whether it was.
func (r *reader) null(i int) (int, bool) {
	if r.Byte(i) != 'n' {
		return i, false
	}
	return r.Scalar(i), true
}

func (r *reader) name(dst *[]byte, k Key, i int) int {
	if end, ok := r.null(i); ok {
		return end
	}
	if r.Byte(i) != '"' {
		return r.wrongType(k.String(), i)
	}
	shrink, lone := r.Shrink, r.Lone
	end := r.String(i)
	switch {
	case end < 0:
		return -1
	case r.Lone != lone:
		return r.refuse(ErrUTF8, "", i)
	}
	*dst = r.b[i+1 : end-1 : end-1]
	if r.Shrink != shrink {
		*dst = lex.AppendDecoded(make([]byte, 0, end-i-2-(r.Shrink-shrink)), *dst)
	}
	return end
}

func (r *reader) bool(dst *bool, key string, i int) int {
	switch r.Byte(i) {
	case 't':
		*dst = true
	case 'f', 'n':
		*dst = false
	default:
		return r.wrongType(key, i)
	}
	return r.Scalar(i)
}

func (r *reader) count(dst *Count, k Key, i int) int {
	if end, ok := r.null(i); ok {
		return end
	}
	end := r.Value(i)
	if end < 0 {
		return -1
	}
	if *dst = lex.CountOf(r.b[i:end]); !dst.Known {
		return r.refuse(ErrWrongType, k.String(), i)
	}
	return end
}

// streamOptions reads stream_options: an object whose include_usage we read, or null.
func (r *reader) streamOptions(f *Facts, i int) int {
	if end, ok := r.null(i); ok {
		return end
	}
	if r.Byte(i) != '{' {
		return r.wrongType(StreamOptions.String(), i)
	}
	const path = "stream_options.include_usage"
	if i = r.Enter(i); r.Byte(i) == '}' {
		return r.Leave(i)
	}
	seen := false
	for more := true; more; {
		start, shrink := i, r.Shrink
		end, value := r.Key(i)
		if value < 0 {
			return -1
		}
		if !isIncludeUsage(r.b[start+1:end-1], r.Shrink != shrink) {
			i = r.Value(value)
		} else if seen {
			return r.refuse(ErrDuplicateKey, path, start)
		} else {
			i = r.bool(&f.IncludeUsage, path, value)
			seen = true
		}
		if i < 0 {
			return -1
		}
		if i, more = r.Next(i); i < 0 {
			return -1
		}
	}
	return i
}

func isIncludeUsage(raw []byte, escaped bool) bool {
	const name = "include_usage"
	if !escaped {
		return string(raw) == name
	}
	if len(raw) > 6*len(name) {
		return false
	}
	var buf [6 * len(name)]byte
	return string(lex.AppendDecoded(buf[:0], raw)) == name
}

// finish checks what only the whole body can tell.
func (r *reader) finish(f *Facts) bool {
	f.FanOut = fansOut(f.Value(N).Of(r.b)) || fansOut(f.Value(BestOf).Of(r.b))
	if f.Model == nil {
		r.refuse(ErrMissingModel, "", int(f.close))
		return false
	}
	if f.Prompt.Kind != PromptNone {
		return true
	}
	f.Prompt = PromptFacts{Kind: PromptMessages, Count: 1}
	if f.Kind == Completion {
		if v := f.Value(PromptEmbeds).Of(r.b); len(v) == 0 || v[0] == 'n' {
			r.refuse(ErrMissingPrompt, "", int(f.close))
			return false
		}
		f.Prompt.Kind = PromptVectors
	}
	f.Prompt.Longest = quarter(len(r.b))
	f.Prompt.Total = f.Prompt.Longest
	return true
}

// quarter is the number of tokens that n bytes are taken for.
func quarter(n int) int { return max(1, n/4) }

// fansOut says whether a value of n or best_of lets a request run as several sequences.
func fansOut(raw []byte) bool {
	if len(raw) == 0 || raw[0] == 'n' {
		return false
	}
	n, ok := ReadNumber(raw)
	return !ok || n > 1
}
