package jinja

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// simpleCase fails for text whose case Python changes by rules that strings.ToUpper does not know: letters that become
// several, and the sigma at the end of a word.
func simpleCase(s string) string {
	if isASCII(s) {
		return s
	}
	for _, r := range s {
		switch {
		case r == 'ß' || r == 'ŉ' || r == 'ǰ' || r == 'İ' || r == 'ΐ' || r == 'ΰ' || r == 'Σ' || r == 'և',
			r >= 0x1c4 && r <= 0x1cc || r >= 0x1f1 && r <= 0x1f3, // letters with a title case of their own
			r >= 0x10d0 && r <= 0x10ff,                           // Georgian, whose title case is itself
			r >= 0x1e96 && r <= 0x1e9a, r >= 0x1f50 && r <= 0x1ffc, r >= 0xfb00 && r <= 0xfb17:
			unsupported("the case of " + strconv.QuoteRune(r))
		}
	}
	return s
}

func lower(s string) string { return strings.ToLower(simpleCase(s)) }
func upper(s string) string { return strings.ToUpper(simpleCase(s)) }

// capitalize is str.capitalize.
func capitalize(s string) string {
	_, n := utf8.DecodeRuneInString(s)
	return upper(s[:n]) + lower(s[n:])
}

// titleFilter is the filter title, which knows words by its own rule.
func titleFilter(s string) string {
	var b strings.Builder
	first := true
	for _, r := range simpleCase(s) {
		if r == '-' || isSpace(r) || strings.ContainsRune("({[<", r) {
			first = true
			b.WriteRune(r)
			continue
		}
		if first {
			b.WriteRune(unicode.ToUpper(r))
		} else {
			b.WriteRune(unicode.ToLower(r))
		}
		first = false
	}
	return b.String()
}

// titleMethod is str.title: whatever is no letter ends a word.
func titleMethod(s string) string {
	var b strings.Builder
	inWord := false
	for _, r := range simpleCase(s) {
		cased := unicode.IsUpper(r) || unicode.IsLower(r) || unicode.IsTitle(r)
		if inWord {
			b.WriteRune(unicode.ToLower(r))
		} else {
			b.WriteRune(unicode.ToTitle(r))
		}
		inWord = cased
	}
	return b.String()
}

// isCased is str.isupper and str.islower.
func isCased(s string, up bool) bool {
	found := false
	for _, r := range s {
		switch {
		case unicode.IsTitle(r), up && unicode.IsLower(r), !up && unicode.IsUpper(r):
			return false
		case unicode.IsUpper(r) || unicode.IsLower(r):
			found = true
		}
	}
	return found
}

// wordcount counts what \w+ matches.
func wordcount(s string) (n int) {
	inWord := false
	for _, r := range s {
		w := r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r)
		if w && !inWord {
			n++
		}
		inWord = w
	}
	return n
}

// format is Python's % on text: the verbs s, r, d, i, f and x, with width, precision, - and 0.
func (c *context) format(s string, v Value) Value {
	vals, next := []Value{v}, 0
	if v.k == kTuple {
		vals = v.items()
	}
	var b []byte
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b = append(b, s[i])
			continue
		}
		i++
		left, zero, width, precision := false, false, 0, -1
		for ; i < len(s) && (s[i] == '-' || s[i] == '0'); i++ {
			left, zero = left || s[i] == '-', zero || s[i] == '0'
		}
		for ; i < len(s) && s[i] >= '0' && s[i] <= '9' && width < 1000; i++ {
			width = width*10 + int(s[i]-'0')
		}
		if i < len(s) && s[i] == '.' {
			precision = 0
			for i++; i < len(s) && s[i] >= '0' && s[i] <= '9' && precision < 100; i++ {
				precision = precision*10 + int(s[i]-'0')
			}
		}
		if i == len(s) {
			failed("incomplete format")
		}
		if s[i] == '%' {
			b = append(b, '%')
			continue
		}
		if next == len(vals) {
			failed("not enough arguments for format string")
		}
		out := c.verb(s[i], vals[next], precision)
		next++
		pad := max(0, width-utf8.RuneCountInString(out))
		switch {
		case left:
			out += strings.Repeat(" ", pad)
		case zero && s[i] != 's' && s[i] != 'r':
			sign := len(out) - len(strings.TrimLeft(out, "-"))
			out = out[:sign] + strings.Repeat("0", pad) + out[sign:]
		default:
			out = strings.Repeat(" ", pad) + out
		}
		b = append(b, out...)
		c.room(len(b))
	}
	if next < len(vals) && v.k != kDict && !(next == 0 && v.k != kTuple && v.isSeq()) {
		failed("not all arguments converted during string formatting")
	}
	return c.made(string(b))
}

func (c *context) verb(verb byte, v Value, precision int) string {
	switch verb {
	case 's', 'r':
		out := ""
		if verb == 's' {
			out = c.plain(v)
		} else {
			c.weigh(v, 0)
			out = string(appendRepr(nil, v, 0))
		}
		if n := utf8.RuneCountInString(out); precision >= 0 && precision < n {
			out = out[:byteOf(out, precision, n)]
		}
		return out
	case 'd', 'i', 'x':
		if !v.isInteger() || precision >= 0 {
			if v.isNumber() {
				unsupported("formatting a float as an integer")
			}
			failed("a number is required, not " + v.typeName())
		}
		if verb == 'x' {
			return v.big().Text(16)
		}
		return string(appendBig(nil, v.big()))
	case 'f':
		if !v.isNumber() {
			failed("must be real number, not " + v.typeName())
		}
		if precision < 0 {
			precision = 6
		}
		return strconv.FormatFloat(v.asFloat(), 'f', precision, 64)
	}
	unsupported("%" + string(verb) + " in a format")
	return ""
}

// formatBraces is str.format without format specifications and without attributes.
func (c *context) formatBraces(s string, a args) Value {
	var b []byte
	auto := 0
	for i := 0; i < len(s); i++ {
		switch {
		case strings.HasPrefix(s[i:], "{{"), strings.HasPrefix(s[i:], "}}"):
			b = append(b, s[i])
			i++
		case s[i] == '{':
			end := strings.IndexByte(s[i:], '}')
			if end < 0 {
				failed("expected '}' before end of string")
			}
			b = append(b, c.str(c.field(s[i+1:i+end], &auto, a))...)
			i += end
		case s[i] == '}':
			failed("Single '}' encountered in format string")
		default:
			b = append(b, s[i])
		}
		c.room(len(b))
	}
	return c.made(string(b))
}

func (c *context) field(name string, auto *int, a args) Value {
	if strings.ContainsAny(name, ".[!:{") {
		unsupported("str.format with a conversion, a specification or an attribute")
	}
	n, err := strconv.Atoi(name)
	switch {
	case name == "":
		n = *auto
		*auto++
	case err != nil:
		v, ok := a.get(name)
		if !ok {
			failed("str.format misses the argument " + name)
		}
		return v
	}
	if n < 0 || n >= len(a.list) {
		failed("Replacement index out of range for positional args tuple")
	}
	return a.list[n]
}
