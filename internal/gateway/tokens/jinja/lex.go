package jinja

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A tokenKind says what a token is. Operators carry their text.
type tokenKind uint8

const (
	tokEOF      tokenKind = iota
	tokText               // text between tags, whitespace control applied
	tokBegin              // {{
	tokEnd                // }}
	tokTag                // {%
	tokTagEnd             // %}
	tokName               //
	tokString             // decoded
	tokInt                // digits without underscores, with 0x, 0o, 0b
	tokFloat              //
	tokOperator           //
)

type token struct {
	kind tokenKind
	text string
	line int
}

// lexer cuts a template into tokens as jinja2 does with trim_blocks and lstrip_blocks: the whitespace control of every
// tag is applied here, to the text tokens, so that nothing behind the lexer knows of it.
type lexer struct {
	src    string
	pos    int
	line   int
	tokens []token

	// lineStart: the last match ended with a newline, so that white space before the next tag begins a line.
	lineStart bool
}

func lex(source string) []token {
	source = strings.ReplaceAll(source, "\r\n", "\n")
	source = strings.ReplaceAll(source, "\r", "\n")
	source = strings.TrimSuffix(source, "\n") // one newline at the end is not kept
	l := &lexer{src: source, line: 1, lineStart: true}
	for l.pos < len(l.src) {
		l.text()
	}
	l.emit(tokEOF, "")
	return l.tokens
}

func (l *lexer) emit(k tokenKind, text string) { l.tokens = append(l.tokens, token{k, text, l.line}) }

func (l *lexer) fail(msg string) { panic(&Error{Class: ErrSyntax, Line: l.line, Msg: msg}) }

// advance moves over n bytes and counts their lines.
func (l *lexer) advance(n int) {
	s := l.src[l.pos : l.pos+n]
	l.line += strings.Count(s, "\n")
	l.pos += n
	if n > 0 {
		l.lineStart = s[n-1] == '\n'
	}
}

// sign returns the whitespace control behind the opening of a tag: '-', '+' or 0.
func (l *lexer) sign(at int) byte {
	if at < len(l.src) && (l.src[at] == '-' || l.src[at] == '+') {
		return l.src[at]
	}
	return 0
}

// text reads up to the next tag, and the tag.
func (l *lexer) text() {
	rest := l.src[l.pos:]
	i := 0
	for {
		j := strings.IndexByte(rest[i:], '{')
		if j < 0 || i+j+1 >= len(rest) {
			l.emit(tokText, rest)
			l.advance(len(rest))
			return
		}
		i += j
		if c := rest[i+1]; c == '{' || c == '%' || c == '#' {
			break
		}
		i++
	}
	data, opener := rest[:i], rest[i+1]
	sign := l.sign(l.pos + i + 2)
	if sign == '-' {
		data = strings.TrimRightFunc(data, isSpace)
	} else if sign != '+' && opener != '{' {
		data = l.lstrip(data)
	}
	if data != "" {
		l.emit(tokText, data)
	}
	l.advance(i)
	head := 2
	if sign != 0 {
		head++
	}
	switch opener {
	case '#':
		l.comment(head)
	case '{':
		l.advance(head)
		l.emit(tokBegin, "")
		l.inside("}}")
	default:
		if n := l.word(l.pos+head, "raw"); n > 0 {
			l.raw(n)
			return
		}
		l.advance(head)
		l.emit(tokTag, "")
		l.inside("%}")
	}
}

// lstrip takes away the white space between the start of a line and a block or comment tag.
func (l *lexer) lstrip(data string) string {
	at := strings.LastIndexByte(data, '\n') + 1
	if (at > 0 || l.lineStart) && at < len(data) && strings.TrimLeftFunc(data[at:], isSpace) == "" {
		return data[:at]
	}
	return data
}

// closing returns how many bytes the end of a block takes at the position: its sign, delimiter, and the white space
// behind that goes with it. 0 if no end is there.
func (l *lexer) closing(delim string, trimNewline bool) int {
	rest := l.src[l.pos:]
	switch {
	case strings.HasPrefix(rest, "-"+delim):
		tail := rest[1+len(delim):]
		return len(rest) - len(strings.TrimLeftFunc(tail, isSpace))
	case trimNewline && strings.HasPrefix(rest, "+"+delim):
		return 1 + len(delim)
	case strings.HasPrefix(rest, delim):
		if trimNewline && strings.HasPrefix(rest[len(delim):], "\n") {
			return len(delim) + 1
		}
		return len(delim)
	}
	return 0
}

