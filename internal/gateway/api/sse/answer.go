package sse

import (
	"bytes"
	"sync"

	"github.com/perigee-llm/perigee/internal/gateway/api/body/lex"
)

// MaxUsage is the longest usage object that is read of a JSON answer, in bytes; a longer one is unknown. Real
// ones are below 500 bytes.
const MaxUsage = 4 << 10

// Answer reads one JSON answer while it passes by, and finds the usage of its top-level object. It keeps the
// usage object's bytes and nothing else, so an answer may be of any size. It follows strings and brackets and
// checks nothing: of a broken answer it may find anything or nothing. The zero value is ready.
type Answer struct {
	depth    int // brackets open
	inString bool
	escaped  bool // the next byte of the string belongs to a backslash
	broken   bool // something follows the top-level value

	wantKey bool // the next string at depth 1 is a member's name (or an element of a list, which no colon follows)
	inKey   bool
	key     [6 * len("usage")]byte // its raw text, as much as could be ours
	keyLen  int                    // more than len(key): too long to be ours

	afterKey bool // the next value at depth 1 is usage
	capture  bool // buf gets every byte of an object that ends when depth is 1 again
	tooLong  bool // the object is longer than MaxUsage, so buf lacks some of it
	buf      []byte
	usage    Usage
	closed   bool // the top-level object has ended
}

// Write reads the next bytes of the answer. It neither keeps nor changes p.
func (a *Answer) Write(p []byte) {
	for i, from := 0, 0; i < len(p); {
		was := a.capture
		if a.inString {
			i = a.string(p, i)
		} else {
			i = a.structure(p, i)
		}
		if a.capture && !was {
			from = i - 1 // its opening brace
		}
		if a.capture && (a.depth <= 1 || i == len(p)) {
			a.captured(p[from:i])
		}
	}
}

// structure takes bytes outside of strings, and strings that are there as a whole and have no escape at their end, up to the quote that begins another one, to where a
// usage object begins or ends, or to the end of the chunk.
func (a *Answer) structure(p []byte, i int) int {
	for i < len(p) {
		c := p[i]
		i++
		if a.afterKey && c > ' ' && c != ':' {
			a.afterKey = false
			a.usage = Usage{}
			a.capture = c == '{'
		}
		switch c {
		case '"':
			a.broken = a.broken || a.depth == 0
			a.inKey = a.wantKey && a.depth == 1
			end := bytes.IndexByte(p[i:], '"')
			if end < 0 || end > 0 && p[i+end-1] == '\\' {
				a.inString, a.keyLen = true, 0
				return i
			}
			if a.inKey {
				a.keyRead(p[i : i+end])
			}
			i += end + 1
		case '{', '[':
			if a.depth == 0 {
				a.broken = a.broken || a.closed
				a.wantKey = true
			}
			if a.depth++; a.capture && a.depth == 2 {
				return i
			}
		case '}', ']':
			if a.depth--; a.depth <= 0 {
				a.broken = a.broken || a.depth < 0
				a.depth, a.closed = 0, true
			}
			if a.capture && a.depth <= 1 {
				return i
			}
		case ',':
			if a.depth == 1 {
				a.wantKey = true
			}
		case ' ', '\n', '\r', '\t':
		default:
			a.broken = a.broken || a.depth == 0
		}
	}
	return i
}

// string takes bytes inside a string up to its closing quote, or to the end of the chunk.
func (a *Answer) string(p []byte, i int) int {
	start := i
	if a.escaped {
		a.escaped = false
		i++
	}
	for {
		rest := p[i:]
		end := bytes.IndexByte(rest, '"')
		if end < 0 {
			a.escaped = backslashes(rest)%2 == 1
			i = len(p)
			break
		}
		i += end + 1
		if backslashes(rest[:end])%2 == 0 {
			a.inString = false
			break
		}
	}
	if a.inKey {
		a.keyPart(p[start:i])
	}
	return i
}

// backslashes counts those at the end of b.
func backslashes(b []byte) int {
	n := 0
	for n < len(b) && b[len(b)-1-n] == '\\' {
		n++
	}
	return n
}

// keyPart collects a member's name, and looks at it when its quote has come.
func (a *Answer) keyPart(part []byte) {
	text := part
	if !a.inString {
		text = part[:len(part)-1]
	}
	if a.keyLen+len(text) <= len(a.key) {
		copy(a.key[a.keyLen:], text)
	}
	a.keyLen += len(text)
	if a.inString {
		return
	}
	if a.keyLen > len(a.key) { // what is kept may end within an escape
		a.keyLen = 0
	}
	a.keyRead(a.key[:a.keyLen])
}

// keyRead looks at a member's name.
func (a *Answer) keyRead(raw []byte) {
	a.inKey, a.wantKey = false, false
	a.afterKey = isUsage(raw)
}

// isUsage tells whether the raw text of a name stands for ours. It need not be decoded unless it has an escape.
func isUsage(raw []byte) bool {
	if string(raw) == "usage" {
		return true
	}
	if len(raw) > 6*len("usage") || bytes.IndexByte(raw, '\\') < 0 {
		return false
	}
	var buf [6 * len("usage")]byte
	return string(lex.AppendDecoded(buf[:0], raw)) == "usage"
}

// captured adds a part of the usage object, and reads the object when it has ended.
func (a *Answer) captured(part []byte) {
	need := len(a.buf) + len(part)
	if a.tooLong = a.tooLong || need > MaxUsage; !a.tooLong {
		if need > cap(a.buf) {
			grown := make([]byte, len(a.buf), max(usualUsage, need, min(2*cap(a.buf), MaxUsage)))
			copy(grown, a.buf)
			a.buf = grown
		}
		a.buf = append(a.buf, part...)
	}
	if a.depth > 1 {
		return
	}
	r := reader{Scanner: lex.Of(a.buf), b: a.buf}
	var c chunk
	if !a.tooLong && r.object(0, &c, usageMember) == len(a.buf) {
		a.usage = c.usage
	}
	a.buf, a.capture, a.tooLong = a.buf[:0], false, false
}

// Usage returns the usage that the engine reported; all unknown without one.
func (a *Answer) Usage() Usage { return a.usage }

// Complete says whether the answer, if it ends here, is one whole JSON object or array and nothing else.
func (a *Answer) Complete() bool { return a.closed && a.depth == 0 && !a.inString && !a.broken }

// usualUsage is above the longest usage object that engines write, in bytes.
const usualUsage = 512

var usages = sync.Pool{New: func() any { return new([usualUsage]byte) }}

// UsageOf returns the usage of a JSON answer that is there as a whole.
func UsageOf(body []byte) Usage {
	room := usages.Get().(*[usualUsage]byte)
	defer usages.Put(room)
	a := Answer{buf: room[:0]}
	a.Write(body)
	return a.usage
}
