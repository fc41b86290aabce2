// Package lex walks JSON text in place: it checks every byte strictly and converts nothing.
//
// It promises: what it accepts is valid JSON by RFC 8259 in valid UTF-8, nested at most MaxDepth levels;
// it reads each byte about once, never allocates, never recurses, and never changes the text.
// It is pure: no I/O, no clock, no goroutine.
//
// Positions are byte offsets into the text. A method that moves takes the offset of the first byte of
// what it reads and returns the offset just after it, or -1 when the text is refused; then Fault and At
// say why and where, and the Scanner must not be used any further.
package lex

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// MaxDepth is the deepest nesting of arrays and objects that is accepted. Python's json module, which
// the engines read a request with, gives up near 1,000 levels less the frames of the web framework
// below it, and answers a 500 that would look like the engine's fault; real requests (tool schemas
// inside messages) stay below 50. 512 is above every real use and below what hurts an engine.
const MaxDepth = 512

// Fault says why a text was refused. The zero value is no fault.
type Fault uint8

// The faults.
const (
	None    Fault = iota
	Syntax        // not JSON by RFC 8259; also a text that ends too early
	UTF8          // a string holds bytes that are not UTF-8
	TooDeep       // more than MaxDepth levels
)

// Scanner reads one JSON text. Make it with Of. It holds no resource and is for one goroutine.
type Scanner struct {
	b     []byte
	depth int                   // containers open at the current position
	kinds [MaxDepth / 64]uint64 // bit d is set when level d is an object

	// Shrink grows with every escape read by the bytes that it is longer than what it stands for, so a
	// string without escapes leaves it as it was, and its difference over a string is the raw length
	// less the decoded length in UTF-8. A lone surrogate counts as the three bytes of U+FFFD.
	Shrink int
	// Lone counts escapes of one half of a surrogate pair without the other. RFC 8259 allows them and
	// Python and Go read them, so the text is valid; a reader of the string may want to refuse it.
	Lone int

	Fault Fault // why the last move returned -1
	At    int   // the offset of the refused byte, at most the length of the text
}

// Of returns a scanner at the start of b. b must not change while it is in use.
func Of(b []byte) Scanner { return Scanner{b: b} }

// Fail notes a fault at offset i and returns -1; callers that read more strictly use it too.
func (s *Scanner) Fail(f Fault, i int) int {
	s.Fault, s.At = f, min(i, len(s.b))
	return -1
}

// Byte returns the byte at i, or 0 at the end of the text: NUL is legal nowhere outside of a string,
// and is refused inside of one, so 0 never hides a byte that matters.
func (s *Scanner) Byte(i int) byte {
	if uint(i) < uint(len(s.b)) {
		return s.b[i]
	}
	return 0
}

// Space skips white space from i on and returns the first offset behind it. It cannot fail.
func (s *Scanner) Space(i int) int {
	for uint(i) < uint(len(s.b)) {
		if c := s.b[i]; c > ' ' || (c != ' ' && c != '\n' && c != '\t' && c != '\r') {
			break
		}
		i++
	}
	return i
}

// Enter opens the array or object that starts at i and returns the offset of the first byte of its first
// element, or of the bracket that closes it. Leave the container with Next or Leave.
func (s *Scanner) Enter(i int) int {
	if s.depth == MaxDepth {
		return s.Fail(TooDeep, i)
	}
	w, bit := s.depth>>6, uint64(1)<<(s.depth&63)
	if s.b[i] == '{' {
		s.kinds[w] |= bit
	} else {
		s.kinds[w] &^= bit
	}
	s.depth++
	return s.Space(i + 1)
}

// Leave closes the innermost container at its closing bracket, offset i, and returns i+1. The caller has
// looked at the byte.
func (s *Scanner) Leave(i int) int {
	s.depth--
	return i + 1
}

// Next goes on behind an element of the innermost container, from offset i: behind a comma it returns the
// offset of the next element and true, behind the closing bracket the offset after it and false.
func (s *Scanner) Next(i int) (next int, more bool) {
	i = s.Space(i)
	switch s.Byte(i) {
	case ',':
		return s.Space(i + 1), true
	case s.closer():
		return s.Leave(i), false
	}
	return s.Fail(Syntax, i), false
}

