package lex

import (
	"math"
	"unicode/utf16"
	"unicode/utf8"
)

// Count is a non-negative whole number that may be unknown. The zero value is unknown, which is not zero.
type Count struct {
	N     int64
	Known bool
}

// CountOf reads the raw text of a value as a Count: digits only, at most the largest int64. A sign, a
// fraction, an exponent or another kind of value is unknown, as is a number too large.
func CountOf(raw []byte) Count {
	if len(raw) == 0 || len(raw) > 19 { // 19 digits hold every int64
		return Count{}
	}
	var n uint64
	for _, c := range raw {
		if !digit(c) {
			return Count{}
		}
		n = n*10 + uint64(c-'0')
	}
	if n > math.MaxInt64 {
		return Count{}
	}
	return Count{N: int64(n), Known: true}
}

// AppendDecoded appends what the inside of a string (without its quotes) stands for. raw must have passed
// String. A lone surrogate becomes U+FFFD. It allocates only when dst is too small; dst needs at most
// len(raw) more.
func AppendDecoded(dst, raw []byte) []byte {
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			dst = append(dst, raw[i])
			continue
		}
		i++
		switch raw[i] {
		case 'u':
			r, _ := hex4(raw, i+1)
			i += 4
			if utf16.IsSurrogate(r) {
				low, _ := hex4(raw, i+3)
				if r < 0xDC00 && isLowEscape(raw, i+1) {
					r = utf16.DecodeRune(r, low)
					i += 6
				} else {
					r = utf8.RuneError
				}
			}
			dst = utf8.AppendRune(dst, r)
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		default:
			dst = append(dst, raw[i])
		}
	}
	return dst
}

const hexDigits = "0123456789abcdef"

// AppendQuoted appends text as a JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD.
func AppendQuoted(dst []byte, text string) []byte {
	n := 0 // nearly all text is plain to its end
	for n < len(text) && text[n] >= ' ' && text[n] < utf8.RuneSelf && text[n] != '"' && text[n] != '\\' {
		n++
	}
	dst = append(append(dst, '"'), text[:n]...)
	for _, r := range text[n:] {
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r < ' ':
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[r>>4], hexDigits[r&15])
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return append(dst, '"')
}