func (l *lexer) comment(head int) {
	l.advance(head)
	for l.pos < len(l.src) {
		if n := l.closing("#}", true); n > 0 {
			l.advance(n)
			return
		}
		l.advance(1)
	}
	l.fail("a comment has no end")
}

// word returns the length of "{% <word> %}" whose inside starts at the position, counted from l.pos; 0 if it is not there.
func (l *lexer) word(at int, word string) int {
	rest := strings.TrimLeftFunc(l.src[at:], isSpace)
	if !strings.HasPrefix(rest, word) {
		return 0
	}
	rest = strings.TrimLeftFunc(rest[len(word):], isSpace)
	switch {
	case strings.HasPrefix(rest, "-%}"):
		rest = strings.TrimLeftFunc(rest[3:], isSpace)
	case strings.HasPrefix(rest, "%}"):
		rest = rest[2:]
	default:
		return 0
	}
	return len(l.src) - len(rest) - l.pos
}

// raw reads the text up to {% endraw %} as it stands.
func (l *lexer) raw(head int) {
	l.advance(head)
	for at := l.pos; at < len(l.src); at++ {
		if !strings.HasPrefix(l.src[at:], "{%") {
			continue
		}
		sign, inside := l.sign(at+2), at+2
		if sign != 0 {
			inside++
		}
		rest := strings.TrimLeftFunc(l.src[inside:], isSpace)
		if !strings.HasPrefix(rest, "endraw") {
			continue
		}
		rest = strings.TrimLeftFunc(rest[len("endraw"):], isSpace)
		end := &lexer{src: l.src, pos: len(l.src) - len(rest)}
		n := end.closing("%}", true)
		if n == 0 {
			continue
		}
		data := l.src[l.pos:at]
		if sign == '-' {
			data = strings.TrimRightFunc(data, isSpace)
		} else if sign != '+' {
			data = l.lstrip(data)
		}
		if data != "" {
			l.emit(tokText, data)
		}
		l.advance(end.pos + n - l.pos)
		return
	}
	l.fail("a raw block has no end")
}