// Key reads a member's name from its opening quote at i, and the colon. It returns the offset behind the
// closing quote, and that of the first byte of the value; -1, -1 when refused.
func (s *Scanner) Key(i int) (end, value int) {
	if s.Byte(i) != '"' {
		return -1, s.Fail(Syntax, i)
	}
	if end = s.String(i); end < 0 {
		return -1, -1
	}
	i = end
	if s.Byte(i) != ':' {
		if i = s.Space(i); s.Byte(i) != ':' {
			return -1, s.Fail(Syntax, i)
		}
	}
	return end, s.Space(i + 1)
}

// Value reads the value that starts at i, of any kind and depth.
func (s *Scanner) Value(i int) int {
	base := s.depth
	for {
		switch c := s.Byte(i); c {
		case '{', '[':
			if i = s.Enter(i); i < 0 {
				return -1
			}
			switch {
			case s.Byte(i) == c+2: // both closing brackets are two code points behind their opening ones
				i = s.Leave(i)
			case c == '{':
				if _, i = s.Key(i); i < 0 {
					return -1
				}
				continue
			default:
				continue
			}
		default:
			if i = s.Scalar(i); i < 0 {
				return -1
			}
		}
		if i = s.climb(i, base); i < 0 || s.depth == base {
			return i
		}
	}
}

// climb closes what ends behind a value at i, and stops at the next value or when depth is back at base.
func (s *Scanner) climb(i, base int) int {
	for s.depth > base {
		var more bool
		if i, more = s.Next(i); i < 0 {
			return -1
		}
		if more {
			if s.inObject() {
				_, i = s.Key(i)
			}
			return i
		}
	}
	return i
}

// Scalar reads the string, number or literal that starts at i; an array or object is refused as syntax.
func (s *Scanner) Scalar(i int) int {
	switch c := s.Byte(i); c {
	case '"':
		return s.String(i)
	case 't':
		return s.literal(i, "true")
	case 'f':
		return s.literal(i, "false")
	case 'n':
		return s.literal(i, "null")
	default:
		return s.Number(i)
	}
}

func (s *Scanner) inObject() bool {
	d := s.depth - 1
	return s.kinds[d>>6]&(1<<(d&63)) != 0
}

func (s *Scanner) closer() byte {
	if s.inObject() {
		return '}'
	}
	return ']'
}

func (s *Scanner) literal(i int, word string) int {
	if len(s.b)-i < len(word) || string(s.b[i:i+len(word)]) != word {
		return s.Fail(Syntax, i)
	}
	return i + len(word)
}

// Number reads a number of any size.
func (s *Scanner) Number(i int) int {
	if s.Byte(i) == '-' {
		i++
	}
	switch c := s.Byte(i); {
	case c == '0':
		i++
	case '1' <= c && c <= '9':
		i = s.digits(i)
	default:
		return s.Fail(Syntax, i)
	}
	if s.Byte(i) == '.' {
		if i++; !digit(s.Byte(i)) {
			return s.Fail(Syntax, i)
		}
		i = s.digits(i)
	}
	if c := s.Byte(i); c == 'e' || c == 'E' {
		i++
		if c := s.Byte(i); c == '+' || c == '-' {
			i++
		}
		if !digit(s.Byte(i)) {
			return s.Fail(Syntax, i)
		}
		i = s.digits(i)
	}
	return i
}

func (s *Scanner) digits(i int) int {
	for uint(i) < uint(len(s.b)) && digit(s.b[i]) {
		i++
	}
	return i
}

func digit(c byte) bool { return c-'0' <= 9 }

// Words of eight equal bytes for the search in String.
const (
	ones  = 0x0101010101010101
	highs = 0x80 * ones
)

// special returns a word whose lowest set bit marks the first byte of w (the lowest one) that ends a plain
// run of a string: a quote, a backslash, a control character, or a byte that is not ASCII. Bits above the
// lowest may be false, because a borrow runs upwards. Control characters and the quote take one
// subtraction: flipping bit 1 maps 0x22 to 0x20 and no printable character below 0x21.
func special(w uint64) uint64 {
	return ((w ^ 0x02*ones) - 0x21*ones) | ((w ^ '\\'*ones) - ones) | w
}

