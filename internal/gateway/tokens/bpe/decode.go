package bpe

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// A decodeStep turns the list of tokens into another one; what is left at the end is joined.
type decodeStep struct {
	kind                  decodeKind
	from, to              string // replace; strip: the character
	stripLeft, stripRight uint32
}

type decodeKind uint8

const (
	decodeByteLevel decodeKind = iota
	decodeByteFallback
	decodeFuse
	decodeReplace
	decodeStrip
)

// Decode returns the text of ids, without the special tokens if skipSpecial. An id that no token has adds nothing, and
// bytes that are not UTF-8, as of half a character, become U+FFFD, both as in the reference implementation.
// Any number of calls may run at once.
func (t *Tokenizer) Decode(ids []uint32, skipSpecial bool) string {
	if t.model.byteLevel && len(t.decoder) == 1 && t.decoder[0].kind == decodeByteLevel {
		b := make([]byte, 0, 4*len(ids))
		for _, id := range ids {
			if int(id) < len(t.model.vocab.spans) && !(skipSpecial && t.special[id]) {
				b = append(b, t.model.vocab.bytes(id)...)
			}
		}
		return lossy(b)
	}
	var tokens []string
	for _, id := range ids {
		if tok, ok := t.IDToToken(id); ok && !(skipSpecial && t.special[id]) {
			tokens = append(tokens, tok)
		}
	}
	if t.decoder == nil {
		return strings.Join(tokens, " ")
	}
	for _, st := range t.decoder {
		tokens = st.apply(tokens)
	}
	return strings.Join(tokens, "")
}

func (st *decodeStep) apply(tokens []string) []string {
	switch st.kind {
	case decodeByteLevel:
		var b []byte
		for _, tok := range tokens {
			var ok bool
			if b, ok = appendBytes(b, []byte(tok)); !ok {
				b = append(b, tok...)
			}
		}
		return []string{lossy(b)}
	case decodeByteFallback:
		return joinBytes(tokens)
	case decodeFuse:
		return []string{strings.Join(tokens, "")}
	case decodeReplace:
		for i := range tokens {
			tokens[i] = strings.ReplaceAll(tokens[i], st.from, st.to)
		}
	case decodeStrip:
		for i := range tokens {
			for range st.stripLeft {
				tokens[i] = strings.TrimPrefix(tokens[i], st.from)
			}
			for range st.stripRight {
				tokens[i] = strings.TrimSuffix(tokens[i], st.from)
			}
		}
	}
	return tokens
}

// joinBytes turns each run of tokens <0xNN> into the text of its bytes or, where they are not UTF-8, into one U+FFFD for
// each byte.
func joinBytes(tokens []string) []string {
	var out []string
	var run []byte
	flush := func() {
		if len(run) == 0 {
			return
		}
		if utf8.Valid(run) {
			out = append(out, string(run))
		} else {
			out = append(out, strings.Repeat(string(utf8.RuneError), len(run)))
		}
		run = run[:0]
	}
	for _, tok := range tokens {
		if len(tok) == 6 && strings.HasPrefix(tok, "<0x") && tok[5] == '>' {
			// The reference reads the digits as Rust does, which takes a plus sign.
			digits := tok[3:5]
			if digits[0] == '+' {
				digits = digits[1:]
			}
			if n, err := strconv.ParseUint(digits, 16, 8); err == nil {
				run = append(run, byte(n))
				continue
			}
		}
		flush()
		out = append(out, tok)
	}
	flush()
	return out
}

// lossy is b as text, with one U+FFFD for each longest start of a character that does not go on as UTF-8 demands. That
// is how Rust and browsers replace; Go by itself takes one for each byte, or one for each run.
func lossy(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	out := make([]byte, 0, len(b)+8)
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 {
			n = badLength(b)
			out = append(out, "\ufffd"...)
		} else {
			out = append(out, b[:n]...)
		}
		b = b[n:]
	}
	return string(out)
}

// badLength returns how many bytes at the start of b one U+FFFD stands for: those that could begin a character.
func badLength(b []byte) int {
	low, high, size := byte(0x80), byte(0xbf), 0
	switch c := b[0]; {
	case c >= 0xc2 && c <= 0xdf:
		size = 2
	case c >= 0xe0 && c <= 0xef:
		size = 3
		if c == 0xe0 {
			low = 0xa0
		}
		if c == 0xed {
			high = 0x9f
		}
	case c >= 0xf0 && c <= 0xf4:
		size = 4
		if c == 0xf0 {
			low = 0x90
		}
		if c == 0xf4 {
			high = 0x8f
		}
	}
	n := 1
	for n < size && n < len(b) && b[n] >= low && b[n] <= high {
		n++
		low, high = 0x80, 0xbf
	}
	return n
}
