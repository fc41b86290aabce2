package body

import (
	"bytes"

	"github.com/perigee-llm/perigee/internal/gateway/api/body/lex"
)

// Field is a key that an object may have, and its raw value as [ReadFields] found it: a part of the text, nil where there is none.
type Field struct {
	Name string // of at most 22 characters
	Raw  []byte
}

// longestField is how long a name can be that is one of ours: each of its characters is at most six bytes long when it is escaped.
const longestField = 6 * 22

// ReadFields reads an object that may have the keys of fields and no others, each at most once, into them. It stops at the first key that is another, or is
// there again, and allocates nothing however many there are. What it accepts is valid JSON, in valid UTF-8, as for [Facts.Scan].
//
// An error is a Class: ErrUnknownKey and ErrDuplicateKey say nothing of what follows.
func ReadFields(text []byte, fields []Field) error {
	s := lex.Of(text)
	i := s.Space(0)
	if s.Byte(i) != '{' {
		if i = s.Value(i); i < 0 || s.Space(i) < len(text) {
			return classOf(&s)
		}
		return ErrNotObject
	}
	if i = s.Enter(i); i < 0 {
		return classOf(&s)
	}
	more := s.Byte(i) != '}'
	if !more {
		i = s.Leave(i)
	}
	for more {
		name := i
		end, value := s.Key(i)
		if value < 0 {
			return classOf(&s)
		}
		f := fieldNamed(fields, text[name+1:end-1])
		if f == nil {
			return ErrUnknownKey
		}
		if f.Raw != nil {
			return ErrDuplicateKey
		}
		if i = s.Value(value); i < 0 {
			return classOf(&s)
		}
		f.Raw = text[value:i:i]
		if i, more = s.Next(i); i < 0 {
			return classOf(&s)
		}
	}
	if s.Space(i) < len(text) {
		return ErrSyntax
	}
	return nil
}

// fieldNamed returns the field of that raw name, nil where there is none.
func fieldNamed(fields []Field, raw []byte) *Field {
	if len(raw) > longestField {
		return nil
	}
	var room [longestField]byte
	name := lex.AppendDecoded(room[:0], raw)
	for i := range fields {
		if fields[i].Name == string(name) {
			return &fields[i]
		}
	}
	return nil
}

// classOf says why a scanner refused its text.
func classOf(s *lex.Scanner) Class {
	switch s.Fault {
	case lex.UTF8:
		return ErrUTF8
	case lex.TooDeep:
		return ErrTooDeep
	}
	return ErrSyntax
}

// Text returns what a raw value that was accepted stands for if it is a string. It takes twice the length of raw at most while it works, and once for
// what it returns.
func Text(raw []byte) (text string, ok bool) {
	if len(raw) < 2 || raw[0] != '"' {
		return "", false
	}
	raw = raw[1 : len(raw)-1]
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw), true
	}
	return string(lex.AppendDecoded(make([]byte, 0, len(raw)), raw)), true
}