// inside reads the tokens of one tag up to its end. Brackets must be closed before the end is looked for.
func (l *lexer) inside(delim string) {
	var open []byte
	for l.pos < len(l.src) {
		if len(open) == 0 {
			if n := l.closing(delim, delim == "%}"); n > 0 {
				if delim == "%}" {
					l.emit(tokTagEnd, "")
				} else {
					l.emit(tokEnd, "")
				}
				l.advance(n)
				return
			}
		}
		c := l.src[l.pos]
		r, size := utf8.DecodeRuneInString(l.src[l.pos:])
		switch {
		case isSpace(r):
			l.advance(size)
		case c >= '0' && c <= '9':
			l.number()
		case r == '_' || unicode.IsLetter(r):
			n := strings.IndexFunc(l.src[l.pos:], func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
			if n < 0 {
				n = len(l.src) - l.pos
			}
			l.emit(tokName, l.src[l.pos:l.pos+n])
			l.advance(n)
		case c == '\'' || c == '"':
			l.quoted(c)
		default:
			open = l.operator(open)
		}
	}
	l.fail("a tag has no end")
}

func (l *lexer) operator(open []byte) []byte {
	rest := l.src[l.pos:]
	n := 1
	if len(rest) > 1 {
		switch rest[:2] {
		case "//", "**", "==", "!=", ">=", "<=":
			n = 2
		}
	}
	c := rest[0]
	switch c {
	case '(', '[', '{':
		open = append(open, c)
	case ')', ']', '}':
		pair := map[byte]byte{')': '(', ']': '[', '}': '{'}[c]
		if len(open) == 0 || open[len(open)-1] != pair {
			l.fail("unexpected " + strconv.Quote(string(c)))
		}
		open = open[:len(open)-1]
	default:
		if n == 1 && !strings.ContainsRune("+-/*%~><=.:|,;", rune(c)) {
			r, _ := utf8.DecodeRuneInString(rest)
			l.fail("unexpected character " + strconv.QuoteRune(r))
		}
	}
	l.emit(tokOperator, rest[:n])
	l.advance(n)
	return open
}

// number reads an integer or a float. "1.x" and "1." are an integer and a dot.
func (l *lexer) number() {
	s := l.src[l.pos:]
	if len(s) > 1 && s[0] == '0' && strings.ContainsRune("xXoObB", rune(s[1])) {
		n := 2
		for n < len(s) && (isHex(s[n]) || s[n] == '_') {
			n++
		}
		l.emit(tokInt, strings.ToLower(strings.ReplaceAll(s[:n], "_", "")))
		l.advance(n)
		return
	}
	digits := func(at int) int {
		for at < len(s) && (s[at] >= '0' && s[at] <= '9' || s[at] == '_' && at+1 < len(s) && s[at+1] >= '0' && s[at+1] <= '9') {
			at++
		}
		return at
	}
	n := digits(0)
	kind := tokInt
	afterDot := l.pos > 0 && l.src[l.pos-1] == '.' // a.1.2 is two subscripts
	if !afterDot {
		if n < len(s) && s[n] == '.' {
			if m := digits(n + 1); m > n+1 && s[n+1] != '_' {
				n, kind = m, tokFloat
			}
		}
		if n < len(s) && (s[n] == 'e' || s[n] == 'E') {
			m := n + 1
			if m < len(s) && (s[m] == '+' || s[m] == '-') {
				m++
			}
			if e := digits(m); e > m && s[m] != '_' {
				n, kind = e, tokFloat
			}
		}
	}
	text := strings.ReplaceAll(s[:n], "_", "")
	if kind == tokInt && len(text) > 1 && text[0] == '0' && strings.Trim(text, "0") != "" {
		l.fail("a number starts with 0")
	}
	l.emit(kind, text)
	l.advance(n)
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

// quoted reads a string and undoes Python's unicode-escape.
func (l *lexer) quoted(quote byte) {
	s := l.src[l.pos:]
	n := 1
	for n < len(s) && s[n] != quote {
		if s[n] == '\\' {
			n++
		}
		n++
	}
	if n >= len(s) {
		l.fail("a string has no end")
	}
	l.emit(tokString, l.unescape(s[1:n]))
	l.advance(n + 1)
}

var simpleEscapes = map[byte]string{
	'\n': "", '\\': "\\", '\'': "'", '"': "\"", 'a': "\a", 'b': "\b", 'f': "\f", 'n': "\n", 'r': "\r", 't': "\t", 'v': "\v",
}

func (l *lexer) unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			continue
		}
		i++ // quoted saw to it that a byte follows
		c := s[i]
		if out, ok := simpleEscapes[c]; ok {
			b.WriteString(out)
			continue
		}
		switch {
		case c == 'x' || c == 'u' || c == 'U':
			n := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
			if i+1+n > len(s) {
				l.fail("a string ends within an escape")
			}
			v, err := strconv.ParseUint(s[i+1:i+1+n], 16, 32)
			if err != nil || !utf8.ValidRune(rune(v)) {
				l.fail("a string has the escape \\" + s[i:i+1+n] + ", which is no character")
			}
			b.WriteRune(rune(v))
			i += n
		case c >= '0' && c <= '7':
			end := i + 1
			for end < len(s) && end < i+3 && s[end] >= '0' && s[end] <= '7' {
				end++
			}
			v, _ := strconv.ParseUint(s[i:end], 8, 32)
			b.WriteRune(rune(v))
			i = end - 1
		case c == 'N':
			panic(&Error{Class: ErrUnsupported, Line: l.line, Msg: `the escape \N{...} in a string`})
		default:
			b.WriteByte('\\')
			b.WriteByte(c)
		}
	}
	return b.String()
}

// isSpace is Python's str.isspace for one character, and \s of its re module.
func isSpace(r rune) bool {
	return r >= 0x1c && r <= 0x1f || unicode.IsSpace(r)
}
