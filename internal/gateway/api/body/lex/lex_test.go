package lex

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

// whole says whether b is one value with nothing but white space around it.
func whole(b []byte) (bool, *Scanner) {
	s := Of(b)
	i := s.Value(s.Space(0))
	return i >= 0 && s.Space(i) == len(b), &s
}

// TestStringEnds puts the bytes around every border at each place of a string of each length around the words
// that String reads, and every byte into one of them.
func TestStringEnds(t *testing.T) {
	borders := []byte("\x00\x1f !\"#[\\]\x7f\x80\xa0\xa1\xa2\xc3\xff")
	var every []byte
	for c := range 256 {
		every = append(every, byte(c))
	}
	for length := range 160 {
		values := borders
		switch {
		case length == 11:
			values = every
		case length >= 93 && length < 135: // nothing new: sixty-four at once, or twice that, and what is left
			continue
		case length >= 60:
			values = []byte("\x1f\"\\\x80")
		}
		for at := range length {
			for _, c := range values {
				b := []byte(`"` + strings.Repeat("~", length) + `"`)
				b[1+at] = c
				want := json.Valid(b) && utf8.Valid(b)
				if got, s := whole(b); got != want {
					t.Fatalf("%q: %v (fault %d at %d), want %v", b, got, s.Fault, s.At, want)
				}
			}
		}
	}
}

// TestEscapesAnywhere puts what ends a plain run at each place of a long string, alone and with another behind it at each distance around a block's.
func TestEscapesAnywhere(t *testing.T) {
	specials := []string{`\n`, `\"`, `\\`, `\u00e9`, `\x`, `\`, "\x01", "é", "\xff"}
	check := func(inside string) {
		b := []byte(`"` + inside + `"`)
		got, s := whole(b)
		var decoded string
		if want := json.Valid(b) && utf8.Valid(b); got != want {
			t.Fatalf("%q: %v (fault %d at %d), want %v", b, got, s.Fault, s.At, want)
		} else if want && (json.Unmarshal(b, &decoded) != nil || len(inside)-s.Shrink != len(decoded)) {
			t.Fatalf("%q: shrinks by %d, and is %q", b, s.Shrink, decoded)
		}
	}
	plain := strings.Repeat("~", 250)
	for c := range 256 {
		check(plain[:90] + "\\" + string([]byte{byte(c)}) + plain)
	}
	for at := range 150 {
		for _, one := range specials {
			check(plain[:at] + one + plain[:100])
			for _, other := range []string{`\n`, `\"`, `\\`, `\x`} {
				for _, far := range []int{0, 1, 61, 62, 63, 64, 65} {
					check(plain[:at] + one + plain[:far] + other + plain[:100])
				}
			}
		}
	}
}

// TestRunes reads each character between plain ones and next to itself, and each of its bytes broken.
func TestRunes(t *testing.T) {
	for r := rune(0x80); r <= utf8.MaxRune; r += 1 + r/31 {
		text := string(r)
		for _, b := range [][]byte{[]byte(`"` + text + `"`), []byte(`"abcdefgh` + text + text + text + `xyz" `)} {
			if ok, _ := whole(b); !ok {
				t.Fatalf("%q is refused", b)
			}
			for i := range b {
				for _, c := range []byte{0x7F, 0x80, 0xBF, 0xC0, 0xC1, 0xE0, 0xED, 0xEF, 0xF0, 0xF4, 0xF5, 0xFF, b[i] ^ 0x40} {
					broken := []byte(string(b))
					broken[i] = c
					if ok, _ := whole(broken); ok != (json.Valid(broken) && utf8.Valid(broken)) {
						t.Fatalf("%q: %v", broken, ok)
					}
				}
			}
		}
	}
}

func TestQuoted(t *testing.T) {
	for _, text := range []string{"", "plain", "\x00\x1f\"\\/\n", "é世😀", "\xff", "\u2028"} {
		quoted := AppendQuoted(nil, text)
		var got string
		if err := json.Unmarshal(quoted, &got); err != nil || got != strings.ToValidUTF8(text, "\uFFFD") {
			t.Errorf("%q became %s: %q, %v", text, quoted, got, err)
		}
	}
}

func TestCountOf(t *testing.T) {
	for raw, want := range map[string]Count{
		"0": {0, true}, "7": {7, true}, "9223372036854775807": {1<<63 - 1, true}, "": {}, "9223372036854775808": {}, "99999999999999999999": {},
		"-1": {}, "1.0": {}, "1e3": {}, `"1"`: {}, "null": {}, "true": {},
	} {
		if got := CountOf([]byte(raw)); got != want {
			t.Errorf("%s reads as %+v, want %+v", raw, got, want)
		}
	}
}

func FuzzValue(f *testing.F) {
	for _, seed := range []string{
		`{"a":[1,-0.5e+7,true,null,{"b":"\ud83d\ude00\ud800 é世"}],"":{}}`, `"\u00e9\"\\"`, `"\ud800x\udc00\ud83d\ude00"`, `[[[]],{}]`, `-`, `1e`, `"`, `{"a"}`, "\"\xed\xa0\x80\"", "[1 ,\n2\t]\r",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, s := whole(b)
		want := json.Valid(b) && utf8.Valid(b)
		if got != want && s.Fault != TooDeep {
			t.Fatalf("%q: %v (fault %d at %d), want %v", b, got, s.Fault, s.At, want)
		}
		if !got {
			if s.At < 0 || s.At > len(b) {
				t.Fatalf("%q: fault at %d of %d", b, s.At, len(b))
			}
			return
		}
		if s.depth != 0 {
			t.Fatalf("%q: depth %d at the end", b, s.depth)
		}
		var text string
		if start := s.Space(0); b[start] == '"' && json.Unmarshal(b, &text) == nil {
			end := strings.LastIndexByte(string(b), '"')
			decoded := AppendDecoded(nil, b[start+1:end])
			if string(decoded) != text || end-start-1-s.Shrink != len(text) {
				t.Fatalf("%q: decodes to %q, shrinks by %d, want %q", b, decoded, s.Shrink, text)
			}
		}
	})
}
