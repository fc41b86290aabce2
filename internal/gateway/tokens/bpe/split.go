package bpe

import (
	"strings"
	"unicode/utf8"
)

// A splitter cuts text into the words within which byte pairs are merged. next returns the end of the word that starts
// at byte i < len(s), where the word before it ended, as the regular expression that the splitter stands for would match it there with Oniguruma's
// rules: the first alternative that matches, greedy, with backtracking. s is valid UTF-8; it ends where the text that
// the expression sees ends, for the expressions look one character ahead. piece starts as 0 for each text and belongs to next.
type splitter struct {
	name string
	next func(t *classTable, s string, i int, piece *int) int
}

// The known patterns, by their exact text. A pattern that only looks alike is refused.
const (
	llamaPattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	qwenPattern  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	o200kPattern = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`

	// DeepSeek V3 cuts three times, each time within the pieces of the time before.
	deepSeekDigits = `\p{N}{1,3}`
	deepSeekHan    = `[一-龥぀-ゟ゠-ヿ]+`
	deepSeekRest   = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)

var (
	llamaSplit = &splitter{"llama", func(t *classTable, s string, i int, _ *int) int { return nextLlama(t, s, i, 3) }}
	qwenSplit  = &splitter{"qwen", func(t *classTable, s string, i int, _ *int) int { return nextLlama(t, s, i, 1) }}
	o200kSplit = &splitter{"o200k", func(t *classTable, s string, i int, _ *int) int { return nextO200k(t, s, i) }}
	gpt2Split  = &splitter{"gpt2", func(t *classTable, s string, i int, _ *int) int { return nextGPT2(t, s, i) }}

	deepSeekSplit = &splitter{"deepseek", nextDeepSeek}
)

// nextLlama is llamaPattern and, with digits 1, qwenPattern.
func nextLlama(t *classTable, s string, i int, digits int) int {
	b := s[i]
	if b == '\'' {
		if e := contraction(s, i); e > 0 {
			return e
		}
	}
	class, n := t.at(s, i)
	switch {
	case class&cLetter != 0:
		return t.run(s, i+n, cLetter)
	case class&cNumber != 0:
		return numbers(t, s, i+n, digits-1)
	}
	if j := i + n; j < len(s) && b != '\r' && b != '\n' {
		next, m := t.at(s, j)
		if next&cLetter != 0 {
			return t.run(s, j+m, cLetter)
		}
		if b == ' ' && next&(cSpace|cNumber) == 0 {
			return newlines(s, others(t, s, j+m), false)
		}
	}
	if class&cSpace != 0 {
		return whiteSpace(t, s, i, true)
	}
	return newlines(s, others(t, s, i+n), false)
}

// nextO200k is o200kPattern.
func nextO200k(t *classTable, s string, i int) int {
	b := s[i]
	class, n := t.at(s, i)
	// The words of letters. A mark may be the optional first character or, if nothing follows that would make it that,
	// a word's own.
	switch {
	case class&cLetter != 0:
		return o200kWord(t, s, i)
	case class&cNumber != 0:
		return numbers(t, s, i+n, 2)
	case b != '\r' && b != '\n':
		if e := o200kWord(t, s, i+n); e > 0 && (class&cMark == 0 || hasLower(t, s, i+n)) {
			return e
		}
		if class&cMark != 0 {
			return o200kWord(t, s, i)
		}
	}
	if j := i + n; b == ' ' && j < len(s) {
		if next, m := t.at(s, j); next&(cSpace|cLetter|cNumber) == 0 {
			return newlines(s, others(t, s, j+m), true)
		}
	}
	if class&cSpace != 0 {
		return whiteSpace(t, s, i, true)
	}
	return newlines(s, others(t, s, i+n), true)
}

const (
	o200kUpper = cUpper | cOther | cMark
	o200kLower = cLower | cOther | cMark
)

// o200kWord returns the end of the word of letters that starts at i, without the optional character before it: first as
// upper* lower+, with backtracking, then as upper+ lower*, either with a contraction. 0: neither matches.
func o200kWord(t *classTable, s string, i int) int {
	upper, last := i, 0 // the end of upper*; the end of the last character in it that is lower, too
	for upper < len(s) {
		class, n := t.at(s, upper)
		if class&o200kUpper == 0 {
			break
		}
		upper += n
		if class&o200kLower != 0 {
			last = upper
		}
	}
	end := t.run(s, upper, o200kLower)
	switch {
	case end > upper: // lower+ goes on from there
	case last > 0: // lower+ needs one character: upper* gives back what comes after the last that will do
		end = last
	case upper > i:
		end = upper // all upper
	default:
		return 0
	}
	if end < len(s) && s[end] == '\'' {
		if e := contraction(s, end); e > 0 {
			return e
		}
	}
	return end
}

// hasLower tells whether upper* lower+ matches at i.
func hasLower(t *classTable, s string, i int) bool {
	for i < len(s) {
		class, n := t.at(s, i)
		if class&o200kLower != 0 {
			return true
		}
		if class&o200kUpper == 0 {
			return false
		}
		i += n
	}
	return false
}

// nextGPT2 is the pattern that a ByteLevel pre-tokenizer uses by itself.
//
//	's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
func nextGPT2(t *classTable, s string, i int) int {
	if s[i] == '\'' {
		if e := contraction(s, i); e > 0 && lowerASCII(s[i+1:e]) {
			return e
		}
	}
	j := i
	if s[i] == ' ' && i+1 < len(s) {
		j++
	}
	class, n := t.at(s, j)
	switch {
	case class&cLetter != 0:
		return t.run(s, j+n, cLetter)
	case class&cNumber != 0:
		return t.run(s, j+n, cNumber)
	case class&cSpace == 0:
		return others(t, s, j+n)
	}
	return whiteSpace(t, s, i, false)
}

func lowerASCII(s string) bool {
	for i := range len(s) {
		if s[i] < 'a' || s[i] > 'z' {
			return false
		}
	}
	return true
}

// contraction returns the end of (?i:'s|'t|'re|'ve|'m|'ll|'d) at the apostrophe at i, 0 if there is none. Without regard
// to case, the long s is an s.
func contraction(s string, i int) int {
	if i+1 >= len(s) {
		return 0
	}
	two := func(second byte) int {
		if i+2 < len(s) && s[i+2]|0x20 == second {
			return i + 3
		}
		return 0
	}
	switch s[i+1] {
	case 's', 't', 'm', 'd', 'S', 'T', 'M', 'D':
		return i + 2
	case 'r', 'v', 'R', 'V':
		return two('e')
	case 'l', 'L':
		return two('l')
	case "\u017f"[0]:
		if strings.HasPrefix(s[i+1:], "\u017f") {
			return i + 3
		}
	}
	return 0
}

// numbers returns the end of up to more characters of class N at i.
func numbers(t *classTable, s string, i, more int) int {
	for ; more > 0 && i < len(s); more-- {
		class, n := t.at(s, i)
		if class&cNumber == 0 {
			break
		}
		i += n
	}
	return i
}

// others returns the end of the run at i of what is neither white space, letter nor number.
func others(t *classTable, s string, i int) int {
	for i < len(s) {
		class, n := t.at(s, i)
		if class&(cSpace|cLetter|cNumber) != 0 {
			break
		}
		i += n
	}
	return i
}

// newlines is [\r\n]*, with slash [\r\n/]*.
func newlines(s string, i int, slash bool) int {
	for i < len(s) && (s[i] == '\n' || s[i] == '\r' || slash && s[i] == '/') {
		i++
	}
	return i
}

// whiteSpace is \s*[\r\n]+|\s+(?!\S)|\s+, without lines only the last two, at a white space at i.
func whiteSpace(t *classTable, s string, i int, lines bool) int {
	end, last, newline := i, i, 0 // the end of the run, the start of its last character, the end of its last line
	for end < len(s) {
		class, n := t.at(s, end)
		if class&cSpace == 0 {
			break
		}
		if s[end] == '\n' || s[end] == '\r' {
			newline = end + 1
		}
		last = end
		end += n
	}
	switch {
	case lines && newline > 0:
		return newline
	case end == len(s) || last == i:
		return end
	}
	return last // the last one belongs to the word that follows
}

// nextDeepSeek is the three patterns of DeepSeek V3 in one: digits and Han with kana are cut out first, and the third
// pattern sees each piece between them as a text of its own. piece is the end of the piece that i is in.
func nextDeepSeek(t *classTable, s string, i int, piece *int) int {
	if i >= *piece {
		class, n := t.at(s, i)
		if class&cNumber != 0 {
			return numbers(t, s, i+n, 2)
		}
		*piece = deepSeekPiece(t, s, i)
	}
	s = s[:*piece]
	for j := i; j < len(s); {
		if e := deepSeekWord(t, s, j); e > 0 {
			if j == i {
				return e
			}
			return j
		}
		_, n := t.at(s, j) // what no alternative matches stays together
		j += n
	}
	return len(s)
}

// deepSeekPiece returns the end of the piece that starts at i: of Han and kana, or of what is neither that nor a number.
func deepSeekPiece(t *classTable, s string, i int) int {
	for isHan := han(s, i); i < len(s); {
		if b := s[i]; b < utf8.RuneSelf {
			if b-'0' <= 9 || isHan {
				break
			}
			i++
			continue
		}
		class, n := t.at(s, i)
		if class&cNumber != 0 || han(s, i) != isHan {
			break
		}
		i += n
	}
	return i
}

// han tells whether the character at i is in the class of deepSeekHan.
func han(s string, i int) bool {
	if s[i] < 0xe3 || s[i] > 0xe9 {
		return false
	}
	r, _ := utf8.DecodeRuneInString(s[i:])
	return 0x4e00 <= r && r <= 0x9fa5 || 0x3040 <= r && r <= 0x30ff
}

// deepSeekWord is deepSeekRest at i, 0 where it does not match.
func deepSeekWord(t *classTable, s string, i int) int {
	const word, sign = cLetter | cMark, cPunct | cSymbol
	b := s[i]
	class, n := t.at(s, i)
	if class&sign != 0 && b < utf8.RuneSelf && i+1 < len(s) && letterASCII(s[i+1]) {
		for i += 2; i < len(s) && letterASCII(s[i]); i++ {
		}
		return i
	}
	if class&word != 0 {
		return t.run(s, i+n, word)
	}
	if class&sign != 0 {
		return newlines(s, t.run(s, i+n, sign), false)
	}
	if j := i + n; j < len(s) && b != '\r' && b != '\n' {
		switch next, m := t.at(s, j); {
		case next&word != 0:
			return t.run(s, j+m, word)
		case b == ' ' && next&sign != 0:
			return newlines(s, t.run(s, j+m, sign), false)
		}
	}
	if class&cSpace != 0 {
		return whiteSpace(t, s, i, true)
	}
	return 0
}

func letterASCII(b byte) bool { return b|0x20-'a' <= 'z'-'a' }
