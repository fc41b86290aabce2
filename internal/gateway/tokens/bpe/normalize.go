package bpe

import (
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// A normStep is one normalizer: NFC, or the replacement of a string, of which there is one at most.
type normStep struct {
	nfc      bool
	from, to string
}

// normalize returns s after the steps. The result is good until the scratch's next normalize.
func normalize(steps []normStep, s string, sc *scratch) string {
	for _, st := range steps {
		switch {
		case st.nfc:
			if !isNFC(s) {
				sc.nfc = appendNFC(sc.nfc[:0], s, sc)
				s = view(sc.nfc)
			}
		case strings.Contains(s, st.from):
			sc.norm = appendReplaced(sc.norm[:0], s, st.from, st.to)
			s = view(sc.norm)
		}
	}
	return s
}

func appendReplaced(dst []byte, s, from, to string) []byte {
	for {
		i := strings.Index(s, from)
		if i < 0 {
			return append(dst, s...)
		}
		dst = append(append(dst, s[:i]...), to...)
		s = s[i+len(from):]
	}
}

// isNFC may say no of a text that is: of one with more than 30 combining characters in a row, or with characters that
// are new to the reference. If it says yes then the reference would change nothing either: it knows fewer characters
// that combine, so that there is less to reorder and to compose.
func isNFC(s string) bool {
	return norm.NFC.QuickSpanString(s) == len(s) || norm.NFC.IsNormalString(s)
}

// safeRun is how many characters of a run norm may do by itself. From 30 combining characters on it puts a joiner in
// between (Unicode's stream-safe format), which the reference implementation does not; one character is at most four
// after decomposition.
const safeRun = 7

// appendNFC appends s in the composed normal form.
func appendNFC(dst []byte, s string, sc *scratch) []byte {
	for len(s) > 0 {
		n, runes := 0, 0
		for n < len(s) {
			r, size := utf8.DecodeRuneInString(s[n:])
			isNew := isNewToNFC(r)
			if n > 0 && (isNew || norm.NFC.PropertiesString(s[n:]).BoundaryBefore()) {
				break
			}
			n += size
			runes++
			if isNew {
				runes = 0 // stands by itself
				break
			}
		}
		switch {
		case runes == 0:
			dst = append(dst, s[:n]...)
		case runes <= safeRun:
			// Not right into dst: norm would compose with what is there, across a new character.
			sc.run = norm.NFC.AppendString(sc.run[:0], s[:n])
			dst = append(dst, sc.run...)
		default:
			dst = composeLong(dst, s[:n], sc)
		}
		s = s[n:]
	}
	return dst
}

func isNewToNFC(r rune) bool {
	if r < newToNFC[0][0] {
		return false
	}
	_, found := slices.BinarySearchFunc(newToNFC[:], r, func(run [2]rune, r rune) int {
		switch {
		case run[1] < r:
			return -1
		case run[0] > r:
			return 1
		}
		return 0
	})
	return found
}

// newToNFC are the characters that came to Unicode after the reference implementation's tables for normal forms were
// written (version 9; its regular expressions know version 16), as far as they combine in any version up to 17: to the
// reference they are characters like any other, that neither move, compose nor decompose. First and last of each run.
var newToNFC = [...][2]rune{
	{0x7fd, 0x7fd}, {0x897, 0x89f}, {0x8ca, 0x8d3}, {0x9fe, 0x9fe}, {0xc3c, 0xc3c}, {0xd3b, 0xd3c},
	{0xeba, 0xeba}, {0x1715, 0x1715}, {0x1abf, 0x1add}, {0x1ae0, 0x1aeb}, {0x1df6, 0x1dfa}, {0xa82c, 0xa82c},
	{0x105da, 0x105da}, {0x105e4, 0x105e4}, {0x10d24, 0x10d27}, {0x10d69, 0x10d6d}, {0x10eab, 0x10eac},
	{0x10efa, 0x10efb}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070},
	{0x1133b, 0x1133b}, {0x11382, 0x11385}, {0x1138b, 0x1138b}, {0x1138e, 0x1138e}, {0x11390, 0x11391},
	{0x113b8, 0x113b8}, {0x113bb, 0x113bb}, {0x113c2, 0x113c2}, {0x113c5, 0x113c5}, {0x113c7, 0x113c9},
	{0x113ce, 0x113d0}, {0x1145e, 0x1145e}, {0x11839, 0x1183a}, {0x11930, 0x11930}, {0x11935, 0x11935},
	{0x11938, 0x11938}, {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34},
	{0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42}, {0x11d44, 0x11d45}, {0x11d97, 0x11d97},
	{0x11f41, 0x11f42}, {0x1611e, 0x16129}, {0x1612f, 0x1612f}, {0x16d63, 0x16d63}, {0x16d67, 0x16d6a},
	{0x16ff0, 0x16ff1}, {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef},
	{0x1e4ec, 0x1e4ef}, {0x1e5ee, 0x1e5ef}, {0x1e6e3, 0x1e6e3}, {0x1e6e6, 0x1e6e6}, {0x1e6ee, 0x1e6ef},
	{0x1e6f5, 0x1e6f5},
}

// composeLong is Unicode's canonical composition, chapter 3.11, on one run: decompose, order by combining class, compose.
func composeLong(dst []byte, s string, sc *scratch) []byte {
	runes := sc.fold[:0]
	for _, r := range s {
		for _, d := range norm.NFD.String(string(r)) {
			runes = append(runes, d)
		}
	}
	sc.fold = runes
	for i := 0; i < len(runes); {
		j := i + 1
		if combining(runes[i]) > 0 {
			for j < len(runes) && combining(runes[j]) > 0 {
				j++
			}
			slices.SortStableFunc(runes[i:j], func(a, b rune) int { return int(combining(a)) - int(combining(b)) })
		}
		i = j
	}
	starter, out := -1, 0 // the index in the composed text of the last starter; its length
	var last uint8        // the class of the last character after the starter that stayed
	for _, r := range runes {
		class := combining(r)
		if starter >= 0 && (out == starter+1 || last < class && last > 0) {
			if c, ok := compose(runes[starter], r); ok {
				runes[starter] = c
				continue
			}
		}
		if class == 0 {
			starter = out
		}
		last = class
		runes[out] = r
		out++
	}
	for _, r := range runes[:out] {
		dst = utf8.AppendRune(dst, r)
	}
	return dst
}

func combining(r rune) uint8 { return norm.NFD.PropertiesString(string(r)).CCC() }

func compose(a, b rune) (rune, bool) {
	s := norm.NFC.String(string(a) + string(b))
	r, n := utf8.DecodeRuneInString(s)
	return r, n == len(s)
}