// String reads the string whose opening quote is at i. Plain text costs an eighth of an operation a byte and
// less, and nearly all of a request is plain text with an escape here and there.
func (s *Scanner) String(i int) int {
	b := s.b
	i++
	for range 2 { // names and many values end within two words
		if len(b)-i < 8 {
			break
		}
		if m := special(binary.LittleEndian.Uint64(b[i:])) & highs; m != 0 {
			i += bits.TrailingZeros64(m) >> 3
			break
		}
		i += 8
	}
	for uint(i) < uint(len(b)) {
		switch c := b[i]; {
		case c == '"':
			return i + 1
		case c == '\\':
			if i = s.escape(i); i < 0 {
				return -1
			}
		case c < ' ':
			return s.Fail(Syntax, i)
		case c >= utf8.RuneSelf:
			if i = s.runes(i); i < 0 {
				return -1
			}
		default:
			i = s.plain(i)
		}
	}
	return s.Fail(Syntax, i)
}

// plain skips bytes that are nothing special, of which there is one at i, and perhaps simple escapes among them. Where it stops there may be more of them.
func (s *Scanner) plain(i int) int {
	b, end := s.b, i
	for range 2 { // most languages have characters that are not ASCII in every other word, and the way into text and out of it costs more than they do
		if len(b)-end < 8 {
			break
		}
		if m := special(binary.LittleEndian.Uint64(b[end:])) & highs; m != 0 {
			if end += bits.TrailingZeros64(m) >> 3; b[end] != '\\' || s.Byte(end+1) == 'u' {
				return end
			}
			break // where there is one simple escape there are more
		}
		end += 8
	}
	end, escapes := text(b, end)
	s.Shrink += escapes
	for ; len(b)-end >= 8; end += 8 {
		if m := special(binary.LittleEndian.Uint64(b[end:])) & highs; m != 0 {
			return end + bits.TrailingZeros64(m)>>3
		}
	}
	return max(end, i+1) // the last seven bytes of the body are looked at one by one
}

// runes reads characters that are not ASCII, from i on, until one that is.
func (s *Scanner) runes(i int) int {
	b := s.b
	for i < len(b) && b[i] >= utf8.RuneSelf {
		// Most of the world's text outside of ASCII is three bytes a character, so two of those are taken
		// at once. 0xE0 and 0xED restrict their second byte and go the long way.
		if len(b)-i >= 8 {
			w := binary.LittleEndian.Uint64(b[i:])
			first, second := byte(w), byte(w>>24)
			if w&0xC0C0F0_C0C0F0 == 0x8080E0_8080E0 && first != 0xE0 && first != 0xED && second != 0xE0 && second != 0xED {
				i += 6
				continue
			}
		}
		_, n := utf8.DecodeRune(b[i:])
		if n < 2 {
			return s.Fail(UTF8, i)
		}
		i += n
	}
	return i
}

// escape reads the escape whose backslash is at i, and both halves of a surrogate pair.
func (s *Scanner) escape(i int) int {
	switch s.Byte(i + 1) {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.Shrink++
		return i + 2
	case 'u':
	default:
		return s.Fail(Syntax, i)
	}
	r, ok := hex4(s.b, i+2)
	if !ok {
		return s.Fail(Syntax, i)
	}
	switch {
	case r < 0xD800 || r > 0xDFFF:
		s.Shrink += 6 - utf8.RuneLen(r)
		return i + 6
	case r < 0xDC00 && isLowEscape(s.b, i+6):
		s.Shrink += 12 - 4
		return i + 12
	}
	s.Lone++
	s.Shrink += 6 - 3
	return i + 6
}

func isLowEscape(b []byte, i int) bool {
	if len(b)-i < 6 || b[i] != '\\' || b[i+1] != 'u' {
		return false
	}
	r, ok := hex4(b, i+2)
	return ok && 0xDC00 <= r && r <= 0xDFFF
}

func hex4(b []byte, i int) (r rune, ok bool) {
	if len(b)-i < 4 {
		return 0, false
	}
	for _, c := range b[i : i+4] {
		switch {
		case digit(c):
			c -= '0'
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}
