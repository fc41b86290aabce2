package body

import (
	"bytes"
	"math"
	"strconv"

	"github.com/perigee-llm/perigee/internal/gateway/api/body/lex"
)

const (
	// maxNumberText is the longest string that is read as a number, in bytes (sgl-router's rule).
	maxNumberText = 64
	// maxNumber is the longest JSON number that is converted. A double never needs more than about 20
	// digits to be named and no writer prints more than 60; converting megabytes of them costs an
	// allocation of that size.
	maxNumber = 256
)

// ReadNumber reads the raw text of a JSON value as the engines' request models do: a number; true as 1 and
// false as 0; or a string of at most 64 bytes that spells a decimal number, in which single underscores may
// stand between digits, and white space around it only if there is no underscore.
//
// Not ok is a value that cannot be read: an array or object, null, other text, a number too large for a
// double (1e400) or longer than 256 bytes. raw must be one valid JSON value.
func ReadNumber(raw []byte) (v float64, ok bool) {
	if len(raw) == 0 {
		return 0, false
	}
	switch raw[0] {
	case 't':
		return 1, true
	case 'f':
		return 0, true
	case '"':
		return readText(raw[1 : len(raw)-1])
	case '{', '[', 'n':
		return 0, false
	}
	if len(raw) > maxNumber {
		return 0, false
	}
	return parse(raw)
}

func readText(raw []byte) (float64, bool) {
	var decoded, digits [maxNumberText]byte
	// An escape is up to six bytes for one; anything longer has more than the limit in it.
	if len(raw) > 6*maxNumberText {
		return 0, false
	}
	if bytes.IndexByte(raw, '\\') >= 0 {
		raw = lex.AppendDecoded(decoded[:0], raw)
	}
	if len(raw) > maxNumberText {
		return 0, false
	}
	if bytes.IndexByte(raw, '_') < 0 {
		raw = bytes.Trim(raw, " \t\n\v\f\r")
	}
	n := 0
	for i, c := range raw {
		if c == '_' {
			if i == 0 || i == len(raw)-1 || !digit(raw[i-1]) || !digit(raw[i+1]) {
				return 0, false
			}
			continue
		}
		digits[n] = c
		n++
	}
	if !decimal(digits[:n]) {
		return 0, false
	}
	return parse(digits[:n])
}

// decimal says whether text is a decimal number as Python's float reads it, without the names of infinity
// and NaN, which no field allows. strconv alone would take hexadecimal, too.
func decimal(text []byte) bool {
	if len(text) > 0 && (text[0] == '+' || text[0] == '-') {
		text = text[1:]
	}
	whole := leadingDigits(text)
	text = text[whole:]
	fraction := 0
	if len(text) > 0 && text[0] == '.' {
		fraction = leadingDigits(text[1:])
		text = text[1+fraction:]
	}
	if whole+fraction == 0 {
		return false
	}
	if len(text) > 0 && text[0]|0x20 == 'e' {
		text = text[1:]
		if len(text) > 0 && (text[0] == '+' || text[0] == '-') {
			text = text[1:]
		}
		n := leadingDigits(text)
		if n == 0 {
			return false
		}
		text = text[n:]
	}
	return len(text) == 0
}

func leadingDigits(text []byte) int {
	for i, c := range text {
		if !digit(c) {
			return i
		}
	}
	return len(text)
}

func digit(c byte) bool { return c-'0' <= 9 }

func parse(text []byte) (float64, bool) {
	v, err := strconv.ParseFloat(string(text), 64)
	return v, err == nil && !math.IsInf(v, 0)
}
